"""Division of seeds among virtual ranks, and a trainer's plan of its batches. Runs in trainers.

Each virtual rank (option `num_virtual_ranks`) has a share of the seeds, in batches that
`khop.loader.iteration.virtual_ranks` divides among trainers. Here the batches of one trainer become
one plan. Each batch keeps the random-number key of its virtual rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from khop.loader.arguments import check_positive
from khop.loader.iteration.virtual_cursor import VirtualProgress
from khop.loader.iteration.virtual_ranks import VirtualRanks
from khop.sampler.plan import EpochPlan, epoch_order, seeds_of
from khop.typing import Int64Array


class VirtualShares:
    """Seeds of each virtual rank, and the plans of this trainer's epochs.

    A virtual rank is a part of each epoch that any trainer can make (option `num_virtual_ranks`).

    Args:
        shares: positions of each virtual rank's seeds in the loader's input, [n] int64.
        plans: division of each share into batches.
        ranks: the virtual ranks.
        trainer: rank of this trainer.
        shuffle: permute the seeds of each virtual rank in each epoch.
    """

    def __init__(
        self,
        shares: Sequence[Int64Array],
        plans: Sequence[EpochPlan],
        ranks: VirtualRanks,
        trainer: int,
        shuffle: bool,
    ) -> None:
        self.shares, self.plans, self.ranks = shares, plans, ranks
        self._trainer, self._shuffle = trainer, shuffle

    @property
    def num_batches(self) -> int:
        """Number of this trainer's batches in a whole epoch."""
        return self.ranks.length([0] * len(self.shares), self._trainer)

    def epoch_plan(self, progress: VirtualProgress) -> tuple[EpochPlan, Int64Array]:
        """Return the plan of this trainer's batches, and their seeds' positions, batch by batch.

        Batches before `progress.first` were made by earlier jobs, and have no seeds in the plan.
        """
        ranks, indices = self.ranks.share(progress.before, self._trainer)
        orders: dict[int, Int64Array | None] = {}
        pieces = [np.empty(0, np.int64)]
        sizes, keys = [0] * progress.first, [(0, 0)] * progress.first
        for rank, index in zip(ranks.tolist(), indices.tolist(), strict=True):
            share, run_key = self.shares[rank], progress.run_keys[rank]
            if rank not in orders:
                orders[rank] = epoch_order(len(share), run_key, self._shuffle)
            bounds = self.plans[rank].bounds(index)
            pieces.append(share[seeds_of(orders[rank], *bounds)])
            sizes.append(len(pieces[-1]))
            keys.append((run_key, index))
        largest = max((plan.batch_size for plan in self.plans), default=1)
        positions = np.concatenate(pieces)
        return EpochPlan(len(positions), largest, sizes=sizes, keys=keys), positions


def check_virtual_ranks(
    num_virtual_ranks: Any, seed: int | None, stream: int | None, lists: Sequence[int] | None
) -> None:
    """Check the options of a loader with virtual ranks. `seed` must be set, the others not.

    Raises:
        TypeError, ValueError: the number is not positive, or other options contradict it.
    """
    check_positive(num_virtual_ranks, "num_virtual_ranks")
    if seed is None:
        raise ValueError("num_virtual_ranks needs a seed: all trainers must draw the same epochs")
    if stream is not None:
        raise ValueError(
            f"stream={stream} contradicts num_virtual_ranks: each virtual rank is a stream"
        )
    if lists is not None:
        raise ValueError(
            "with num_virtual_ranks the seeds are one list, those of all trainers: any graph "
            "server makes the batches of any virtual rank"
        )
