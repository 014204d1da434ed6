"""Wide rows of a batch, written in the order of their positions from all of their sources.

Rows of the own part, copies, and rows of replies alternate in a batch. Copied source by source,
each source leaves gaps between the rows that it writes, and a processor writes with gaps at half
the speed. So the rows are written in one pass over the batch, which continues as replies arrive.
Runs in samplers and trainers. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from khop import _native
from khop.data import Feature, RowStore
from khop.typing import Array, Int64Array

# Narrower rows are written source by source: several of them share a line of the processor's cache.
_MIN_ROW_BYTES = 64

Source: TypeAlias = tuple[Sequence[Array], Int64Array, Int64Array]
"""Rows on this machine: an array of each attribute, rows of it, and their positions."""


def is_orderable(out: Array, stores: Sequence[RowStore | None]) -> bool:
    """Return True if a pass can write the attribute `out` from its local stores and replies."""
    return out.strides[0] >= _MIN_ROW_BYTES and all(
        type(store) is Feature and store.array.flags.aligned for store in stores
    )


class OrderedPass:
    """Writer of some attributes of a batch, position by position.

    Args:
        outs: [n, *row_shape] array of each attribute.
        local: the rows on this machine.
    """

    def __init__(self, outs: Sequence[Array], local: Sequence[Source]) -> None:
        self._outs = outs
        self._tables = [arrays for arrays, _, _ in local]
        # For each position, its row in all arrays of an attribute, one after the other.
        self._rows = np.empty(len(outs[0]), np.int64)
        self._num_local = self._written = 0
        for arrays, rows, positions in local:
            self._rows[positions] = rows + self._num_local
            self._num_local += len(arrays[0])
        self._replies: list[_Reply] = []

    def take(self, arrays: Sequence[Sequence[Array]], positions: Int64Array) -> None:
        """Take the rows of a reply: the arrays of each attribute, and ascending positions."""
        self._replies.append(_Reply(arrays, positions))

    def write(self, end: int) -> None:
        """Write the rows at positions below `end`. Their replies must have been taken."""
        begin, first = self._written, self._num_local
        if begin >= end:
            return
        for reply in self._replies:
            used, reply.used = reply.used, int(np.searchsorted(reply.positions, end))
            rows = np.arange(first + used, first + reply.used)
            self._rows[reply.positions[used : reply.used]] = rows
            first += len(reply.positions)
        for i, out in enumerate(self._outs):
            arrays = [tables[i] for tables in self._tables]
            arrays += [array for reply in self._replies for array in reply.arrays[i]]
            _native.gather_parts(arrays, self._rows[begin:end], out[begin:end])
        self._replies = [r for r in self._replies if r.used < len(r.positions)]
        self._written = end


class _Reply:
    """Rows of a reply. `used` is the number of rows that are written."""

    def __init__(self, arrays: Sequence[Sequence[Array]], positions: Int64Array) -> None:
        self.arrays, self.positions, self.used = arrays, positions, 0
