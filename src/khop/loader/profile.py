"""Timings and counts of batches of graphs in memory. Runs in the trainer.

The thread that makes a batch reads the clock four times; the iterating thread does all the rest. A
batch of one seed took 75 us on a busy processor without this and 87 us with three readings.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from threading import get_native_id
from time import monotonic_ns
from typing import Any, NamedTuple

from torch import Tensor

from khop.loader.resume import EpochProgress
from khop.metrics.loader_stats import StatsAccumulator
from khop.metrics.watch import DeliveryWatch
from khop.sampler.pyg_output import SampledSubgraph
from khop.trace.clock import BatchTimings, Phase, Segment
from khop.trace.recording import current


class DrawnBatch(NamedTuple):
    """Sampled subgraph of a batch, with times in nanoseconds of CLOCK_MONOTONIC.

    Attributes:
        subgraph: output of the sampler.
        metadata: the sampler's metadata of the seeds; None if `subgraph` is in PyG's form.
        number: index of the batch in the epoch.
        seeds: number of its seeds.
        size: numbers of its nodes and edges.
        thread: native id of the thread that drew it.
        began, ended: start and end of drawing.
    """

    subgraph: Any
    metadata: Any
    number: int
    seeds: int
    size: tuple[int, int]
    thread: int
    began: int
    ended: int


class Timed(NamedTuple):
    """Batch with the times of joining, in nanoseconds of CLOCK_MONOTONIC.

    Attributes:
        batch: the batch.
        drawn: the subgraph that it was made from.
        thread: native id of the thread that joined it.
        began, ended: start and end of joining.
    """

    batch: Any
    drawn: DrawnBatch
    thread: int
    began: int
    ended: int


class LoaderProfile:
    """Statistics of a loader's batches.

    Args:
        num_threads: number of threads that make batches; 0 if the iterating thread does.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._num_epochs = 0
        self.tally = StatsAccumulator(num_threads)

    def __reduce__(self) -> tuple[type[LoaderProfile], tuple[int]]:
        """Pickle without the counts: another process has its own."""
        return LoaderProfile, (self.num_threads,)

    def watch(
        self, made: Iterator[Timed], finish: Callable[[Any], Any], progress: EpochProgress
    ) -> WatchedEpoch:
        """Return an iterator that counts the batches of a new epoch.

        Args:
            made: the batches.
            finish: last step of making a batch, run in the iterating thread.
            progress: progress of the epoch; updated with each batch.
        """
        self._num_epochs += 1
        return WatchedEpoch(made, finish, self, self._num_epochs - 1, progress)


class WatchedEpoch(Iterator[Any]):
    """Iterator over the batches of an epoch that counts them; see `LoaderProfile.watch`."""

    def __init__(
        self,
        made: Iterator[Timed],
        finish: Callable[[Any], Any],
        profile: LoaderProfile,
        epoch: int,
        progress: EpochProgress,
    ) -> None:
        self._progress = progress
        self._made = made
        self._finish = finish
        self._in_background = profile.num_threads > 0
        self._epoch = epoch
        self._watch = DeliveryWatch(profile.tally)
        self._ended: dict[int, int] = {}  # thread -> end of its last batch

    def __next__(self) -> Any:
        asked = monotonic_ns()
        try:
            timed = next(self._made)
            taken = monotonic_ns()
            nbytes = _num_bytes(timed[0])
            batch = self._finish(timed[0])
        except BaseException as error:
            self._progress.end() if isinstance(error, StopIteration) else self._progress.fail()
            self._watch.fail()
            raise
        _, drawn, thread, joining, ended = timed
        nodes, edges = drawn.size
        process = idle = 0
        if self._in_background:
            process = os.getpid()
            idle = drawn.began - self._ended.get(thread, drawn.began)
            self._ended[thread] = ended
        work = drawn.ended - drawn.began, ended - joining, 0, idle, 0
        made = BatchTimings(process, thread, ended, nbytes, 0, 0, *work)
        if current() is not None:
            self._record(timed, idle)
        sizes = nodes, edges, nodes, 0, 0
        self._watch.deliver(asked, taken, self._epoch, drawn.number, drawn.seeds, sizes, made)
        self._progress.deliver()
        return batch

    def _record(self, timed: Timed, idle: int) -> None:
        """Record the work of the threads that made a batch, and `idle` nanoseconds before it."""
        recording = current()
        assert recording is not None
        drawn, pid, me = timed.drawn, os.getpid(), get_native_id()
        task = self._epoch, drawn.number
        drawing = (
            Segment(Phase.IDLE, 0, 0, drawn.began - idle, drawn.began),
            Segment(Phase.SAMPLING, *task, drawn.began, drawn.ended),
        )
        joining = (Segment(Phase.GATHERING, *task, timed.began, timed.ended),)
        for thread, segments in ((drawn.thread, drawing), (timed.thread, joining)):
            if thread != me:
                recording.name_thread((pid, thread), _name_of(thread))
            recording.add_records((pid, thread), segments)


def _name_of(native_id: int) -> str:
    """Return the name of a thread in recordings, with its index among those of its epoch."""
    names = [t.name for t in threading.enumerate() if t.native_id == native_id]
    number = names[0].rpartition("_")[2] if names else ""
    return f"worker thread {number}" if number.isdecimal() else "worker thread"


def size_of_drawn(drawn: SampledSubgraph) -> tuple[int, int]:
    """Return the numbers of nodes and edges that khop's sampler drew."""
    if len(drawn.nodes) == len(drawn.edge_index) == 1:
        return drawn.nodes[0].numel(), drawn.edge_index[0].shape[1]
    edges = sum(ends.shape[1] for ends in drawn.edge_index)
    return sum(node.numel() for node in drawn.nodes), edges


def size_of_output(out: Any) -> tuple[int, int]:
    """Return the numbers of nodes and edges of a sampler's output in PyG's form."""
    return _count(out.node), _count(out.row)


def _count(ids: Any) -> int:
    """Count the entries of a tensor, or of one tensor for each type."""
    if isinstance(ids, Tensor):
        return ids.numel()
    return 0 if ids is None else sum(map(_count, ids.values()))


def _num_bytes(batch: Any) -> int:
    """Return the bytes of a batch's tensors."""
    total = 0
    for store in getattr(batch, "stores", ()):
        for value in store._mapping.values():
            if type(value) is Tensor:
                try:
                    total += value.nbytes
                except RuntimeError:  # torch has no byte count of sparse tensors
                    continue
    return total
