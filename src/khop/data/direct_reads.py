"""Reads of one file's rows in one process: the kernel's threads, the cache and what is in flight.

A read takes rows from the cache at once. Rows that another read has in flight are copied when that
one lands. The others are submitted to `_native.DirectReads`, whose threads read the rows of all
reads in the order of the file.

The cache is planned by `_native.LookaheadCache`: the rows of batches that `expect` has announced
count first. Half of the announced batches are read ahead, into memory that counts as cache. For the
other half, the cache keeps rows. Rows of less than 64 bytes have a cache of blocks instead, in
`_native.DirectReads`: a plan would take more memory than the rows.
"""

from __future__ import annotations

import itertools
import operator
import os
import threading
import weakref
from collections import deque
from typing import NamedTuple

import numpy as np

from khop import _native
from khop.data.disk_rates import gap_of
from khop.data.row_store import RowFormat
from khop.data.tickets import ReadTicket, Ticket, TicketGroup
from khop.errors import RowStoreError
from khop.typing import Array, Int64Array, IntArray

# Bytes of reads in flight: see `DirectReadOptions` of the kernels.
_POOL_BYTES, _NARROW_POOL_BYTES = 4 << 20, 1 << 20
# A page of 4 kB has many rows that are narrower.
NARROW_BYTES = 64
# Bytes of a cached row beside the row: its owner and position here, and its entry in the plan.
_PLAN_BYTES = 96
_MOST_EXPECTED = 64
_TRUNCATED = -1
_NONE = np.empty(0, np.int64)


class DiskCounts(NamedTuple):
    """Counts of reads past the page cache.

    Attributes:
        asked: rows that were asked for.
        missed: rows of these that were not in the cache.
        reads: reads of the file. Each has one or more of the missed rows.
        nbytes: bytes of these reads.
        edge_values: values of the graph's structure that were asked for: neighbours, ids of edges,
            times, weights.
        edge_values_missed: values of these that were not in the cache.
        lru_missed: rows that a cache of as many rows would not have had that keeps the rows of the
            last uses (LRU). An estimate by a sample of the rows for caches of more than 4,096.
        sieve_missed: the same for a cache by the rule SIEVE.
        packed: rows of `asked` that came from a pack (`khop.storage.pack`).

    Example:
        >>> khop.data.direct_reads.DiskCounts(asked=4, missed=2, reads=1, nbytes=4096).missed
        2
    """

    asked: int = 0
    missed: int = 0
    reads: int = 0
    nbytes: int = 0
    edge_values: int = 0
    edge_values_missed: int = 0
    lru_missed: int = 0
    sieve_missed: int = 0
    packed: int = 0

    def of_structure(self) -> DiskCounts:
        """Return the counts of rows as counts of the graph's structure."""
        return DiskCounts(0, 0, self.reads, self.nbytes, self.asked, self.missed)

    def plus(self, other: DiskCounts | None) -> DiskCounts:
        """Return the sum with other counts, if there are any."""
        return self if other is None else DiskCounts(*map(operator.add, self, other))

    def since(self, before: DiskCounts) -> DiskCounts:
        """Return the difference to earlier counts."""
        return DiskCounts(*map(operator.sub, self, before))


def rows_in_memory(nbytes: int, row_bytes: int) -> int:
    """Return the number of rows that a cache of `nbytes` keeps, beside reads and their plan."""
    left = max(0, nbytes - _POOL_BYTES)
    return (left - left // 8) // (row_bytes + _PLAN_BYTES)


class _Ticket(ReadTicket):
    """Ticket of a read: any thread that waits for one takes what has landed for all."""

    def __init__(self, reads: ProcessReads) -> None:
        super().__init__(reads.event)
        self._reads = reads

    def reap(self) -> None:
        self._reads.reap()


class _Read:
    """Rows on their way to `out`. `waits` counts what must still land."""

    __slots__ = ("error", "followers", "ids", "key", "out", "positions", "slots", "ticket", "waits")

    def __init__(self, key: int, ids: Int64Array, out: Array, ticket: _Ticket) -> None:
        self.key, self.ids, self.out, self.ticket = key, ids, out, ticket
        self.waits = 0
        self.error: Exception | None = None
        # Rows for the cache: positions in `out`, and slots. Copies for other reads: (read,
        # positions in this `out`, positions in that `out`).
        self.positions = self.slots = _NONE
        self.followers: list[tuple[_Read, Int64Array, Int64Array]] = []


class _Expected:
    """Batch that `expect` has announced. If it is being read, also its memory and ticket."""

    __slots__ = ("batch", "ids", "out", "ticket")

    def __init__(self, ids: Int64Array, batch: int) -> None:
        self.ids, self.batch = ids, batch
        self.out: Array | None = None
        self.ticket: Ticket | None = None


class ProcessReads:
    """Reads of one process. Safe to use from several threads.

    Args:
        descriptor: descriptor of the file.
        path: path of the file, for error messages.
        begin: offset of the first row in the file.
        row: format of a row.
        num_rows: number of rows.
        memory: bytes of the cache, of batches that are read ahead, and of reads in flight.
        use_ring: whether to use io_uring where it is allowed.
        keeps_rows: whether rows may be needed again. If not, all memory is for reading ahead.

    Attributes:
        event: descriptor that is readable when a read has landed.
    """

    def __init__(
        self,
        descriptor: int,
        path: str,
        begin: int,
        row: RowFormat,
        num_rows: int,
        memory: int,
        use_ring: bool = True,
        keeps_rows: bool = True,
    ) -> None:
        self._owner = os.getpid()
        self._path, self._row, self._num_rows = path, row, num_rows
        gap = gap_of(descriptor, use_ring)
        is_narrow = row.nbytes < NARROW_BYTES
        pool = _NARROW_POOL_BYTES if is_narrow else _POOL_BYTES
        left = max(0, memory - pool)
        of_blocks = left if is_narrow and keeps_rows else 0
        left -= of_blocks
        # An eighth of the memory is for batches that are read ahead, if any are announced.
        self._most_early, self._early = left // 8 if keeps_rows else left, 0
        self._native = _native.DirectReads(
            descriptor,
            begin,
            row.nbytes,
            num_rows,
            use_ring,
            cache_bytes=of_blocks,
            pool_bytes=pool,
        )
        self._native.set_gap(gap)
        # At exit, threads must not write to memory that is gone.
        self._end = weakref.finalize(self, self._native.close)
        self.event = self._native.event
        self._lock = threading.Lock()
        self._is_closed = False
        is_cached = keeps_rows and not is_narrow
        of_rows = rows_in_memory(memory, row.nbytes) if is_cached else 0
        capacity = min(of_rows, num_rows, 1 << 30)
        self._cache = _native.LookaheadCache(capacity) if capacity else None
        # Other rules would read nothing ahead.
        self._model = _native.CacheModel(min(left // (row.nbytes + _PLAN_BYTES), num_rows))
        self._table = np.empty((capacity, row.nbytes), np.uint8)
        # Of each slot: the read in flight whose row goes there, or -1, and the row's position.
        self._owners = np.full(capacity, -1, np.int32)
        self._positions = np.empty(capacity, np.int32)
        self._keys = itertools.cycle(range(1 << 31))
        self._reads: dict[int, _Read] = {}
        self._jobs: dict[int, tuple[_Read, bool]] = {}
        self._expected: deque[_Expected] = deque()
        self._asked = self._missed = 0

    @property
    def is_own(self) -> bool:
        """True in the process that made this object, False in its forks."""
        return self._owner == os.getpid()

    def counts(self) -> DiskCounts:
        """Return the counts so far."""
        _, reads, nbytes, in_blocks = self._native.counts()
        missed = self._missed - in_blocks
        return DiskCounts(self._asked, missed, reads, nbytes, 0, 0, *self._model.misses)

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        """Read rows into `out`. See `RowStore.read`."""
        early = self.take_early(ids)
        if early is not None:
            rows, ticket = early
            if ticket is None:
                np.copyto(out, rows)
                return None
            return TicketGroup([ticket], lambda: np.copyto(out, rows))
        with self._lock:
            done = self._landed()
            batch = None
            for i, expected in enumerate(self._expected):
                if np.array_equal(expected.ids, ids):
                    batch = expected.batch
                    del self._expected[i]
                    break
            read = self._begin(ids, out, batch)
            self._read_ahead()
        _complete(done)
        return read.ticket if read.waits else None

    def take_early(self, rows: IntArray) -> tuple[Array, Ticket | None] | None:
        """Return the memory and ticket of rows that are being read ahead. If none are, None."""
        with self._lock:
            for i, expected in enumerate(self._expected):
                if expected.out is not None and np.array_equal(expected.ids, rows):
                    del self._expected[i]
                    self._early -= expected.out.nbytes
                    self._read_ahead()
                    is_here = expected.ticket is None or expected.ticket.done
                    if is_here and expected.ticket is not None:
                        expected.ticket.result()
                    return expected.out, None if is_here else expected.ticket
        return None

    def expect(self, ids: Int64Array) -> None:
        """Announce the rows of a later batch. See `RowStore.expect`."""
        with self._lock:
            if self._is_closed or self._most_early == 0:
                return
            while len(self._expected) >= _MOST_EXPECTED:
                self._forget(self._expected.popleft())
            ids = np.array(ids, np.int64)
            batch = -1 if self._cache is None else self._cache.announce(ids)
            self._expected.append(_Expected(ids, batch))
            self._read_ahead()

    def _forget(self, expected: _Expected) -> None:
        if expected.out is not None:
            self._early -= expected.out.nbytes
        elif self._cache is not None:
            self._cache.forget(expected.batch)

    def _read_ahead(self) -> None:
        for expected in itertools.islice(self._expected, len(self._expected) // 2):
            if expected.out is None:
                nbytes = len(expected.ids) * self._row.nbytes
                if self._early + nbytes > self._most_early:
                    return
                self._early += nbytes
                expected.out = self._row.empty(len(expected.ids))
                read = self._begin(expected.ids, expected.out, expected.batch)
                expected.ticket = read.ticket if read.waits else None

    def _begin(self, ids: Int64Array, out: Array, batch: int | None) -> _Read:
        """Copy rows from the cache, and begin to read the others. Called with the lock."""
        if self._is_closed:
            raise RowStoreError(f"the rows of '{self._path}' have been closed")
        self._asked += len(ids)
        read = _Read(next(self._keys), ids, out, _Ticket(self))
        if self._cache is None:
            self._missed += len(ids)
            self._submit(read, ids, None, True)
            return read
        self._model.ask(ids)
        if batch is None:
            batch = self._cache.announce(ids)
        taken = self._cache.take(batch)
        hit_positions, hit_slots, misses, positions, slots, repeats, _ = taken
        self._copy_hits(read, hit_positions, hit_slots)
        if len(misses) == 0:
            return read
        self._missed += len(misses)
        kept = slots >= 0
        read.positions, read.slots = positions[kept], slots[kept]
        self._owners[read.slots], self._positions[read.slots] = read.key, read.positions
        if len(repeats):
            misses = np.concatenate([misses, ids[repeats]])
            positions = np.concatenate([positions, repeats])
        self._submit(read, misses, positions, True)
        return read

    def _copy_hits(self, read: _Read, positions: Int64Array, slots: Int64Array) -> None:
        owners = self._owners[slots]
        flying = owners >= 0
        if flying.any():
            for key in np.unique(owners[flying]).tolist():
                here = np.flatnonzero(owners == key)
                sources = self._positions[slots[here]].astype(np.int64)
                self._reads[key].followers.append((read, sources, positions[here]))
                read.waits += 1
            slots, positions = slots[~flying], positions[~flying]
        _native.gather(self._table, slots, self._bytes(read.out), positions)

    def _bytes(self, rows: Array) -> Array:
        """View rows as [n, bytes of a row]."""
        if not rows.flags.c_contiguous:
            raise ValueError("rows are read from disk into arrays in C order")
        return rows.reshape(-1).view(np.uint8).reshape(len(rows), self._row.nbytes)

    def _submit(
        self, read: _Read, ids: Int64Array, positions: Int64Array | None, is_first: bool
    ) -> None:
        job = self._native.submit(ids, self._bytes(read.out), positions)
        self._jobs[job] = read, is_first
        if is_first:
            self._reads[read.key] = read
        read.waits += 1

    def reap(self) -> None:
        """Complete the reads that have landed."""
        with self._lock:
            done = self._landed()
        _complete(done)

    def _landed(self) -> list[_Read]:
        """Take finished jobs, and return the reads that are complete. Called with the lock."""
        done: list[_Read] = []
        for job, error in self._native.finished():
            if job not in self._jobs:
                continue
            read, is_first = self._jobs.pop(job)
            if error:
                read.error = self._error(error)
            if is_first:
                del self._reads[read.key]
                self._pass_on(read, error != 0, done)
            self._arrived(read, done)
        return done

    def _pass_on(self, read: _Read, has_failed: bool, done: list[_Read]) -> None:
        """Copy rows that have landed to the cache and to other reads, before the owner has them."""
        followers, read.followers = read.followers, []
        if has_failed:
            if self._cache is not None:
                own = self._owners[read.slots] == read.key
                self._owners[read.slots[own]] = -1
                self._cache.discard(read.ids[read.positions[own]])
            for other, sources, positions in followers:
                self._submit(other, read.ids[sources], positions, False)
                other.waits -= 1
            return
        rows = self._bytes(read.out)
        own = self._owners[read.slots] == read.key
        _native.gather(rows, read.positions[own], self._table, read.slots[own])
        self._owners[read.slots[own]] = -1
        for other, sources, positions in followers:
            _native.gather(rows, sources, self._bytes(other.out), positions)
            self._arrived(other, done)

    def _arrived(self, read: _Read, done: list[_Read]) -> None:
        read.waits -= 1
        if read.waits == 0:
            done.append(read)

    def _error(self, error: int) -> Exception:
        if error == _TRUNCATED:
            return RowStoreError(
                f"'{self._path}' ends before its rows: it was cut off or replaced while in use"
            )
        return OSError(error, os.strerror(error), self._path)

    def close(self) -> None:
        """End the threads. Reads in flight fail with RowStoreError."""
        with self._lock:
            self._is_closed = True
            self._end()
            reads = {read for read, _ in self._jobs.values()}
            for read in list(reads):
                reads.update(other for other, _, _ in read.followers)
            self._jobs.clear()
            self._reads.clear()
            self._expected.clear()
        for read in reads:
            read.ticket.fail(RowStoreError(f"'{self._path}' was closed before its rows were read"))


def _complete(reads: list[_Read]) -> None:
    for read in reads:
        if read.error is None:
            read.ticket.succeed()
        else:
            read.ticket.fail(read.error)
