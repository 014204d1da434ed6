"""Which batches a loader's samplers are asked for ahead of the trainer, and when."""

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
        message: what samplers are told of it.
        seeds: descriptor of the memory of its seeds.
        num_batches: of all of it.
        next_to_ask: the first batch that no sampler was asked for.
        num_taken: batches that the trainer has taken.
        arrived: what has arrived and was not taken: batches, or what their making raised.
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
    """Asks the least busy samplers for the next batches of each epoch.

    A message to a sampler that sleeps costs the trainer 60 to 150 us, more than taking in a small
    batch. Of these, samplers hear in bulk: when half of what they may make ahead has been taken, or
    when the trainer has nothing else to do.

    Args:
        epochs: by number.
        samplers: those that may be asked.
        depth: batches that each of them may be asked for ahead of the trainer.
        in_bulk: wait until there is more to ask for.
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
    """Asks for (epoch, batch), each of the sampler that owes least."""
    wanted: dict[int, list[tuple[int, int]]] = {}
    for task in tasks:
        sampler = min(samplers, key=lambda s: len(s.in_flight))
        sampler.in_flight[task] = None
        wanted.setdefault(sampler.number, []).append(task)
    for sampler in samplers:
        if sampler.number in wanted:
            sampler.ask(wanted[sampler.number])
