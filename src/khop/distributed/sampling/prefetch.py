"""Prefetch in trainers: schedule of the batches that samplers make ahead of the trainer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from khop.channel.layout import Received
from khop.distributed.sampling.process_handle import SamplerProcess


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


def schedule_prefetch(
    epochs: Mapping[int, EpochState],
    samplers: Sequence[SamplerProcess],
    depth: int,
    in_bulk: bool,
) -> None:
    """Request the next batches of each epoch from the least loaded samplers.

    A message to a sampler that sleeps costs the trainer 60 to 150 us, more than receiving a small
    batch. So small batches are requested in bulk: when half of those made ahead have been taken, or
    when the trainer waits.

    Args:
        epochs: epochs by number.
        samplers: the samplers to send requests to.
        depth: batches that may be requested from each of them ahead of the trainer.
        in_bulk: wait until half of these can be requested.
    """
    limit = depth * len(samplers)
    enough = limit // 2 if in_bulk else limit - 1
    tasks: list[tuple[int, int]] = []
    for number, epoch in epochs.items():
        if epoch.next_to_ask - epoch.num_taken > enough:
            continue
        last = min(epoch.num_taken + limit, epoch.num_batches)
        tasks += [(number, batch) for batch in range(epoch.next_to_ask, last)]
        epoch.next_to_ask = max(epoch.next_to_ask, last)
    if tasks:
        assign_least_loaded(tasks, samplers)


def assign_least_loaded(
    tasks: Iterable[tuple[int, int]], samplers: Sequence[SamplerProcess]
) -> None:
    """Request each (epoch, batch) from the sampler with the fewest batches in flight."""
    wanted: dict[int, list[tuple[int, int]]] = {}
    for task in tasks:
        sampler = min(samplers, key=lambda s: len(s.in_flight))
        sampler.in_flight[task] = None
        wanted.setdefault(sampler.number, []).append(task)
    for sampler in samplers:
        if sampler.number in wanted:
            sampler.ask(wanted[sampler.number])
