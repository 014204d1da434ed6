"""Split of training seeds between parts: seeds that share their neighbourhood stay together.

More rows of a batch are local if the seeds of a part lie close together in the graph.
`communities` cuts the graph into clusters of about equal size by restreaming linear deterministic
greedy partitioning (Stanton and Kliot 2012; Nishimura and Ugander 2013); `split_seeds` makes the
seeds' shares exactly even. A pass is linear in the number of edges.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from khop import _native
from khop.partition.methods.balance import Scores, assign_balanced, even_sizes
from khop.partition.writing.undirected import Rows, Undirected
from khop.typing import Int32Array, Int64Array, IntArray

# Measured on the bundled graph for 2 to 8 parts: strictly even clusters (no slack) cost half of
# the gain; more than 8 passes change little.
_PASSES = 8
_SLACK = 1.05


def communities(
    graph: Undirected,
    num_parts: int,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Int32Array:
    """Cut a graph into clusters of about equal size with few edges between them.

    Args:
        graph: the graph.
        num_parts: number of clusters.
        seed: of the order in which nodes are visited.
        progress: called as progress(done, total) after each pass.

    Returns:
        [num_nodes] int32 cluster of each node; none is more than 5 % (and one node) above average.
    """
    if num_parts == 1:
        return np.zeros(graph.num_nodes, np.int32)
    labels = np.full(graph.num_nodes, num_parts, np.int32)  # num_parts: not placed yet
    capacity = int(np.ceil(_SLACK * graph.num_nodes / num_parts))
    turn = _native.AssignPass(
        np.ones((1, graph.num_nodes), np.int32),
        np.full((1, num_parts), capacity),
        np.zeros((1, num_parts), np.int64),
        labels,
        "ldg",
        graph.num_edges,
    )
    for i in range(_PASSES):
        for rows, order in graph.visits(seed, 0, 0):
            turn.visit(_native.UndirectedRows(*rows), order)
        progress(i + 1, _PASSES)
    return labels


def split_seeds(graph: Undirected, seeds: Int64Array, labels: IntArray, num_parts: int) -> IntArray:
    """Give every part the seeds of its cluster; move only as many as even shares require.

    Args:
        graph: the graph.
        seeds: [num_seeds] distinct node ids.
        labels: [num_nodes] cluster of each node.
        num_parts: number of parts.

    Returns:
        [num_seeds] int32 part of each seed; shares differ by at most one.
    """
    scores = np.empty((num_parts, len(seeds)))
    order = np.argsort(seeds)
    ends = np.searchsorted(seeds[order], graph.bounds)
    for rows, first, last in zip(graph.blocks(), ends[:-1], ends[1:], strict=True):
        mine = order[first:last]
        counts = _count(rows, seeds[mine], labels, num_parts)
        scores[:, mine] = 0.5 * counts / np.maximum(1, counts.sum(axis=0))
    scores[labels[seeds], np.arange(len(seeds))] += 1
    return assign_balanced(scores, even_sizes(len(seeds), num_parts))


def _count(rows: Rows, nodes: Int64Array, labels: IntArray, num_parts: int) -> Scores:
    """Return [num_parts, num_nodes] float64 numbers of each node's edges to each cluster."""
    places = nodes - rows.first_node
    begins, sizes = rows.indptr[places], np.diff(rows.indptr)[places]
    owner = np.repeat(np.arange(len(nodes)), sizes)
    entries = np.arange(len(owner)) + np.repeat(begins - np.cumsum(sizes) + sizes, sizes)
    found = owner * num_parts + labels[rows.indices[entries]]
    weights = rows.weights[entries].astype(np.float64)
    counts = np.bincount(found, weights, len(nodes) * num_parts)
    table: Scores = counts.reshape(len(nodes), num_parts).T.astype(np.float64)
    return table
