"""Undirected graph of all node types together, which partitioning methods read block by block.

A block is a range of rows, in memory or in files. `undirected` makes the graph in three steps.
Entries (neighbours) of each row are counted, pieces of the edge list are split by blocks, and
blocks are sorted. A sorted block replaces its edges in the same columns, since it has no more
entries. Kernels visit nodes block by block, so that a graph in files is read once per pass. Results
are the same in memory and in files.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from khop import _native
from khop.data.arrays import narrowest_int
from khop.partition.out_of_core.resources import Resources, block_bounds, row_pointers
from khop.partition.out_of_core.stage import COLUMN, ROW, Column, SplitPiece, Stage
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import EdgeSource, GraphSource, bad_edge, no_progress
from khop.typing import EdgeType, Int32Array, Int64Array, IntArray, NodeType, Progress

# Entries of a block, the same for all graphs, so that nodes are always visited in the same order.
_BLOCK_ENTRIES = 1 << 21
# Memory of an edge while its piece is split, and of an entry while its block is sorted.
_SPLITTING_BYTES = 96
_SORTING_BYTES = 48


class RowBlock(NamedTuple):
    """Consecutive rows of an undirected graph.

    Attributes:
        first_node: the node of the first row.
        indptr: [num_rows + 1] int64 row pointers, of which the first is 0.
        indices: [num_entries] int32 or int64, ascending in each row, without the node itself.
        weights: [num_entries] int32 number of edges between the two nodes.
    """

    first_node: int
    indptr: Int64Array
    indices: IntArray
    weights: Int32Array


class NodeNumbering(NamedTuple):
    """Index of each node in an undirected graph: its own, or the index of its cluster.

    Attributes:
        of_node: [num_nodes] int32 or int64, all types one after the other.
        size: number of different indices.
    """

    of_node: IntArray
    size: int


class Undirected:
    """Undirected graph: each end of an edge is an entry in the row of the other end.

    Args:
        indptr: [num_nodes + 1] int64 row pointers.
        bounds: [num_blocks + 1] int64, the first node of each block.
        starts: [num_blocks] int64, the position of each block's first entry in the columns.
        indices, weights: columns of entries, as in `RowBlock`.
        resources: threads that read blocks ahead.
    """

    def __init__(
        self,
        indptr: Int64Array,
        bounds: Int64Array,
        starts: Int64Array,
        indices: Column,
        weights: Column,
        resources: Resources,
    ) -> None:
        self.indptr, self.bounds = indptr, bounds
        self.num_nodes, self.num_blocks = len(indptr) - 1, len(bounds) - 1
        self._starts, self._indices, self._weights = starts, indices, weights
        self._resources = resources

    @property
    def num_entries(self) -> int:
        """Number of entries of all rows: two for each pair of nodes that edges join."""
        return int(self.indptr[-1])

    def block(self, index: int) -> RowBlock:
        """Return the rows of the block with this index. A block is a range of nodes."""
        first, last = (int(node) for node in self.bounds[index : index + 2])
        indptr = self.indptr[first : last + 1] - self.indptr[first]
        start = int(self._starts[index])
        span = start, start + int(indptr[-1])
        return RowBlock(first, indptr, self._indices.read(*span), self._weights.read(*span))

    def blocks(self, order: Sequence[int] | None = None) -> Iterator[RowBlock]:
        """Yield the blocks (ranges of nodes) `order`, or all if None, while threads read ahead."""
        indices = range(self.num_blocks) if order is None else order
        return self._resources.in_order(self.block, indices)

    def whole(self) -> RowBlock:
        """Return the rows of all nodes as one block, in memory."""
        blocks = [self.block(index) for index in range(self.num_blocks)]
        indices = np.concatenate([rows.indices for rows in blocks])
        return RowBlock(0, self.indptr, indices, np.concatenate([r.weights for r in blocks]))

    def visits(
        self, seed: int, turn: int, purpose: int
    ) -> Iterator[tuple[_native.UndirectedRows, Int64Array]]:
        """Yield blocks (ranges of nodes) in random order, each with a random order of its nodes.

        The orders depend on `seed`, on the pass over the nodes (`turn`) and on `purpose`: 0 for
        cuts, 1 for clusters.
        """
        count = self.num_blocks
        order = _native.permutation(count, _native.run_key(seed, turn, purpose + 2 * count))
        for i, rows in zip(order.tolist(), self.blocks(order.tolist()), strict=True):
            key = _native.run_key(seed, turn, purpose + 2 * i)
            nodes = _native.permutation(len(rows.indptr) - 1, key) + rows.first_node
            yield _native.UndirectedRows(*rows), nodes

    @functools.cached_property
    def num_edges(self) -> int:
        """Number of edges. Parallel edges count each, and self loops do not count."""
        return sum(int(rows.weights.sum(dtype=np.int64)) for rows in self.blocks()) // 2

    def cut(self, labels: IntArray) -> int:
        """Return the number of edges whose two ends have different `labels`, [num_nodes]."""
        between = 0
        for rows in self.blocks():
            own = labels[rows.first_node : rows.first_node + len(rows.indptr) - 1]
            away = np.repeat(own, np.diff(rows.indptr)) != labels[rows.indices]
            between += int(rows.weights[away].sum(dtype=np.int64))
        return between // 2

    def discard(self) -> None:
        """Free the memory or the disk space of the entries."""
        self._indices.discard()
        self._weights.discard()


def undirected(
    source: GraphSource,
    resources: Resources | None = None,
    workspace: Workspace | None = None,
    clusters: NodeNumbering | None = None,
    progress: Progress = no_progress,
) -> Undirected:
    """Make one undirected graph of all node types and edge types.

    Args:
        source: the graph.
        resources: bytes of memory for buffers, and threads. If None, memory is not bounded.
        workspace: storage of the edges, in memory or files. If None, in memory.
        clusters: the cluster of each node, to make a graph whose nodes are clusters. If None, nodes
            are numbered type after type.
        progress: called as progress(step, done, total).

    Raises:
        IndexError: an edge names a node that does not exist.
        ValueError: a row is too long for the memory.
    """
    resources = resources or Resources()
    total = source.num_nodes
    numbering = clusters or NodeNumbering(np.arange(total, dtype=narrowest_int(total)), total)
    of_type = split_by_type(source, numbering.of_node)
    edges = [
        _Edges(edge_type, edge, of_type[edge_type[0]], of_type[edge_type[2]], numbering.size)
        for edge_type, edge in source.edges.items()
    ]
    name = "nodes" if clusters is None else "clusters"
    return _Builder(
        edges, numbering, name, resources, workspace or Workspace(resources), progress
    ).build()


def undirected_of_edges(src: IntArray, dst: IntArray, count: int) -> Undirected:
    """Make an undirected graph of `count` nodes in memory. `src` and `dst` are [num_edges] ids."""
    return undirected(GraphSource.from_arrays(count, [src, dst]))


def split_by_type(source: GraphSource, values: IntArray) -> dict[NodeType, IntArray]:
    """Split an array over all nodes, type after type, into {node type: [num_nodes] values}."""
    ends = np.cumsum([node.count for node in source.nodes.values()])[:-1]
    return dict(zip(source.nodes, np.split(values, ends), strict=True))


class _Edges:
    """Edges of one type while an undirected graph is made, each in both directions."""

    def __init__(
        self, edge_type: EdgeType, edge: EdgeSource, src: IntArray, dst: IntArray, num_rows: int
    ) -> None:
        self.edge_type, self.edge, self._dtype = edge_type, edge, src.dtype
        self._along = _native.RowSplit(src, dst, num_rows)
        self._against = _native.RowSplit(dst, src, num_rows)

    def count(self, first: int, count: int, counts: IntArray) -> None:
        """Add the entries per node of `count` edges, from index `first` on, to `counts`."""
        src, dst = self.edge.piece(first, count)
        try:
            self._along.count(src, dst, first, counts)
            self._against.count(dst, src, first, counts)
        except IndexError as error:
            raise bad_edge(self.edge_type, error) from None

    def split(self, bounds: Int64Array, first: int, count: int) -> list[SplitPiece]:
        """Sort `count` edges from `first` on by blocks with bounds `bounds`, in both directions."""
        src, dst = self.edge.piece(first, count)
        ids = np.empty(count, np.int64)
        pieces = []
        for split, keys, neighbors in ((self._along, src, dst), (self._against, dst, src)):
            rows, columns = np.empty(count, self._dtype), np.empty(count, self._dtype)
            counts = split.split(keys, neighbors, first, bounds, rows, columns, ids)
            rows = rows.astype(np.int32, copy=False)
            pieces.append(SplitPiece(counts, {ROW: rows, COLUMN: columns}))
        return pieces


class _Builder(NamedTuple):
    """Steps of `undirected`: count the entries of each row, split edges by block, sort blocks."""

    edges: list[_Edges]
    numbering: NodeNumbering
    name: str
    resources: Resources
    workspace: Workspace
    progress: Progress

    def build(self) -> Undirected:
        """Run all steps, and return the undirected graph."""
        pieces = [
            (edges, *piece)
            for edges in self.edges
            for piece in self.resources.pieces(edges.edge.num_edges, _SPLITTING_BYTES)
        ]
        indptr = self._count(pieces)
        bounds = block_bounds(indptr, [0, self.numbering.size], _BLOCK_ENTRIES)
        starts = indptr[bounds]
        self._check_memory(int(np.diff(starts).max(initial=0)))
        dtypes = {ROW: np.dtype(np.int32), COLUMN: self.numbering.of_node.dtype}
        columns = {
            name: self.workspace.column(f"{entries} of {self.name}", dtypes[name], int(starts[-1]))
            for name, entries in ((ROW, "rows"), (COLUMN, "neighbors"))
        }
        stage = Stage(columns, starts)
        splits = self.resources.in_order(lambda piece: piece[0].split(bounds, *piece[1:]), pieces)
        for i, ((edges, _, _), split) in enumerate(zip(pieces, splits, strict=True)):
            for direction in split:
                stage.append(direction)
            self.workspace.release(edges.edge)
            self.progress(f"undirected {self.name}: splitting", i + 1, len(pieces))
        self._sort(stage, bounds, indptr)
        self.progress(f"undirected {self.name}: sorting", 1, 1)
        return Undirected(
            indptr, bounds, starts[:-1], columns[COLUMN], columns[ROW], self.resources
        )

    def _count(self, pieces: list[tuple[_Edges, int, int]]) -> Int64Array:
        """Count the entries of each node in both directions. Return row pointers [num_nodes + 1].

        Parallel edges count each, as they are joined later. A piece is (edges, first edge, number).
        """
        counters = self.resources.counters

        def count(share: list[tuple[_Edges, int, int]]) -> Int64Array:
            counts = np.zeros(self.numbering.size + 1, np.int64)
            for edges, first, size in share:
                edges.count(first, size, counts[1:])
                self.workspace.release(edges.edge)
            return counts

        def report(done: int) -> None:
            self.progress(f"undirected {self.name}: counting", done, counters)

        shares = [pieces[i::counters] for i in range(counters)]
        return row_pointers(self.resources.in_order(count, shares), report)

    def _check_memory(self, longest: int) -> None:
        share = self.resources.share()
        if self.resources.memory is not None and longest * _SORTING_BYTES > share:
            raise ValueError(
                f"the neighbours of a node, or of {_BLOCK_ENTRIES:,} entries, are sorted at once: "
                f"{longest:,} take {longest * _SORTING_BYTES:,} bytes, but {share:,} are left for "
                "each thread: raise the memory (--memory), or lower the number of threads (--jobs)"
            )

    def _sort(self, stage: Stage, bounds: Int64Array, indptr: Int64Array) -> None:
        """Sort each block of rows in place, and join parallel edges.

        `bounds` [num_blocks + 1] has the first node of each block. `indptr`, the row pointers, are
        updated to the entries that are left.
        """
        starts, sort = indptr[bounds], partial(self._sorted, stage, bounds)
        blocks = range(len(bounds) - 1)
        for rows, start in zip(self.resources.in_order(sort, blocks), starts, strict=False):
            stage.columns[COLUMN].write(int(start), rows.indices)
            stage.columns[ROW].write(int(start), rows.weights)
            last = rows.first_node + len(rows.indptr) - 1
            indptr[rows.first_node + 1 : last + 1] = np.diff(rows.indptr)
        indptr[0] = 0
        np.cumsum(indptr, out=indptr)

    def _sorted(self, stage: Stage, bounds: Int64Array, block: int) -> RowBlock:
        first, last = (int(node) for node in bounds[block : block + 2])
        rows, columns = stage.read(block, ROW), stage.read(block, COLUMN)
        rows = rows.astype(columns.dtype, copy=False)
        indptr, indices, _ = _native.coo_to_csr(
            rows, columns, last - first, self.numbering.size, with_edge_ids=False
        )
        return RowBlock(first, *_native.undirected(indptr, indices, first))
