"""Control messages to batch producers, which are sampler or receiver processes.

A trainer opens an epoch once, and requests its batches by index, many in one message. A graph
server has no epochs: each of its requests has everything that the batch depends on.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from khop.channel.arena import ArenaReader, create_memory, map_memory
from khop.channel.control import MAKE_HEADER, MAX_PAYLOAD, ControlLine, Message, Op
from khop.sampler.plan import EpochPlan
from khop.typing import Int64Array

BatchKey: TypeAlias = tuple[int, int]
"""Key of a batch in flight: (epoch, index) in trainers, (request, index) on graph servers."""

_NOTHING = np.empty(0, np.int64)
# Bytes above which the columns of a request are passed in shared memory.
_MAX_INLINE = MAX_PAYLOAD // 4


class Epoch(NamedTuple):
    """An epoch that a trainer has opened.

    Attributes:
        run_key: its key.
        plan: division of the seeds into batches.
        columns: [num_columns, num_seeds] int64 ids and times of the seeds: see `Pipeline.make`.
    """

    run_key: int
    plan: EpochPlan
    columns: Int64Array

    def seeds_of(self, batch: int) -> Int64Array:
        """Return ids and times (columns) of the seeds of a batch, [num_columns, n] int64."""
        first, last = self.plan.bounds(batch)
        return np.ascontiguousarray(self.columns[:, first:last])

    def key_of(self, batch: int) -> tuple[int, int]:
        """Return run key and index by which a batch's random numbers are drawn."""
        return self.plan.key_of(batch, self.run_key)


class SingleBatch(NamedTuple):
    """A batch that a graph server requests.

    Attributes:
        run_key: key of the epoch's random numbers.
        columns: [num_columns, n] int64 ids and times of the batch's seeds, see `Pipeline.make`.
    """

    run_key: int
    columns: Int64Array

    def seeds_of(self, batch: int) -> Int64Array:
        """Return ids and times of the only batch's seeds, [num_columns, n] int64."""
        del batch
        return self.columns

    def key_of(self, batch: int) -> tuple[int, int]:
        """Return run key and index by which the batch's random numbers are drawn."""
        return self.run_key, batch


def encode_epoch(
    epoch: int, run_key: int, plan: EpochPlan, columns: Int64Array
) -> tuple[dict[str, Any], int]:
    """Return the content of a message that opens an epoch, and a descriptor of its seeds.

    The caller sends the content as JSON, passes the descriptor along and closes it.
    """
    memory = _in_memory(columns)
    shape = {"plan": asdict(plan), "num_columns": len(columns)}
    return {"epoch": epoch, "run_key": run_key, **shape}, memory


def _in_memory(columns: Int64Array) -> int:
    """Copy seeds' columns to new memory. Return its descriptor, to pass along and close."""
    memory = create_memory(columns.nbytes, "khop-seeds")
    if columns.nbytes:
        view = ArenaReader(memory).lease(0, columns.nbytes, None)
        view[:] = np.ascontiguousarray(columns).reshape(-1).view(np.uint8)
    return memory


def read_epoch(message: Message) -> tuple[int, Epoch]:
    """Read a message that opens an epoch. Return the epoch's id, and the epoch.

    The memory of the seeds stays mapped as long as they are used.
    """
    try:
        content = message.json()
        plan = EpochPlan(**content["plan"])
        mapped = map_memory(message.descriptor())
    finally:
        message.close_descriptors()
    shape = content["num_columns"], plan.num_seeds
    # An empty epoch still has a byte of memory.
    values = np.frombuffer(mapped, np.int64, shape[0] * shape[1]) if plan.num_seeds else _NOTHING
    return content["epoch"], Epoch(content["run_key"], plan, values.reshape(shape))


class SampleRequest(NamedTuple):
    """Content of SAMPLE.

    Attributes:
        freed: slots that are free again.
        requested: batches to make, in order.
        ahead: batches that will be requested later, in order. They may be drawn.
    """

    freed: Sequence[int]
    requested: Sequence[BatchKey]
    ahead: Sequence[BatchKey] = ()

    def encode(self) -> bytes:
        """Return the payload of the message."""
        keys = [part for key in (*self.requested, *self.ahead) for part in key]
        numbers = [len(self.freed), len(self.requested), *self.freed, *keys]
        return struct.pack(f"<{len(numbers)}Q", *numbers)

    @classmethod
    def decode(cls, payload: bytes) -> SampleRequest:
        """Read the payload of a message."""
        num_freed, num_requested, *numbers = struct.unpack(f"<{len(payload) // 8}Q", payload)
        rest = iter(numbers[num_freed:])
        keys = list(zip(rest, rest, strict=True))
        return cls(numbers[:num_freed], keys[:num_requested], keys[num_requested:])


def send_request(
    line: ControlLine, key: BatchKey, run_key: int, columns: Int64Array, ahead: bool = False
) -> None:
    """Send a MAKE message, which requests one batch that belongs to no epoch.

    With `ahead`, it may be drawn, and is requested later.

    Raises:
        OSError: no memory or descriptor is left for many columns.
    """
    head = MAKE_HEADER.pack(*key, run_key, len(columns), ahead)
    if columns.nbytes <= _MAX_INLINE:
        line.post(Op.MAKE, head + columns.tobytes())
        return
    memory = _in_memory(columns)
    try:
        line.send(Op.MAKE, head, [memory])
    except ConnectionError:
        pass  # it has died: noticed when its line is read
    finally:
        os.close(memory)


def read_request(message: Message) -> tuple[BatchKey, SingleBatch, bool]:
    """Read a MAKE message. Return the batch's key, its seeds, and if it is only drawn ahead."""
    request, batch, run_key, num_columns, ahead = MAKE_HEADER.unpack_from(message.payload)
    raw: Any = message.payload[MAKE_HEADER.size :]
    if message.descriptors:
        try:
            raw = map_memory(message.descriptor())
        finally:
            message.close_descriptors()
    columns = np.frombuffer(raw, np.int64).reshape(num_columns, -1)
    return (request, batch), SingleBatch(run_key, columns), bool(ahead)
