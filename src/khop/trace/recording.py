"""Recordings: spans and requests, kept in the trainer until the trace is written."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path
from time import monotonic_ns
from typing import Any

from khop._version import __version__
from khop.trace.clock import PHASES, Phase, PhaseClock, Segment
from khop.trace.events import Delivery, Names, Span, Thread, of_rank, trace_events, write_events
from khop.trace.requests import Answered, RequestLog, unpack_records

_current: Recording | None = None


def current() -> Recording | None:
    """Return the recording of loaders that is under way in this process, or None."""
    return _current


def record(path: str | os.PathLike[str], *, limit: int = 1_000_000) -> Recording:
    """Record the work of loaders, for a time line of samplers, partition servers and the trainer.

        with khop.trace.record("out.json"):
            for batch in loader:
                ...

    Open the file in https://ui.perfetto.dev or chrome://tracing. All loaders of this process are
    recorded. If a sampler has begun a batch before the recording, its record begins late. Outside
    of the `with` block nothing is recorded, at no cost. Batches that torch's worker processes make
    (`worker_type='process'`) show in the trainer alone.

    Args:
        path: the file to write, in Chrome's trace event format, gzipped if its name ends in '.gz'.
            With several trainers, rank r writes `<name>-rank<r>.json`, and `merge` joins the files
            of one machine.
        limit: most spans to keep. Further ones are dropped, counted in the file and reported in a
            warning. A span takes about 300 bytes here and 200 in the file. A batch has three spans
            of the trainer, about three of its sampler, and two per request to another partition.

    Returns:
        The recording, a context manager. When it ends, also by an exception, the file is written.

    Raises:
        FileNotFoundError: the file's folder does not exist.
        ValueError: a limit below 1.
        RuntimeError: when entered: another recording is under way.

    Example:
        >>> with record(path / "trace.json.gz"):
        ...     batches = list(NeighborLoader(data, [2], batch_size=3))
        >>> (path / "trace.json.gz").exists()
        True
    """
    return Recording(path, limit)


class Recording:
    """Recording of the work of loaders, a context manager that `record` makes.

    Attributes:
        path: the file. With several trainers, the rank is added when the recording ends.
        dropped: spans beyond the limit.

    Example:
        >>> with record(path / "trace.json") as recording:
        ...     batches = list(NeighborLoader(data, [2], batch_size=3))
        >>> recording.path.name, recording.dropped
        ('trace.json', 0)
    """

    def __init__(self, path: str | os.PathLike[str], limit: int = 1_000_000) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1 (got {limit})")
        self.path = Path(path)
        if not self.path.absolute().parent.is_dir():
            raise FileNotFoundError(f"'{self.path.parent}' is no folder: make it first")
        self.dropped = 0
        self._limit = limit
        self._spans: list[Span] = []
        self._requests: list[tuple[Thread, Answered]] = []
        self._deliveries: list[Delivery] = []
        self._makers: dict[int, str] = {}
        self._threads: dict[Thread, str] = {}
        self._began = 0
        self._owner = os.getpid()

    def __enter__(self) -> Recording:
        global _current  # noqa: PLW0603
        if _current is not None:
            raise RuntimeError(f"a recording to '{_current.path}' is under way: end it first")
        self._began = monotonic_ns()
        _current = self
        return self

    def __exit__(self, *error: object) -> None:
        global _current  # noqa: PLW0603
        _current = None
        if os.getpid() == self._owner:  # not in a fork
            self._write()

    def add(self, thread: Thread, name: str, began: int, ended: int, args: dict[str, Any]) -> None:
        """Keep the work of a thread from `began` to `ended`.

        A part before the recording is cut off.

        :meta private:
        """
        began = max(began, self._began)
        if ended <= began:
            return
        if self._fits():
            self._spans.append(Span(thread, name, began, ended, args))

    def add_delivery(self, delivery: Delivery) -> None:
        """Keep the delivery of a batch, unless the limit of spans is reached.

        :meta private:
        """
        if len(self._spans) < self._limit and delivery.ready >= self._began:
            self._deliveries.append(delivery)

    def _fits(self) -> bool:
        fits = len(self._spans) + len(self._requests) < self._limit
        self.dropped += not fits
        return fits

    def add_records(
        self, thread: Thread, segments: Iterable[Segment], answered: Iterable[Answered] = ()
    ) -> None:
        """Keep the phases and the requests of a thread that makes batches.

        :meta private:
        """
        for phase, epoch, batch, began, ended in segments:
            works = phase < Phase.REMOTE  # waiting is not for one batch
            args = {"epoch": epoch, "batch": batch} if works else {}
            self.add(thread, PHASES[phase], began, ended, args)
        for request in answered:
            if request.sent >= self._began and self._fits():
                self._requests.append((thread, request))

    def add_message(self, pid: int, sampler: int, payload: bytes) -> None:
        """Keep the phases and requests that sampler process `pid` has sent (`pack_records`)."""
        self._makers[pid] = f"sampler {sampler}"
        self._threads[pid, pid] = "batches"
        self.add_records((pid, pid), *unpack_records(payload))

    def name_thread(self, thread: Thread, name: str) -> None:
        """Set the name of a thread in the trace.

        :meta private:
        """
        self._threads[thread] = name

    def _write(self) -> None:
        rank, world_size = _rank_and_world_size()
        of_trainer = f" (rank {rank})"
        if world_size > 1:
            self.path = of_rank(self.path, rank)
        me = self._owner
        main = me, me  # of a fork `threading.main_thread().native_id` is its parent's
        makers = {pid: name + of_trainer * (world_size > 1) for pid, name in self._makers.items()}
        names = Names(
            me, {me: f"trainer{of_trainer}", **makers}, {main: "trainer", **self._threads}
        )
        about = {"recorder": f"khop {__version__}", "rank": rank, "dropped_spans": self.dropped}
        events = trace_events(self._spans, self._requests, self._deliveries, names)
        write_events(self.path, events, about)
        if self.dropped:
            warnings.warn(
                f"{self.dropped:,} spans beyond limit={self._limit:,} are missing in "
                f"'{self.path}': record for a shorter time, or pass a higher limit",
                stacklevel=3,
            )


class OwnRecords:
    """Phases and requests of a trainer that makes its batches itself, without samplers.

    Attributes:
        clock: clock of the phases.
        log: log of the trainer's requests, while a recording is under way.
    """

    def __init__(self) -> None:
        self.clock = PhaseClock()
        self.log: RequestLog | None = None

    def begin(self, task: tuple[int, int], phase: int = Phase.SAMPLING) -> None:
        """Begin a batch. `task` is (epoch, batch). Records are kept only during a recording."""
        clock, recording = self.clock, current()
        clock.keep_segments(recording is not None)
        self.log = None if recording is None else RequestLog(task)
        clock.enter(phase, task)

    def turn_to(self, task: tuple[int, int], phase: int) -> None:
        """Count time and requests for another batch from now on. `task` is (epoch, batch)."""
        self.clock.enter(phase, task)
        if self.log is not None:
            self.log.task = task

    def end(self) -> None:
        """End the batch, which is made or has failed, and add its records to the recording."""
        self.clock.enter(Phase.CLOSED)
        segments, recording = self.clock.segments, current()
        if recording is not None and segments:
            thread = os.getpid(), threading.get_native_id()
            recording.add_records(thread, segments, self.log.answered if self.log else ())
            segments.clear()


def _rank_and_world_size() -> tuple[int, int]:
    """Return this trainer's rank and the number of trainers, without importing a module."""
    distributed = sys.modules.get("khop.distributed.job.context")
    context = None if distributed is None else distributed.get_context()
    if context is not None:
        return context.rank, context.world_size
    group = getattr(sys.modules.get("torch"), "distributed", None)
    if group is not None and group.is_available() and group.is_initialized():
        return group.get_rank(), group.get_world_size()
    return 0, 1
