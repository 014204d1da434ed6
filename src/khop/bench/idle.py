"""Waiting until what a case left behind has come to rest, before the next one has its turn."""

from __future__ import annotations

import time
from pathlib import Path

_WINDOW = 0.05  # several ticks of the clock that counts processor time
_BUSY = 0.2  # share of a processor that still counts as work
_LONGEST = 10.0


def settle() -> None:
    """Returns when this process and its children hardly compute any more.

    Loaders make batches ahead; left early, they finish those that are begun.
    """
    end = time.monotonic() + _LONGEST
    before = _processor_time()
    while time.monotonic() < end:
        time.sleep(_WINDOW)
        now = _processor_time()
        if now - before <= _WINDOW * _BUSY:
            return
        before = now


def _processor_time() -> float:
    """Seconds of this process and of its children."""
    return time.process_time() + sum(map(_time_of, _children()))


def _children() -> list[int]:
    found: list[int] = []
    for file in Path("/proc/self/task").glob("*/children"):
        found += map(int, _read(file).split())
    return found


def _time_of(pid: int) -> float:
    """Processor time of a process, in seconds by a clock that ticks every 10 ms."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100 if len(fields) > 12 else 0.0


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # it has ended
        return ""
