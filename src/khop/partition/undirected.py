"""The undirected graph of all node types together, and clusters of its nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from khop import _native
from khop.partition.seeds import joined
from khop.partition.source import GraphSource
from khop.typing import Int32Array, Int64Array, IntArray, NodeType

_PASSES = 4


class Undirected(NamedTuple):
    """An undirected graph: the ends of an edge are in each other's rows.

    Attributes:
        indptr: [num_nodes + 1] int64.
        indices: [num_entries] int32 or int64, ascending in each row, without the node itself.
        weights: [num_entries] int32, how many edges join the two.
    """

    indptr: Int64Array
    indices: IntArray
    weights: Int32Array

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    def native(self) -> _native.UndirectedGraph:
        """Return the kernels' view of it."""
        return _native.UndirectedGraph(*self)

    def cut(self, labels: IntArray) -> int:
        """Return the number of edges between parts."""
        rows = np.repeat(labels, np.diff(self.indptr))
        return int(self.weights[rows != labels[self.indices]].sum(dtype=np.int64)) // 2

    @classmethod
    def of(cls, source: GraphSource) -> Undirected:
        """Join the types of a graph; IndexError if an edge names a node that does not exist."""
        edges, _, count = joined(source)
        return cls.of_edges(*edges.endpoints(), count)

    @classmethod
    def of_edges(cls, src: IntArray, dst: IntArray, count: int) -> Undirected:
        """Make one of an edge list over `count` nodes; both arrays of int32 or int64."""
        both = np.concatenate([src, dst]), np.concatenate([dst, src])
        indptr, indices, _ = _native.coo_to_csr(*both, count, count, with_edge_ids=False)
        return cls(*_native.undirected(indptr, indices))


def cluster_nodes(
    graph: Undirected,
    weights: Int32Array,
    clusters: int,
    seed: int,
    progress: Callable[[str, int, int], None],
) -> tuple[IntArray, int]:
    """Divide nodes into clusters of bounded size, by label propagation.

    Method: Meyerhenke, Sanders and Schulz, SEA 2014.

    Args:
        graph: the graph.
        weights: [num_nodes] int32 sizes of nodes.
        clusters: about how many clusters; none is larger than twice the mean of so many.
        seed: of the order in which nodes are visited.
        progress: called as progress(what, done, total).

    Returns:
        [num_nodes] cluster of each node, from 0 on, and how many there are.
    """
    of_node = np.arange(graph.num_nodes, dtype=graph.indices.dtype)
    loads, native = weights.astype(np.int64), graph.native()
    limit = max(1, int(2 * loads.sum() // clusters))
    for i in range(_PASSES):
        order = _native.permutation(graph.num_nodes, _native.run_key(seed, i, 1))
        native.cluster_pass(order, weights, limit, of_node, loads)
        progress("clusters", i + 1, _PASSES)
    found, numbers = np.unique(of_node, return_inverse=True)
    return numbers.astype(graph.indices.dtype), len(found)


def split_by_type(source: GraphSource, values: IntArray) -> dict[NodeType, IntArray]:
    """Split values of all nodes, type after type, by node type."""
    ends = np.cumsum([node.count for node in source.nodes.values()])[:-1]
    return dict(zip(source.nodes, np.split(values, ends), strict=True))
