"""A sampler process as its trainer sees it: what it owes, and the memory that it writes to."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from khop.channel.arena import ArenaReader
from khop.channel.control import BATCH, ON_DEVICE, ONE, ControlLine, Message, Op
from khop.channel.device_arena import DeviceArenaReader
from khop.channel.layout import Layout, Received, read_record
from khop.distributed.sampling.control_messages import encode_sample_request
from khop.errors import ProtocolError
from khop.typing import Array

# Slots and batches in one message to a sampler, within what a message holds.
_MAX_FREED = 4096
_MAX_ASKED = 1024


class Process(Protocol):
    """A process that makes batches, as its trainer reaches it."""

    line: ControlLine

    @property
    def pid(self) -> int:
        """Process id."""

    def exit_status(self) -> str:
        """How the process ended, in words; it is known to be ending."""

    @property
    def ended_with_server(self) -> bool:
        """Whether it did not die of itself, but with the graph server that had started it."""

    def last_task(self) -> tuple[int, int] | None:
        """(epoch, batch) that it worked on last, if it says so."""

    def log_tail(self) -> str:
        """The end of what it has written to its log."""

    def close(self) -> None:
        """Ends the process; harmless if called again."""


class SamplerProcess:
    """A sampler process, the memory it writes to, and the batches that it owes.

    Args:
        number: which sampler of its loader.
        process: the process.
        ring: its ring.
        slab: memory of a device that it shares with the trainer, if it does.
        in_bulk: slots that are free again are told with the next message, not at once.
        is_joining: it is started in the place of one that died, and not ready yet: others are
            preferred.

    Attributes:
        is_ready: it has said that it can begin.
        owes: (epoch, batch) that it was asked for and has not delivered, in order.
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
        # Slots that nothing looks into, told with the next message. Destructors append to it.
        self._freed: deque[int] = deque()
        self._free: Callable[[int], None] = self._freed.append
        if not in_bulk:
            self._free = partial(_free, weakref.ref(process.line), os.getpid())

    def ask(self, batches: Sequence[tuple[int, int]]) -> None:
        """Asks for batches, and gives back the slots that destructors have left meanwhile."""
        # Others may append; nobody else takes.
        count = min(len(self._freed), _MAX_FREED)
        freed = [self._freed.popleft() for _ in range(count)]
        for start in range(0, max(len(batches), 1), _MAX_ASKED):
            payload = encode_sample_request(freed, batches[start : start + _MAX_ASKED])
            self.process.line.post(Op.SAMPLE, payload)
            freed = []

    def learn(self, layout: Layout) -> None:
        """Takes note of a layout that batches will have."""
        self._layouts[layout.number] = layout

    def read(self, message: Message) -> tuple[int, int, Received]:
        """Reads a message of a batch: epoch, index and batch. Closes its descriptors.

        Raises:
            ProtocolError: malformed.
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
        if message.descriptors:  # the ring had no room
            return ArenaReader(message.descriptor()).lease(0, nbytes, None)
        # A user who keeps batches must not starve the sampler: from half of the ring on, they get
        # copies.
        hoards = self.ring.bytes_leased > self.ring.capacity // 2
        raw = self.ring.lease(offset, nbytes, self._free)
        return raw.copy() if hoards else raw

    def _lease_on_device(self, told: bytes, offset: int, nbytes: int) -> tuple[Received, bytes]:
        """A batch in the slab, and what else is told of it."""
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


def _free(line: weakref.ref[ControlLine], owner: int, slot: int) -> None:
    alive = line()
    if alive is not None and os.getpid() == owner:  # a fork drops copies, not the batch
        alive.post(Op.FREE, ONE.pack(slot))
