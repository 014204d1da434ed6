"""Leases: how long other processes may be silent before they count as ended. Imports no torch.

A process renews its lease by a message, or by a counter that other processes read. The reader
measures the time since then by its own monotonic clock: clocks of two machines are never compared.
Time counts only while the reader looks. A reader that was stopped (a debugger, Ctrl-Z, a paused
virtual machine) has seen no renewals. Other processes may have been stopped with it.

A lease is the last resort. A closed connection, the end of a child process and a published error
are noticed sooner.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable

DEFAULT_LEASE = 30.0
LEASE_VARIABLE = "KHOP_LEASE"
# A shorter lease would end when a machine is busy: renewals come every second.
_SHORTEST, _LONGEST = 5.0, 86_400.0
# Most seconds between two looks that count: looks come at least every second.
_MOST_BETWEEN_LOOKS = 2.0


def lease_seconds(lease: float | None = None) -> float:
    """Return the length of a lease: seconds that a process may be silent before it counts as ended.

    Args:
        lease: the length that the user passed. If None, $KHOP_LEASE, or 30 if that is not set.

    Raises:
        ValueError: not a number from 5 to 86,400.

    Example:
        >>> lease_seconds(), lease_seconds(60)
        (30.0, 60.0)
    """
    value = os.environ.get(LEASE_VARIABLE) or DEFAULT_LEASE if lease is None else lease
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not _SHORTEST <= seconds <= _LONGEST:
        source = LEASE_VARIABLE if lease is None else "lease"
        raise ValueError(
            f"{source} must be a number of seconds from {_SHORTEST:g} to {_LONGEST:g} "
            f"(got {repr(value)[:100]})"
        )
    return seconds


class Lease:
    """Record of another process's signs of life: how long it has been silent.

    Attributes:
        heard_at: time of the last sign of life, in seconds of the monotonic clock.
        excused: seconds since then that do not count, as this process was stopped.
    """

    __slots__ = ("__weakref__", "_clock", "excused", "heard_at")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.renew()

    def renew(self, silent: float = 0.0) -> None:
        """Record a sign of life of the process, which was `silent` seconds ago."""
        self.heard_at = self._clock() - silent
        self.excused = 0.0

    def silence(self, until: float | None = None) -> float:
        """Return the seconds without a sign of life that count, until `until` (None: now)."""
        now = self._clock() if until is None else until
        return max(0.0, now - self.heard_at - self.excused)


class LeaseTable:
    """Leases of other processes, which this process watches: how long each has been silent.

    Attributes:
        looked_at: time of the last look, by which leases are judged if another thread looks.

    Example:
        >>> table = LeaseTable(clock=lambda: 7.0)
        >>> lease = table.grant()
        >>> lease.silence(until=9.0)
        2.0
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self.looked_at = clock()

    def grant(self) -> Lease:
        return self.follow(Lease(self._clock))

    def follow(self, lease: Lease) -> Lease:
        """Include a lease in `look` as long as another object refers to the lease. Return it."""
        self._leases.add(lease)
        return lease

    def look(self) -> None:
        """Record that this process is running. Call it every second.

        If it was not called for more than two seconds, this process was stopped. The time beyond
        counts for no lease.
        """
        now = self._clock()
        stopped = now - self.looked_at - _MOST_BETWEEN_LOOKS
        self.looked_at = now
        if stopped > 0:
            for lease in list(self._leases):
                lease.excused += stopped
