"""Trainers whose GPUs share tables: handles, lifetimes, and ends. Runs in trainers.

A trainer's memory must not be freed while others have it opened. So a trainer that drops a table
closes the others' parts and publishes that. Its own part is freed when all have done so: at the
next table, or when all trainers have finished. Nothing waits for it.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from khop import _native
from khop.data.node_rows import set_peers
from khop.distributed.job.context import WorkerContext
from khop.distributed.membership.barrier import Barrier
from khop.errors import RendezvousError


class NodePeers:
    """Trainers of this machine, as `khop.data.node_rows.Peers`.

    Args:
        context: role and rank of this trainer.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._members = context.members
        # Processes of other containers have other numbers, and cannot open each other's memory.
        self._machine = f"{context.host} {Path('/proc/self/ns/pid').readlink()}"
        self._process = os.getpid()
        self._kept: dict[str, tuple[_native.DeviceMemory, list[int]]] = {}
        self._ranks: list[int] = []
        self._ends = select.poll()
        self._rank_of: dict[int, int] = {}  # by the descriptor of a process
        self._closers: list[Callable[[], object]] = []
        self._has_left = self._keeps = False
        context.close_before_leaving(self)

    def next_name(self) -> str:
        """Return a new name for tables. All trainers ask for names in the same order."""
        return self._context.next_name("device-table")

    @contextlib.contextmanager
    def meet(self, name: str) -> Iterator[_Meeting]:
        """Return the steps by which all trainers make the table `name`."""
        self.check()
        if not self._keeps and self._members.others:
            # No trainer ends before all have left: the job's store may be in this process, too.
            self._keeps = True
            self._context.keep_for_others(self._free_closed)
        with Barrier(self._members, name) as barrier:
            everyone = barrier.all_gather("machine", [self._machine, os.getpid()])
            ranks = [rank for rank, (machine, _) in enumerate(everyone) if machine == self._machine]
            self._ranks = [rank for rank in ranks if rank != self._members.rank]
            self._watch({rank: everyone[rank][1] for rank in self._ranks})
            self._free_closed()
            yield _Meeting(barrier, ranks, ranks.index(self._members.rank))

    def _watch(self, processes: dict[int, int]) -> None:
        """Have `check` notice the end of other trainers' processes, by rank."""
        for rank in processes.keys() - self._rank_of.values():
            try:
                descriptor = os.pidfd_open(processes[rank])
            except ProcessLookupError:
                raise RendezvousError(f"trainer {rank} of this machine has ended") from None
            self._rank_of[descriptor] = rank
            self._ends.register(descriptor, select.POLLIN)

    def check(self) -> None:
        """Raise RendezvousError if a trainer of this machine has ended, or this one has left."""
        if self._has_left or os.getpid() != self._process:
            raise RendezvousError("this process has left the job of its trainers")
        ended = sorted(self._rank_of[descriptor] for descriptor, _ in self._ends.poll(0))
        if ended:
            raise RendezvousError(
                f"trainer {ended[0]} of this machine has ended, whose GPU has a part of the tables "
                "that the machine's GPUs share: the job has to start again"
            )

    def keep(self, name: str, memory: _native.DeviceMemory) -> None:
        """Keep memory of this trainer until all others have closed it."""
        self._kept[name] = memory, list(self._ranks)

    def closed(self, name: str) -> None:
        """Publish that this trainer has closed the memory of others. Does not wait."""
        if os.getpid() == self._process:
            self._members.post(f"{name}/closed", True)

    def _free_closed(self) -> None:
        """Free memory that all others have closed. Other memory lasts as long as the process."""
        for name, (_, ranks) in list(self._kept.items()):
            with contextlib.suppress(RuntimeError, RendezvousError):
                if len(self._members.poll(f"{name}/closed", ranks)) == len(ranks):
                    del self._kept[name]

    def close_before_leaving(self, close: Callable[[], object]) -> None:
        """Call `close` when this trainer leaves the job."""
        self._closers = [each for each in self._closers if getattr(each, "alive", True)]
        self._closers.append(close)

    def close(self) -> None:
        """Close the memory of others. Tables cannot be read from now on."""
        if self._has_left or os.getpid() != self._process:
            return
        self._has_left = True
        set_peers(None)
        for close in self._closers:
            close()
        self._closers.clear()
        for descriptor in self._rank_of:
            os.close(descriptor)


class _Meeting:
    """Steps of making one table, as `khop.data.node_rows.Meeting`."""

    def __init__(self, barrier: Barrier, ranks: list[int], rank: int) -> None:
        self._barrier = barrier
        self._ranks = ranks
        self.rank = rank
        self.size = len(ranks)

    def gather(self, step: str, value: object) -> list[Any]:
        """Return the values of the machine's trainers for a step, anything that JSON holds."""
        values = self._barrier.all_gather(step, value)
        return [values[rank] for rank in self._ranks]
