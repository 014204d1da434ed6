"""`Subgraph.sample_parts` draws from parts of a graph what `sample` draws from the whole graph."""

import itertools

import numpy as np
import pytest

from khop import _native

NUM_NODES, NUM_EDGES = 500, 6000


def graph(dtype=np.int32):
    """Row pointers, neighbours, original ids of rows and neighbours, times, and weight tables."""
    rng = np.random.default_rng(3)
    counts = np.bincount(rng.integers(0, NUM_NODES, NUM_EDGES), minlength=NUM_NODES)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(dtype)
    neighbors = rng.integers(0, NUM_NODES, NUM_EDGES).astype(dtype)
    ids = rng.permutation(NUM_NODES).astype(np.int64)
    rows = np.repeat(np.arange(NUM_NODES), counts)
    times = rng.integers(0, 20, NUM_EDGES)
    times = times[np.lexsort((times, rows))]
    weights = _native.weight_table(indptr, rng.random(NUM_EDGES))
    return indptr, neighbors, ids, times, *weights


def part(arrays, first, end):
    """The rows from `first` to `end` - 1."""
    indptr, neighbors, ids, *others = arrays
    edges = slice(int(indptr[first]), int(indptr[end]))
    times, sums, guide = (array[edges] for array in others)
    return _native.Csr(
        indptr[first : end + 1] - indptr[first],
        neighbors[edges],
        ids[first:end],
        first,
        edges.start,
        times,
        sums,
        guide,
        ids[neighbors[edges]],
    )


def content(subgraph):
    nodes = np.empty(subgraph.num_nodes(0), np.int64)
    subgraph.write_nodes(0, nodes)
    ends = np.empty((2, subgraph.num_edges(0)), np.int64)
    subgraph.write_edge_index(0, *ends)
    edges = np.empty(ends.shape[1], np.int64)
    subgraph.write_edges(0, edges)
    return nodes, ends, edges, subgraph.edges_per_hop(0)


def draw(method, graph, options, disjoint, with_times):
    """Two hops by 'sample' or 'sample_parts', some edges excluded."""
    subgraph = _native.Subgraph([NUM_NODES], [(0, 0)], True, disjoint)
    seeds = np.arange(0, NUM_NODES, 7, dtype=np.int64)
    subgraph.add_seeds(0, seeds, seeds % 20 if with_times else None)
    subgraph.exclude(0, np.arange(40), np.arange(40)[::-1].copy())
    hops = [[_native.HopOptions(k, **options) for k in (5, 3)]]
    getattr(subgraph, method)([graph], hops, 9, 2)
    return content(subgraph)


@pytest.mark.parametrize("bounds", [
    [0, 500], [0, 250, 500], [0, 0, 3, 3, 499, 500, 500], [*range(0, 500, 20), 500],
])  # fmt: skip
@pytest.mark.parametrize("options,disjoint,with_times", [
    ({}, False, False),
    ({"replace": True}, True, False),
    ({"weighted": True}, False, False),
    ({"last": True}, True, True),
    ({"weighted": True, "replace": True}, True, True),
    ({"method": "labor"}, False, False),
])  # fmt: skip
def test_parts_are_the_whole(bounds, options, disjoint, with_times):
    """One part, two, empty ones, and more parts than are counted without a search."""
    for dtype in (np.int32, np.int64):
        arrays = graph(dtype)
        parts = [part(arrays, *pair) for pair in itertools.pairwise(bounds)]
        whole = part(arrays, 0, NUM_NODES)
        expected = draw("sample", whole, options, disjoint, with_times)
        found = draw("sample_parts", parts, options, disjoint, with_times)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("which", [[0, 2], [1, 0, 2], []])
def test_parts_that_do_not_follow_each_other(which):
    arrays, bounds = graph(), [0, 100, 200, 500]
    parts = [part(arrays, *pair) for pair in itertools.pairwise(bounds)]
    with pytest.raises(ValueError, match=r"must begin where|needs a part"):
        draw("sample_parts", [parts[i] for i in which], {}, False, False)


def test_parts_of_other_types():
    parts = [part(graph(np.int32), 0, 100), part(graph(np.int64), 100, 500)]
    with pytest.raises(TypeError, match="of the same types"):
        draw("sample_parts", parts, {}, False, False)


def test_seeds_beyond_the_parts():
    """Rows that no part has are refused, as by the whole graph."""
    parts = [part(graph(), 0, 100), part(graph(), 100, 200)]
    with pytest.raises(IndexError, match="node"):
        draw("sample_parts", parts, {}, False, False)
