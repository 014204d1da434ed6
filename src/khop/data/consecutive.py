"""Rows that count up: the ids of things that are numbered one after the other.

Any process; imports no torch.
"""

from __future__ import annotations

import numpy as np

from khop.data.row_store import RowFormat, RowStore
from khop.typing import Array, Int64Array


class ConsecutiveIds(RowStore):
    """Ids first, first + 1, ...; row i is first + i. They take no memory.

    Args:
        first: the first id.
        num_rows: how many there are.

    Example:
        >>> ConsecutiveIds(10, 3).gather(np.array([2, 0])).tolist()
        [12, 10]
    """

    at_hand = True
    stored = RowFormat("int64")

    def __init__(self, first: int, num_rows: int) -> None:
        self._first, self.num_rows = first, num_rows

    def read(self, ids: Int64Array, out: Array) -> None:
        """Return ids; see `RowStore.read`."""
        np.add(ids, self._first, out=out)
