"""Split of training seeds between parts: seeds that share their neighbourhood stay together.

More rows of a batch are local if the seeds of a part lie close together in the graph.
`communities` cuts the graph into clusters of about equal size by restreaming linear deterministic
greedy partitioning (Stanton and Kliot 2012; Nishimura and Ugander 2013), block by block so that
NumPy does the counting; `split_seeds` makes the seeds' shares exactly even. A pass is linear
in the number of edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from khop import _native
from khop.data.arrays import check_range, narrowest_int
from khop.partition.balance import Scores, assign_balanced, even_sizes
from khop.partition.source import EdgeSource, GraphSource
from khop.typing import Int64Array, IntArray, NodeType

# Measured on the bundled graph for 2 to 8 parts: strictly even clusters (no slack) cost half of
# the gain; more than 8 passes or 256 blocks change little; with fewer blocks neighbours move at the
# same time, each to the cluster that the other leaves.
_PASSES = 8
_BLOCKS = 256
_SLACK = 1.05


class Adjacency(NamedTuple):
    """Neighbours of a homogeneous graph's nodes, in one direction."""

    indptr: IntArray
    indices: IntArray

    def of(self, nodes: Int64Array) -> tuple[Int64Array, IntArray]:
        """Return the neighbours of nodes, node after node: (index in `nodes`, neighbour)."""
        degree = (self.indptr[nodes + 1] - self.indptr[nodes]).astype(np.int64)
        owner = np.repeat(np.arange(len(nodes)), degree)
        start = self.indptr[nodes] - (np.cumsum(degree) - degree)
        return owner, self.indices[start[owner] + np.arange(len(owner))]


def joined(source: GraphSource) -> tuple[EdgeSource, dict[NodeType, int], int]:
    """Join all node and edge types of a graph to one.

    Returns:
        The edges, one type's after the other's; the first joined id of each node type; the number
        of nodes.

    Raises:
        IndexError: an edge names a node that does not exist.
    """
    first, count = {}, 0
    for node_type, node in source.nodes.items():
        first[node_type] = count
        count += node.count
    if len(first) == 1 and len(source.edges) == 1:
        return next(iter(source.edges.values())), first, count
    ends: tuple[list[IntArray], list[IntArray]] = ([], [])
    for edge_type, edge in source.edges.items():
        for side, node_type, ids in zip(
            ends, (edge_type[0], edge_type[2]), (edge.src, edge.dst), strict=True
        ):
            check_range(ids, source.nodes[node_type].count, f"edge_index of edge type {edge_type}")
            side.append(ids.astype(narrowest_int(count)) + first[node_type])
    src, dst = (np.concatenate([np.empty(0, narrowest_int(count)), *side]) for side in ends)
    return EdgeSource(src, dst), first, count


def adjacency(edge: EdgeSource, num_nodes: int) -> tuple[Adjacency, Adjacency]:
    """Return out-neighbours and in-neighbours of each node."""
    src, dst = edge.endpoints()
    return tuple(  # type: ignore[return-value]
        Adjacency(*_native.coo_to_csr(a, b, num_nodes, num_nodes, with_edge_ids=False)[:2])
        for a, b in ((src, dst), (dst, src))
    )


def communities(
    neighbors: tuple[Adjacency, Adjacency],
    num_parts: int,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> IntArray:
    """Cut a homogeneous graph into clusters of about equal size with few edges between them.

    Args:
        neighbors: out- and in-neighbours (see `adjacency`).
        num_parts: number of clusters.
        seed: of the order in which nodes are visited.
        progress: called as progress(done, total) after each pass.

    Returns:
        [num_nodes] int32 cluster of each node; none is more than 5 % (and one node) above average.
    """
    num_nodes = len(neighbors[0].indptr) - 1
    capacity = int(np.ceil(_SLACK * num_nodes / num_parts))
    labels = np.full(num_nodes, num_parts, np.int32)  # num_parts: not placed yet
    if num_parts == 1:
        return np.zeros(num_nodes, np.int32)
    sizes = np.zeros(num_parts + 1, np.int64)
    order = _native.permutation(num_nodes, _native.run_key(seed, 0, 0))
    step = max(1, -(-num_nodes // _BLOCKS))
    blocks = range(0, num_nodes, step)
    for turn, first in [(turn, first) for turn in range(_PASSES) for first in blocks]:
        block = order[first : first + step]
        sizes -= np.bincount(labels[block], minlength=num_parts + 1)
        sizes[num_parts] = 0
        room = capacity - sizes[:num_parts]
        # The small constant sends isolated nodes to the cluster with most room.
        scores = (_count(neighbors, block, labels, num_parts) + 1e-3) * (room / capacity)[:, None]
        labels[block] = assign_balanced(scores, room)
        sizes += np.bincount(labels[block], minlength=num_parts + 1)
        if first == blocks[-1]:
            progress(turn + 1, _PASSES)
    return labels


def split_seeds(
    neighbors: tuple[Adjacency, Adjacency], seeds: Int64Array, labels: IntArray, num_parts: int
) -> IntArray:
    """Give every part the seeds of its cluster; move only as many as even shares require.

    Args:
        neighbors: out- and in-neighbours.
        seeds: [num_seeds] distinct node ids.
        labels: [num_nodes] cluster of each node.
        num_parts: number of parts.

    Returns:
        [num_seeds] int32 part of each seed; shares differ by at most one.
    """
    scores = np.empty((num_parts, len(seeds)))
    step = max(1, -(-len(labels) // _BLOCKS))
    for first in range(0, len(seeds), step):
        block = seeds[first : first + step]
        counts = _count(neighbors, block, labels, num_parts)
        scores[:, first : first + step] = 0.5 * counts / np.maximum(1, counts.sum(axis=0))
    scores[labels[seeds], np.arange(len(seeds))] += 1
    return assign_balanced(scores, even_sizes(len(seeds), num_parts))


def _count(
    neighbors: tuple[Adjacency, Adjacency], nodes: Int64Array, labels: IntArray, num_parts: int
) -> Scores:
    """Return [num_parts, num_nodes] float64 numbers of each node's neighbours in each cluster."""
    width = num_parts + 1
    counts = np.zeros(len(nodes) * width, np.int64)
    for direction in neighbors:
        owner, found = direction.of(nodes)
        counts += np.bincount(owner * width + labels[found], minlength=len(counts))
    table: Scores = counts.reshape(len(nodes), width)[:, :num_parts].T.astype(np.float64)
    return table
