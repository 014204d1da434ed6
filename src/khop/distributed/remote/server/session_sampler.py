"""A graph server's handle of a sampler process that makes batches for a client."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from khop.channel.arena import ArenaReader, create_memory, map_memory
from khop.channel.control import BATCH, MAX_PAYLOAD, ONE, ORDER, ControlLine, Message, Op
from khop.distributed.processes.child import ChildProcess
from khop.typing import Array, Int64Array

_WORKER = "khop.distributed.sampling.worker"
# Bytes above which columns are passed in shared memory.
_MAX_INLINE = MAX_PAYLOAD // 4


@dataclass
class BatchRequest:
    """A client's request for a batch.

    Attributes:
        id: id of the batch, chosen by the client.
        batch, run_key, columns: all that the batch depends on; see `Pipeline.make`.
        asked: when it was requested (`time.monotonic`).
    """

    id: int
    batch: int
    run_key: int
    columns: Int64Array
    asked: float

    @property
    def nbytes(self) -> int:
        """Bytes of its columns."""
        return int(self.columns.nbytes)


@dataclass
class EncodedBatch:
    """A batch that was made and is not sent in full.

    Attributes:
        order: its request.
        raw: [nbytes] uint8; its slot is freed when nothing uses it any more.
        layout: the session's number of its layout.
        extras: JSON of the batch's extras.
        sent: bytes that were sent.
    """

    order: BatchRequest
    raw: Array
    layout: int
    extras: str | None
    sent: int = 0


class SessionSampler:
    """A sampler process of a session.

    Args:
        number: index of the sampler in its session.
        config: see `khop.distributed.sampling.worker.Sampler`.
        ring_bytes: bytes of its arena.
        shared: descriptors of arrays that it reads; left open.

    Attributes:
        orders: {ticket: request} in flight.
        layouts: {the sampler's number of a layout: the session's number}.
        made, nbytes: number of batches made so far, and their bytes.
    """

    def __init__(
        self, number: int, config: Mapping[str, Any], ring_bytes: int, shared: Sequence[int]
    ) -> None:
        self.number = number
        self.orders: dict[int, BatchRequest] = {}
        self.layouts: dict[int, int] = {}
        self.made = self.nbytes = 0
        self._tickets = 0
        memory = create_memory(ring_bytes, f"khop-ring-{number}")
        try:
            self._ring = ArenaReader(memory)
            own = {"number": number, "has_arrays": bool(shared), "num_shared": len(shared)}
            self.process = ChildProcess(_WORKER, {**config, **own}, [memory, *shared])
        finally:
            os.close(memory)

    @property
    def ring_bytes(self) -> int:
        """Bytes of its arena."""
        return self._ring.capacity

    def submit(self, order: BatchRequest) -> None:
        """Send it a request for a batch."""
        self._tickets += 1
        self.orders[self._tickets] = order
        head = ORDER.pack(self._tickets, order.batch, order.run_key, len(order.columns))
        line = self.process.line
        if order.nbytes <= _MAX_INLINE:
            line.post(Op.MAKE, head + order.columns.tobytes())
            return
        memory = create_memory(order.nbytes, "khop-seeds")
        try:
            values = np.frombuffer(map_memory(memory), np.int64)
            values[:] = order.columns.reshape(-1)
            line.send(Op.MAKE, head, [memory])
        except ConnectionError:
            pass  # it has died: noticed when its line is read
        finally:
            os.close(memory)

    def drop(self, order_id: int) -> bool:
        """Cancel a request; return whether it was in flight here."""
        for ticket, order in self.orders.items():
            if order.id == order_id:
                del self.orders[ticket]
                self.process.line.post(Op.CLOSE_EPOCH, ONE.pack(ticket))
                return True
        return False

    def read(self, message: Message) -> EncodedBatch | None:
        """Read a BATCH message; return None if the batch was cancelled.

        Closes the message's descriptors.
        """
        try:
            return self._read(message)
        finally:
            message.close_descriptors()

    def _read(self, message: Message) -> EncodedBatch | None:
        ticket, _, offset, nbytes = BATCH.unpack_from(message.payload)
        extras = message.payload[BATCH.size :]
        raw = self._lease(message, offset, nbytes)
        order = self.orders.pop(ticket, None)
        if order is None:
            return None
        self.made += 1
        self.nbytes += nbytes
        layout = self.layouts[int.from_bytes(raw[:8].tobytes(), "little")]
        return EncodedBatch(order, raw, layout, extras.decode() if extras else None)

    def _lease(self, message: Message, offset: int, nbytes: int) -> Array:
        if message.descriptors:  # the arena had no room
            return ArenaReader(message.descriptor()).lease(0, nbytes, None)
        line = weakref.ref(self.process.line)
        return self._ring.lease(offset, nbytes, partial(_free, line, os.getpid()))


def _free(line: weakref.ref[ControlLine], owner: int, slot: int) -> None:
    """Free a slot. Called in any thread, when ZeroMQ has sent a batch."""
    alive = line()
    if alive is not None and os.getpid() == owner:
        alive.post(Op.FREE, ONE.pack(slot))
