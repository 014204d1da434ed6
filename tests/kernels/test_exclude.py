"""Excluded pairs: a batch without them is a batch of the graph without their edges."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native
from support.kernels import cases, hop_calls, runs
from support.kernels.shared_rows import draw, shared_rows
from support.reference.statistics import assert_true_hypotheses, p_of_outcomes

RUN = _native.run_key(10, 0, 0)


def without(relation, pairs):
    """An edge type less all edges of some pairs, and the numbers of those that are left."""
    rows = np.repeat(np.arange(relation.num_rows), np.diff(relation.indptr))
    places = zip((rows + relation.first_row).tolist(), relation.indices.tolist(), strict=True)
    keep = np.array([place not in pairs for place in places], bool)
    counts = np.bincount(rows[keep], minlength=relation.num_rows)
    kept = cases.Relation(
        relation.source,
        relation.destination,
        np.concatenate([[0], np.cumsum(counts)]),
        relation.indices[keep],
        relation.row_ids,
        None if relation.times is None else relation.times[keep],
        neighbor_ids=None if relation.neighbor_ids is None else relation.neighbor_ids[keep],
        first_row=relation.first_row,
    )
    return kept, relation.first_edge + np.flatnonzero(keep)


@cases.examples(150)
@given(cases.graphs(), st.booleans(), st.data())
def test_equals_the_graph_without_the_edges(graph, disjoint, data):
    """Bit for bit, in every hop and tree and for all parallel edges; weights are another scale."""
    seeds, options = data.draw(cases.batches(graph, disjoint))
    options.weighted = [False] * len(graph.relations)
    options.reversals = ()
    kept = [without(r, options.excluded.get(i, ())) for i, r in enumerate(graph.relations)]
    less = cases.Graph(
        graph.counts, graph.bases, graph.num_nodes, [relation for relation, _ in kept]
    )
    subgraph = graph.subgraph(disjoint)
    runs.at_once(subgraph, graph.csrs(), seeds, options)
    got = runs.read(subgraph, graph, options)
    excluded, options.excluded = options.excluded, {}
    runs.at_once(subgraph, less.csrs(), seeds, options)
    want = runs.read(subgraph, less, options)
    want.edges = [
        [(row, col, int(numbers[edge])) for row, col, edge in edges]
        for edges, (_, numbers) in zip(want.edges, kept, strict=True)
    ]
    assert got == want
    for r, (source, destination) in enumerate(graph.pairs()):
        for row, col, _ in got.edges[r]:
            ends = got.nodes[destination][col], got.nodes[source][row]
            assert ends not in excluded.get(r, ())


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_uniform_over_the_rest(replace, last):
    """Every subset of what is left is as likely; of the latest, of the last that are left."""
    graph, ids = shared_rows(8000, 9, times=np.arange(9))
    ps = []
    for i, hidden in enumerate(([0], [8], [4], [0, 1, 8], [1, 3, 5, 7], [2, 3, 4, 5, 6])):
        left = [j for j in range(9) if j not in hidden]
        key = _native.step_key(RUN, i, int(last), 0)
        drawn = draw(graph, ids, 3, replace, key, hidden, last=last)
        if last:
            left = left[-3:]
        if replace:
            outcomes = list(itertools.product(left, repeat=2))
            drawn = drawn[:, :2]
        else:
            outcomes = list(itertools.combinations(left, 3))
            drawn = np.sort(drawn, axis=1)
        chances = dict.fromkeys(outcomes, 1 / len(outcomes))
        ps.append(p_of_outcomes(list(map(tuple, drawn.tolist())), chances))
    if last and not replace:
        assert ps == [1.0] * 6  # nothing is left to chance
    else:
        assert_true_hypotheses(ps)


def test_all_parallel_edges_and_only_that_direction():
    """0 has the edges (1, 1, 0, 1, 2); without its edges from 1, two are left, a loop among them.

    The pair (1, 0) is another one, and so are pairs of the other edge type.
    """
    graph = _native.Csr(np.array([0, 5, 6, 6]), np.array([1, 1, 0, 1, 2, 0]))
    batch = _native.Subgraph([3], [(0, 0), (0, 0)], True)

    def edges(*pairs):
        batch.begin()
        batch.add_seeds(0, np.array([0]))
        for relation, row, neighbor in pairs:
            batch.exclude(relation, np.array([row]), np.array([neighbor]))
        hop_calls.sample(batch, [graph] * 2, [[-1]] * 2, False, [False] * 2, False, 1, 1)
        out = [np.empty(batch.num_edges(r), np.int64) for r in range(2)]
        for r in range(2):
            batch.write_edges(r, out[r])
        return [a.tolist() for a in out]

    everything = [0, 1, 2, 3, 4]
    assert edges((0, 0, 1)) == [[2, 4], everything]
    assert edges() == [everything, everything]  # forgotten with the batch
    assert edges((0, 1, 0), (1, 2, 0)) == [everything, everything]
    assert edges((0, 0, 0), (1, 0, 2), (0, 0, 0), (0, 0, 1)) == [[4], [0, 1, 2, 3]]
    assert edges((0, 0, 0), (0, 0, 1), (0, 0, 2)) == [[], everything]


def test_many_pairs_of_many_rows():
    """20,000 rows of which each third is excluded beside pairs that do not exist."""
    n = 20_000
    graph = _native.Csr(np.arange(n + 1) * 2, np.repeat(np.arange(n), 2) ^ np.tile([0, 1], n))
    rows = np.arange(0, n, 3)
    pairs = np.concatenate([rows, rows, rows + n]), np.concatenate([rows, rows + n, rows])
    counts, neighbors, _ = hop_calls.sample_rows(
        graph, np.arange(n), -1, False, 1, False, excluded=pairs
    )
    assert counts.tolist() == [1 if i % 3 == 0 else 2 for i in range(n)]
    want = [v for i in range(n) for v in ((i ^ 1,) if i % 3 == 0 else (i, i ^ 1))]
    assert neighbors.tolist() == want


@pytest.mark.parametrize("width", [np.int32, np.int64])
@pytest.mark.parametrize("num_pairs", [1, 8, 9, 60])
def test_long_rows(num_pairs, width):
    """1,000 entries of 300 neighbours, each several times, whatever the number of pairs.

    Pairs that do not exist agree with others in their lower 32 bits.
    """
    rng = np.random.default_rng(num_pairs)
    indices = rng.integers(0, 300, 1000)
    hidden = rng.permutation(300)[:num_pairs]
    keep = np.flatnonzero(~np.isin(indices, hidden))
    node, numbers = np.zeros(1, np.int64), np.arange(1000)
    graph = _native.Csr(np.array([0, 1000]), indices.astype(width))
    rest = _native.Csr(np.array([0, len(keep)]), indices[keep])
    absent = np.setdiff1d(numbers[:300], hidden)[: 8 - num_pairs] + 2**32 if num_pairs < 8 else []
    neighbors = np.concatenate([hidden, absent]).astype(np.int64)
    pairs = np.zeros(len(neighbors), np.int64), neighbors
    for count, replace in ((-1, False), (7, False), (60, False), (7, True)):
        options = count, replace, 3, True
        _, drawn, edges = hop_calls.sample_rows(graph, node, *options, excluded=pairs)
        _, want, places = hop_calls.sample_rows(rest, node, *options)
        assert np.array_equal(drawn, want)
        assert np.array_equal(edges, keep[places])
