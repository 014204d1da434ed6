"""Row stores of arrays, in memory or in mapped files, of encoded arrays, and of consecutive ids."""

from __future__ import annotations

from functools import partial

import numpy as np

from khop import _native
from khop.data.arrays import storage_dtype, to_array
from khop.data.encoding import Encoding, bytes_of_rows
from khop.data.files import PicklableByPath, release_pages
from khop.data.row_store import RowFormat, RowStore
from khop.data.tickets import Ticket, TicketGroup
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
            table = bytes_of_rows(self.array)
            _native.gather(table, rows, bytes_of_rows(out), places, num_threads)
        return out

    def release(self) -> None:
        release_pages(self.array)


class DecodedFeature(PicklableByPath, RowStore):
    """Rows of an array that is encoded, widened to float32 while they are gathered.

    Args:
        rows: the stored rows.
        encoding: their encoding.

    Example:
        >>> halves = Encoding("float16")
        >>> rows = Feature(np.array([[0.5], [0.1]], np.float16))
        >>> DecodedFeature(rows, halves).gather(np.array([1, 0])).tolist()
        [[0.0999755859375], [0.5]]
    """

    at_hand = True

    def __init__(self, rows: Feature, encoding: Encoding) -> None:
        self._rows, self._encoding = rows, encoding
        self.num_rows, self.stored = rows.num_rows, rows.stored
        self.delivered = RowFormat("float32", rows.row_shape)
        rows.encoding = encoding

    @property
    def as_stored(self) -> Feature:
        return self._rows

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
            out = self.delivered.empty(len(rows))
        self._encoding.gather(self._rows.array, rows, out, places, num_threads)
        return out

    def content(self) -> tuple[Array, ...]:
        return self._rows.content()

    def release(self) -> None:
        self._rows.release()


class DecodedRows(RowStore):
    """Encoded rows of a store whose reads take time, widened to float32 once they are read.

    Args:
        rows: the store of the encoded rows.
        encoding: their encoding.
    """

    def __init__(self, rows: RowStore, encoding: Encoding) -> None:
        self._rows, self._encoding = rows, encoding
        self.num_rows, self.stored = rows.num_rows, rows.stored
        self.delivered = RowFormat("float32", rows.row_shape)
        rows.encoding = encoding

    @property
    def as_stored(self) -> RowStore:
        return self._rows

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        encoded = self.stored.empty(len(ids))
        ticket = self._rows.read(ids, encoded)
        widen = partial(self._encoding.gather, encoded, None, out)
        if ticket is not None:
            return TicketGroup([ticket], widen)
        widen()
        return None

    def expect(self, ids: Int64Array) -> None:
        self._rows.expect(ids)

    def content(self) -> tuple[Array, ...]:
        return self._rows.content()

    def release(self) -> None:
        self._rows.release()

    def close(self) -> None:
        self._rows.close()


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
