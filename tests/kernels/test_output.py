"""All types of a subgraph, written in one call, are what they are one by one."""

import numpy as np
import pytest

from khop import _native
from support.kernels import hop_calls

#   Two node types: 0 with 5 nodes, 1 with 3. Edge types, neighbours drawn for the destinations:
#   type 0 leads from 0 to 1, type 1 from 1 to 0.
ROWS_OF_1 = _native.Csr(np.array([0, 2, 3, 5]), np.array([0, 1, 4, 3, 0], np.int32))
ROWS_OF_0 = _native.Csr(np.array([0, 1, 1, 2, 2, 2]), np.array([2, 0], np.int32))
NAMES = [np.array([50, 40, 30, 20, 10], np.int32), None]


def drawn(disjoint=False):
    """All neighbours of nodes 0 and 2 of type 1, two hops far."""
    subgraph = _native.Subgraph([5, 3], [(0, 1), (1, 0)], True, disjoint)
    subgraph.begin()
    subgraph.add_seeds(1, np.array([0, 2]))
    fanouts = [[-1, -1], [-1, -1]]
    hop_calls.sample(subgraph, [ROWS_OF_1, ROWS_OF_0], fanouts, False, [False, False], False, 1, 2)
    return subgraph


def arrays_for(output, subgraph):
    num_nodes, num_edges, *_ = output.sizes(subgraph)
    return (
        [np.empty(n, np.int64) for n in num_nodes],
        [np.empty((2, n), np.int64) for n in num_edges],
        [np.empty(n, np.int64) for n in num_edges],
    )


def test_by_hand():
    """Seeds 0 and 2 see 0 and 1, 3 and 0 of type 0; of these, 0 sees 2 of type 1, which is there.

    Nothing else is found in the second hop.
    """
    subgraph, output = drawn(), _native.SubgraphOutput(NAMES)
    assert output.sizes(subgraph) == ([3, 2], [4, 1], [[0, 3, 0], [2, 0, 0]], [[4, 0], [0, 1]])
    nodes, ends, edges = arrays_for(output, subgraph)
    output.write(subgraph, nodes, ends, edges)
    assert [n.tolist() for n in nodes] == [[0, 1, 3], [0, 2]]
    assert [e.tolist() for e in ends] == [[[0, 1, 2, 0], [0, 0, 1, 1]], [[1], [0]]]
    assert [e.tolist() for e in edges] == [[50, 40, 20, 10], [0]]


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_one_call_equals_separate_calls(disjoint, backward):
    subgraph, output = drawn(disjoint), _native.SubgraphOutput([None, None], backward)
    nodes, ends, edges = arrays_for(output, subgraph)
    trees = [np.empty_like(n) for n in nodes] if disjoint else None
    output.write(subgraph, nodes, ends, edges, trees)
    for t, node in enumerate(nodes):
        want = np.empty_like(node)
        subgraph.write_nodes(t, want)
        assert np.array_equal(node, want)
        subgraph.write_trees(t, want)
        assert trees is None or np.array_equal(trees[t], want)
    for r, (pair, edge) in enumerate(zip(ends, edges, strict=True)):
        row, col = np.empty_like(pair)
        subgraph.write_edge_index(r, row, col)
        assert np.array_equal(pair[::-1] if backward else pair, [row, col])
        want = np.empty_like(edge)
        subgraph.write_edges(r, want)
        assert np.array_equal(edge, want)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_names_of_many_edges(dtype):
    """More than are prefetched ahead, and more than the interpreter lock is held for."""
    rng = np.random.default_rng(0)
    neighbors = rng.integers(0, 500, 100_000)
    names = rng.permutation(100_000).astype(dtype)
    csr = _native.Csr(np.arange(0, 100_001, 200), neighbors)
    subgraph = _native.Subgraph([500], [(0, 0)], True)
    output = _native.SubgraphOutput([names])
    for seeds in (0, 1, 500):
        subgraph.begin()
        subgraph.add_seeds(0, np.arange(seeds))
        hop_calls.sample(subgraph, [csr], [[-1]], False, [False], False, 1, 2)
        nodes, ends, edges = arrays_for(output, subgraph)
        output.write(subgraph, nodes, ends, edges)
        assert np.array_equal(edges[0], names[: seeds * 200])
        assert np.array_equal(nodes[0][ends[0][0]], neighbors[: seeds * 200])


def test_edges_that_are_not_wanted():
    subgraph, output = drawn(), _native.SubgraphOutput([None, None])
    nodes, ends, edges = arrays_for(output, subgraph)
    output.write(subgraph, nodes, ends, [None, edges[1]])
    assert edges[1].tolist() == [0]


def test_arrays_that_do_not_fit_are_named_before_writing():
    """Is named before anything is written."""
    subgraph, output = drawn(), _native.SubgraphOutput([None, None])
    nodes, ends, edges = arrays_for(output, subgraph)
    long = np.empty(9, np.int64)
    for arguments, message in (
        ((nodes[:1], ends, edges), "nodes must hold an array for each of 2 types, but holds 1"),
        ((nodes, ends[:1], edges), "ends must hold an array"),
        ((nodes, ends, edges[:1]), "edges must hold an array"),
        ((nodes, ends, edges, nodes[:1]), "trees must hold an array"),
        (([nodes[0], long], ends, edges), "nodes of type 1 must hold 2 entries, but holds 9"),
        ((nodes, [np.empty((2, 3), np.int64), ends[1]], edges), "ends of type 0 must hold 4"),
        ((nodes, ends, [edges[0], long]), "edges of type 1 must hold 1 entries"),
        ((nodes, ends, edges, [nodes[0], long]), "trees of type 1 must hold 2"),
    ):
        with pytest.raises(ValueError, match=message):
            output.write(subgraph, *arguments)
    frozen = nodes[0].copy()
    frozen.flags.writeable = False
    for wrong in (frozen, np.empty(6, np.int64)[::2], np.empty(3, np.int32), None):
        with pytest.raises(TypeError):
            output.write(subgraph, [wrong, nodes[1]], ends, edges)
    with pytest.raises(TypeError, match="edge_names must be int32 or int64"):
        _native.SubgraphOutput([np.zeros(3), None])
    with pytest.raises(IndexError, match="edge 3 of type 0 has no name: there are 2"):
        _native.SubgraphOutput([np.arange(2), None]).write(subgraph, nodes, ends, edges)


def test_edges_that_were_not_recorded():
    subgraph = _native.Subgraph([3], [(0, 0)], False)
    subgraph.begin()
    with pytest.raises(ValueError, match="edges were not recorded"):
        _native.SubgraphOutput([None]).write(
            subgraph,
            [np.empty(0, np.int64)],
            [np.empty((2, 0), np.int64)],
            [np.empty(0, np.int64)],
        )
