"""Writer of the parts' edges: edge lists, in memory or not, become compressed rows.

Three steps, of which the first two read the edge list piece by piece: edges of each row are
counted; edges are split by blocks of rows (`khop.partition.stage`); each block is sorted
(`khop.partition.row_sort`) and appended to its part's files. Blocks are small enough for a cache,
or for the memory that may be used: the result does not depend on them. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

import numpy as np

from khop import _native
from khop.data.arrays import narrowest_int
from khop.partition.blocks import block_bounds
from khop.partition.draws import DrawAttrs
from khop.partition.numbering import Numbering
from khop.partition.row_sort import RowSorter, RowTable, attr_column
from khop.partition.source import EdgeSource
from khop.partition.stage import COLUMN, EDGE_ID, ROW, SplitPiece, Stage
from khop.partition.workspace import Workspace
from khop.storage.folder import EdgeTypeMeta, FolderWriter, attr_metas
from khop.typing import Array, EdgeDir, EdgeType, Int64Array, IntArray, NodeType


class RowWriter:
    """Writer of the edges of each part, compressed by row, and of all arrays in their order.

    Args:
        writer: writes the folder.
        numbering: new ids of each node type.
        edge_dir: rows are destinations ('in') or sources ('out').
        num_parts: number of parts.
        draws: times, by which rows are sorted, and weights.
        neighbor_ids: write original ids of neighbours, too.
        workspace: keeps what is between the steps.
        progress: called as progress(what, done, total).

    Attributes:
        edges_between_parts: [num_parts, num_parts] number of edges by part and part of the
            neighbour, of all edge types written so far.
    """

    def __init__(
        self,
        writer: FolderWriter,
        numbering: Mapping[NodeType, Numbering],
        edge_dir: EdgeDir,
        num_parts: int,
        draws: DrawAttrs,
        neighbor_ids: bool,
        workspace: Workspace,
        progress: Callable[[str, int, int], None],
    ) -> None:
        self._writer = writer
        self._numbering = numbering
        self._edge_dir = edge_dir
        self._num_parts = num_parts
        self._draws = draws
        self._neighbor_ids = neighbor_ids
        self._workspace = workspace
        self._resources = workspace.resources
        self._progress = progress
        self.edges_between_parts = workspace.array(
            "cut", lambda: np.zeros((num_parts, num_parts), np.int64), changes=True
        )

    def write(self, edge_type: EdgeType, edge: EdgeSource) -> EdgeTypeMeta:
        """Write an edge type.

        Raises:
            IndexError: an edge names a node that does not exist.
            ValueError: the weights of a row add up to infinity.
        """
        row_type, neighbor_type = edge_type[2], edge_type[0]
        if self._edge_dir == "out":
            row_type, neighbor_type = neighbor_type, row_type
        rows, neighbors = self._numbering[row_type], self._numbering[neighbor_type]
        split = _native.RowSplit(rows.new_of_old, neighbors.new_of_old, len(rows.owners))
        key = " ".join(map(repr, edge_type))
        indptr = self._workspace.array(
            f"rows of {key}", lambda: self._count(edge_type, edge, split, len(rows.owners))
        )
        table = RowTable(
            edge_type,
            edge,
            neighbor_type,
            rows,
            neighbors,
            indptr,
            self._draws,
            self._neighbor_ids,
            self._workspace.stages_attrs,
        )
        if self._workspace.is_done(key):
            self._note_parts(table)
        else:
            blocks = self._blocks(table)
            places = indptr[blocks].astype(np.int64)
            with self._workspace.stage(key, table.columns(), places) as stage:
                self._fill(table, split, blocks, stage)
                self._write_parts(table, blocks, stage)
            self._workspace.done(key)
        return EdgeTypeMeta(
            edge_type,
            [int(indptr[b]) for b in rows.book.bounds],
            "time" if table.is_timed else "edge_id",
            attr_metas(edge.attrs),
            table.is_weighted,
            self._neighbor_ids,
        )

    def _ends(self, edge: EdgeSource, first: int, count: int) -> tuple[IntArray, IntArray]:
        """Return rows and neighbours of a piece of the edge list, by original ids."""
        src, dst = edge.piece(first, count)
        return (dst, src) if self._edge_dir == "in" else (src, dst)

    def _pieces(self, edge: EdgeSource, bytes_each: int) -> list[tuple[int, int]]:
        """Return first edge and number of edges of each piece."""
        step = self._resources.piece_edges(bytes_each)
        return [
            (first, min(step, edge.num_edges - first)) for first in range(0, edge.num_edges, step)
        ]

    # The first step: edges of each row.

    def _count(
        self, edge_type: EdgeType, edge: EdgeSource, split: _native.RowSplit, num_rows: int
    ) -> IntArray:
        """Return the row pointers."""
        indptr: IntArray = np.zeros(num_rows + 1, narrowest_int(edge.num_edges))
        pieces = self._pieces(edge, 16)

        def count(mine: list[tuple[int, int]]) -> IntArray:
            counts = indptr[1:] if groups == 1 else np.zeros_like(indptr[1:])
            for piece in mine:
                split.count(*self._ends(edge, *piece), piece[0], counts)
                self._workspace.release(edge)
            return counts

        # Each thread that counts has counters of its own.
        groups = self._resources.counters
        try:
            for i, counts in enumerate(
                self._resources.in_order(count, [pieces[i::groups] for i in range(groups)])
            ):
                if groups > 1:
                    indptr[1:] += counts
                self._progress(f"counting edges of type {edge_type}", i + 1, groups)
        except IndexError as error:
            raise IndexError(f"edge_index of edge type {edge_type}: {error}") from None
        np.cumsum(indptr, out=indptr)
        return indptr

    # The second step: edges of each block.

    def _blocks(self, table: RowTable) -> Int64Array:
        width = table.sorting_bytes()
        most = self._resources.block_edges(width, table.edge.num_edges)
        self._workspace.check_rows(table.edge_type, table.indptr, most, width)
        return block_bounds(table.indptr, table.rows.book.bounds, most)

    def _fill(
        self, table: RowTable, split: _native.RowSplit, blocks: Int64Array, stage: Stage
    ) -> None:
        pieces = self._pieces(table.edge, table.splitting_bytes())
        done = stage.filled.pieces
        found = self._resources.in_order(partial(self._split, table, split, blocks), pieces[done:])
        for i, piece in enumerate(found, done + 1):
            stage.append(piece)
            self._workspace.release(table.edge)
            self._workspace.checkpoint(sum(column.nbytes for column in piece.columns.values()))
            self._progress(f"splitting edges of type {table.edge_type}", i, len(pieces))

    def _split(
        self,
        table: RowTable,
        split: _native.RowSplit,
        blocks: Int64Array,
        piece: tuple[int, int],
    ) -> SplitPiece:
        """Order a piece of the edge list by block."""
        first, count = piece
        rows, columns = np.empty(count, table.column_dtype), np.empty(count, table.column_dtype)
        ids: IntArray = np.empty(count, table.id_dtype)
        counts = split.split(*self._ends(table.edge, *piece), first, blocks, rows, columns, ids)
        found: dict[str, Array] = {ROW: rows, COLUMN: columns, EDGE_ID: ids}
        if table.stages_attrs:
            for name, feature in table.edge.attrs.items():
                found[attr_column(name)] = feature.gather(ids)
        return SplitPiece(counts, found)

    # The third step: rows of each part.

    def _write_parts(self, table: RowTable, blocks: Int64Array, stage: Stage) -> None:
        for part in range(self._num_parts):
            # All are asked, even if the first is missing: what is complete is noted.
            known = [self._writer.has(path) for path, _, _ in table.files(part).values()]
            if not all(known):
                self._write_part(table, part, blocks, stage)
            self._progress(f"edges of type {table.edge_type}", part + 1, self._num_parts)

    def _write_part(self, table: RowTable, part: int, blocks: Int64Array, stage: Stage) -> None:
        sort = partial(RowSorter(table, blocks, stage).sort, part)
        first, last = table.rows.book.bounds[part : part + 2]
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(self._writer.array(*file))
                for name, file in table.files(part).items()
            }
            pointers = files["indptr"]
            if pointers.rows == 0:
                pointers.append(np.zeros(1, pointers.dtype))
            # An earlier run may have written some of the part's blocks.
            begin = int(np.searchsorted(blocks, first + pointers.rows - 1))
            mine = range(begin, int(np.searchsorted(blocks, last))) if last > first else range(0)
            for block in self._resources.in_order(sort, mine):
                for name, rows in block.arrays.items():
                    files[name].append(rows)
                self.edges_between_parts[part] += block.neighbors_by_part
                self._workspace.checkpoint(sum(rows.nbytes for rows in block.arrays.values()))

    def _note_parts(self, table: RowTable) -> None:
        """Take up the files of an edge type that is complete."""
        for part in range(self._num_parts):
            for path, _, _ in table.files(part).values():
                self._writer.has(path)
