"""Source of batches of graphs in memory, with their timings. Runs in the trainer.

The thread that makes a batch only reads the clock four times. The iterating thread computes the
timings. A batch of one seed took 75 us on a busy processor without readings and 87 us with three.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from threading import get_native_id
from time import monotonic_ns
from typing import Any, NamedTuple

from torch import Tensor

from khop.loader.iteration.iterator import BatchSource, Cost, Taken
from khop.trace.clock import BatchTimings, Phase, Segment
from khop.trace.recording import Recording, current


class DrawnBatch(NamedTuple):
    """Sampled subgraph of a batch, with times in nanoseconds of CLOCK_MONOTONIC.

    Attributes:
        batch_index: index of the batch in the epoch.
        subgraph: output of the sampler, or what a user's own `collate_fn` returned.
        metadata: the sampler's metadata of the seeds. None if `subgraph` is in PyG's form.
        seeds: number of seeds.
        size: numbers of nodes and edges.
        thread: native id of the thread that drew the subgraph.
        began, ended: start and end of drawing.
    """

    subgraph: Any
    metadata: Any
    batch_index: int
    seeds: int
    size: tuple[int, int]
    thread: int
    began: int
    ended: int


class Timed(NamedTuple):
    """Batch joined with its attributes, with times in nanoseconds of CLOCK_MONOTONIC.

    Attributes:
        batch: the batch.
        drawn: the subgraph that it was joined from, with its times.
        thread: native id of the thread that joined the batch.
        began, ended: start and end of joining.
        filtered: True if `filter_fn` joined the batch, which then has also applied the transform.
    """

    batch: Any
    drawn: DrawnBatch
    thread: int
    began: int
    ended: int
    filtered: bool = False


class MadeBatches(BatchSource):
    """Source of batches that threads of this process make, with their timings.

    Args:
        made: makes the batches, one with each step.
        close: stops making them.
        finish: last step of making a batch, run in the iterating thread.
        in_background: True if other threads make them.
        epoch: number of the epoch.
    """

    def __init__(
        self,
        made: Iterator[Timed],
        close: Callable[[], None],
        finish: Callable[[Timed], Any],
        in_background: bool,
        epoch: int,
    ) -> None:
        self._made = made
        self._close = close
        self._finish = finish
        self._in_background = in_background
        self._epoch = epoch
        self._ended: dict[int, int] = {}  # thread -> end of its last batch

    def take(self, index: int) -> Taken:
        """Make the next batch, or wait until a thread has made it.

        After an error of joining in this thread, the next call makes the next batch. Other errors
        end the epoch.
        """
        made = next(self._made)
        return monotonic_ns(), made

    def finish(self, pending: Timed) -> tuple[Any, Cost]:
        nbytes = _num_bytes(pending.batch)
        batch = self._finish(pending)
        _, drawn, thread, joining, ended, _ = pending
        nodes, edges = drawn.size
        process = idle = 0
        if self._in_background:
            process = os.getpid()
            idle = drawn.began - self._ended.get(thread, drawn.began)
            self._ended[thread] = ended
        work = drawn.ended - drawn.began, ended - joining, 0, idle, 0
        if (recording := current()) is not None:
            self._record(recording, pending, idle)
        timings = BatchTimings(process, thread, ended, nbytes, 0, 0, 0, *work)
        sizes = nodes, edges, nodes, 0, 0, 0
        return batch, (self._epoch, drawn.batch_index, drawn.seeds, sizes, timings)

    def close(self) -> None:
        self._made = iter(())
        self._close()

    def _record(self, recording: Recording, timed: Timed, idle: int) -> None:
        """Record the work of the threads that made a batch.

        The drawing thread had waited `idle` nanoseconds before it.
        """
        drawn, pid, me = timed.drawn, os.getpid(), get_native_id()
        task = self._epoch, drawn.batch_index
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
    """Return the name of a thread in recordings: 'worker thread', with its index if it has one."""
    names = [t.name for t in threading.enumerate() if t.native_id == native_id]
    index = names[0].rpartition("_")[2] if names else ""
    return f"worker thread {index}" if index.isdecimal() else "worker thread"


def _num_bytes(batch: Any) -> int:
    total = 0
    for store in getattr(batch, "stores", ()):
        for value in store._mapping.values():
            if type(value) is Tensor:
                try:
                    total += value.nbytes
                except RuntimeError:  # torch has no byte count of sparse tensors
                    continue
    return total
