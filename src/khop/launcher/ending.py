"""End of a job's processes on a host, by the stage or its guard. Standard library only, no torch.

Processes of the job are known by the environment variable KHOP_RUN, which all of their children
inherit. So children of wrappers (conda, shells) and those in other process groups are ended, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "KHOP_RUN"
ROUND_SECONDS = 0.1
"""Seconds between two looks at the processes."""

_GIVE_UP_SECONDS = 10.0


def members(cookie: bytes) -> dict[int, int]:
    """Return {pid: parent's pid} of the processes that have `cookie` in their environment."""
    pids = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                if cookie in (process / "environ").read_bytes():
                    state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
                    if state not in "ZX":
                        pids[int(process.name)] = int(parent)
    return pids


def ending(cookie: bytes, grace: float) -> Iterator[dict[int, int]]:
    """End all processes of a job. Yield {pid: parent's pid} while any are left.

    A process without a parent in the job gets SIGTERM, with its process group. It ends its own
    children, and orphans are next. After `grace` seconds, all that are left get SIGKILL.
    """
    kill_at = time.monotonic() + grace
    asked: set[int] = set()
    while left := members(cookie):
        for pid, parent in left.items():
            if parent not in left and pid not in asked:
                asked.add(pid)
                _signal(pid, signal.SIGTERM)
        yield left
        if time.monotonic() >= kill_at:
            for pid in left:
                _signal(pid, signal.SIGKILL)
        if time.monotonic() >= kill_at + _GIVE_UP_SECONDS:  # they wait in the kernel
            return


def _signal(pid: int, signal_number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(pid, signal_number)
        except ProcessLookupError:
            os.kill(pid, signal_number)


def start_guard(cookie: bytes, grace: float) -> tuple[int, int]:
    """Fork a process that ends the job when this one is killed. Return (its pid, a pipe to it).

    The guard ends in peace when a byte is written to the pipe.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read_end)
        return pid, write_end
    os.close(write_end)
    os.setsid()
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    if not os.read(read_end, 1):
        with contextlib.suppress(OSError):
            os.write(1, b'\n{"lost": "the stage was killed"}\n')
        for _ in ending(cookie, grace):
            time.sleep(ROUND_SECONDS)
    os._exit(0)
