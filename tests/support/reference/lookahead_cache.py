"""Belady's rule with a window, in plain Python: the oracle of `khop._native.LookaheadCache`.

`capacity` best rows are kept after each batch, by sorting all candidates. `fewest_misses` tries all
contents of the cache, for tiny cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence


class WindowedBelady:
    """Cache of rows that keeps the rows needed soonest. See `kernels/khop/cpu/lookahead_cache.hpp`.

    Args:
        capacity: number of rows.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows: set[int] = set()
        self._announced: dict[int, list[int]] = {}
        self._uses: dict[int, list[int]] = {}
        self._count: dict[int, int] = {}
        self._idle: dict[int, tuple[int, int]] = {}  # (rank, time) of rows without known use
        self._floor = self._time = self._num_batches = 0

    def announce(self, ids: Iterable[int]) -> int:
        """Announce the rows of a later batch, and return its number."""
        number, self._num_batches = self._num_batches, self._num_batches + 1
        self._announced[number] = list(dict.fromkeys(ids))
        for row in self._announced[number]:
            self._uses.setdefault(row, []).append(number)
        return number

    def take(self, number: int) -> set[int]:
        """Take a batch, and return its rows that were in the cache."""
        batch = self._announced.pop(number)
        hits = self.rows & set(batch)
        for row in batch:
            self._uses[row].remove(number)
            self._count[row] = min(self._count.get(row, 0) + 1, 63)
            self._time += 1
            self._idle[row] = self._floor + self._count[row], self._time
        order = sorted(self.rows | set(batch), key=self._order)
        self.rows = set(order[: self.capacity])
        evicted = [row for row in order[self.capacity :] if not self._uses.get(row)]
        self._floor = max([self._floor, *(self._idle[row][0] for row in evicted)])
        for row in evicted:
            del self._count[row]
        return hits

    def _order(self, row: int) -> tuple[int, ...]:
        if self._uses.get(row):
            return 0, self._uses[row][0], row
        rank, time = self._idle[row]
        return 1, -rank, -time


def fewest_misses(batches: Sequence[Sequence[int]], capacity: int) -> int:
    """Return the fewest misses of any cache, by trying all contents after each batch."""
    best = {frozenset[int](): 0}
    for batch in batches:
        rows = set(batch)
        following: dict[frozenset[int], int] = {}
        for content, misses in best.items():
            total = misses + len(rows - content)
            candidates = content | rows
            size = min(capacity, len(candidates))
            for kept in map(frozenset, itertools.combinations(sorted(candidates), size)):
                following[kept] = min(total, following.get(kept, total))
        best = following
    return min(best.values())
