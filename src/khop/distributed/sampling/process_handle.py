"""A trainer's handle of a sampler process: its batches in flight, and its arena."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from khop import log
from khop.channel.arena import ArenaReader
from khop.channel.control import BATCH, ON_DEVICE, ONE, ControlLine, Message, Op
from khop.channel.device_arena import DeviceArenaReader
from khop.channel.layout import Layout, Received, read_record
from khop.distributed.sampling.control_messages import encode_sample_request
from khop.distributed.sampling.restart_policy import RestartPolicy
from khop.errors import ProtocolError, SamplerDiedError
from khop.typing import Array

# Slots and batches in one message to a sampler, within what a message holds.
_MAX_FREED = 4096
_MAX_ASKED = 1024
_log = log.get(__name__)


class Process(Protocol):
    """A trainer's interface to a process that makes or receives batches."""

    line: ControlLine

    @property
    def pid(self) -> int:
        """Process id."""

    def exit_status(self) -> str:
        """Return how the process ended, in words. Call when it is ending."""

    @property
    def ended_with_server(self) -> bool:
        """True if it ended because the graph server that had started it ended."""

    def last_task(self) -> tuple[int, int] | None:
        """Return the (epoch, batch) that it worked on last, if known."""

    def log_tail(self) -> str:
        """Return the end of its log."""

    def close(self) -> None:
        """End the process; harmless if called again."""


class SamplerProcess:
    """A sampler process, its arena, and its batches in flight.

    Args:
        number: index of the sampler in its loader.
        process: the process.
        ring: its arena.
        slab: the device arena that it shares with the trainer, if any.
        in_bulk: slots are freed with the next request, not at once.
        is_starting: it replaces a sampler that died, and is not ready yet: others are preferred.

    Attributes:
        is_ready: it has reported that it can begin.
        in_flight: (epoch, batch) that were requested and not delivered, in order.
    """

    def __init__(
        self,
        number: int,
        process: Process,
        ring: ArenaReader,
        slab: DeviceArenaReader | None,
        in_bulk: bool,
        is_starting: bool = False,
    ) -> None:
        self.is_starting = is_starting
        self.is_ready = False
        self.number = number
        self.process = process
        self.ring = ring
        self.slab = slab
        self.in_flight: dict[tuple[int, int], None] = {}
        self._layouts: dict[int, Layout] = {}
        # Slots without references, freed with the next request. Destructors append to it.
        self._freed: deque[int] = deque()
        self._free: Callable[[int], None] = self._freed.append
        if not in_bulk:
            self._free = partial(_free, weakref.ref(process.line), os.getpid())

    def ask(self, batches: Sequence[tuple[int, int]]) -> None:
        """Request batches, and free the slots that destructors have left meanwhile."""
        # Other threads append; only this one removes.
        count = min(len(self._freed), _MAX_FREED)
        freed = [self._freed.popleft() for _ in range(count)]
        for start in range(0, max(len(batches), 1), _MAX_ASKED):
            payload = encode_sample_request(freed, batches[start : start + _MAX_ASKED])
            self.process.line.post(Op.SAMPLE, payload)
            freed = []

    def learn(self, layout: Layout) -> None:
        """Register a layout of later batches."""
        self._layouts[layout.number] = layout

    def read(self, message: Message) -> tuple[int, int, Received]:
        """Read a BATCH message: epoch, index and batch. Closes its descriptors.

        Raises:
            ProtocolError: the message is malformed.
        """
        try:
            return self._read(message)
        finally:
            message.close_descriptors()

    def _read(self, message: Message) -> tuple[int, int, Received]:
        if len(message.payload) < BATCH.size:
            raise ProtocolError(f"a sampler tells of a batch in {len(message.payload)} bytes")
        number, batch, offset, nbytes = BATCH.unpack_from(message.payload)
        told = message.payload[BATCH.size :]
        if offset & ON_DEVICE:
            received, told = self._lease_on_device(told, offset, nbytes)
        else:
            received = read_record(self._lease(message, offset, nbytes), self._layouts)
        if told:
            received = received._replace(extras=message._replace(payload=told).json())
        return number, batch, received

    def _lease(self, message: Message, offset: int, nbytes: int) -> Array:
        if message.descriptors:  # the arena had no room
            return ArenaReader(message.descriptor()).lease(0, nbytes, None)
        # If the user keeps batches, the sampler must not run out of slots: while more than half of
        # the arena is in use, batches are copied.
        hoards = self.ring.bytes_leased > self.ring.capacity // 2
        raw = self.ring.lease(offset, nbytes, self._free)
        return raw.copy() if hoards else raw

    def _lease_on_device(self, told: bytes, offset: int, nbytes: int) -> tuple[Received, bytes]:
        """Return a batch in the device arena, and the rest of its message."""
        if self.slab is None or len(told) < ONE.size:
            raise ProtocolError("a batch lies in the memory of a device, but there is no slab")
        end = ONE.size + ONE.unpack_from(told)[0]
        free = self._free
        received = self.slab.lease(
            offset - ON_DEVICE,
            nbytes,
            told[ONE.size : end],
            self._layouts,
            lambda slot: free(slot | ON_DEVICE),
        )
        return received, told[end:]


def reap(
    dead: SamplerProcess, policy: RestartPolicy, in_flight: Collection[tuple[int, int]]
) -> None:
    """Reap a sampler that died, and count it.

    Args:
        dead: the sampler.
        policy: limits on restarts.
        in_flight: (epoch, batch) of all batches in flight, its own included.

    Raises:
        SamplerDiedError: it is not to be restarted.
    """
    process = dead.process
    status = process.exit_status()
    process.close()
    if not process.ended_with_server:  # else not counted: a receiver replaces it
        task = process.last_task()
        task = task if task in dead.in_flight else None
        why = policy.record_exit(task, in_flight, "" if task is None else f"batch {task[1]}")
        if why is not None:
            raise SamplerDiedError(_exit_report(dead, status, why))
    _log.warning(
        "sampler-restarted",
        f"sampler {dead.number} (pid {process.pid}) {status}: it is started again",
        sampler=dead.number,
        pid=process.pid,
        owed=len(dead.in_flight),
        restarts=policy.num_restarts,
    )


def _exit_report(dead: SamplerProcess, status: str, why: str) -> str:
    """Return a text with a sampler's exit status, batches in flight, current task and log."""
    task, tail = dead.process.last_task(), dead.process.log_tail()
    last = "It had worked on none" if task is None else f"It worked on batch {task[1]} last"
    due = sorted(batch for _, batch in dead.in_flight)
    asked = f"batches {due} were due" if due else "no batch was due"
    return (
        f"sampler process {dead.number} (pid {dead.process.pid}) {status} while {asked}, and "
        f"{why}. {last}. Killed processes "
        "often mean that memory ran out." + (f"\nThe end of its log:\n{tail}" if tail else "")
    )


def _free(line: weakref.ref[ControlLine], owner: int, slot: int) -> None:
    alive = line()
    if alive is not None and os.getpid() == owner:  # a fork drops copies, not the batch
        alive.post(Op.FREE, ONE.pack(slot))
