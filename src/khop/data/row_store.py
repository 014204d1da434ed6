"""Interface of stores of rows, with one row per node or per edge.

`Feature` has the rows of an array, in memory or in a mapped file. `khop.data.joined` has stores
over other stores. `khop.sampler.rows.row_fetcher` reads rows of all parts. Users add stores of
their own (`docs/extending/stores.md`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

import numpy as np

from khop import _native
from khop.data.arrays import bfloat16_as_float32, check_range, storage_dtype
from khop.data.encoding import Encoding
from khop.data.tickets import ReadTicket, Ticket, TicketGroup
from khop.data.waiter import waiter
from khop.typing import Array, Int64Array, IntArray


class RowFormat(NamedTuple):
    """Dtype and shape of a row.

    Attributes:
        dtype: name of the values' dtype, one of `khop.data.arrays.DTYPES`.
        shape: shape of one row, () for a number.

    Example:
        >>> RowFormat("float32", (16,)).nbytes
        64
    """

    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Number of bytes of one row."""
        return math.prod(self.shape) * storage_dtype(self.dtype).itemsize

    def empty(self, count: int) -> Array:
        """Return an uninitialised array of `count` rows. bfloat16 is uint16, as NumPy has none."""
        return np.empty((count, *self.shape), storage_dtype(self.dtype))


Writer: TypeAlias = Callable[[Array, Int64Array | None], object]
"""Function that writes rows to `positions` of `out`, or in order if `positions` is None."""


class RowStore(ABC):
    """Store of the rows that batches contain: [num_rows, *shape] values in any storage.

    A subclass has `num_rows` and `stored`, as attributes or properties, and defines `read`.
    This class defines everything else.

    Attributes:
        num_rows: number of rows.
        stored: dtype and shape of a row as it is stored.
        at_hand: True if `read` copies from memory or a mapped file, and never returns a ticket.
        encoding: encoding of the rows that `read` returns, of files of a folder. If None, they are
            the values themselves.

    Example:
        >>> class Squares(RowStore):
        ...     num_rows, stored = 10, RowFormat("int64")
        ...     def read(self, ids, out): out[:] = ids**2
        >>> Squares().gather(np.array([3, 1])).tolist()
        [9, 1]
    """

    num_rows: int
    stored: RowFormat
    at_hand: bool = False
    encoding: Encoding | None = None

    @cached_property
    def delivered(self) -> RowFormat:
        """Dtype and shape of a row in batches. Unless overridden, equal to `stored`."""
        return self.stored

    @abstractmethod
    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        """Read rows, or start to read them.

        To wait here for a disk or a network would stop all batches of the process. Return a ticket
        instead (`khop.data.ReadThreads.submit` makes one).

        Args:
            ids: [n] int64, each from 0 to num_rows - 1, in any order, also repeated.
            out: [n, *shape] of the delivered format. Keep a reference to this array until the read
                is done: khop drops its own if it gives up the batch. No other read uses its memory.

        Returns:
            None if the rows are in `out`. Else a `ReadTicket` or `TicketGroup`: the rows are in
            `out` once its `result` has returned.

        Raises:
            IndexError: a row does not exist.
            Exception: the storage fails. Only the batch of this read fails, with this error.
        """

    def expect(self, ids: Int64Array) -> None:  # noqa: B027
        """Announce the rows of a later batch. Loaders that draw ahead call this for each batch.

        The calls are in the order of the batches. A later `read` has the same ids. It may never
        come, as when an epoch is ended early. Unless overridden, nothing happens.

        Args:
            ids: [n] int64, each from 0 to num_rows - 1, in any order, also repeated.
        """

    def close(self) -> None:  # noqa: B027
        """Close files, connections and threads. Reads in flight may fail then."""

    @cached_property
    def dtype(self) -> str:
        """Name of the values' dtype in batches."""
        return self.delivered.dtype

    @cached_property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row in batches, () for 1-D stores."""
        return self.delivered.shape

    @property
    def as_stored(self) -> RowStore:
        """Store of the same rows as they are stored, with their `encoding`.

        :meta private:
        """
        return self

    @property
    def floating(self) -> bool:
        """True if values are floating-point numbers."""
        is_encoded = self.encoding is not None
        return is_encoded or storage_dtype(self.dtype).kind == "f" or self.dtype == "bfloat16"

    @cached_property
    def array(self) -> Array:
        """All rows, read into memory on first use."""
        return self.gather(np.arange(self.num_rows))

    def numbers(self) -> Array:
        """Return [num_rows, ...] values that NumPy can calculate with: bfloat16 becomes float32."""
        if self.encoding is not None:
            return self.encoding.decode(self.array)
        return bfloat16_as_float32(self.array) if self.dtype == "bfloat16" else self.array

    def start(self, rows: IntArray) -> tuple[Array, Ticket | None]:
        """Start to read rows into new memory.

        No other read uses this memory, so a late write cannot reach a later batch.

        Returns:
            The memory, and a ticket. If the rows are already read, None in place of the ticket.

        Raises:
            IndexError: a row does not exist.
            TypeError: `read` returned neither None nor a ticket.

        :meta private:
        """
        check_range(rows, self.num_rows, f"a read of {type(self).__name__}")
        out = self.delivered.empty(len(rows))
        ticket = self.read(np.ascontiguousarray(rows, np.int64), out) if len(rows) else None
        if ticket is not None and not isinstance(ticket, (ReadTicket, TicketGroup)):
            raise TypeError(
                f"{type(self).__name__}.read must return None or a ReadTicket (got "
                f"'{type(ticket).__name__}')"
            )
        return out, ticket

    def start_written(self, rows: IntArray) -> tuple[Writer, Ticket | None]:
        """Start to read rows, for one write to their positions in an array.

        Returns:
            Function that writes the rows once the ticket is done, and the ticket. See `start`.

        :meta private:
        """
        values, ticket = self.start(rows)
        return partial(_native.gather, values, None), ticket

    def gather(
        self,
        rows: IntArray,
        out: Array | None = None,
        places: Int64Array | None = None,
        num_threads: int = 1,
    ) -> Array:
        """Read rows, and wait for them.

        Args:
            rows: [n] int32 or int64.
            out: [n, *row_shape] of the storage dtype, or longer with `places`. 1-D int32 rows may
                also be read into int64. If None, a new array.
            places: [n] int64 position of each row in `out`. If None, in the order of `rows`.
            num_threads: threads to use, if the copy is long enough to pay for them.

        Returns:
            `out`, or the new array.

        Raises:
            IndexError: a row does not exist.
            Exception: the storage fails.
        """
        read, ticket = self.start(rows)
        if ticket is not None:
            self._wait(ticket)
            ticket.result()
        if out is None:
            return read
        _native.gather(read, None, out, places, num_threads)
        return out

    def _wait(self, ticket: Ticket) -> None:
        waiter().wait([ticket])

    def content(self) -> tuple[Array, ...]:
        """Return arrays whose content identifies the rows, for fingerprints of loaders.

        Mapped files count by their names.
        """
        return (self.array,)

    def release(self) -> None:  # noqa: B027
        """Release the memory of pages of mapped files that have been read."""
