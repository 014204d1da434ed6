"""Dtype and shape of the rows of an attribute. Any process; imports no torch."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from khop.data.arrays import storage_dtype
from khop.typing import Array


class RowFormat(NamedTuple):
    """Dtype and shape of a row.

    Attributes:
        dtype: name of the values' dtype, one of `khop.data.arrays.DTYPES`.
        shape: shape of one row; () for a number.

    Example:
        >>> RowFormat("float32", (16,)).nbytes
        64
    """

    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * storage_dtype(self.dtype).itemsize

    def empty(self, count: int) -> Array:
        """Return an uninitialised array of `count` rows. bfloat16 is uint16, as NumPy has none."""
        return np.empty((count, *self.shape), storage_dtype(self.dtype))
