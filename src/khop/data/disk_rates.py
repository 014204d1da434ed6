"""Rates of a disk, measured by its first reads in a process. Imports no torch.

Two rows of a file are one read if the bytes between them take less time than a second read. This
distance is the time of a further read times the rate of bytes in sequence.
"""

from __future__ import annotations

import os
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
_LEAST_FILE, _BLOCK = 64 << 20, 4096
_SEQUENCE_BYTES, _SINGLES, _SECONDS = 4 << 20, 128, 1.0
_gaps: dict[int, int] = {}  # by disk
_late: list[tuple[_native.DirectReads, Array]] = []  # reads that were given up, and their memory


def gap_of(descriptor: int, use_ring: bool) -> int:
    """Return the most bytes between two rows of a file that are worth reading to save a read.

    Args:
        descriptor: descriptor of the file. A disk is measured once per process, by the first file
            that is large enough.
        use_ring: whether to use io_uring where it is allowed.
    """
    status = os.fstat(descriptor)
    if status.st_dev not in _gaps and status.st_size >= _LEAST_FILE:
        num_blocks = status.st_size // _BLOCK
        reads = _native.DirectReads(descriptor, 0, _BLOCK, num_blocks, use_ring)
        _gaps[status.st_dev] = _measure(reads, num_blocks)
    return _gaps.get(status.st_dev, _GAP)


def _measure(reads: _native.DirectReads, num_blocks: int) -> int:
    """Measure single blocks, and blocks in sequence. Takes some 10 ms on a fast disk.

    For a disk that takes more than a second, single reads count as slow.
    """
    rng = np.random.default_rng(0)
    count = _SEQUENCE_BYTES // _BLOCK
    scratch = np.empty((max(count, _SINGLES), _BLOCK), np.uint8)
    end = time.monotonic() + _SECONDS
    singles, sequence = [], []
    for first in rng.integers(num_blocks - count, size=3).tolist():
        singles.append(_time(reads, rng.integers(num_blocks, size=_SINGLES), scratch, end))
        sequence.append(_time(reads, np.arange(first, first + count), scratch, end))
        if time.monotonic() > end:
            _late.append((reads, scratch))
            return _MOST_GAP
    rate = count * _BLOCK / min(sequence)
    seconds = max(min(singles) / _SINGLES - _BLOCK / rate, 0.0)
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
