"""Clock of a sampler, or of a trainer that makes batches itself: its time in each phase."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns
from typing import Final, NamedTuple


class Phase:
    """Phases of a sampler, which is always in exactly one: drawing neighbours, and so on.

    Plain integers: entering a phase takes half as long as with an enumeration.
    """

    SAMPLING: Final = 0  # drawing neighbours
    GATHERING: Final = 1  # copying attributes to where the trainer reads them
    REMOTE: Final = 2  # only waiting for other partitions
    IDLE: Final = 3  # no batch is asked for
    OTHER: Final = 4  # messages, and what is between batches
    CLOSED: Final = 5  # no epoch is open: counts nowhere


PHASES = ("sampling", "gathering", "remote", "idle", "other")
"""Names of the phases that statistics and traces show."""

ROWS = ("local", "cached", "reused", "remote")
"""Origins of node rows: the local part, local copies of other parts' hot rows, other parts' rows
that an earlier batch left in memory, other parts."""

LOCAL: Final = 0
CACHED: Final = 1
REUSED: Final = 2
REMOTE: Final = 3


DISK = (
    *("asked", "missed", "reads", "bytes", "edge_values", "edge_values_missed"),
    *("lru_missed", "sieve_missed", "packed"),
)
"""Counts of reads past the page cache."""

RULES = ("lru_missed", "sieve_missed")
"""Rows of other partitions that the cache would have requested by other rules."""


class Segment(NamedTuple):
    """Time of a sampler in one phase, for one batch, in nanoseconds of CLOCK_MONOTONIC."""

    phase: int
    epoch: int
    batch: int
    began: int
    ended: int


class BatchTimings(NamedTuple):
    """Timings of one batch in the process that made it, a sampler or the trainer.

    Attributes:
        process, thread: pid and thread id of the producer. 0 if the trainer's own thread.
        ready: when the batch was complete, in nanoseconds of CLOCK_MONOTONIC.
        nbytes: bytes of the batch's arrays and their header.
        remote_bytes: bytes that came from other partitions since the batch before.
        reused_bytes: bytes of rows of other partitions that an earlier batch left in memory.
        overflows: 1 if the arena was full, so that the batch got separate memory.
        sampling, gathering, remote, idle, other: nanoseconds in each phase since the batch before.
        disk_asked and further counts in the order of `DISK`: reads past the page cache since the
            batch before. See `khop.data.direct_reads.DiskCounts`.
        lru_missed, sieve_missed: rows of other partitions that caches of as many rows would not
            have had by the rules LRU and SIEVE. Estimates for caches of more than 4,096 rows.
    """

    process: int
    thread: int
    ready: int
    nbytes: int
    remote_bytes: int
    reused_bytes: int
    overflows: int
    sampling: int
    gathering: int
    remote: int
    idle: int
    other: int
    disk_asked: int = 0
    disk_missed: int = 0
    disk_reads: int = 0
    disk_bytes: int = 0
    disk_edge_values: int = 0
    disk_edge_values_missed: int = 0
    disk_lru_missed: int = 0
    disk_sieve_missed: int = 0
    disk_packed: int = 0
    lru_missed: int = 0
    sieve_missed: int = 0


class PhaseClock:
    """Clock of a thread that makes batches. It counts each moment for exactly one phase.

    The phases are the ones of `Phase`.

    Attributes:
        phase: the current phase.
        since: when this phase began, in nanoseconds of CLOCK_MONOTONIC.
        segments: intervals between readings, while a recording is under way. If None, they are not
            kept.
    """

    __slots__ = ("_spent", "_task", "phase", "segments", "since")

    def __init__(self) -> None:
        self._spent = [0, 0, 0, 0, 0, 0]
        self._task = (0, 0)
        self.phase: int = Phase.CLOSED
        self.since = monotonic_ns()
        self.segments: list[Segment] | None = None

    def enter(self, phase: int, task: tuple[int, int] | None = None) -> None:
        """Begin another phase. `task` is the (epoch, batch) it is for. If None, as before."""
        now, before = monotonic_ns(), self.phase
        self._spent[before] += now - self.since
        if self.segments is not None and before < Phase.OTHER:
            self.segments.append(Segment(before, *self._task, self.since, now))
        self.phase, self.since = phase, now
        if task is not None:
            self._task = task

    def made(
        self,
        nbytes: int,
        remote_bytes: int = 0,
        reused_bytes: int = 0,
        overflows: int = 0,
        maker: tuple[int, int] = (0, 0),
        disk: Sequence[int] = (0,) * len(DISK),
        rules: Sequence[int] = (0,) * len(RULES),
    ) -> BatchTimings:
        """Return the timings of a batch that is complete, and set the counts to 0.

        The batch was ready when the current phase began.

        Args:
            nbytes: bytes of the batch's arrays.
            remote_bytes: bytes that came from other partitions.
            reused_bytes: bytes of rows of other partitions that were in memory.
            overflows: 1 if the batch got separate memory, as the shared memory (arena) was full.
            maker: process id and thread id of a sampler. (0, 0) for the trainer's own thread.
            disk: counts of reads past the page cache, in the order of `DISK`.
            rules: misses by other rules, in the order of `RULES`.
        """
        sampling, gathering, remote, idle, other, _ = self._spent
        self._spent = [0, 0, 0, 0, 0, 0]
        spent = sampling, gathering, remote, idle, other
        counts = nbytes, remote_bytes, reused_bytes, overflows
        return BatchTimings(*maker, self.since, *counts, *spent, *disk, *rules)

    def keep_segments(self, keep: bool) -> None:
        """Start (`keep`) or stop the list of intervals, `segments`, for a recording."""
        if keep != (self.segments is not None):
            self.segments = [] if keep else None
