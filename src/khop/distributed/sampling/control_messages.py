"""What a trainer asks of those who bring its batches: samplers, and receivers in their place."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from khop.channel.arena import ArenaReader, create_memory, map_memory
from khop.channel.control import ONE, TWO, Message
from khop.sampler.plan import EpochPlan
from khop.typing import Int64Array

_NOTHING = np.empty(0, np.int64)


class EpochInfo(NamedTuple):
    """An epoch that a trainer has open.

    Attributes:
        number: by which batches of it are asked for.
        run_key: its key.
        plan: how seeds make batches.
        columns: [num_columns, num_seeds] int64, what there is to know of the seeds, in order.
    """

    number: int
    run_key: int
    plan: EpochPlan
    columns: Int64Array


def encode_epoch(
    number: int, run_key: int, plan: EpochPlan, columns: Int64Array
) -> tuple[dict[str, Any], int]:
    """What OPEN_EPOCH says, and a descriptor of the columns' memory, to pass along and close.

    Arguments as the attributes of `EpochInfo`.
    """
    memory = create_memory(columns.nbytes, "khop-seeds")
    if columns.nbytes:
        view = ArenaReader(memory).lease(0, columns.nbytes, None)
        view[:] = np.ascontiguousarray(columns).reshape(-1).view(np.uint8)
    plain = {"epoch": number, "run_key": run_key, "plan": asdict(plan)}
    return {**plain, "num_columns": len(columns)}, memory


def read_epoch(message: Message) -> EpochInfo:
    """Reads OPEN_EPOCH; its memory stays mapped as long as the columns are used."""
    try:
        content = message.json()
        plan = EpochPlan(**content["plan"])
        mapped = map_memory(message.descriptor())
    finally:
        message.close_descriptors()
    shape = content["num_columns"], plan.num_seeds
    # An empty epoch still has a byte of memory.
    values = np.frombuffer(mapped, np.int64, shape[0] * shape[1]) if plan.num_seeds else _NOTHING
    return EpochInfo(content["epoch"], content["run_key"], plan, values.reshape(shape))


def encode_sample_request(freed: Sequence[int], tasks: Sequence[tuple[int, int]]) -> bytes:
    """SAMPLE: slots that are free again, and (epoch, batch) that are asked for, in order."""
    return struct.pack(f"<Q{len(freed)}Q", len(freed), *freed) + b"".join(
        TWO.pack(*task) for task in tasks
    )


def decode_sample_request(payload: bytes) -> tuple[list[int], Iterator[tuple[int, int]]]:
    """Reads SAMPLE; see `encode_sample_request`."""
    end = ONE.size * (1 + ONE.unpack_from(payload)[0])
    freed = [offset for (offset,) in ONE.iter_unpack(payload[ONE.size : end])]
    return freed, TWO.iter_unpack(payload[end:])
