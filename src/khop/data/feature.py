"""A table of rows, one per node or edge."""

from __future__ import annotations

import numpy as np

from khop import _native
from khop.data.arrays import bfloat16_as_float32, storage_dtype, to_array
from khop.data.carried import Carried
from khop.data.files import release_pages
from khop.typing import Array, ArrayLike, Int64Array, IntArray


class Feature(Carried):
    """Rows of any dtype and shape, in memory or memory-mapped.

    Args:
        values: [num_rows, ...] NumPy array (also memory-mapped) or CPU torch tensor. Shared, not
            copied, if its rows are contiguous.
        dtype: name of the values' dtype where NumPy has none ('bfloat16' stored as uint16). If
            None, the dtype of `values`.
        what: what the values are called in error messages.

    Raises:
        TypeError, ValueError: values without rows, or stored in another dtype than `dtype` is.

    Example:
        >>> feature = Feature(np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
        >>> feature.num_rows, feature.row_shape
        (3, (2,))
        >>> feature.gather(np.array([2, 0])).tolist()
        [[4.0, 5.0], [0.0, 1.0]]
    """

    def __init__(self, values: ArrayLike, dtype: str | None = None, what: str = "feature") -> None:
        array, name = to_array(values, what)
        if array.ndim == 0:
            raise ValueError("a feature needs a row axis (got a scalar)")
        if dtype is not None and storage_dtype(dtype) != array.dtype:
            raise TypeError(f"dtype '{dtype}' is not stored as '{array.dtype}'")
        self.array: Array = np.ascontiguousarray(array)
        self.dtype = dtype or name

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.array.shape[0])

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; () for 1-D features."""
        return self.array.shape[1:]

    @property
    def floating(self) -> bool:
        """True if values are floating-point numbers."""
        return storage_dtype(self.dtype).kind == "f" or self.dtype == "bfloat16"

    def numbers(self) -> Array:
        """Return [num_rows, ...] values that NumPy can calculate with: bfloat16 becomes float32."""
        return bfloat16_as_float32(self.array) if self.dtype == "bfloat16" else self.array

    def gather(
        self,
        rows: IntArray,
        out: Array | None = None,
        places: Int64Array | None = None,
        num_threads: int = 1,
    ) -> Array:
        """Copy rows.

        Args:
            rows: [n] int32 or int64.
            out: [n, *row_shape] (or longer, with `places`), of the feature's storage dtype; for
                [n] int32 also int64. If None, a new array.
            places: [n] int64, position of each row in `out`. If None, one after the other.
            num_threads: threads to use, if the copy is long enough to pay for them.

        Returns:
            `out`, or the new array.

        Raises:
            IndexError: a row does not exist.
        """
        if out is None:
            out = np.empty((len(rows), *self.row_shape), storage_dtype(self.dtype))
        if self.array.flags.aligned:
            _native.gather(self.array, rows, out, places, num_threads)
        else:  # mapped from any byte of a file on
            _native.gather(_bytes_of(self.array), rows, _bytes_of(out), places, num_threads)
        return out

    def content(self) -> tuple[Array, ...]:
        """Return arrays that tell these rows from others: mapped files are known by their name."""
        return (self.array,)

    def release(self) -> None:
        """Let go of pages of mapped files that have been read."""
        for array in self.content():
            release_pages(array)


def _bytes_of(rows: Array) -> Array:
    """View contiguous rows as [num_rows, bytes of a row]."""
    width = rows.dtype.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))
    return rows.reshape(-1).view(np.uint8).reshape(len(rows), width)
