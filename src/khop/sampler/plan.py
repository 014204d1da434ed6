"""The plan of an epoch: which seeds make which batch, by index alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from khop import _native
from khop.typing import Int64Array


@dataclass(frozen=True)
class EpochPlan:
    """Cuts `num_seeds` seeds into batches; any batch can be planned without those before it.

    Attributes:
        num_seeds: number of seeds.
        batch_size: seeds a batch.
        drop_last: leave out a last batch that would be smaller.
        num_batches_asked: spread the seeds evenly over this many batches instead, so that trainers
            with unequal numbers of seeds make equal numbers of batches.
    """

    num_seeds: int
    batch_size: int
    drop_last: bool = False
    num_batches_asked: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int):
            raise TypeError(f"batch_size must be an integer (got {self.batch_size!r})")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1 (got {self.batch_size})")

    @cached_property
    def num_batches_alone(self) -> int:
        """Number of batches that the batch size alone makes."""
        if self.drop_last:
            return self.num_seeds // self.batch_size
        return -(-self.num_seeds // self.batch_size)

    @cached_property
    def num_batches(self) -> int:
        """Number of batches."""
        if self.num_batches_asked is None:
            return self.num_batches_alone
        return self.num_batches_asked

    def bounds(self, batch: int) -> tuple[int, int]:
        """First and one-past-last place, in the epoch's order, of a batch's seeds.

        Raises:
            IndexError: no such batch.
        """
        if not 0 <= batch < self.num_batches:
            raise IndexError(f"batch {batch} of an epoch of {self.num_batches} batches")
        if self.num_batches == self.num_batches_alone or self.drop_last:
            first = batch * self.batch_size
            return first, min(first + self.batch_size, self.num_seeds)
        first = batch * self.num_seeds // self.num_batches
        return first, (batch + 1) * self.num_seeds // self.num_batches


def epoch_order(num_seeds: int, run_key: int, shuffle: bool) -> Int64Array | None:
    """The order of an epoch's seeds: a permutation that the run key determines; None: as given."""
    if not shuffle:
        return None
    return _native.permutation(num_seeds, _native.step_key(run_key, 0, _native.SHUFFLE_HOP, 0))


def seeds_of(order: Int64Array | None, first: int, last: int) -> Int64Array:
    """Which seeds, by their position in the input, stand at places first .. last - 1."""
    if order is None:
        return np.arange(first, last, dtype=np.int64)
    return order[first:last]
