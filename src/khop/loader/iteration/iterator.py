"""Iterator over an epoch: the one place where deliveries are counted. Runs in the trainer.

All loaders iterate the same way. They differ in the `BatchSource` from which the batches of an
epoch come: this thread, threads beside it, torch's worker processes, sampler processes or graph
servers.

For each call of `next`, the iterator takes one batch from the source, in order, and finishes it. It
counts exactly one thing: a delivery, a failure, or the end of the epoch. `resume` saves
this count, so that a loader that is resumed loses no batch and delivers none twice.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sized
from time import monotonic_ns
from typing import Any

from khop.interrupts import raise_dropped
from khop.loader.iteration.resume import EpochProgress
from khop.metrics.loader_stats import StatsAccumulator
from khop.metrics.watch import Cost, DeliveryWatch

Taken = tuple[int, Any]
"""Time at which a batch had arrived, in nanoseconds of CLOCK_MONOTONIC; batch for `finish`."""


class BatchSource(abc.ABC):
    """Source of the batches of one epoch, in order. It closes itself when it is dropped.

    Attributes:
        can_prefetch: True if the iterator is to take a batch before it is asked for, as soon as
            `has_arrived` is true of it.
    """

    can_prefetch = False

    @abc.abstractmethod
    def take(self, index: int) -> Taken:
        """Wait for a batch.

        An exception is raised in the batch's place. After it, the source either goes on with the
        next batch or is at its end.

        Args:
            index: index of the batch in the epoch: that of the last call plus 1.

        Raises:
            StopIteration: there are no more batches.
        """

    def has_arrived(self, index: int) -> bool:
        """Return True if `take` would return a batch at once."""
        return False

    @abc.abstractmethod
    def finish(self, pending: Any) -> tuple[Any, Cost]:
        """Finish a batch that `take` returned; return it and what it cost.

        If it raises an exception, the source goes on with the next batch.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Drop the batches that have not been taken. May be called several times."""


class EpochIterator(Iterator[Any]):
    """Iterator over one epoch of a loader; several of one loader may be used at the same time.

    Args:
        loader: the loader; it lives as long as the iterator.
        source: source of the batches.
        progress: progress of the epoch; updated with each call of `next`.
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
        self._watch = DeliveryWatch(tally)
        self._next = progress.delivered  # index of the next batch to take
        self._prefetched: Taken | Exception | None = None

    @property
    def delivered(self) -> int:
        """Number of the epoch's batches that have been delivered, by a stopped loader included."""
        return self._progress.delivered

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch."""
        return len(self._loader)

    def __next__(self) -> Any:
        """Return the next batch, or raise the exception that was raised in its place."""
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
        self._watch.deliver(asked, taken, cost)
        self._progress.deliver()
        return batch

    def close(self) -> None:
        """Leave the epoch: there are no more batches. Those that were not delivered stay due."""
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
        """Take the next batch. An error is raised by the call that returns this batch."""
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
        self._progress.fail()
        self._watch.fail()
