"""Cache of rows of other parts, by the batches that are drawn ahead.

Batches are announced when they are drawn, some batches before their rows are requested. So the rows
that the next batches need are known, and the cache keeps the rows that are needed soonest (Belady's
rule, see `kernels/khop/cpu/lookahead_cache.hpp`). A row that an earlier batch has requested is
not requested again while it is cached or in flight. A batch that counts on such a row is written
after the earlier batch, which stores it. Runs in samplers and trainers. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from khop import _native
from khop.data import Feature
from khop.sampler.rows.row_fetch import KeptRows, LocalRows, RowFetch
from khop.sampler.rows.row_fetcher import PartRows
from khop.trace.clock import REUSED
from khop.typing import Int64Array

PLAN_BYTES = 80
"""Bytes that the plan takes per cached row. A row of an announced batch takes up to 80 beside."""

# Rows with fewer bytes are not cached: the plan of the cache takes more memory than they do.
_MIN_ROW_BYTES = 32

# Rows of announced batches per row of the cache. With 4 times as many, misses are within 3 % of
# those with all batches known, with twice as many within 25 % (Debian's packages, 32 to 256 seeds).
ROWS_KNOWN = 4


class RowCache:
    """Cache of one table's rows of other parts.

    Args:
        fetcher: fetcher of the rows.
        capacity: number of rows.
        num_rows: number of rows that exist in other parts. If the cache has space for all of them,
            it never evicts, and its plan costs a third of the time.
    """

    def __init__(self, fetcher: PartRows, capacity: int, num_rows: int) -> None:
        self._fetcher = fetcher
        self._plan = _native.LookaheadCache(capacity, num_rows)
        self._model = _native.CacheModel(capacity)
        # Memory is allocated when a row is stored first.
        attributes = fetcher.attributes.values()
        self._rows = [attr.stored.empty(capacity) for attr in attributes]
        self._tables = [
            attr.delivering(Feature(rows, attr.stored.dtype))
            for attr, rows in zip(attributes, self._rows, strict=True)
        ]
        # The last request that stores a row in each slot, and the last that uses the slot, from 1.
        # Zeros take no memory before they are written.
        self._stored_by, self._used_by = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
        self._num_batches = self._num_announced = 0

    @property
    def capacity(self) -> int:
        """Number of rows that it can have."""
        return self._plan.capacity

    @property
    def batches_known(self) -> int:
        """Number of batches that should be announced, from the mean batch so far.

        Their rows are `ROWS_KNOWN` times the cache's.
        """
        known = ROWS_KNOWN * self._plan.capacity * self._num_batches
        return -(-known // max(self._num_announced, 1))

    @property
    def missed_by_rules(self) -> tuple[int, int]:
        """Misses that LRU and SIEVE would have had so far with as many rows."""
        return self._model.misses

    def announce(self, fetch: RowFetch) -> None:
        """Announce the missing rows of a batch that has been drawn."""
        ids = [missing.ids for missing in fetch.missing]
        positions = [missing.positions for missing in fetch.missing]
        joined = _joined(ids)
        self._num_batches += 1
        self._num_announced += len(joined)
        fetch.plan = self._plan.announce(joined), _joined(positions)

    def request(self, fetch: RowFetch, request_number: int) -> int:
        """Request the rows of an announced batch that are neither cached nor in flight.

        Its rows that are cached become local.

        Args:
            fetch: the batch's rows.
            request_number: a number that is higher than earlier ones.

        Returns:
            The last request whose batch must be written before this one, with all before it.
            -1 if there is none.
        """
        assert fetch.plan is not None
        planned_batch, at = fetch.plan
        for missing in fetch.missing:
            self._model.ask(missing.ids)
        hits, hit_slots, misses, firsts, slots, repeats, originals = self._plan.take(planned_batch)
        fetch.planned_misses = misses
        if len(hits):
            fetch.local.append(LocalRows(self._tables, hit_slots, at[hits], REUSED))
        if len(repeats):
            fetch.repeats, fetch.originals = at[repeats], at[originals]
        firsts = at[firsts]
        for ids, order, index in self._fetcher.by_slice(misses):
            for piece in self._fetcher.pieces(len(ids)):
                rows = order[piece]
                stays = np.flatnonzero(slots[rows] >= 0)
                kept = KeptRows(self._rows, stays, slots[rows[stays]])
                request = self._fetcher.requested(index, ids[piece], firsts[rows], kept)
                fetch.remote.append(request)
        kept_slots = slots[slots >= 0]
        after_stores = self._stored_by[hit_slots].max(initial=0)
        after_uses = self._used_by[kept_slots].max(initial=0)
        self._used_by[hit_slots] = request_number + 1
        self._used_by[kept_slots] = self._stored_by[kept_slots] = request_number + 1
        return int(max(after_stores, after_uses)) - 1

    def forget(self, fetch: RowFetch) -> None:
        """Withdraw an announced batch whose rows were not requested."""
        if fetch.plan is not None:
            self._plan.forget(fetch.plan[0])

    def discard(self, fetch: RowFetch) -> None:
        """Give up the rows that a batch has requested and not written."""
        if fetch.planned_misses is None:
            self.forget(fetch)
        else:
            self._plan.discard(fetch.planned_misses)
        fetch.plan = fetch.planned_misses = None
        fetch.local = [rows for rows in fetch.local if rows.origin != REUSED]
        fetch.remote, fetch.repeats, fetch.originals = [], None, None

    def clear(self) -> None:
        """Forget all rows and announced batches."""
        self._plan.clear()


class TableSize(NamedTuple):
    """Size of a table's rows on other machines: bytes of a row, and number of rows."""

    row_bytes: int
    num_rows: int


def capacities(nbytes: int, tables: Mapping[int, TableSize]) -> dict[int, int]:
    """Divide bytes among the caches of tables, in proportion to the bytes of their rows.

    Args:
        nbytes: bytes of all caches, with their plans.
        tables: sizes of the tables, by any key.

    Returns:
        The number of rows of each table's cache, at most all of its rows. Tables without a cache
        are left out.
    """
    costs = {
        key: size.row_bytes + PLAN_BYTES
        for key, size in tables.items()
        if size.row_bytes >= _MIN_ROW_BYTES and size.num_rows > 0
    }
    total = sum(cost * tables[key].num_rows for key, cost in costs.items())
    share = min(nbytes / total, 1.0) if total else 0.0
    shares = {key: int(share * tables[key].num_rows) for key in costs}
    return {key: count for key, count in shares.items() if count > 0}


def _joined(arrays: Sequence[Int64Array]) -> Int64Array:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)
