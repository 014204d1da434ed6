"""Induced subgraphs: all edges among the nodes of a batch, by NumPy and NetworkX."""

import networkx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native
from support.kernels import cases, hop_calls, runs


@cases.examples(150)
@given(cases.graphs(), st.booleans(), st.data())
def test_all_edges_among_the_nodes(graph, disjoint, data):
    """Every edge whose two ends are in one tree and that the tree may see, and no other."""
    seeds, options = data.draw(cases.batches(graph, disjoint))
    options.induced, options.reversals, options.with_edges = True, (), True
    subgraph = graph.subgraph(disjoint)
    runs.at_once(subgraph, graph.csrs(), seeds, options)
    got = runs.read(subgraph, graph, options)
    times = [t for _, ids, given in seeds for t in (given or [None] * len(ids))]
    for r, relation in enumerate(graph.relations):
        source, destination = relation.source, relation.destination
        ends = np.repeat(np.arange(relation.num_rows), np.diff(relation.indptr))
        rows = ends + relation.first_row
        want = []
        members = zip(got.trees[destination], got.nodes[destination], strict=True)
        for col, (tree, node) in enumerate(members):
            in_tree = np.array(got.trees[source]) == tree
            inside = np.isin(relation.indices, np.array(got.nodes[source])[in_tree])
            keep = (rows == node) & inside
            if disjoint and relation.times is not None and times[tree] is not None:
                keep &= relation.times <= times[tree]
            hidden = [u for v, u in options.excluded.get(r, ()) if v == node]
            keep &= ~np.isin(relation.indices, np.array(hidden, np.int64))
            want += [(col, relation.first_edge + int(e)) for e in np.flatnonzero(keep)]
        assert [(col, edge) for _, col, edge in got.edges[r]] == want
        for row, col, edge in got.edges[r]:
            assert got.nodes[source][row] == relation.indices[edge - relation.first_edge]
            assert got.trees[source][row] == got.trees[destination][col]


@pytest.mark.parametrize("seed", range(5))
def test_equals_networkx(seed):
    """The subgraph of a directed multigraph that its nodes induce, loops and parallels included."""
    rng = np.random.default_rng(seed)
    n, e = 60, 400
    src, dst = rng.integers(0, n, (2, e))
    indptr, indices, order = _native.coo_to_csr(dst, src, n, n)
    graph = _native.Csr(indptr, indices)
    batch = _native.Subgraph([n], [(0, 0)], True)
    batch.begin()
    batch.add_seeds(0, rng.permutation(n)[:3])
    hop_calls.sample(batch, [graph], [[3, 2]], False, [False], False, 1, seed)
    batch.induce([graph])
    nodes = batch.members(0)[0]
    row, col, edge = np.empty((3, batch.num_edges(0)), np.int64)
    batch.write_edge_index(0, row, col)
    batch.write_edges(0, edge)
    whole = networkx.MultiDiGraph()
    whole.add_edges_from(zip(src.tolist(), dst.tolist(), range(e), strict=True))
    induced = whole.subgraph(nodes.tolist())
    got = zip(nodes[row].tolist(), nodes[col].tolist(), order[edge].tolist(), strict=True)
    assert sorted(got) == sorted(induced.edges(keys=True))


def test_duplicate_seeds_have_the_same_edges():
    """0 <-> 1, and seeds 0, 1, 0: edges end at each seed and begin at the first of equal ones."""
    graph = _native.Csr(np.array([0, 1, 2]), np.array([1, 0]))
    batch = _native.Subgraph([2], [(0, 0)], True)
    batch.begin()
    batch.add_seeds(0, np.array([0, 1, 0]))
    batch.induce([graph])
    row, col, edge = np.empty((3, batch.num_edges(0)), np.int64)
    batch.write_edge_index(0, row, col)
    batch.write_edges(0, edge)
    assert (row.tolist(), col.tolist(), edge.tolist()) == ([1, 0, 1], [0, 1, 2], [0, 1, 0])
    assert batch.edges_per_hop(0) == [3]


def test_members_from_elsewhere():
    """Keys are looked up in full: an id 2^32 away is another node, whoever says so."""
    columns = np.array([5, 5 + 2**32, 7])
    graph = _native.Csr(np.array([0, 3]), columns)
    zero = np.zeros(1, np.int64)
    for num_nodes in (10, 2**31, 2**34):
        counts, numbers, edges = _native.induce_rows(
            graph, zero, np.array([9, 5, 5]), num_nodes, True
        )
        assert (counts.tolist(), numbers.tolist(), edges.tolist()) == ([1], [1], [0])
    counts, _, edges = _native.induce_rows(graph, zero, np.empty(0, np.int64), 10, False)
    assert (counts.tolist(), edges) == ([0], None)
    # Of two trees, each finds its own: keys are the tree's number, then 4 bits of id.
    keys = np.array([1 << 4 | 5, 5, 1 << 4 | 7])
    two = np.zeros(2, np.int64)
    trees = np.array([0, 1], np.int32)
    got = _native.induce_rows(graph, two, keys, 10, True, True, trees)
    assert [a.tolist() for a in got] == [[1, 2], [1, 0, 2], [0, 0, 2]]


def test_a_long_row_among_many_nodes():
    """A hub of 10^5 neighbours, every third of which is in the batch."""
    n = 10**5
    graph = _native.Csr(np.array([0, n]), np.arange(n, dtype=np.int32))
    members = np.arange(0, n, 3)
    counts, numbers, edges = _native.induce_rows(graph, np.zeros(1, np.int64), members, n, True)
    assert counts.tolist() == [len(members)]
    assert np.array_equal(edges, members)
    assert np.array_equal(numbers, np.arange(len(members)))


@given(st.data())
def test_rows_in_many_trees(data):
    """Rows of nodes in some trees, whatever keys the members have: as looked up one by one.

    Rows and members may repeat, members be of no node, or of trees that no row is in.
    """
    n = data.draw(st.integers(1, 8))
    degrees = data.draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    columns = np.array(data.draw(st.lists(st.integers(0, n - 1), **exactly(indptr[-1]))), np.int64)
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, 5))
    rows = data.draw(st.lists(pairs, max_size=30))
    others = st.tuples(st.integers(0, n + 1), st.sampled_from([*range(6), 2**40]))
    bits = (n - 1).bit_length()
    keys = [t << bits | u for u, t in data.draw(st.lists(others, max_size=30)) if u < 1 << bits]
    want = [
        (i, keys.index(t << bits | int(columns[e])), e)
        for i, (v, t) in enumerate(rows)
        for e in range(indptr[v], indptr[v + 1])
        if t << bits | int(columns[e]) in keys
    ]
    ids, trees = np.array(rows, np.int64).reshape(-1, 2).T
    counts, numbers, edges = _native.induce_rows(
        _native.Csr(indptr, columns),
        np.ascontiguousarray(ids),
        np.array(keys, np.int64),
        n,
        True,
        True,
        trees.astype(np.int32),
    )
    found = zip(np.repeat(np.arange(len(rows)), counts).tolist(), numbers, edges, strict=True)
    assert [tuple(map(int, edge)) for edge in found] == want


def exactly(count):
    """Sizes of a list for hypothesis."""
    return {"min_size": int(count), "max_size": int(count)}
