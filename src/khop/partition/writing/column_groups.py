"""Rows of an attribute that were computed some columns at a time. Imports no torch."""

from __future__ import annotations

import math

import numpy as np

from khop.data import RowFormat, RowStore
from khop.data.files import release_pages
from khop.partition.out_of_core.stage import FileColumn
from khop.typing import Array, Int64Array


class ColumnGroups(RowStore):
    """Rows of float32 that a stage file has by groups of columns.

    Args:
        column: the stage file: of each group, the values of all rows.
        groups: first column, and the last plus one, of each group.
        num_rows: number of rows.
        shape: shape of a row.
    """

    def __init__(
        self,
        column: FileColumn,
        groups: list[tuple[int, int]],
        num_rows: int,
        shape: tuple[int, ...],
    ) -> None:
        self.num_rows, self.stored = num_rows, RowFormat("float32", shape)
        self._groups = groups
        self._values: Array = np.empty(0, np.float32)
        if num_rows * math.prod(shape):
            self._values = np.memmap(column.path, np.float32, "r")

    def of_group(self, group: tuple[int, int]) -> Array:
        """Return the rows of a group of columns: [num_rows, n] float32."""
        first, last = group
        values = self._values[first * self.num_rows : last * self.num_rows]
        return values.reshape(self.num_rows, last - first)

    def read(self, ids: Int64Array, out: Array) -> None:
        flat = out.reshape(len(ids), math.prod(self.row_shape))
        for first, last in self._groups:
            flat[:, first:last] = self.of_group((first, last))[ids]

    def release(self) -> None:
        release_pages(self._values)
