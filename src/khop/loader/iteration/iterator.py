"""Iterator over an epoch: the one place where deliveries are counted. Runs in the trainer.

All loaders iterate the same way. They differ in the `BatchSource` from which the batches of an
epoch come: this thread, threads beside it, torch's worker processes, sampler processes or graph
servers.

For each call of `next`, the iterator takes one batch from the source, in order, and finishes it. It
counts exactly one thing: a delivery, a failure, or the end of the epoch. `resume` saves this count,
so that a resumed loader loses no batch and delivers none twice.
"""

from __future__ import annotations

import abc
import os
import threading
from collections.abc import Iterator, Sized
from time import monotonic_ns
from typing import Any

from khop.interrupts import raise_dropped
from khop.loader.iteration.resume import EpochProgress
from khop.metrics.loader_stats import Sizes, StatsAccumulator
from khop.trace.clock import ROWS, BatchTimings
from khop.trace.events import Delivery
from khop.trace.recording import Recording, current

Taken = tuple[int, Any]
"""Time at which a batch had arrived, in nanoseconds of CLOCK_MONOTONIC, and input of `finish`."""

Cost = tuple[int, int, int, Sizes, BatchTimings]
"""Cost of a batch: the loader's epoch, the batch's index in the epoch, its number of seeds, its
contents, and its timings on the process that produced it."""

UNKNOWN: Cost = (0, 0, 0, (0,) * (2 + len(ROWS)), BatchTimings(*[0] * len(BatchTimings._fields)))
"""Cost of a batch that was not measured: all zeros."""


class BatchSource(abc.ABC):
    """Source of the batches of one epoch, in order. It closes itself when it is dropped.

    Attributes:
        can_prefetch: If True, the iterator takes a batch before the user requests it, once
            `has_arrived` returns True.
    """

    can_prefetch = False

    @abc.abstractmethod
    def take(self, index: int) -> Taken:
        """Wait for a batch. Return the time when it arrived (ns, CLOCK_MONOTONIC) and the batch.

        If the batch failed, its exception is raised. The next call then returns the next batch, or
        raises StopIteration.

        Args:
            index: index of the batch in the epoch, one more than in the last call.

        Raises:
            StopIteration: there are no more batches.
        """

    def has_arrived(self, index: int) -> bool:
        """Return True if `take(index)` would return a batch without waiting."""
        return False

    @abc.abstractmethod
    def finish(self, pending: Any) -> tuple[Any, Cost]:
        """Finish a batch for the user, and return it with its cost (sizes and times).

        After an exception, the source continues with the next batch.

        Args:
            pending: the batch as `take` returned it.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Drop the batches that have not been taken. Further calls do nothing."""


class EpochIterator(Iterator[Any]):
    """Iterator over one epoch of a loader. Several of one loader may be used at the same time.

    Args:
        loader: the loader. The iterator keeps it alive.
        source: source of the batches.
        progress: progress of the epoch, updated with each call of `next`.
        tally: counts the loader's batches and times.

    Example:
        >>> loader = NeighborLoader(data, [2], batch_size=2)
        >>> isinstance(iter(loader), EpochIterator)
        True
    """

    def __init__(
        self, loader: Sized, source: BatchSource, progress: EpochProgress, tally: StatsAccumulator
    ) -> None:
        self._source: BatchSource | None = source
        self._loader = loader
        self._progress = progress
        self._tally = tally
        self._next = progress.delivered  # index of the next batch to take
        self._prefetched: Taken | Exception | None = None
        self._delivered_at = 0  # 0 if there is no last batch, or it failed

    @property
    def delivered(self) -> int:
        """Number of delivered batches of the epoch, including the ones before it was resumed."""
        return self._progress.delivered

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch."""
        return len(self._loader)

    def __next__(self) -> Any:
        """Return the next batch. If the batch failed, raise its exception instead."""
        raise_dropped()
        asked, source = monotonic_ns(), self._source
        if source is None:
            raise StopIteration
        try:
            if self._prefetched is None:
                index = self._next
                self._next = index + 1
                taken, pending = source.take(index)
            else:
                taken, pending = self._take_prefetched()
                taken = max(asked, taken)
        except StopIteration:
            self._progress.end()
            self.close()
            raise
        except BaseException:
            self._fail()
            raise
        try:
            if source.can_prefetch and source.has_arrived(self._next):
                self._prefetch(source)
            batch, cost = source.finish(pending)
        except BaseException:
            self._fail()
            raise
        now, made = monotonic_ns(), cost[4]
        before = self._delivered_at or asked
        self._delivered_at = now
        lay_ready = max(taken - made.ready, 0) if made.process else 0
        times = taken - asked, now - taken, asked - before
        self._tally.add(times, lay_ready, cost[2], cost[3], made)
        if (recording := current()) is not None:
            _record(recording, (before, asked, taken, now), cost)
        self._progress.deliver()
        return batch

    def close(self) -> None:
        """Leave the epoch and drop the batches that the user has not received.

        A state saved afterwards resumes at the first of them.
        """
        source, self._source, self._prefetched = self._source, None, None
        if source is not None:
            source.close()

    def _take_prefetched(self) -> Taken:
        prefetched, self._prefetched = self._prefetched, None
        assert prefetched is not None
        if isinstance(prefetched, Exception):
            try:
                raise prefetched
            finally:
                del prefetched  # else the traceback would refer to itself
        return prefetched

    def _prefetch(self, source: BatchSource) -> None:
        """Take the next batch ahead. Its error is raised when the user requests it."""
        index = self._next
        self._next = index + 1
        try:
            self._prefetched = source.take(index)
        except Exception as error:
            self._prefetched = error
        except BaseException:  # interrupted: the batch may be lost, so none may follow
            source.close()
            raise

    def _fail(self) -> None:
        """Count a failed batch. Statistics omit it and the time until the user's next request."""
        self._progress.fail()
        self._delivered_at = 0


def _record(recording: Recording, times: tuple[int, int, int, int], cost: Cost) -> None:
    """Record the iterating thread's phases of a batch: consuming, waiting, collating.

    `times` (ns): delivery of the last batch, then request, arrival and delivery of this one.
    """
    (before, asked, taken, now), (epoch, index, seeds, sizes, made) = times, cost
    me = os.getpid(), threading.get_native_id()
    recording.add(me, "consuming", before, asked, {})
    if made.process or made is UNKNOWN[-1]:  # else its own phases are recorded
        recording.add(me, "waiting", asked, taken, {})
    nodes, edges, *rows = sizes
    args = {
        "epoch": epoch,
        "batch": index,
        "seeds": seeds,
        "nodes": nodes,
        "edges": edges,
        "rows": dict(zip(ROWS, rows, strict=True)),
        "bytes": made.nbytes,
    }
    recording.add(me, "collating", taken, now, args)
    if made.process:
        recording.add_delivery(Delivery((made.process, made.thread), made.ready, me, taken))
