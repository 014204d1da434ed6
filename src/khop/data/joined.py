"""Row stores over other stores: joined, in another order, or with copies of hot rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from khop import _native
from khop.data.arrays import to_int64
from khop.data.feature import Feature
from khop.data.files import PicklableByPath
from khop.data.row_store import RowStore
from khop.data.tickets import Ticket, TicketGroup
from khop.typing import Array, ArrayLike, Int64Array, IntArray

_Piece = tuple[RowStore, IntArray, Int64Array]
"""A store, the rows to read from it, and the position of each row in the output."""


class _View(PicklableByPath, RowStore):
    """Base of row stores that read from other stores and have no copies."""

    def __init__(self, stores: Sequence[RowStore], num_rows: int) -> None:
        self._stores = stores
        self.num_rows, self.stored = num_rows, stores[0].delivered
        self.encoding = stores[0].encoding
        self.at_hand = all(store.at_hand for store in stores)

    def content(self) -> tuple[Array, ...]:
        return tuple(array for store in self._stores for array in store.content())

    def release(self) -> None:
        for store in self._stores:
            store.release()


class JoinedFeature(_View):
    """Rows of several stores, one after the other.

    Args:
        pieces: one store or more, of one dtype and row shape.

    Raises:
        ValueError: the stores differ in dtype or row shape.

    Example:
        >>> joined = JoinedFeature([Feature(np.array([1, 2])), Feature(np.array([3]))])
        >>> joined.gather(np.array([2, 0])).tolist()
        [3, 1]
    """

    def __init__(self, pieces: Sequence[RowStore]) -> None:
        first = pieces[0]
        for piece in pieces:
            if (piece.dtype, piece.row_shape) != (first.dtype, first.row_shape):
                raise ValueError(
                    f"pieces of one feature differ: rows of {first.dtype} {list(first.row_shape)} "
                    f"and of {piece.dtype} {list(piece.row_shape)}"
                )
        self._bounds = np.cumsum([0, *(piece.num_rows for piece in pieces)])
        # A kernel reads all arrays in one pass over the rows.
        arrays = [piece.array for piece in pieces if type(piece) is Feature]
        is_plain = len(arrays) == len(pieces) and all(a.flags.aligned for a in arrays)
        self._arrays = arrays if is_plain and len({a.dtype for a in arrays}) == 1 else None
        super().__init__(pieces, int(self._bounds[-1]))

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        if self._arrays is not None:
            _native.gather_parts(self._arrays, ids, out)
            return None
        return _read_pieces(self._split(ids), out)

    def gather(
        self,
        rows: IntArray,
        out: Array | None = None,
        places: Int64Array | None = None,
        num_threads: int = 1,
    ) -> Array:
        if self._arrays is None or out is None or places is not None:
            return super().gather(rows, out, places, num_threads)
        _native.gather_parts(self._arrays, rows.astype(np.int64, copy=False), out)
        return out

    def expect(self, ids: Int64Array) -> None:
        for store, rows, _ in self._split(ids):
            store.expect(rows.astype(np.int64, copy=False))

    def _split(self, rows: IntArray) -> Iterable[_Piece]:
        """Divide requested rows by store: yield one piece per store that has some of them."""
        holders = np.searchsorted(self._bounds, rows, side="right") - 1
        for holder in np.unique(holders):
            here = np.flatnonzero(holders == holder)
            # A row that does not exist is refused by the store next to it.
            piece = min(max(holder, 0), len(self._stores) - 1)
            yield self._stores[piece], (rows[here] - self._bounds[piece]).astype(np.int64), here


class TakenFeature(_View):
    """Rows of another store, in any order, also repeated.

    Args:
        rows: the other store.
        positions: [num_rows] int32 or int64 position of each row in the other store.

    Example:
        >>> taken = TakenFeature(Feature(np.array([5, 6, 7])), np.array([2, 2, 0]))
        >>> taken.gather(np.array([0, 2])).tolist()
        [7, 5]
    """

    def __init__(self, rows: RowStore, positions: IntArray) -> None:
        super().__init__([rows], len(positions))
        self._rows, self._positions = rows, positions

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        return self._rows.read(self._positions[ids].astype(np.int64, copy=False), out)

    def expect(self, ids: Int64Array) -> None:
        self._rows.expect(self._positions[ids].astype(np.int64, copy=False))

    def content(self) -> tuple[Array, ...]:
        return (*super().content(), self._positions)


class CachedRows(RowStore):
    """Rows of another store, with copies of the hot ones in memory.

    Args:
        rows: the other store.
        hot_rows: [n] ids of the hot rows. They are read now, and later served from memory.

    Raises:
        IndexError: a row does not exist.

    Example:
        >>> cached = CachedRows(Feature(np.array([5, 6, 7])), hot_rows=[2])
        >>> cached.gather(np.array([2, 0])).tolist()
        [7, 5]
    """

    def __init__(self, rows: RowStore, hot_rows: ArrayLike) -> None:
        hot = to_int64(hot_rows, "hot_rows")
        self._rows = rows
        self._copies = Feature(rows.gather(hot), rows.dtype)
        self._copy_of = _native.IdIndex(hot)
        self.num_rows, self.stored, self.delivered = rows.num_rows, rows.stored, rows.delivered
        self.at_hand = rows.at_hand

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        copies = self._copy_of.find(ids)
        hits, misses = np.flatnonzero(copies >= 0), np.flatnonzero(copies < 0)
        hot: _Piece = self._copies, copies[hits], hits
        return _read_pieces([(self._rows, ids[misses], misses), hot], out)

    def close(self) -> None:
        self._rows.close()


def _read_pieces(pieces: Iterable[_Piece], out: Array) -> Ticket | None:
    """Read each piece's rows to their positions in `out`.

    If reads are still in flight, return a ticket for them, which is done when `out` is complete.
    """
    parts, puts = [], []
    for store, rows, here in pieces:
        if store.at_hand:
            store.gather(rows, out, here)
            continue
        read, ticket = store.start(rows)
        if ticket is None:
            _native.gather(read, None, out, here)
        else:
            parts.append(ticket)
            puts.append(partial(_native.gather, read, None, out, here))
    return TicketGroup(parts, lambda: [put() for put in puts]) if parts else None
