"""Maker of the undirected graph of all node types: both directions of all edges, sorted by blocks.

The steps are those of `rows`: edges of each row are counted, pieces of the edge list
are split by blocks of rows, and the blocks are sorted one by one. A sorted block takes the place of
its edges, which are as many or more.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from khop import _native
from khop.data.arrays import narrowest_int
from khop.partition.out_of_core.blocks import block_bounds
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.stage import COLUMN, ROW, Column, SplitPiece, Stage
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import EdgeSource, GraphSource, bad_edge
from khop.partition.writing.undirected import Numbers, Rows, Undirected
from khop.typing import EdgeType, Int64Array, IntArray, Progress

# Entries of a block. All graphs have the same blocks, wherever they lie, so that nodes are visited
# in the same order.
_BLOCK_ENTRIES = 1 << 21
# Bytes that an edge takes while a piece is split, and an entry while a block is sorted.
_SPLITTING_BYTES = 96
_SORTING_BYTES = 48


def undirected(
    source: GraphSource,
    resources: Resources | None = None,
    workspace: Workspace | None = None,
    clusters: Numbers | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Undirected:
    """Join the types of a graph, and make it undirected.

    Args:
        source: the graph.
        resources: memory for buffers, and threads. If None, those of an edge list in memory.
        workspace: where entries are kept. If None, in memory.
        clusters: the cluster of each node: the graph is that of clusters. If None, nodes are
            numbered type after type.
        progress: called as progress(what, done, total).

    Raises:
        IndexError: an edge names a node that does not exist.
        ValueError: a row is too long for the memory that there is.
    """
    total = sum(node.count for node in source.nodes.values())
    numbers = clusters or Numbers(np.arange(total, dtype=narrowest_int(total)), total)
    ends = np.cumsum([node.count for node in source.nodes.values()])[:-1]
    of_type = dict(zip(source.nodes, np.split(numbers.of_node, ends), strict=True))
    edges = [
        _Edges(edge_type, edge, of_type[edge_type[0]], of_type[edge_type[2]], numbers.size)
        for edge_type, edge in source.edges.items()
    ]
    name = "nodes" if clusters is None else "clusters"
    resources = resources or Resources()
    space = workspace or Workspace(resources)
    return _Maker(edges, numbers, name, resources, space, progress).make()


def undirected_of_edges(src: IntArray, dst: IntArray, count: int) -> Undirected:
    """Make an undirected graph of an edge list over `count` nodes, in memory."""
    return undirected(GraphSource.from_arrays(count, [src, dst]))


class _Edges:
    """Edges of a type, in both directions."""

    def __init__(
        self, edge_type: EdgeType, edge: EdgeSource, src: IntArray, dst: IntArray, num_rows: int
    ) -> None:
        self.edge_type, self.edge, self._dtype = edge_type, edge, src.dtype
        self._along = _native.RowSplit(src, dst, num_rows)
        self._against = _native.RowSplit(dst, src, num_rows)

    def count(self, first: int, count: int, counts: Int64Array) -> None:
        """Add the entries of each row of a piece."""
        src, dst = self.edge.piece(first, count)
        self._along.count(src, dst, first, counts)
        self._against.count(dst, src, first, counts)

    def split(self, bounds: Int64Array, first: int, count: int) -> list[SplitPiece]:
        """Order a piece by block, in either direction."""
        src, dst = self.edge.piece(first, count)
        numbers = np.empty(count, np.int64)
        found = []
        for split, keys, neighbors in ((self._along, src, dst), (self._against, dst, src)):
            rows, columns = np.empty(count, self._dtype), np.empty(count, self._dtype)
            counts = split.split(keys, neighbors, first, bounds, rows, columns, numbers)
            found.append(
                SplitPiece(counts, {ROW: rows.astype(np.int32, copy=False), COLUMN: columns})
            )
        return found


class _Maker:
    """One run: counts, splits, sorts."""

    def __init__(
        self,
        edges: list[_Edges],
        numbers: Numbers,
        name: str,
        resources: Resources,
        workspace: Workspace,
        progress: Progress,
    ) -> None:
        self._edges, self._num_rows, self._dtype = edges, numbers.size, numbers.of_node.dtype
        self._name, self._resources = name, resources
        self._workspace, self._progress = workspace, progress

    def make(self) -> Undirected:
        """Return the graph."""
        raw = self._count()
        bounds = block_bounds(raw, [0, self._num_rows], _BLOCK_ENTRIES)
        places = raw[bounds]
        self._check(int(np.diff(places).max(initial=0)))
        columns = {
            ROW: self._column("rows", np.dtype(np.int32), int(places[-1])),
            COLUMN: self._column("neighbors", self._dtype, int(places[-1])),
        }
        stage = Stage(columns, places)
        self._fill(stage, bounds)
        indptr = self._sort(stage, bounds, raw)
        return Undirected(
            indptr, bounds, places[:-1], columns[COLUMN], columns[ROW], self._resources
        )

    def _column(self, what: str, dtype: np.dtype[Any], count: int) -> Column:
        return self._workspace.column(f"{what} of {self._name}", dtype, count)

    def _pieces(self) -> list[tuple[_Edges, int, int]]:
        return [
            (edges, *piece)
            for edges in self._edges
            for piece in self._resources.pieces(edges.edge.num_edges, _SPLITTING_BYTES)
        ]

    def _count(self) -> Int64Array:
        """Return the row pointers of both directions, with loops and parallel edges."""
        indptr = np.zeros(self._num_rows + 1, np.int64)
        pieces, groups = self._pieces(), self._resources.counters

        def count(mine: list[tuple[_Edges, int, int]]) -> Int64Array:
            counts = indptr[1:] if groups == 1 else np.zeros(self._num_rows, np.int64)
            for edges, first, size in mine:
                try:
                    edges.count(first, size, counts)
                except IndexError as error:
                    raise bad_edge(edges.edge_type, error) from None
                self._workspace.release(edges.edge)
            return counts

        shares = [pieces[i::groups] for i in range(groups)]
        for i, counts in enumerate(self._resources.in_order(count, shares)):
            if groups > 1:
                indptr[1:] += counts
            self._progress(f"undirected {self._name}: counting", i + 1, groups)
        np.cumsum(indptr, out=indptr)
        return indptr

    def _check(self, longest: int) -> None:
        share = self._resources.share()
        if self._resources.memory is not None and longest * _SORTING_BYTES > share:
            raise ValueError(
                f"the neighbours of a node, or of {_BLOCK_ENTRIES:,} entries, are sorted at once: "
                f"{longest:,} take {longest * _SORTING_BYTES:,} bytes, but {share:,} are left for "
                "each thread: raise the memory (--memory), or lower the number of threads (--jobs)"
            )

    def _fill(self, stage: Stage, bounds: Int64Array) -> None:
        pieces = self._pieces()
        found = self._resources.in_order(
            lambda piece: piece[0].split(bounds, piece[1], piece[2]), pieces
        )
        for i, ((edges, _, _), split) in enumerate(zip(pieces, found, strict=True)):
            for direction in split:
                stage.append(direction)
            self._workspace.release(edges.edge)
            self._progress(f"undirected {self._name}: splitting", i + 1, len(pieces))

    def _sort(self, stage: Stage, bounds: Int64Array, indptr: Int64Array) -> Int64Array:
        """Sort the blocks where they are; the row pointers become those of what is left."""
        places, sort = indptr[bounds], partial(self._sorted, stage, bounds)
        blocks = range(len(bounds) - 1)
        for rows, place in zip(self._resources.in_order(sort, blocks), places, strict=False):
            stage.columns[COLUMN].write(int(place), rows.indices)
            stage.columns[ROW].write(int(place), rows.weights)
            last = rows.first_node + len(rows.indptr) - 1
            indptr[rows.first_node + 1 : last + 1] = np.diff(rows.indptr)
        indptr[0] = 0
        np.cumsum(indptr, out=indptr)
        self._progress(f"undirected {self._name}: sorting", 1, 1)
        return indptr

    def _sorted(self, stage: Stage, bounds: Int64Array, block: int) -> Rows:
        first, last = (int(node) for node in bounds[block : block + 2])
        rows, columns = stage.read(block, ROW), stage.read(block, COLUMN)
        csr = _native.coo_to_csr(
            rows.astype(columns.dtype, copy=False),
            columns,
            last - first,
            self._num_rows,
            with_edge_ids=False,
        )
        return Rows(first, *_native.undirected(*csr[:2], first))
