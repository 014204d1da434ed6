"""Disjoint batches: every seed is the root of a tree of its own, which draws by itself.

  2              2        2
 / \\     not    / \\     / \\      of the seeds 0 and 1, each joined to 2
0   1          0         1
"""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from khop import _native
from support.kernels import cases, hop_calls, runs
from support.kernels.shared_rows import draw, shared_rows
from support.reference.statistics import assert_true_hypotheses

RUN = _native.run_key(9, 0, 0)


def joined():
    return _native.Csr(np.array([0, 1, 2, 2]), np.array([2, 2]))


def begin(seeds, num_nodes, relations=((0, 0),)):
    batch = _native.Subgraph(num_nodes, list(relations), True, True)
    batch.begin()
    for node_type, ids in seeds:
        batch.add_seeds(node_type, np.array(ids, np.int64))
    return batch


def test_nodes_are_the_same_within_a_tree_only():
    batch = begin([(0, [0, 1, 0])], [3])
    hop_calls.sample(batch, [joined()], [[-1]], False, [False], False, 1, 1)
    ids, trees, times = batch.members(0)
    assert ids.tolist() == [0, 1, 0, 2, 2, 2]
    assert trees.tolist() == [0, 1, 2, 0, 1, 2]
    assert trees.dtype == np.int32
    assert times is None
    row, col = np.empty((2, 3), np.int64)
    batch.write_edge_index(0, row, col)
    assert (row.tolist(), col.tolist()) == ([3, 4, 5], [0, 1, 2])


def test_trees_are_counted_over_all_seeds():
    """Two node types, three calls: tree 2 begins with a node of type 1, tree 3 of type 0."""
    batch = begin([(0, [1, 0]), (1, [5]), (0, [1])], [3, 9], [(0, 0), (0, 1)])
    assert batch.frontier(0)[1].tolist() == [0, 1, 3]
    assert batch.frontier(1)[1].tolist() == [2]
    assert batch.nodes_per_hop(0) == [3]
    out = np.empty(3, np.int64)
    batch.write_trees(0, out)
    assert out.tolist() == [0, 1, 3]
    into = _native.Csr(np.array([0, 0, 0, 0, 0, 0, 2]), np.array([0, 2]))
    hop_calls.sample(batch, [joined(), into], [[-1], [-1]], False, [False] * 2, False, 1, 1)
    ids, trees, _ = batch.members(0)
    assert list(zip(ids.tolist(), trees.tolist(), strict=True))[3:] == [
        (2, 0),  # 1 -> 2 of tree 0
        (2, 1),
        (2, 3),
        (0, 2),  # found from the seed of type 1
        (2, 2),
    ]


@cases.examples(150)
@given(st.data())
def test_the_first_tree_is_the_batch_of_its_seed_alone(data):
    """What tree 0 draws is what its seed draws in a batch of one that is not disjoint."""
    graph = data.draw(cases.graphs())
    seeds, options = data.draw(cases.batches(graph, False))
    first = next(((t, ids[:1], None) for t, ids, _ in seeds if ids), None)
    if first is None:
        return
    csrs, alone, together = graph.csrs(), graph.subgraph(False), graph.subgraph(True)
    options.induced, options.reversals = False, ()
    runs.at_once(alone, csrs, [first], options)
    runs.at_once(together, csrs, seeds, options)
    one = runs.read(alone, graph, options)
    many = runs.read(together, graph, options)
    for ids, all_ids, trees in zip(one.nodes, many.nodes, many.trees, strict=True):
        assert [v for v, tree in zip(all_ids, trees, strict=True) if tree == 0] == ids
    for (source, destination), edges, all_edges in zip(
        graph.pairs(), one.edges, many.edges, strict=True
    ):
        assert [e[2] for e in edges] == [
            edge for _, col, edge in all_edges if many.trees[destination][col] == 0
        ]
        # Edges join nodes of one tree.
        for row, col, _ in all_edges:
            assert many.trees[source][row] == many.trees[destination][col]


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0, 4.0, 0.0, 5.0, 6.0, 7.0]])
@pytest.mark.parametrize("trees", [(0, 1), (0, 2**31 - 1), (1, 2), (5, 6), (1, 2**16 + 1)])
def test_trees_draw_independently(trees, weights):
    """The same nodes in two trees: joint table of their draws, and both are drawn alike."""
    graph, ids = shared_rows(8000, 8, weights)
    ps = []
    for replace in (False, True):
        a, b = (
            draw(
                *(graph, ids, 3, replace, _native.step_key(RUN, 1, 0, 0)),
                weighted=weights is not None,
                trees=np.full(8000, tree, np.int32),
            )
            for tree in trees
        )
        assert (a != b).any()
        for i, j in ((0, 0), (0, 2), (1, 1)):
            table = np.histogram2d(a[:, i], b[:, j], bins=8, range=((0, 8), (0, 8)))[0]
            table = table[table.any(1)][:, table.any(0)]
            ps.append(stats.chi2_contingency(table).pvalue)
            merged = np.stack([np.bincount(x[:, i], minlength=8) for x in (a, b)])
            ps.append(stats.chi2_contingency(merged[:, merged.any(0)]).pvalue)
    assert min(ps) > 1e-4 / len(ps)


def test_inclusion_is_uncorrelated_along_trees():
    """One node in 20,000 trees: autocorrelation of one neighbour's inclusion, lags 1 to 20."""
    graph, _ = shared_rows(1, 8)
    nodes, trees = np.zeros(20_000, np.int64), np.arange(20_000, dtype=np.int32)
    ps = []
    for key in range(8):
        drawn = draw(graph, nodes, 2, False, key, trees=trees)
        inside = (drawn == 3).any(1) - 0.25
        n = len(inside)
        q = sum((inside[lag:] @ inside[:-lag] / (inside @ inside)) ** 2 for lag in range(1, 21)) * n
        ps.append(stats.chi2.sf(q, 20))
        ps.append(stats.chisquare(np.bincount(drawn[:, 0], minlength=8)[:7]).pvalue)
    assert_true_hypotheses(ps)


@pytest.mark.parametrize("num_nodes", [2**20, 2**32 - 2, 2**32, 2**40, 2**53])
def test_wide_ids(num_nodes):
    """A ring at the end of the id space: whatever the width of ids and trees, the same batch.

    Trees and ids share a word, the first 32 bits of which do for small batches of small graphs.
    """
    n, rng = 9, np.random.default_rng(1)
    first = num_nodes - n
    indices = np.array([[(i + 1) % n, (i + 4) % n, (i + 5) % n] for i in range(n)]).ravel()
    ids = rng.permutation(100)[:n]
    seeds = rng.integers(0, n, 500)

    def drawn(base, size):
        graph = _native.Csr(np.arange(n + 1) * 3, indices + base, ids, first_row=base)
        batch = begin([(0, seeds + base)], [size])
        hop_calls.sample(batch, [graph], [[2, 2, 2]], False, [False], False, 5, 6)
        nodes, trees, _ = batch.members(0)
        row, col = np.empty((2, batch.num_edges(0)), np.int64)
        batch.write_edge_index(0, row, col)
        return [a.tolist() for a in (nodes - base, trees, row, col)]

    got = drawn(first, num_nodes)
    assert got == drawn(0, n)
    assert len(set(zip(*got[:2], strict=True))) == len(got[0])


def test_batches_of_growing_and_shrinking_size():
    """Between 1 and 3,000 trees of a graph of 2^21 nodes keys are 32 bits wide, then more."""
    n = 2**21
    row = np.array([n - 1, n - 2])
    graph = _native.Csr(np.array([0, 2]), row, first_row=n - 1)
    batch = _native.Subgraph([n], [(0, 0)], True, True)
    for size in (1, 3000, 2047, 2048, 1, 2049):
        batch.begin()
        # In two calls: the table changes its width when the second comes.
        batch.add_seeds(0, np.full(1, n - 1))
        batch.add_seeds(0, np.full(size - 1, n - 1))
        hop_calls.sample(batch, [graph], [[-1]], False, [False], False, 5, 6)
        ids, trees, _ = batch.members(0)
        assert ids.tolist() == [n - 1] * size + [n - 2] * size
        assert trees.tolist() == list(range(size)) * 2
        sources = np.empty((2, 2 * size), np.int64)
        batch.write_edge_index(0, *sources)
        assert sources[0].reshape(size, 2).tolist() == [[i, size + i] for i in range(size)]
