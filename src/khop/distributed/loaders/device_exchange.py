"""Exchange of rows between the trainers' devices, by collective calls. Runs in trainers.

A step of a batch has a few calls, which all trainers make together. Rows are in the devices'
memory: NCCL sends them from there, and for gloo they are copied to the host and back. Torch works
on the device's stream, so calls, kernels and torch's own work follow one another.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from khop.distributed.loaders.trainer_group import Step, TrainerGroup
from khop.errors import ProtocolError

MOST_ROWS = (1 << 31) - 1
"""Maximum number of nodes or edges of a type in a batch on a device."""


class Split(NamedTuple):
    """Ids in the order of the trainers that have their rows.

    Attributes:
        order: [n] int64 positions of the ids, trainer by trainer.
        ends: [num_trainers] int64, where the positions of each trainer end.
    """

    order: Tensor
    ends: Tensor


class Shares(NamedTuple):
    """Sets of rows that trainers ask each other for, in one step.

    Attributes:
        asked: for each trainer, how many rows of each set this trainer asks it for.
        asking: for each trainer, how many rows of each set it asks this trainer for.
        others: further numbers of each trainer.
        step: the step.
    """

    asked: list[list[int]]
    asking: list[list[int]]
    others: list[list[int]]
    step: Step


class DeviceExchange:
    """Exchange of rows between the devices of all trainers, for one loader and one thread.

    Args:
        device: device of the rows that are exchanged.
        group: the trainers. If None, this trainer has all rows.
        rank_of: for each partition, the rank of the trainer that this one asks for its rows.
        parts: for each trainer, its partition.

    Attributes:
        rank: rank of this trainer.
        size: number of trainers.
        parts: as above.
        num_calls: number of collective calls so far.
        bytes_sent: bytes that this trainer has sent to others.
        bytes_received: bytes that others have sent to this trainer.
    """

    def __init__(
        self,
        device: torch.device,
        group: TrainerGroup | None,
        rank_of: Sequence[int],
        parts: Sequence[int],
    ) -> None:
        self._group = group
        self.rank, self.size = (0, 1) if group is None else (group.rank, group.size)
        self.parts = list(parts)
        self._rank_of = torch.tensor(rank_of, device=device)
        self._ranks = torch.arange(self.size, device=device)
        self._step = Step(0, 0, 0)
        self.num_calls = self.bytes_sent = self.bytes_received = 0

    @contextmanager
    def step(self, epoch: int, batch: int) -> Iterator[None]:
        """Return a context in which this trainer makes a batch. All trainers enter it together.

        An error of a trainer is an error of all. See `ExchangedParts.step` for the arguments.

        Raises:
            ProtocolError: another trainer sent counts that are too large, or ids that do not exist.
            RendezvousError: another trainer has failed or ended, or does not take this batch.
        """
        self._step = Step(epoch, batch, 0)
        with nullcontext() if self._group is None else self._group.publishing():
            yield

    def leave_epoch(self, epoch: int, num_batches: int) -> None:
        """Publish that this trainer has ended an epoch after `num_batches` batches."""
        if self._group is not None:
            self._group.leave_epoch(epoch, num_batches)

    def split(self, ids: Tensor, bounds: Tensor) -> Split:
        """Put ids in the order of the trainers that have their rows. Does not wait.

        Args:
            ids: [n] int64.
            bounds: [num_parts + 1] int64 range bounds of the partitions.
        """
        if self.size == 1:
            count = torch.full([1], len(ids), device=ids.device)
            return Split(torch.arange(len(ids), device=ids.device), count)
        parts = torch.bucketize(ids, bounds[1:-1], right=True)
        ranks, order = torch.sort(self._rank_of[parts], stable=True)
        return Split(order, torch.searchsorted(ranks, self._ranks, right=True))

    def announce(self, splits: Sequence[Split], most: Sequence[int], *others: int) -> Shares:
        """Send each trainer the numbers of rows that it is asked for. Waits, and ends a step.

        Args:
            splits: the rows of each set.
            most: for each set, the maximum number that another trainer may ask for.
            others: further numbers for all trainers.

        Raises:
            ProtocolError: a trainer asks for more.
        """
        step, self._step = self._step, self._step._replace(hop=self._step.hop + 1)
        ends = torch.stack([split.ends for split in splits]).tolist() if splits else []
        counts = [[b - a for a, b in itertools.pairwise([0, *of_set])] for of_set in ends]
        asked = [[of_set[rank] for of_set in counts] for rank in range(self.size)]
        numbers = [[*of, *others] for of in asked]
        if self._group is not None:
            numbers = self._group.send_numbers(numbers, step, most)
            words = len(step) + len(numbers[0])
            self._count(8 * words, [1] * self.size, [1] * self.size)
        sets = len(splits)
        return Shares(asked, [of[:sets] for of in numbers], [of[sets:] for of in numbers], step)

    def ask(self, shares: Shares, rows: Sequence[Tensor]) -> Tensor:
        """Send rows of each set, in the order of `Split`. Return the rows that trainers ask for.

        They are trainer by trainer, and set by set.
        """
        sent = torch.cat(by_trainer(rows, shares.asked))
        return self.send(sent, sums(shares.asked), sums(shares.asking), shares.step)

    def send(self, rows: Tensor, sent: list[int], received: list[int], step: Step) -> Tensor:
        """Send rows to all trainers, and return the rows that they have sent, trainer by trainer.

        Args:
            rows: [n, ...] rows, trainer by trainer.
            sent: number of rows for each trainer.
            received: number of rows from each trainer.
            step: the step.
        """
        if self._group is None:
            return rows
        out = self._group.send_all(rows, sent, received, step)
        self._count(rows.element_size() * rows.shape[1:].numel(), sent, received)
        return out

    def _count(self, row_bytes: int, sent: list[int], received: list[int]) -> None:
        self.num_calls += 1
        self.bytes_sent += row_bytes * (sum(sent) - sent[self.rank])
        self.bytes_received += row_bytes * (sum(received) - received[self.rank])

    def close(self) -> None:
        """Release the group of trainers."""
        if self._group is not None:
            self._group.close()


def by_trainer(rows: Sequence[Tensor], counts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Divide sets of rows in the order of `Split`. Return pieces trainer by trainer, set by set.

    `counts` has, for each trainer, how many rows of each set are its own.
    """
    of_sets = zip(*counts, strict=True)
    pieces = [
        some.split_with_sizes(list(of_set)) for some, of_set in zip(rows, of_sets, strict=True)
    ]
    return [piece for of_trainer in zip(*pieces, strict=True) for piece in of_trainer]


def sums(counts: Sequence[Sequence[int]]) -> list[int]:
    """Return the sum of each trainer's counts."""
    return [*map(sum, counts)]


def check_ids(
    ids: Sequence[Tensor], bounds: Sequence[tuple[int, int]], names: Sequence[str]
) -> None:
    """Check ids of rows that trainers ask for. Waits.

    Args:
        ids: sets of ids.
        bounds: for each set, the lowest id that this trainer has, and one past the highest.
        names: for each set, what its rows are: 'nodes of type 0'.

    Raises:
        ProtocolError: this trainer does not have a row.
    """
    known = [of for of in zip(ids, bounds, names, strict=True) if of[0].numel()]
    if not known:
        return
    ends = torch.stack([torch.stack([*torch.aminmax(some)]) for some, _, _ in known]).tolist()
    for (low, high), (_, (first, end), name) in zip(ends, known, strict=True):
        if low < first or high >= end:
            raise ProtocolError(
                f"a trainer asked for {name} {low} to {high}, but this trainer has {first} to "
                f"{end - 1}"
            )
