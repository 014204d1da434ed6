"""Waiting for the background work of one case to end before the next one is measured."""

from __future__ import annotations

import time
from pathlib import Path

_WINDOW = 0.05  # several ticks of the clock that counts processor time
_BUSY = 0.2  # share of a processor that still counts as work
_LONGEST = 10.0


def settle() -> None:
    """Wait until this process and its children are nearly idle, 10 s at most.

    Loaders prefetch batches. If an epoch is left early, batches in flight are still finished.
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
    """Return the processor time of this process and of its children, in seconds."""
    return time.process_time() + sum(map(_time_of, _children()))


def _children() -> list[int]:
    pids: list[int] = []
    for file in Path("/proc/self/task").glob("*/children"):
        pids += map(int, _read(file).split())
    return pids


def _time_of(pid: int) -> float:
    """Return the processor time of a process, in seconds, by a clock that ticks every 10 ms."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100 if len(fields) > 12 else 0.0


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # it has ended
        return ""
