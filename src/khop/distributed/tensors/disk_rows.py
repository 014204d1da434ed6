"""Rows of a tensor in a file of the part's server, behind a write-back cache. Imports no torch.

The file has no name: no other process opens it, and it is gone with the server. After a crash the
last checkpoint counts. Blocks that have changed are written when they leave the cache. So rows that
each step changes are not written in each step.

Reads and writes go past the page cache. Beside the cache, a tensor takes 8 MiB of memory, and 4
bytes per block. A block has the rows of 512 bytes, a sector, or one row if that is longer.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import select
import tempfile
from typing import TypeAlias

import numpy as np

from khop import _native
from khop.data import RowFormat
from khop.data.arrays import storage_dtype
from khop.data.files import advise_huge_pages
from khop.typing import Array, Int64Array

FOLDER_VARIABLE = "KHOP_TENSOR_FOLDER"
"""Environment variable of servers: folder of the files. By default, /var/tmp."""

_SECTOR, _PAGE = 512, 4096
_BYTES_AT_ONCE = 2 << 20  # of blocks: some 20 ms of a fast disk
_MAX_ROW_BYTES = 1 << 20


class DiskRows:
    """Rows in a file, [num_rows, *rows.shape]. For one thread.

    Args:
        num_rows: number of rows.
        rows: format of a row, of 1 byte to 1 MiB.
        cache_bytes: bytes of the cache.

    Attributes:
        shape: shape of all rows.
        dtype: dtype of the values as they are stored.
        most_rows: most rows of a call of `read` or `write`.

    Raises:
        ValueError: rows of no bytes or of more than 1 MiB, or a cache of fewer than 8 blocks.
        OSError: the disk has too little space.
    """

    def __init__(self, num_rows: int, rows: RowFormat, cache_bytes: int) -> None:
        if not 1 <= rows.nbytes <= _MAX_ROW_BYTES:
            raise ValueError(f"rows on disk have 1 byte to 1 MiB (got {rows.nbytes} bytes)")
        self.shape, self.dtype = (num_rows, *rows.shape), storage_dtype(rows.dtype)
        self._failure: OSError | None = None
        self._file = tempfile.TemporaryFile(  # noqa: SIM115
            dir=os.environ.get(FOLDER_VARIABLE, "/var/tmp"), buffering=0
        )
        try:
            self._make(num_rows, rows.nbytes, cache_bytes)
        except BaseException:
            self._file.close()
            raise

    def _make(self, num_rows: int, row_bytes: int, cache_bytes: int) -> None:
        file = self._file.fileno()
        self._sector = _direct_sector(file)
        # Rows are padded to a part of a sector, or to several.
        divisors = (self._sector >> shift for shift in range(self._sector.bit_length()))
        whole = -(-row_bytes // self._sector) * self._sector
        padded = min((d for d in divisors if d >= row_bytes), default=whole)
        self._per_block = max(self._sector // padded, 1)
        block_bytes = padded * self._per_block
        num_blocks = max(-(-num_rows // self._per_block), 1)
        capacity = min(cache_bytes // (block_bytes + 16), num_blocks)
        if capacity < min(8, num_blocks):
            raise ValueError(f"a cache of {cache_bytes} bytes has fewer than 8 blocks")
        os.posix_fallocate(file, 0, num_blocks * block_bytes)  # no write can lack space later
        self._row_bytes = row_bytes
        self._blocks = aligned_blocks(capacity, block_bytes)
        self._slots = self._blocks.reshape(capacity * self._per_block, padded)
        at_once = max(_BYTES_AT_ONCE // block_bytes, 1)
        self.most_rows = max(min(capacity // 2, at_once), 1)
        self._leaving = aligned_blocks(min(self.most_rows, capacity), block_bytes)
        self._plan = _native.WriteBackCache(num_blocks, capacity)
        self._reads = _native.DirectReads(file, 0, block_bytes, num_blocks)
        self._reads.set_gap(0)
        self._poll = select.poll()
        self._poll.register(self._reads.event, select.POLLIN)
        self.num_read = self.num_written = 0  # blocks

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def read(self, rows: Int64Array) -> Array:
        """Return rows, which may be repeated: [n, ...], n at most `most_rows`."""
        return self._values_at(self._positions(rows, False))

    def begin_change(self, rows: Int64Array) -> tuple[Array, Int64Array]:
        """Return rows, and where `end_change` writes their new values. No other call between."""
        positions = self._positions(rows, True)
        return self._values_at(positions), positions

    def _values_at(self, positions: Int64Array) -> Array:
        padded: Array = np.empty((len(positions), self._slots.shape[1]), np.uint8)
        _native.gather(self._slots, positions, padded)
        values = np.ascontiguousarray(padded[:, : self._row_bytes]).reshape(-1).view(self.dtype)
        return values.reshape(len(positions), *self.shape[1:])

    def write(self, rows: Int64Array, values: Array) -> None:
        """Replace rows, at most `most_rows`. Of a repeated row, the last value counts."""
        self.end_change(self._positions(rows, True), values)

    def end_change(self, positions: Int64Array, values: Array) -> None:
        """Write the new values of rows. See `begin_change`."""
        flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        stored: Array = flat.reshape(len(positions), self._row_bytes)
        if self._slots.shape[1] > self._row_bytes:
            padded = np.zeros((len(positions), self._slots.shape[1]), np.uint8)
            padded[:, : self._row_bytes] = stored
            stored = padded
        _native.gather(stored, None, self._slots, positions)

    def _positions(self, rows: Int64Array, changes: bool) -> Int64Array:
        """Bring the blocks of rows into memory, and return the rows' positions in `_slots`."""
        if self._failure is not None:
            raise OSError(self._failure.errno, f"rows on disk were lost: {self._failure}")
        blocks, within = np.divmod(rows, self._per_block)
        slots, misses, miss_slots, leaving, old_slots = self._plan.load(blocks, changes)
        try:
            self._exchange(misses, miss_slots, leaving, old_slots)
        except OSError as error:
            self._failure = error  # slots have other rows than the plan says
            raise
        positions: Int64Array = slots * self._per_block + within
        return positions

    def _exchange(
        self, misses: Int64Array, slots: Int64Array, leaving: Int64Array, old_slots: Int64Array
    ) -> None:
        """Write blocks that leave the cache, and read others meanwhile."""
        order = np.argsort(leaving)
        if len(leaving):
            _native.gather(self._blocks, old_slots[order], self._leaving[: len(leaving)])
        job = self._reads.submit(misses, self._blocks, slots) if len(misses) else None
        try:
            if len(leaving):
                _native.write_blocks(self._file.fileno(), leaving[order], self._leaving)
        finally:
            while job is not None:
                self._poll.poll()
                for ended, error in self._reads.finished():
                    job = None if ended == job else job
                    if error:
                        raise OSError(abs(error), "a read of rows on disk failed")
        self.num_read += len(misses)
        self.num_written += len(leaving)

    def close(self) -> None:
        """End the threads, and remove the file. A second call does nothing."""
        self._reads.close()
        self._file.close()


def aligned_blocks(count: int, nbytes: int) -> Array:
    """Return [count, nbytes] uint8 that begins at a page."""
    mapping = mmap.mmap(-1, count * nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advise_huge_pages(mapping)
    return np.frombuffer(mapping, np.uint8).reshape(count, nbytes)


def use_direct(file: int) -> bool:
    """Have a file read and written past the page cache. Return False if that is not possible.

    File systems in memory have a page cache alone.
    """
    with contextlib.suppress(OSError):
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_DIRECT)
        return True
    return False


def _direct_sector(file: int) -> int:
    """Have a file written past the page cache, and return the bytes that writes must be of."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    if use_direct(file):
        sector = memoryview(mmap.mmap(-1, _PAGE))
        for nbytes in (_SECTOR, _PAGE):
            with contextlib.suppress(OSError):
                os.pwrite(file, sector[:nbytes], 0)
                return nbytes
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
    return _SECTOR


Table: TypeAlias = "Array | DiskRows"
"""Rows of a tensor in a part: in memory, or on disk."""


def most_rows(count: int, *tables: Table) -> int:
    """Return the number of rows of a slice of work, at most `count`."""
    return min([count, *(table.most_rows for table in tables if isinstance(table, DiskRows))])


def begin_change(table: Table, rows: Int64Array) -> tuple[Array, Int64Array]:
    """Return rows, and where `end_change` writes their new values."""
    if isinstance(table, DiskRows):
        return table.begin_change(rows)
    out = np.empty((len(rows), *table.shape[1:]), table.dtype)
    _native.gather(table, rows, out)
    return out, rows


def end_change(table: Table, positions: Int64Array, values: Array) -> None:
    """Write the new values of rows. See `begin_change`."""
    if isinstance(table, DiskRows):
        table.end_change(positions, values)
    else:
        _native.gather(values, None, table, positions)
