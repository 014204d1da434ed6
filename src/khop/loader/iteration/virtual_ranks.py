"""Virtual ranks: division of an epoch's batches among any number of trainers. Runs in trainers.

An epoch has a number of virtual ranks that does not depend on the number of trainers. Each has its
part of the seeds, its stream of random numbers and its plan. So its batches are the same for any
trainer that makes them. Trainers take batches in rounds. A round has one batch for each trainer:
the next batches in the order of (index, virtual rank). At the end of a round, the batches made of a
virtual rank are the first of its plan. So its progress is one number.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from khop.typing import Int64Array


@dataclass(frozen=True)
class VirtualRanks:
    """Virtual ranks of an epoch, and the trainers that make their batches.

    In a round, a trainer prefers a batch of a virtual rank with the same home partition, the one
    that the trainer has loaded. The last round may have fewer batches than there are trainers.

    Attributes:
        num_batches: number of batches of each virtual rank.
        homes: home partition of each virtual rank.
        trainers: home partition of each trainer, by rank.
        even: give all trainers the same number of batches. The last round is completed with the
            first batches of the epoch (of its rest, if it is resumed). If False, trainers of higher
            rank may make one batch less.
        drop_last: with `even`, leave out an incomplete last round instead.

    Example:
        >>> ranks = VirtualRanks([2, 2, 2], homes=[0, 0, 0], trainers=[0, 0])
        >>> virtual_ranks, indices = ranks.share([0, 0, 0], trainer=1)
        >>> virtual_ranks.tolist(), indices.tolist()
        ([1, 0, 2], [0, 1, 1])
        >>> ranks.advance([0, 0, 0], rounds=2)
        [2, 1, 1]
    """

    num_batches: Sequence[int]
    homes: Sequence[int]
    trainers: Sequence[int]
    even: bool = True
    drop_last: bool = False

    def rest(self, delivered: Sequence[int]) -> tuple[Int64Array, Int64Array]:
        """Return virtual ranks and indices of the undelivered batches, in the order of delivery.

        `delivered` has the number of delivered batches of each virtual rank.
        """
        due = [np.arange(n, total) for n, total in zip(delivered, self.num_batches, strict=True)]
        ranks = np.repeat(np.arange(len(due)), [len(indices) for indices in due])
        indices = np.concatenate([np.empty(0, np.int64), *due])
        order = np.lexsort((ranks, indices))
        return ranks[order], indices[order]

    def share(self, delivered: Sequence[int], trainer: int) -> tuple[Int64Array, Int64Array]:
        """Return the undelivered batches that the trainer of this rank makes, in order.

        The result has their virtual ranks and their indices. `delivered` has the number of
        delivered batches of each virtual rank.
        """
        ranks, indices = self.rest(delivered)
        size, count = len(self.trainers), len(ranks)
        num_rounds = -(-count // size) if self.even and not self.drop_last else count // size
        # A batch comes again where the last round is completed.
        rounds = np.resize(np.arange(count), num_rounds * size).reshape(num_rounds, size)
        columns: dict[bytes, int] = {}
        own = []
        for batches in rounds:
            of_round = ranks[batches]
            known = of_round.tobytes()
            if known not in columns:
                homes = [self.homes[rank] for rank in of_round.tolist()]
                columns[known] = assign_by_home(homes, self.trainers)[trainer]
            own.append(int(batches[columns[known]]))
        if not self.even and trainer < count % size:
            own.append(num_rounds * size + trainer)
        taken = np.array(own, np.int64)
        return ranks[taken], indices[taken]

    def length(self, delivered: Sequence[int], trainer: int) -> int:
        """Return the number of undelivered batches that the trainer of rank `trainer` makes.

        `delivered` has the number of delivered batches of each virtual rank.
        """
        count = sum(self.num_batches) - sum(delivered)
        in_all, more = divmod(count, len(self.trainers))
        if self.even:
            return in_all + (more > 0 and not self.drop_last)
        return in_all + (trainer < more)

    def advance(self, delivered: Sequence[int], rounds: int) -> list[int]:
        """Return the number of delivered batches of each virtual rank after `rounds` more rounds.

        In a round, each trainer makes one batch. `delivered` has the numbers before.
        """
        ranks, _ = self.rest(delivered)
        more = np.bincount(ranks[: rounds * len(self.trainers)], minlength=len(delivered))
        return [n + int(new) for n, new in zip(delivered, more, strict=True)]


def assign_by_home(batches: Sequence[int], trainers: Sequence[int]) -> list[int]:
    """Assign a batch of a round to each trainer, preferably one of the trainer's own partition.

    `batches` has the partition of each batch's seeds, `trainers` the one that each trainer has
    loaded. Returns the index of each trainer's batch.

    Example:
        >>> assign_by_home([0, 1, 0, 1], [0, 0, 1, 2])
        [0, 2, 1, 3]
    """
    by_home: dict[int, deque[int]] = defaultdict(deque)
    for batch, home in enumerate(batches):
        by_home[home].append(batch)
    taken = [by_home[home].popleft() if by_home[home] else None for home in trainers]
    others = iter(sorted(batch for rest in by_home.values() for batch in rest))
    return [next(others) if batch is None else batch for batch in taken]
