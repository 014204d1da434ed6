"""Splitter of the edges of a type: counted by row, then ordered by blocks of rows.

Both read pieces of the edge list, in threads or in processes of other machines: what is needed is
carried along when a splitter is pickled. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from khop import _native
from khop.data.arrays import narrowest_int
from khop.partition.out_of_core.stage import COLUMN, EDGE_ID, ROW, SplitPiece
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import EdgeSource
from khop.partition.writing.numbering import Numbering
from khop.partition.writing.row_sort import RowTable, attr_column
from khop.typing import Array, EdgeDir, Int64Array, IntArray

Piece = tuple[int, int]
"""First edge and number of edges."""


class RowSplitter:
    """Splitter of the edges of a type.

    Args:
        edge: the edges.
        edge_dir: rows are destinations ('in') or sources ('out').
        rows, neighbors: new ids on either side.
    """

    def __init__(
        self, edge: EdgeSource, edge_dir: EdgeDir, rows: Numbering, neighbors: Numbering
    ) -> None:
        self._edge, self._edge_dir, self._rows, self._neighbors = edge, edge_dir, rows, neighbors
        # Checks the maps, once for all pieces.
        self._split = _native.RowSplit(rows.new_of_old, neighbors.new_of_old, len(rows.owners))

    def __reduce__(self) -> tuple[Any, ...]:
        return RowSplitter, (self._edge, self._edge_dir, self._rows, self._neighbors)

    def count(self, workspace: Workspace, pieces: Sequence[Piece]) -> IntArray:
        """Return [num_rows + 1] a zero, and how many edges of the pieces each row has.

        Raises:
            IndexError: an edge names a node that does not exist.
        """
        counts: IntArray = np.zeros(len(self._rows.owners) + 1, narrowest_int(self._edge.num_edges))
        for piece in pieces:
            self._split.count(*self._ends(piece), piece[0], counts[1:])
            workspace.release(self._edge)
        return counts

    def split(
        self, table: RowTable, blocks: Int64Array, workspace: Workspace, piece: Piece
    ) -> SplitPiece:
        """Order a piece of the edge list by block.

        Args:
            table: says what columns there are.
            blocks: [num_blocks + 1] bounds of the blocks' rows.
            workspace: is told what has been read.
            piece: the piece.
        """
        first, count = piece
        rows, columns = np.empty(count, table.column_dtype), np.empty(count, table.column_dtype)
        ids: IntArray = np.empty(count, table.id_dtype)
        counts = self._split.split(*self._ends(piece), first, blocks, rows, columns, ids)
        found: dict[str, Array] = {ROW: rows, COLUMN: columns, EDGE_ID: ids}
        if table.stages_attrs:
            for name, feature in self._edge.attrs.items():
                found[attr_column(name)] = feature.gather(ids)
        workspace.release(self._edge)
        return SplitPiece(counts, found)

    def _ends(self, piece: Piece) -> tuple[IntArray, IntArray]:
        """Return rows and neighbours of a piece, by original ids."""
        src, dst = self._edge.piece(*piece)
        return (dst, src) if self._edge_dir == "in" else (src, dst)
