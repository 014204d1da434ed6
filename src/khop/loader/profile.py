"""What batches of graphs in memory cost: the clocks of the threads that make them, and counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from khop.sampler.pyg_output import DrawnSubgraph
from khop.stats import Sizes, Tally
from khop.trace.clock import Phase
from khop.trace.recording import OwnRecords
from khop.trace.watch import Cost, DeliveryWatch

Profiled = tuple[Any, Cost]
"""A batch and what it cost."""


class LoaderProfile:
    """Counts what a loader does.

    Args:
        num_threads: threads that make batches; 0: the one that iterates.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._threads = threading.local()
        self._num_epochs = 0
        self.tally = Tally(num_threads)

    def __reduce__(self) -> tuple[type[LoaderProfile], tuple[int]]:
        """Another process counts for itself."""
        return LoaderProfile, (self._num_threads,)

    def next_epoch(self) -> int:
        """Number of the epoch that begins now."""
        self._num_epochs += 1
        return self._num_epochs - 1

    def begin(self, epoch: int, number: int) -> OwnRecords:
        """This thread begins batch `number` of an epoch: its drawing."""
        records: OwnRecords | None = getattr(self._threads, "records", None)
        if records is None:
            records = self._threads.records = OwnRecords(self._thread_name())
        records.begin((epoch, number))
        return records

    def _thread_name(self) -> str | None:
        if self._num_threads == 0:
            return None
        name = threading.current_thread().name
        number = name.rpartition("_")[2]
        return f"worker thread {number}" if number.isdecimal() else name

    def end(
        self, records: OwnRecords, num_seeds: int, size: tuple[int, int], batch: Any
    ) -> Profiled:
        """The batch is made.

        Args:
            records: from `begin`.
            num_seeds: its seeds.
            size: its nodes and edges.
            batch: the batch.
        """
        nodes, edges = size
        nbytes = _num_bytes(batch)
        background = self._num_threads > 0
        records.end(Phase.IDLE if background else Phase.CLOSED)
        made = records.clock.made(nbytes, maker=records.thread if background else (0, 0))
        return batch, (*records.task, num_seeds, Sizes(nodes, edges, nodes, 0, 0), made)


class WatchedEpoch(Iterator[Any]):
    """The batches of an epoch, handed out and counted.

    Args:
        made: batches, each with what it cost.
        finish: what is still to be done to a batch.
        tally: where it is counted.
    """

    def __init__(
        self, made: Iterator[Profiled], finish: Callable[[Any], Any], tally: Tally
    ) -> None:
        self._made = made
        self._finish = finish
        self._watch = DeliveryWatch(tally)

    def __next__(self) -> Any:
        watch = self._watch
        watch.ask()
        batch, cost = next(self._made)
        watch.take()
        batch = self._finish(batch)
        watch.deliver(*cost)
        return batch


def size_of_drawn(drawn: DrawnSubgraph) -> tuple[int, int]:
    """Nodes and edges of what khop's sampler drew."""
    if len(drawn.nodes) == len(drawn.edge_index) == 1:
        return drawn.nodes[0].numel(), drawn.edge_index[0].shape[1]
    edges = sum(ends.shape[1] for ends in drawn.edge_index)
    return sum(node.numel() for node in drawn.nodes), edges


def size_of_output(out: Any) -> tuple[int, int]:
    """Nodes and edges of what any sampler returned in PyG's form."""
    return _count(out.node), _count(out.row)


def _count(ids: Any) -> int:
    """Entries of a tensor, or of one for each type."""
    if isinstance(ids, Tensor):
        return ids.numel()
    return 0 if ids is None else sum(map(_count, ids.values()))


def _num_bytes(batch: Any) -> int:
    """Bytes of a batch's tensors."""
    total = 0
    for store in getattr(batch, "stores", ()):
        for value in store._mapping.values():
            if type(value) is Tensor:
                try:
                    total += value.nbytes
                except RuntimeError:  # torch does not count those of sparse tensors
                    continue
    return total
