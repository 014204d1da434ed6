"""Row stores of arrays, in memory or in mapped files, and of consecutive ids."""

from __future__ import annotations

import numpy as np

from khop import _native
from khop.data.arrays import storage_dtype, to_array
from khop.data.files import PicklableByPath, release_pages
from khop.data.row_store import RowFormat, RowStore
from khop.typing import Array, ArrayLike, Int64Array, IntArray


class Feature(PicklableByPath, RowStore):
    """Rows of any dtype and shape, in memory or memory-mapped.

    Args:
        values: [num_rows, ...] NumPy array (also memory-mapped) or CPU torch tensor. Shared, not
            copied, if its rows are contiguous.
        dtype: name of the values' dtype where NumPy has none ('bfloat16' stored as uint16). If
            None, the dtype of `values`.
        label: name of the values in error messages.

    Raises:
        TypeError, ValueError: `values` is a scalar, or has not the dtype that stores `dtype`.

    Example:
        >>> feature = Feature(np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
        >>> feature.num_rows, feature.row_shape
        (3, (2,))
        >>> feature.gather(np.array([2, 0])).tolist()
        [[4.0, 5.0], [0.0, 1.0]]
    """

    at_hand = True

    def __init__(
        self, values: ArrayLike | float, dtype: str | None = None, label: str = "feature"
    ) -> None:
        array, name = to_array(values, label)
        if array.ndim == 0:
            raise ValueError("a feature needs a row axis (got a scalar)")
        if dtype is not None and storage_dtype(dtype) != array.dtype:
            raise TypeError(f"dtype '{dtype}' is not stored as '{array.dtype}'")
        self.array: Array = np.ascontiguousarray(array)
        self.num_rows = len(self.array)
        self.stored = self.delivered = RowFormat(dtype or name, self.array.shape[1:])
        self.dtype, self.row_shape = self.stored

    def read(self, ids: Int64Array, out: Array) -> None:
        self.gather(ids, out)

    def gather(
        self,
        rows: IntArray,
        out: Array | None = None,
        places: Int64Array | None = None,
        num_threads: int = 1,
    ) -> Array:
        if out is None:
            out = np.empty((len(rows), *self.row_shape), storage_dtype(self.dtype))
        if self.array.flags.aligned:
            _native.gather(self.array, rows, out, places, num_threads)
        else:  # a mapped array may begin at any byte of its file
            _native.gather(_bytes_of(self.array), rows, _bytes_of(out), places, num_threads)
        return out

    def release(self) -> None:
        release_pages(self.array)


class ConsecutiveIds(RowStore):
    """Row store of consecutive ids, which takes no memory: row i is first + i.

    Args:
        first: the first id.
        num_rows: number of ids.

    Example:
        >>> ConsecutiveIds(10, 3).gather(np.array([2, 0])).tolist()
        [12, 10]
    """

    at_hand = True
    stored = RowFormat("int64")

    def __init__(self, first: int, num_rows: int) -> None:
        self._first, self.num_rows = first, num_rows

    def read(self, ids: Int64Array, out: Array) -> None:
        np.add(ids, self._first, out=out)


def _bytes_of(rows: Array) -> Array:
    """View contiguous rows as [num_rows, bytes per row]."""
    width = rows.dtype.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))
    return rows.reshape(-1).view(np.uint8).reshape(len(rows), width)
