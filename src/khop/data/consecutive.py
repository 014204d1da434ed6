"""Rows that count up: the ids of things that are numbered one after the other.

Any process; imports no torch.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from khop.data.arrays import check_range
from khop.data.feature import Feature
from khop.typing import Array, Int64Array, IntArray


class ConsecutiveIds(Feature):
    """Ids first, first + 1, ...; row i is first + i. They take no memory.

    Args:
        first: the first id.
        num_rows: how many there are.

    Example:
        >>> ConsecutiveIds(10, 3).gather(np.array([2, 0])).tolist()
        [12, 10]
    """

    def __init__(self, first: int, num_rows: int) -> None:
        self._first, self._count = first, num_rows
        self.dtype = "int64"

    @property
    def num_rows(self) -> int:
        """Number of ids."""
        return self._count

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        return ()

    @cached_property
    def array(self) -> Array:  # type: ignore[override]
        """All ids, in memory once they are asked for."""
        return np.arange(self._first, self._first + self._count)

    def gather(
        self,
        rows: IntArray,
        out: Array | None = None,
        places: Int64Array | None = None,
        num_threads: int = 1,
    ) -> Array:
        """Return ids; see `Feature.gather`."""
        del num_threads
        check_range(rows, self._count, "rows")
        if out is None:
            out = np.empty(len(rows), np.int64)
        out[slice(len(rows)) if places is None else places] = rows + np.int64(self._first)
        return out
