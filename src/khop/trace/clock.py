"""Where the time of whoever makes batches goes."""

from __future__ import annotations

from time import monotonic_ns
from typing import Final, NamedTuple


class Phase:
    """What a sampler does at a moment; always one of these.

    Plain integers: entering a phase takes half as long as with an enumeration.
    """

    SAMPLING: Final = 0  # drawing neighbours
    GATHERING: Final = 1  # copying attributes to where the trainer reads them
    REMOTE: Final = 2  # nothing but waiting for other partitions
    IDLE: Final = 3  # no batch is asked for
    OTHER: Final = 4  # messages, and what is between batches
    CLOSED: Final = 5  # no epoch is open: counts nowhere


PHASES = ("sampling", "gathering", "remote", "idle", "other")
"""Names of the phases that count."""

ROWS = ("local", "cached", "remote")
"""Where rows of nodes come from: this part, its copies of others' hot rows, the others."""


class Segment(NamedTuple):
    """A stretch of time in a phase, for a batch; in nanoseconds of CLOCK_MONOTONIC."""

    phase: int
    epoch: int
    batch: int
    began: int
    ended: int


class BatchTimings(NamedTuple):
    """What a batch cost where it was made.

    Attributes:
        process, thread: where that is; 0: the trainer's own thread.
        ready: when it was done, in nanoseconds of CLOCK_MONOTONIC.
        nbytes: bytes of its arrays and their header.
        remote_bytes: bytes that came from other partitions since the batch before.
        overflows: 1 if it found no room in the ring and got memory of its own.
        sampling, gathering, remote, idle, other: nanoseconds in each phase since the batch before.
    """

    process: int
    thread: int
    ready: int
    nbytes: int
    remote_bytes: int
    overflows: int
    sampling: int
    gathering: int
    remote: int
    idle: int
    other: int


class PhaseClock:
    """Counts each moment of a thread for exactly one phase.

    Attributes:
        phase: the phase that it is in.
        since: when that began, in nanoseconds of CLOCK_MONOTONIC.
        segments: what lay between two readings, while a recording is under way; None: not kept.
    """

    __slots__ = ("_spent", "_task", "phase", "segments", "since")

    def __init__(self) -> None:
        self._spent = [0, 0, 0, 0, 0, 0]
        self._task = (0, 0)
        self.phase: int = Phase.CLOSED
        self.since = monotonic_ns()
        self.segments: list[Segment] | None = None

    def enter(self, phase: int, task: tuple[int, int] | None = None) -> None:
        """Ends the phase that it is in and begins another.

        Args:
            phase: the phase that begins.
            task: the epoch and batch that it is for; default: those of the phase before.
        """
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
        overflows: int = 0,
        maker: tuple[int, int] = (0, 0),
    ) -> BatchTimings:
        """What a batch cost that was ready when the present phase began; the next begins there."""
        sampling, gathering, remote, idle, other, _ = self._spent
        self._spent = [0, 0, 0, 0, 0, 0]
        return BatchTimings(
            *maker,
            self.since,
            nbytes,
            remote_bytes,
            overflows,
            sampling,
            gathering,
            remote,
            idle,
            other,
        )

    def keep_segments(self, wanted: bool) -> None:
        """Begins to keep segments, or stops."""
        if wanted != (self.segments is not None):
            self.segments = [] if wanted else None
