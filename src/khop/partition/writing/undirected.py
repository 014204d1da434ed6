"""The undirected graph of all node types together, block by block, and clusters of its nodes.

`both_directions` makes it, in memory or in files. Kernels visit its nodes in passes:
the rows of a block are at hand while its nodes are visited, so that a graph that lies in files is
read once a pass, from block to block. The order of visits, and so the result, is the same wherever
it lies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from khop import _native
from khop.data.arrays import narrowest_int
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.stage import Column
from khop.partition.source import GraphSource
from khop.typing import Int32Array, Int64Array, IntArray, NodeType

_PASSES = 4


class Rows(NamedTuple):
    """Rows of an undirected graph.

    Attributes:
        first_node: the node of the first row.
        indptr: [num_rows + 1] int64, from 0 on.
        indices: [num_entries] int32 or int64, ascending in each row, without the node itself.
        weights: [num_entries] int32, how many edges join the two.
    """

    first_node: int
    indptr: Int64Array
    indices: IntArray
    weights: Int32Array


class Numbers(NamedTuple):
    """Numbers that nodes get: of clusters, or their own in a graph of all types.

    Attributes:
        of_node: [num_nodes] int32 or int64, all types one after the other.
        size: how many there are.
    """

    of_node: IntArray
    size: int


class Undirected:
    """An undirected graph: the ends of an edge are in each other's rows.

    Args:
        indptr: [num_nodes + 1] int64.
        bounds: [num_blocks + 1] int64, the first node of each block.
        places: [num_blocks] int64, where the entries of each block begin.
        indices, weights: entries, as in `Rows`; wherever they are kept.
        resources: threads that read blocks before they are used.

    Attributes:
        indptr, bounds: as given.
    """

    def __init__(
        self,
        indptr: Int64Array,
        bounds: Int64Array,
        places: Int64Array,
        indices: Column,
        weights: Column,
        resources: Resources,
    ) -> None:
        self.indptr, self.bounds = indptr, bounds
        self._places, self._indices, self._weights = places, indices, weights
        self._resources = resources

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return len(self.bounds) - 1

    @property
    def num_entries(self) -> int:
        """Number of entries of all rows: two for each pair of nodes that edges join."""
        return int(self.indptr[-1])

    def block(self, number: int) -> Rows:
        """Return the rows of a block."""
        first, last = (int(node) for node in self.bounds[number : number + 2])
        indptr = self.indptr[first : last + 1] - self.indptr[first]
        begin = int(self._places[number])
        end = begin + int(indptr[-1])
        return Rows(first, indptr, self._indices.read(begin, end), self._weights.read(begin, end))

    def blocks(self, order: Sequence[int] | None = None) -> Iterator[Rows]:
        """Yield the rows of blocks; of all, if no order is given. Threads read ahead."""
        numbers = range(self.num_blocks) if order is None else order
        return self._resources.in_order(self.block, numbers)

    def whole(self) -> Rows:
        """Return all rows, in memory."""
        blocks = [self.block(number) for number in range(self.num_blocks)]
        indices, weights = (
            np.concatenate([getattr(rows, name) for rows in blocks])
            for name in ("indices", "weights")
        )
        return Rows(0, self.indptr, indices, weights)

    def visits(self, seed: int, turn: int, kind: int) -> Iterator[tuple[Rows, Int64Array]]:
        """Yield rows and the order in which their nodes are visited; each node is in one of them.

        Blocks come in random order, and the nodes of each.

        Args:
            seed: of the order.
            turn: number of the order.
            kind: 0 or 1, for what: orders differ.
        """
        number = self.num_blocks
        order = _native.permutation(number, _native.run_key(seed, turn, kind + 2 * number))
        for i, rows in zip(order.tolist(), self.blocks(order.tolist()), strict=True):
            key = _native.run_key(seed, turn, kind + 2 * i)
            yield rows, _native.permutation(len(rows.indptr) - 1, key) + rows.first_node

    @functools.cached_property
    def num_edges(self) -> int:
        """Number of edges, parallel ones counted, without self loops."""
        return sum(int(rows.weights.sum(dtype=np.int64)) for rows in self.blocks()) // 2

    def cut(self, labels: IntArray) -> int:
        """Return the number of edges between parts."""
        found = 0
        for rows in self.blocks():
            own = labels[rows.first_node : rows.first_node + len(rows.indptr) - 1]
            away = np.repeat(own, np.diff(rows.indptr)) != labels[rows.indices]
            found += int(rows.weights[away].sum(dtype=np.int64))
        return found // 2

    def discard(self) -> None:
        """Give back memory or disk."""
        self._indices.discard()
        self._weights.discard()


def cluster_nodes(
    graph: Undirected,
    weights: Int32Array,
    clusters: int,
    seed: int,
    progress: Callable[[str, int, int], None],
) -> Numbers:
    """Divide nodes into clusters of bounded size, by label propagation.

    Method: Meyerhenke, Sanders and Schulz, SEA 2014.

    Args:
        graph: the graph.
        weights: [num_nodes] int32 sizes of nodes.
        clusters: about how many clusters; none is larger than twice the mean of so many.
        seed: of the order in which nodes are visited.
        progress: called as progress(what, done, total).

    Returns:
        The cluster of each node, from 0 on, and how many there are.
    """
    dtype = narrowest_int(graph.num_nodes)
    of_node: IntArray = np.arange(graph.num_nodes, dtype=dtype)
    loads = weights.astype(np.int64)
    limit = max(1, int(2 * loads.sum() // clusters))
    turn = _native.ClusterPass(weights, limit, of_node, loads)
    for i in range(_PASSES):
        for rows, order in graph.visits(seed, i, 1):
            turn.visit(_native.UndirectedRows(*rows), order)
        progress("clusters", i + 1, _PASSES)
    del turn, loads
    is_used = np.zeros(graph.num_nodes, bool)
    is_used[of_node] = True
    numbers = np.cumsum(is_used, dtype=dtype) - 1
    return Numbers(numbers[of_node], int(np.count_nonzero(is_used)))


def split_by_type(source: GraphSource, values: IntArray) -> dict[NodeType, IntArray]:
    """Split values of all nodes, type after type, by node type."""
    ends = np.cumsum([node.count for node in source.nodes.values()])[:-1]
    return dict(zip(source.nodes, np.split(values, ends), strict=True))
