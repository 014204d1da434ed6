"""Assignment of nodes to parts and clusters, against plain Python."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native
from support.reference import assign as reference


@st.composite
def graphs(draw):
    """Up to 25 nodes, with loops and parallel edges; some nodes have no edge."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_nodes = draw(st.integers(1, 25))
    count = draw(st.integers(0, 80))
    src, dst = rng.integers(0, num_nodes, (2, count))
    return src, dst, num_nodes, rng, draw(st.sampled_from([np.int32, np.int64]))


def native(src, dst, num_nodes, dtype=np.int64):
    """The arrays of the kernels' graph."""
    both = np.concatenate([src, dst]), np.concatenate([dst, src])
    indptr, indices, _ = _native.coo_to_csr(*both, num_nodes, num_nodes, with_edge_ids=False)
    return _native.undirected(indptr, indices.astype(dtype))


def visits(arrays, rng):
    """Two blocks of rows, each with the order in which its nodes are visited."""
    indptr, indices, weights = arrays
    num_nodes = len(indptr) - 1
    middle = int(rng.integers(num_nodes + 1))
    for first, last in ((middle, num_nodes), (0, middle)):
        entries = slice(indptr[first], indptr[last])
        rows = _native.UndirectedRows(
            first, indptr[first : last + 1] - indptr[first], indices[entries], weights[entries]
        )
        yield rows, first + rng.permutation(last - first)


@given(graphs())
def test_undirected_adds_up_parallel_edges_and_drops_loops(graph):
    src, dst, num_nodes, _, dtype = graph
    indptr, indices, weights = native(src, dst, num_nodes, dtype)
    assert indices.dtype == dtype
    rows = reference.rows_of(src.tolist(), dst.tolist(), num_nodes)
    for v, row in enumerate(rows):
        entries = slice(indptr[v], indptr[v + 1])
        found = list(zip(indices[entries].tolist(), weights[entries].tolist(), strict=True))
        assert found == sorted(row.items())


@given(graphs(), st.sampled_from(["ldg", "fennel", "cut"]), st.integers(1, 5), st.booleans())
def test_passes_put_nodes_where_the_reference_does(graph, score, num_parts, tight):
    """Several constraints, of which nodes may weigh nothing; capacities that are exceeded."""
    src, dst, num_nodes, rng, dtype = graph
    arrays = native(src, dst, num_nodes, dtype)
    rows = reference.rows_of(src.tolist(), dst.tolist(), num_nodes)
    edges = src[src != dst]
    weights = rng.integers(0, 5, (int(rng.integers(1, 4)), num_nodes)).astype(np.int32)
    totals = weights.sum(axis=1, dtype=np.int64)
    share = np.ceil(totals * (0.7 if tight else 1.2) / num_parts).astype(np.int64)
    capacities = np.repeat(share[:, None], num_parts, axis=1)
    labels = np.full(num_nodes, num_parts, np.int32)
    loads = np.zeros_like(capacities)
    expected = labels.tolist()
    for _ in range(3):
        before, order = labels.copy(), []
        turn = _native.AssignPass(weights, capacities, loads, labels, score, len(edges))
        moved = 0
        for block, nodes in visits(arrays, rng):
            moved += turn.visit(block, nodes)
            order += nodes.tolist()
        assert moved == np.count_nonzero(before != labels)
        found = reference.assign_pass(
            rows, order, weights.tolist(), capacities.tolist(), expected, score
        )
        assert labels.tolist() == expected
        assert loads.tolist() == found


@given(graphs(), st.integers(1, 8))
def test_clusters_are_those_of_the_reference(graph, limit):
    src, dst, num_nodes, rng, dtype = graph
    arrays = native(src, dst, num_nodes, dtype)
    rows = reference.rows_of(src.tolist(), dst.tolist(), num_nodes)
    weights = rng.integers(1, 4, num_nodes).astype(np.int32)
    labels, loads = np.arange(num_nodes, dtype=dtype), weights.astype(np.int64)
    expected = labels.tolist()
    for _ in range(3):
        turn, order = _native.ClusterPass(weights, limit, labels, loads), []
        for block, nodes in visits(arrays, rng):
            turn.visit(block, nodes)
            order += nodes.tolist()
        reference.cluster_pass(rows, order, weights.tolist(), limit, expected)
        assert labels.tolist() == expected
    assert np.array_equal(loads, np.bincount(labels, weights, num_nodes))


def test_what_does_not_fit_is_refused():
    src, dst = np.array([0, 1]), np.array([1, 2])
    indptr, indices, weights = native(src, dst, 3)
    rows = _native.UndirectedRows(0, indptr, indices, weights)
    one = np.ones((1, 3), np.int32)
    room, loads = np.full((1, 2), 3), np.zeros((1, 2), np.int64)
    labels = np.full(3, 2, np.int32)
    good = [one, room, loads, labels, "ldg", 2]
    for place, wrong in (
        (0, -one),
        (0, one[:, :2].copy()),
        (1, room[:, :1].copy()),
        (2, np.zeros((2, 2), np.int64)),
        (3, np.full(3, 3, np.int32)),
        (3, np.full(3, -1, np.int32)),
        (4, "best"),
    ):
        with pytest.raises(ValueError, match=r"do not fit|no part|no such score"):
            _native.AssignPass(*good[:place], wrong, *good[place + 1 :])
    for wrong in (np.array([0, 1, 3]), np.array([0, 1, -1])):
        with pytest.raises(ValueError, match="no cluster"):
            _native.ClusterPass(one[0], 3, wrong, np.zeros(3, np.int64))
    clusters = _native.ClusterPass(one[0], 3, np.arange(3), np.ones(3, np.int64))
    for turn in (_native.AssignPass(*good), clusters):
        for order in (np.array([3]), np.array([-1])):
            with pytest.raises(ValueError, match="order names a node that has no row"):
                turn.visit(rows, order)
        for first, *damaged in (
            (0, indptr[::-1].copy(), indices, weights),
            (0, indptr, indices + 9, weights),
            (0, indptr, indices, weights[:-1].copy()),
            (0, indptr, indices, -weights),
            (0, indptr[:0].copy(), indices, weights),
            (1, indptr, indices, weights),
            (-1, indptr, indices, weights),
        ):
            with pytest.raises(ValueError, match=r"corrupt|not those of"):
                turn.visit(_native.UndirectedRows(first, *damaged), np.arange(0))
    with pytest.raises(TypeError, match="differ in dtype"):
        clusters.visit(
            _native.UndirectedRows(0, indptr, indices.astype(np.int32), weights), np.arange(3)
        )
    with pytest.raises(ValueError, match="does not fit"):
        _native.undirected(np.array([0, 3]), np.array([0]))
