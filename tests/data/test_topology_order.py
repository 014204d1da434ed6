"""Rows in the order of time, and the weights of their edges."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from khop import _native
from khop.data import Topology
from khop.data.times import time_keys

EDGES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(-2, 2)), max_size=30
).map(lambda edges: np.array(edges, np.int64).reshape(-1, 3).T)


def check_order(topology, keys, neighbors, times, weights=None):
    """Each row lists its edges by (time, place in the edge list)."""
    order = sorted(range(len(keys)), key=lambda e: (keys[e], times[e], e))
    ids = np.arange(len(keys)) if topology.edge_ids is None else topology.edge_ids
    assert ids.tolist() == order
    assert topology.indices.tolist() == neighbors[order].tolist()
    assert topology.times.tolist() == times[order].tolist()
    assert topology.csr().has_times
    if weights is not None:
        sums, guide = _native.weight_table(topology.indptr, weights[order])
        assert np.array_equal(topology.weight_sums, sums)
        assert np.array_equal(topology.weight_guide, guide)
        assert topology.csr().has_weights


@given(EDGES, st.booleans())
def test_times_of_edges(edges, with_weights):
    src, dst, time = edges
    weights = np.arange(len(src)) % 3.0
    for edge_dir, keys, neighbors in (("in", dst, src), ("out", src, dst)):
        topology = Topology(
            (src, dst),
            num_src=5,
            edge_dir=edge_dir,
            edge_time=time,
            weights=weights if with_weights else None,
        )
        check_order(topology, keys, neighbors, time, weights if with_weights else None)


@given(EDGES, st.lists(st.integers(-2, 2), min_size=5, max_size=5).map(np.array))
def test_times_of_nodes(edges, node_time):
    """An edge has the time of the neighbour that it leads to."""
    src, dst, _ = edges
    for edge_dir, keys, neighbors in (("in", dst, src), ("out", src, dst)):
        topology = Topology((src, dst), num_src=5, edge_dir=edge_dir, node_time=node_time)
        check_order(topology, keys, neighbors, node_time[neighbors])


def test_by_hand():
    """0 <- 1 (t 7), 2 (t 5), 3 (t 5): 2 and 3 before 1, in the order of the list."""
    edges = torch.tensor([[1, 2, 3], [0, 0, 0]])
    topology = Topology(edges, edge_time=torch.tensor([7.5, 5.5, 5.5]), edge_ids=[10, 11, 12])
    assert topology.indices.tolist() == [2, 3, 1]
    assert topology.edge_ids.tolist() == [11, 12, 10]
    assert topology.times.tolist() == time_keys([5.5, 5.5, 7.5]).tolist()


def test_compressed_rows_are_sorted_too():
    indptr, indices = torch.tensor([0, 3, 4]), torch.tensor([1, 0, 1, 0])
    options = {"edge_time": [3, 1, 2, 0], "weights": [1.0, 0.0, 3.0, 1.0]}
    topology = Topology((indptr, indices), input_layout="CSC", **options)
    assert topology.indices.tolist() == [0, 1, 1, 0]
    assert topology.edge_ids.tolist() == [1, 2, 0, 3]
    assert np.diff(topology.weight_sums[:3].astype(object)).tolist() == [3 * 2**60, 2**60]
    assert indices.tolist() == [1, 0, 1, 0]  # the user's own array
    given_order = Topology((indptr, indices), input_layout="CSC", edge_time=[1, 1, 2, 0])
    assert given_order.edge_ids is None


def test_without_times_and_weights():
    topology = Topology(torch.tensor([[1], [0]]))
    assert (topology.times, topology.weight_sums, topology.weight_guide) == (None, None, None)
    wrapped = Topology.compressed(topology.indptr, topology.indices, 2)
    assert (wrapped.times, wrapped.weight_sums, wrapped.weight_guide) == (None, None, None)


def test_arrays_that_are_sorted_already_are_wrapped():
    built = Topology(torch.tensor([[1, 0], [0, 0]]), edge_time=[1, 0], weights=[0.5, 0.25])
    wrapped = Topology.compressed(
        built.indptr,
        built.indices,
        2,
        built.edge_ids,
        times=built.times,
        weight_sums=built.weight_sums,
        weight_guide=built.weight_guide,
    )
    assert wrapped.csr().has_times
    assert wrapped.csr().has_weights
    assert wrapped.times is built.times


def test_is_sorted_is_believed_and_checked():
    edges = torch.tensor([[3, 0, 1], [0, 0, 2]])
    topology = Topology(edges, edge_time=[1, 1, 0], is_sorted=True)
    assert topology.edge_ids is None
    assert topology.times.tolist() == [1, 1, 0]
    with pytest.raises(ValueError, match="neighbours of node 0 are not in ascending order"):
        Topology(edges, edge_time=[2, 1, 0], is_sorted=True)
    with pytest.raises(ValueError, match=r"edge 1 \(dst 0\) comes after dst 2"):
        Topology(edges[:, [2, 0, 1]], is_sorted=True)
    with pytest.raises(ValueError, match=r"edge 1 \(src 0\) comes after src 3"):
        Topology(edges, is_sorted=True, edge_dir="out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edge_time": [1, 2]}, "edge_time has 2 entries for 3 edges"),
        ({"node_time": [1, 2]}, "node_time has 2 entries for 4 nodes"),
        ({"edge_time": [1, 2, 3], "node_time": [1, 2, 3, 4]}, "pass one of them"),
        ({"edge_time": [1, math.nan, 3]}, "edge_time holds nan at position 1"),
        ({"weights": [1.0]}, "1 weights for 3 edges"),
        ({"weights": [1.0, -2.0, 1.0]}, "weights holds -2.0 at position 1"),
        ({"weights": [1e308, 1e308, 1.0]}, "row 0: its weights add up"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        Topology(torch.tensor([[3, 0, 1], [0, 0, 2]]), **options)
