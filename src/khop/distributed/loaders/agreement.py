"""Agreement of all trainers on a loader: equal options and equal numbers of batches.

Runs in trainers. A loader that differs between trainers is an error on each of them, when it is
made. Otherwise some would wait for batches or gradients that never come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from khop.distributed.job.context import TrainerContext
from khop.errors import RendezvousError
from khop.sampler.plan import EpochPlan


def agree_on_batches(
    context: TrainerContext, plan: EpochPlan, drop_last: bool, described: Mapping[str, Any]
) -> EpochPlan:
    """Return the plan with the number of batches that all trainers of `context` agree on.

    It is the largest of their numbers, or with `drop_last` the smallest. `described` are the
    loader's options by name that must be equal.

    Raises:
        RendezvousError: an option differs, or a trainer does not arrive.
        ValueError: see `agreed_number`.
    """
    name = context.next_name("loader")
    own = [plan.num_batches_alone, plan.num_seeds, dict(described)]
    context.members.publish(name, own)
    gathered = context.members.all_gather(
        name,
        "make this loader (pass even_batches=False to loaders that only some trainers make)",
    )
    for rank, (*_, other) in enumerate(gathered):
        for option in dict.fromkeys([*described, *other]):
            if described.get(option) != other.get(option):
                raise RendezvousError(
                    f"trainers make this loader with different options: trainer {context.rank} "
                    f"with {option}={described.get(option)!r}, trainer {rank} with {option}="
                    f"{other.get(option)!r}"
                )
    counts = [other[:2] for other in gathered]
    return replace(plan, num_batches_asked=agreed_number(counts, drop_last, "trainers"))


def check_agreement(context: TrainerContext, described: Sequence[Any]) -> None:
    """Check that all trainers create the same loader with virtual ranks. All call it together.

    Args:
        context: this trainer's context.
        described: description of the loader in JSON: options, digest of the seeds.

    Raises:
        RendezvousError: the loaders differ, or a trainer does not arrive.
    """
    if context.world_size == 1:
        return
    name = context.next_name("loader")
    context.members.publish(name, list(described))
    gathered = context.members.all_gather(name, "make this loader")
    for rank, other in enumerate(gathered):
        if other != list(described):
            raise RendezvousError(
                f"trainers {context.rank} and {rank} make loaders with num_virtual_ranks of "
                "different seeds or options: pass the seeds of all trainers, not a share of "
                "them, and the same options on every trainer"
            )


def agreed_number(counts: Sequence[Sequence[int]], drop_last: bool, of: str) -> int:
    """Return one number of batches for several lists of seeds: the largest of theirs.

    With `drop_last` it is the smallest.

    Args:
        counts: (number of batches, number of seeds) of each list.
        drop_last: leave out a last batch that is smaller.
        of: owners of the lists, for the error message: 'trainers', 'virtual ranks'.

    Raises:
        ValueError: without `drop_last`, a list has fewer seeds than the returned number.
    """
    batches, seeds = zip(*counts, strict=True)
    agreed: int = min(batches) if drop_last else max(batches)
    if not drop_last and min(seeds) < agreed:
        raise ValueError(
            f"{of} have {list(seeds)} seeds: some have fewer than the {agreed} batches that the "
            "others make. Divide the seeds with node_split, or pass even_batches=False"
        )
    return agreed
