"""Random faults of a soak, drawn from a seed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from soak.network import Hosts

_PROGRAMS = {
    "khop.distributed.sampling.worker": "sampler",
    "khop.distributed.rpc.partition_server": "server",
    "khop.distributed.remote.client.receiver": "receiver",
    "khop.cli.main": "server",  # khop serve
}
_YOUNG = 2.0  # seconds
_AMID_RECOVERY = 0.3  # share of the strikes that do not wait for progress
_LONGEST_PEACE = 20.0
Action = Callable[[], None]


def programs_below(roots: Iterable[int]) -> dict[str, list[int]]:
    """Return the ids of khop's processes among some processes and their descendants, by role."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    known = set(roots)
    pids: dict[str, list[int]] = {role: [] for role in _PROGRAMS.values()}
    while fresh := {pid for pid, parent in parents.items() if parent in known} - known:
        known |= fresh
    for pid in sorted(known & parents.keys()):
        role = _role(pid)
        if role is not None:
            pids[role].append(pid)
    return pids


def _role(pid: int) -> str | None:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((_PROGRAMS[w.decode()] for w in words if w.decode("latin1") in _PROGRAMS), None)


def _age(pid: int) -> float:
    """Return the seconds since a process was started. If it has ended, 0."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except OSError:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class Faults:
    """Fault injector that strikes every few seconds until it is ended.

    Args:
        roots: function that returns processes. They and their descendants may be killed.
        seed: seed of all random choices.
        interval: seconds between two kills on average.
        roles: roles to kill: 'sampler', 'server', 'receiver'.
        progress: function that returns the number of batches that each trainer has delivered.
        hosts: hosts whose cable and network links are disturbed. If None, the network is not.

    Attributes:
        counts: number of times that each fault happened.
        failure: the error that ended a thread of this object, or None.
    """

    def __init__(
        self,
        roots: Callable[[], Iterable[int]],
        seed: int,
        interval: float,
        roles: Iterable[str],
        progress: Callable[[], list[int]],
        hosts: Hosts | None = None,
    ) -> None:
        self._roots = roots
        self._random = random.Random(seed)
        self._interval = interval
        self._roles = list(roles)
        self._progress = progress
        self._hosts = hosts
        self._young_in_a_row = 0
        self._over = threading.Event()
        self.counts: Counter[str] = Counter()
        self.failure: Exception | None = None
        threads = [self._kill_for_ever, *([self._disturb_for_ever] if hosts else [])]
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in threads
        ]
        for thread in self._threads:
            thread.start()

    @property
    def kills(self) -> int:
        """Number of processes killed so far."""
        return sum(n for fault, n in self.counts.items() if fault.startswith("killed"))

    def end(self) -> None:
        """End the faults, continue stopped processes, and restore the network."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Action) -> None:
        try:
            work()
        except Exception as error:  # reported by the driver's main thread
            self.failure = error

    def _kill_for_ever(self) -> None:
        while not self._over.wait(self._random.expovariate(1 / self._interval)):
            self._let_them_work()
            self._strike("stop" if self._random.random() < 0.1 else "kill")

    def _let_them_work(self) -> None:
        """Wait, in most cases, until every trainer has made progress since the last fault.

        Without this a slow machine would do nothing but start processes. In the other cases the
        next fault happens in the middle of a recovery.
        """
        if self._random.random() < _AMID_RECOVERY:
            return
        before, end = self._progress(), time.monotonic() + _LONGEST_PEACE
        while time.monotonic() < end and not self._over.wait(0.05):
            if all(new > old for new, old in zip(self._progress(), before, strict=True)):
                return

    def _strike(self, how: str) -> None:
        living = programs_below(self._roots())
        role = self._random.choice([r for r in self._roles if living[r]] or [""])
        if not role:
            return
        pid = self._random.choice(living[role])
        if role == "server" and not self._may_strike(pid):
            return
        with contextlib.suppress(ProcessLookupError):
            if how == "kill":
                os.kill(pid, signal.SIGKILL)
                self.counts[f"killed {role}"] += 1
                return
            os.kill(pid, signal.SIGSTOP)
            self._over.wait(self._random.uniform(0.2, 3))
            self.counts[f"stopped {role} for a while"] += 1
            os.kill(pid, signal.SIGCONT)

    def _may_strike(self, pid: int) -> bool:
        """Return False for a young server after two young ones in a row.

        khop gives up servers that repeatedly die soon after their start, by design.
        """
        is_young = _age(pid) < _YOUNG
        self._young_in_a_row = self._young_in_a_row + 1 if is_young else 0
        return self._young_in_a_row <= 2

    def _disturb_for_ever(self) -> None:
        assert self._hosts is not None
        hosts, cable = self._hosts, self._hosts.cable
        while not self._over.wait(self._random.expovariate(1 / (4 * self._interval))):
            fault = self._random.choice(["delayed", "stalled", "cut", "link down"])
            if fault == "delayed":
                cable.set(delay=self._random.uniform(0.002, 0.05))
                self._over.wait(self._random.uniform(1, 5))
            elif fault == "stalled":
                seconds = self._random.uniform(0.5, 3)
                cable.set(delay=seconds)
                self._over.wait(seconds)
            elif fault == "cut":
                cable.set(is_cut=True)
                self._over.wait(self._random.uniform(0.5, 6))
            else:
                end = self._random.randrange(2)
                hosts.set_link(end, False)
                self._over.wait(self._random.uniform(0.5, 6))
                hosts.set_link(end, True)
            cable.set()
            self.counts[fault] += 1
