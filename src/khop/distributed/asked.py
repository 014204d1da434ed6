"""What a trainer asks of those who bring its batches: samplers, and receivers in their place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from khop.channel.control import ONE, TWO, Message
from khop.channel.ring import map_memory
from khop.sampler.plan import EpochPlan
from khop.typing import Int64Array


class OpenedEpoch(NamedTuple):
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


def read_epoch(message: Message) -> OpenedEpoch:
    """Reads OPEN_EPOCH; its memory stays mapped as long as the columns are used."""
    content = message.json()
    plan = EpochPlan(**content["plan"])
    descriptor = message.descriptor()
    try:
        mapped = map_memory(descriptor)
    finally:
        os.close(descriptor)
    shape = content["num_columns"], plan.num_seeds
    # An empty epoch still has a byte of memory.
    values = np.frombuffer(mapped, np.int64, shape[0] * shape[1]) if plan.num_seeds else _NOTHING
    return OpenedEpoch(content["epoch"], content["run_key"], plan, values.reshape(shape))


def read_asked(payload: bytes) -> tuple[list[int], Iterator[tuple[int, int]]]:
    """Reads SAMPLE: slots that are free again, and (epoch, batch) that are asked for, in order."""
    end = ONE.size * (1 + ONE.unpack_from(payload)[0])
    freed = [offset for (offset,) in ONE.iter_unpack(payload[ONE.size : end])]
    return freed, TWO.iter_unpack(payload[end:])


_NOTHING = np.empty(0, np.int64)
