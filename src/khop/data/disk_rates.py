"""Rates of a disk, measured by its first reads in a process. Imports no torch.

Two rows of a file are one read if the bytes between them take less time than a second read. This
distance is the time of a further read times the rate of bytes in sequence.
"""

from __future__ import annotations

import select
import time
from typing import Any

import numpy as np

from khop import _native
from khop.log import EventLogger
from khop.typing import Array, Int64Array

_log = EventLogger(__name__)

# Bytes between rows: of files that are too small to measure, and limits.
_GAP, _LEAST_GAP, _MOST_GAP = 32 << 10, 4 << 10, 256 << 10
_LEAST_FILE = 64 << 20
_SEQUENCE_BYTES, _SINGLES, _SECONDS = 4 << 20, 128, 1.0
_gaps: dict[int, int] = {}  # by disk
_late: list[Array] = []  # memory of reads that were given up


def gap_of(reads: _native.DirectReads, disk: int, row_bytes: int, num_rows: int) -> int:
    """Return the most bytes between two rows that are worth reading to save a read.

    Args:
        reads: a file's reads, none of them in flight.
        disk: number of the disk, which is measured once per process.
        row_bytes: bytes of a row.
        num_rows: number of rows.
    """
    if disk not in _gaps and num_rows * row_bytes >= _LEAST_FILE:
        _gaps[disk] = _measure(reads, row_bytes, num_rows)
    return _gaps.get(disk, _GAP)


def _measure(reads: _native.DirectReads, row_bytes: int, num_rows: int) -> int:
    """Measure single rows, and rows in sequence. Takes some 10 ms on a fast disk.

    For a disk that takes more than a second, single reads count as slow.
    """
    rng = np.random.default_rng(0)
    count = _SEQUENCE_BYTES // row_bytes + 1
    scratch = np.empty((max(count, _SINGLES), row_bytes), np.uint8)
    end = time.monotonic() + _SECONDS
    singles, sequence = [], []
    for first in rng.integers(num_rows - count, size=3).tolist():
        singles.append(_time(reads, rng.integers(num_rows, size=_SINGLES), scratch, end))
        sequence.append(_time(reads, np.arange(first, first + count), scratch, end))
        if time.monotonic() > end:
            _late.append(scratch)
            return _MOST_GAP
    rate = count * row_bytes / min(sequence)
    seconds = max(min(singles) / _SINGLES - 4096 / rate, 0.0)
    _log.info(
        "disk-measured",
        f"a disk takes {1e6 * seconds:.1f} us per read, and reads {rate / 1e9:.2f} GB/s",
        seconds_per_read=seconds,
        bytes_per_second=rate,
    )
    return int(min(max(seconds * rate, _LEAST_GAP), _MOST_GAP))


def _time(reads: _native.DirectReads, rows: Int64Array, scratch: Array, end: float) -> float:
    poller: Any = select.poll()
    poller.register(reads.event, select.POLLIN)
    began = time.perf_counter()
    reads.submit(rows, scratch[: len(rows)])
    while not reads.finished() and time.monotonic() < end:
        poller.poll(100)
    return time.perf_counter() - began
