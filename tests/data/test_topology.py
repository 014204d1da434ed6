"""Compressed rows from edge lists and from compressed arrays, in both directions."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from khop.data import Graph, Topology
from support.reference import oracle

_EDGES = torch.tensor([[3, 0, 1, 0, 3], [1, 1, 0, 2, 1]])


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30))
def test_rows_are_destinations_or_sources(edges):
    """'in' compresses by destination, 'out' by source; edge ids lead back to the edge list."""
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    for edge_dir, keys, neighbors in (("in", dst, src), ("out", src, dst)):
        topology = Topology((src, dst), num_src=7, edge_dir=edge_dir)
        indptr, indices, ids = oracle.csr(keys, neighbors, 7)
        assert np.array_equal(topology.indptr, indptr)
        assert np.array_equal(topology.indices, indices)
        if topology.edge_ids is None:
            assert np.array_equal(ids, np.arange(len(ids)))
        else:
            assert np.array_equal(topology.edge_ids, ids)
        assert (topology.num_rows, topology.num_edges) == (7, len(edges))


@pytest.mark.parametrize("make", [lambda e: e, lambda e: e.int(), lambda e: e.numpy(), tuple])
def test_edge_lists_of_any_kind(make):
    topology = Topology(make(_EDGES))
    assert topology.num_rows == topology.num_neighbors == 4
    assert topology.indptr.tolist() == [0, 1, 4, 5, 5]
    assert topology.indices.tolist() == [1, 3, 0, 3, 0]
    assert topology.edge_ids.tolist() == [2, 0, 1, 4, 3]


def test_own_edge_ids_follow_their_edges():
    ids = torch.arange(10, 20)[::2]
    assert Topology(_EDGES, edge_ids=ids).edge_ids.tolist() == [14, 10, 12, 18, 16]
    in_order = Topology(_EDGES[:, [2, 0]], edge_ids=np.arange(4)[::2])
    assert in_order.edge_ids.tolist() == [0, 2]
    assert in_order.edge_ids.flags.c_contiguous
    unsigned = Topology(_EDGES, edge_ids=np.arange(5, dtype=np.uint64))  # which kernels do not read
    assert unsigned.edge_ids.dtype == np.int64


def test_two_kinds_of_nodes():
    topology = Topology(_EDGES, num_src=5, num_dst=3)
    assert (topology.num_rows, topology.num_neighbors) == (3, 5)
    assert Topology(_EDGES, num_dst=3).num_neighbors == 4
    assert Topology(_EDGES, num_src=5, num_dst=3, layout="CSR").num_rows == 5


def test_compressed_input_is_taken_as_it_is():
    indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1])
    topology = Topology((indptr, indices), input_layout="CSC")
    assert topology.indptr.tolist() == [0, 2, 3]
    assert topology.indices.tolist() == [1, 0, 1]
    assert topology.indices.dtype == np.int32
    assert topology.edge_ids is None
    named = Topology((indptr, indices), edge_ids=[7, 8, 9], input_layout="CSC")
    assert named.edge_ids.tolist() == [7, 8, 9]


def test_empty():
    topology = Topology(torch.empty((2, 0), dtype=torch.long))
    assert (topology.num_rows, topology.num_edges) == (0, 0)
    assert Topology(torch.empty((2, 0), dtype=torch.long), num_src=3).num_rows == 3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"edge_index": _EDGES[0]}, ValueError, "two rows"),
        ({"edge_index": ([0, 1], [0])}, ValueError, "2 sources but 1 destinations"),
        ({"edge_index": _EDGES.float()}, TypeError, "must hold integers"),
        ({"edge_index": _EDGES - 1}, IndexError, "edge 1 joins node -1"),
        ({"edge_index": _EDGES, "num_src": 3}, IndexError, "edge 0 joins node 3"),
        ({"edge_index": _EDGES, "edge_ids": [1]}, ValueError, "1 edge ids for 5 edges"),
        ({"edge_index": _EDGES, "layout": "COO"}, ValueError, "'CSR' or 'CSC'"),
        ({"edge_index": _EDGES, "edge_dir": "up"}, ValueError, "'in' or 'out'"),
        ({"edge_index": _EDGES, "layout": "CSR", "edge_dir": "in"}, ValueError, "contradicts"),
        ({"edge_index": _EDGES, "input_layout": "XYZ"}, ValueError, "input_layout"),
        ({"edge_index": ([0, 1], [0]), "input_layout": "CSR"}, ValueError, "draws from CSC rows"),
        (
            {"edge_index": ([0, 1], [9]), "input_layout": "CSC", "num_src": 3},
            IndexError,
            "holds id 9 at position 0",
        ),
        ({"edge_index": ([0, 1], [-1]), "input_layout": "CSC"}, IndexError, "holds id -1"),
        (
            {"edge_index": ([0, 1], [0]), "input_layout": "CSC", "num_dst": 2},
            ValueError,
            "indptr has 1 rows, but num_dst=2",
        ),
        ({"edge_index": ([0, 9], [0]), "input_layout": "CSC"}, ValueError, "got 0 to 9"),
        ({"edge_index": ([1, 1], [0]), "input_layout": "CSC"}, ValueError, "got 1 to 1"),
        ({"edge_index": ([], [0]), "input_layout": "CSC"}, ValueError, "got none"),
        ({"edge_index": ([0, 2, 1], [0]), "input_layout": "CSC"}, ValueError, "row 1 spans 2 to 1"),
        ({"edge_index": _EDGES, "num_src": 6.5}, TypeError, r"num_src must be an integer \(got 6"),
        ({"edge_index": _EDGES, "num_dst": "4"}, TypeError, "num_dst must be an integer"),
        (
            {"edge_index": _EDGES, "num_dst": -1},
            ValueError,
            r"num_dst must be from 0 .* \(got -1\)",
        ),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        Topology(**arguments)


def test_pointers_that_do_not_fit_are_refused_by_the_kernels():
    """Those of a folder come to them unchecked."""
    pointers = Topology.compressed(np.array([0, 9]), np.array([0]), 1)
    with pytest.raises(ValueError, match="ends with 9"):
        pointers.csr()


def test_pointers_that_would_wrap():
    """2^32 + 1 is 1 in 32 bits, which would be a sound row."""
    with pytest.raises(ValueError, match="row 1 spans 4294967297 to 3"):
        Topology(([0, 2**32 + 1, 3, 3], [0, 1, 2]), input_layout="CSC")


@pytest.mark.parametrize("count", [2**56, 2**62 - 1, 2**62, 2**63 - 1, 2**70])
def test_more_nodes_than_there_can_be(count):
    for options in ({"num_src": count}, {"num_dst": count}, {"num_src": count, "layout": "CSR"}):
        with pytest.raises(
            ValueError, match=rf"num_... must be from 0 to 2\^56 - 1 \(got {count}\)"
        ):
            Topology(_EDGES, **options)
    with pytest.raises(ValueError, match=rf"num_src must be .* \(got {count}\)"):
        Topology(([0, 1], [0]), input_layout="CSC", num_src=count)
    with pytest.raises(ValueError, match=rf"num_nodes of 'x' must be .* \(got {count}\)"):
        Graph(Topology(_EDGES), num_nodes={"x": count})


def test_ids_that_leave_no_number_of_nodes():
    for layout in ("COO", "CSC"):
        with pytest.raises(ValueError, match="largest id of edge_index plus one must be"):
            Topology(([0, 1], [0, 2**63 - 1])[:: 1 if layout == "CSC" else -1], input_layout=layout)
    with pytest.raises(ValueError, match="holds 18446744073709551615 at position 1"):
        Topology(np.array([[0, 2**64 - 1], [0, 0]], np.uint64))


def test_more_nodes_than_memory_has_rows_for():
    with pytest.raises(MemoryError, match=r"rows of 1125899906842624 nodes with 5 .* right\?"):
        Topology(_EDGES, num_src=2**50)


def test_graph_counts_nodes():
    """Of each type, from its edge types; what they cannot know may be given."""
    likes, knows = ("user", "likes", "item"), ("user", "knows", "user")
    graph = Graph(
        {likes: Topology(_EDGES, num_src=5, num_dst=3), knows: Topology(_EDGES, num_src=5)}
    )
    assert graph.num_nodes == {"item": 3, "user": 5}
    assert (graph.frontier_type(likes), graph.neighbor_type(likes)) == ("item", "user")
    outward = Graph({likes: Topology(_EDGES, num_src=5, num_dst=3, edge_dir="out")})
    assert (outward.frontier_type(likes), outward.neighbor_type(likes)) == ("user", "item")
    assert Graph(Topology(_EDGES)).num_nodes == {"node": 4}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Graph(Topology(_EDGES), "GPU"), ValueError, "'ZERO_COPY' or 'CUDA'"),
        (lambda: Graph(Topology(_EDGES), num_nodes={"node": 9}), ValueError, "rows for 4 nodes"),
        (
            lambda: Graph(
                {
                    ("a", "to", "b"): Topology(_EDGES),
                    ("b", "to", "a"): Topology(_EDGES, edge_dir="out"),
                }
            ),
            ValueError,
            "same edge_dir",
        ),
        (
            lambda: Graph({("a", "to", "b"): Topology(_EDGES)}, num_nodes={"a": 1}),
            ValueError,
            "names 4 nodes of type 'a', but there are 1",
        ),
    ],
)
def test_bad_graphs(make, error, message):
    with pytest.raises(error, match=message):
        make()
