"""Assignment of nodes to parts and clusters, against plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    """The kernel's graph, and its arrays."""
    both = np.concatenate([src, dst]), np.concatenate([dst, src])
    indptr, indices, _ = _native.coo_to_csr(*both, num_nodes, num_nodes, with_edge_ids=False)
    arrays = _native.undirected(indptr, indices.astype(dtype))
    return _native.UndirectedGraph(*arrays), arrays


@given(graphs())
def test_undirected_adds_up_parallel_edges_and_drops_loops(graph):
    src, dst, num_nodes, _, dtype = graph
    _, (indptr, indices, weights) = native(src, dst, num_nodes, dtype)
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
    handle, _ = native(src, dst, num_nodes, dtype)
    rows = reference.rows_of(src.tolist(), dst.tolist(), num_nodes)
    weights = rng.integers(0, 5, (int(rng.integers(1, 4)), num_nodes)).astype(np.int32)
    totals = weights.sum(axis=1, dtype=np.int64)
    share = np.ceil(totals * (0.7 if tight else 1.2) / num_parts).astype(np.int64)
    capacities = np.repeat(share[:, None], num_parts, axis=1)
    labels = np.full(num_nodes, num_parts, np.int32)
    loads = np.zeros_like(capacities)
    expected = labels.tolist()
    for _ in range(3):
        order = rng.permutation(num_nodes)
        before = labels.copy()
        moved = handle.assign_pass(order, weights, capacities, loads, labels, score)
        assert moved == np.count_nonzero(before != labels)
        found = reference.assign_pass(
            rows, order.tolist(), weights.tolist(), capacities.tolist(), expected, score
        )
        assert labels.tolist() == expected
        assert loads.tolist() == found


@given(graphs(), st.integers(1, 8))
def test_clusters_are_those_of_the_reference(graph, limit):
    src, dst, num_nodes, rng, dtype = graph
    handle, _ = native(src, dst, num_nodes, dtype)
    rows = reference.rows_of(src.tolist(), dst.tolist(), num_nodes)
    weights = rng.integers(1, 4, num_nodes).astype(np.int32)
    labels, loads = np.arange(num_nodes, dtype=dtype), weights.astype(np.int64)
    expected = labels.tolist()
    for _ in range(3):
        order = rng.permutation(num_nodes)
        handle.cluster_pass(order, weights, limit, labels, loads)
        reference.cluster_pass(rows, order.tolist(), weights.tolist(), limit, expected)
        assert labels.tolist() == expected
    assert np.array_equal(loads, np.bincount(labels, weights, num_nodes))


@given(graphs(), st.integers(1, 6))
def test_the_graph_of_clusters_has_all_edges_between_them(graph, num_clusters):
    src, dst, num_nodes, rng, dtype = graph
    handle, _ = native(src, dst, num_nodes, dtype)
    labels = rng.integers(0, num_clusters, num_nodes).astype(dtype)
    indptr, indices, weights = handle.contract(labels, num_clusters)
    _, expected = native(labels[src].astype(np.int64), labels[dst].astype(np.int64), num_clusters)
    for ours, theirs in zip((indptr, indices, weights), expected, strict=True):
        assert ours.tolist() == theirs.tolist()


def test_what_does_not_fit_is_refused():
    src, dst = np.array([0, 1]), np.array([1, 2])
    handle, (indptr, indices, weights) = native(src, dst, 3)
    order, one = np.arange(3), np.ones((1, 3), np.int32)
    room, loads = np.full((1, 2), 3), np.zeros((1, 2), np.int64)
    labels = np.full(3, 2, np.int32)
    good = [order, one, room, loads, labels, "ldg"]
    for place, wrong in (
        (0, np.array([3])),
        (1, -one),
        (1, one[:, :2].copy()),
        (2, room[:, :1].copy()),
        (3, np.zeros((2, 2), np.int64)),
        (4, np.full(3, 3, np.int32)),
        (4, np.full(3, -1, np.int32)),
        (5, "best"),
    ):
        with pytest.raises(ValueError, match=r"do not fit|order names|no part|no such score"):
            handle.assign_pass(*good[:place], wrong, *good[place + 1 :])
    for wrong in (np.array([0, 1, 3]), np.array([0, 1, -1])):
        with pytest.raises(ValueError, match="no cluster"):
            handle.contract(wrong, 3)
        with pytest.raises(ValueError, match="no cluster"):
            handle.cluster_pass(order, one[0], 3, wrong, np.zeros(3, np.int64))
    for damaged in (
        (indptr[::-1].copy(), indices, weights),
        (indptr, indices + 9, weights),
        (indptr, indices, weights[:-1].copy()),
        (indptr[:0].copy(), indices, weights),
    ):
        with pytest.raises(ValueError, match=r"corrupt|indptr|do not fit"):
            _native.UndirectedGraph(*damaged).contract(np.zeros(3, np.int64), 1)
    with pytest.raises(ValueError, match="does not fit"):
        _native.undirected(np.array([0, 3]), np.array([0]))
