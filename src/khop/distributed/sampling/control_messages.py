"""Control messages from a trainer to its batch producers (sampler or receiver processes)."""

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
    """An epoch that a trainer has opened.

    Attributes:
        number: its number, which requests for its batches have.
        run_key: its key.
        plan: division of the seeds into batches.
        columns: [num_columns, num_seeds] int64, ids and times of the seeds; see `Pipeline.make`.
    """

    number: int
    run_key: int
    plan: EpochPlan
    columns: Int64Array


def encode_epoch(
    number: int, run_key: int, plan: EpochPlan, columns: Int64Array
) -> tuple[dict[str, Any], int]:
    """Return the JSON of OPEN_EPOCH, and a descriptor of the columns, to pass along and close.

    The arguments are the attributes of `EpochInfo`.
    """
    memory = create_memory(columns.nbytes, "khop-seeds")
    if columns.nbytes:
        view = ArenaReader(memory).lease(0, columns.nbytes, None)
        view[:] = np.ascontiguousarray(columns).reshape(-1).view(np.uint8)
    plain = {"epoch": number, "run_key": run_key, "plan": asdict(plan)}
    return {**plain, "num_columns": len(columns)}, memory


def read_epoch(message: Message) -> EpochInfo:
    """Read OPEN_EPOCH; its memory stays mapped as long as the columns are used."""
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
    """Return the payload of SAMPLE: slots that are free again, and requested (epoch, batch)."""
    return struct.pack(f"<Q{len(freed)}Q", len(freed), *freed) + b"".join(
        TWO.pack(*task) for task in tasks
    )


def decode_sample_request(payload: bytes) -> tuple[list[int], Iterator[tuple[int, int]]]:
    """Read SAMPLE: free slots, and requested (epoch, batch) in order."""
    end = ONE.size * (1 + ONE.unpack_from(payload)[0])
    freed = [offset for (offset,) in ONE.iter_unpack(payload[ONE.size : end])]
    return freed, TWO.iter_unpack(payload[end:])
