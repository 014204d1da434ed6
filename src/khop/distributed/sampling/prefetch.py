"""Prefetch in trainers: schedule of the batches that samplers make ahead of the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from khop.channel.layout import Received
from khop.distributed.sampling.control_messages import BatchKey


@dataclass
class EpochState:
    """An epoch that is being iterated.

    Attributes:
        message: content of OPEN_EPOCH.
        seeds: descriptor of the memory of its seeds.
        num_batches: number of its batches.
        next_to_ask: the first batch that was not requested.
        num_taken: batches that the trainer has taken.
        arrived: batches that arrived and were not taken, or the errors that they raised.
    """

    message: dict[str, Any]
    seeds: int
    num_batches: int
    next_to_ask: int = 0
    num_taken: int = 0
    arrived: dict[int, Received | Exception] = field(default_factory=dict)


def due_batches(epochs: Mapping[int, EpochState], limit: int, in_bulk: bool) -> list[BatchKey]:
    """Return the next batches of each epoch to request, and note them as requested.

    A message to a sampler that sleeps costs the trainer 60 to 150 us, more than receiving a small
    batch. So small batches are requested in bulk: when half of those made ahead have been taken, or
    when the trainer waits.

    Args:
        epochs: epochs by number.
        limit: batches of an epoch that may be requested ahead of the trainer.
        in_bulk: wait until half of these can be requested.
    """
    enough = limit // 2 if in_bulk else limit - 1
    due: list[BatchKey] = []
    for number, epoch in epochs.items():
        if epoch.next_to_ask - epoch.num_taken > enough:
            continue
        last = min(epoch.num_taken + limit, epoch.num_batches)
        due += [(number, batch) for batch in range(epoch.next_to_ask, last)]
        epoch.next_to_ask = max(epoch.next_to_ask, last)
    return due


def missing_batches(epochs: Mapping[int, EpochState]) -> list[BatchKey]:
    """Return the batches of each epoch that were requested and have not arrived."""
    return [
        (number, batch)
        for number, epoch in epochs.items()
        for batch in range(epoch.num_taken, epoch.next_to_ask)
        if batch not in epoch.arrived
    ]
