"""Plan of an epoch: the seeds of each batch, by the batch's index. Imports no torch."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from khop import _native
from khop.typing import Int64Array


@dataclass(frozen=True)
class EpochPlan:
    """Division of seeds into batches. The bounds of a batch are computed from its index.

    Attributes:
        num_seeds: number of seeds.
        batch_size: seeds per batch.
        drop_last: leave out a last batch that would be smaller.
        num_batches_asked: number of batches, of nearly equal sizes, so that trainers with unequal
            numbers of seeds can make equal numbers of batches. If None, by `batch_size` or `sizes`.
        lists: lengths of consecutive lists of seeds. A batch has seeds of one list, and batches of
            the lists alternate. If None, there is one list.
        sizes: number of seeds of each batch, at most `batch_size`. If None, all batches but the
            last have `batch_size` seeds.
        keys: for each batch, (run key, index) that determine its draws. If None, these are the
            epoch's run key and the batch's own index.

    Raises:
        TypeError, ValueError: a batch size that is no positive integer, lists or sizes that do not
            add up to `num_seeds`, or a size out of range.

    Example:
        >>> plan = EpochPlan(num_seeds=10, batch_size=4)
        >>> plan.num_batches, plan.bounds(2)
        (3, (8, 10))
    """

    num_seeds: int
    batch_size: int
    drop_last: bool = False
    num_batches_asked: int | None = None
    lists: Sequence[int] | None = None
    sizes: Sequence[int] | None = None
    keys: Sequence[tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int):
            raise TypeError(f"batch_size must be an integer (got {self.batch_size!r})")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1 (got {self.batch_size})")
        if self.lists is not None and sum(self.lists) != self.num_seeds:
            raise ValueError(f"lists of {list(self.lists)} seeds for {self.num_seeds} seeds")
        if self.sizes is not None and (
            sum(self.sizes) != self.num_seeds
            or not all(0 <= size <= self.batch_size for size in self.sizes)
        ):
            raise ValueError(
                f"batches of {list(self.sizes)} for {self.num_seeds} seeds, at most "
                f"{self.batch_size} in each"
            )
        if self.keys is not None and len(self.keys) != self.num_batches:
            raise ValueError(f"{len(self.keys)} keys for {self.num_batches} batches")

    @cached_property
    def num_batches_alone(self) -> int:
        """Number of batches by `batch_size` or `sizes`, ignoring `num_batches_asked`."""
        if self.sizes is not None:
            return len(self.sizes)
        return sum(map(self._batches_of, self.lists or [self.num_seeds]))

    def _batches_of(self, num_seeds: int) -> int:
        if self.drop_last:
            return num_seeds // self.batch_size
        return -(-num_seeds // self.batch_size)

    @cached_property
    def num_batches(self) -> int:
        """Number of batches in the epoch."""
        if self.num_batches_asked is None:
            return self.num_batches_alone
        return self.num_batches_asked

    def bounds(self, batch: int) -> tuple[int, int]:
        """Return the first and one past the last position of a batch's seeds in the epoch's order.

        Raises:
            IndexError: `batch` is not the index of a batch.
        """
        if not 0 <= batch < self.num_batches:
            raise IndexError(f"batch {batch} of an epoch of {self.num_batches} batches")
        if self.sizes is not None:
            return self._ends[batch], self._ends[batch + 1]
        if self.lists is not None:
            return self._turns[batch][1:]
        if self.num_batches == self.num_batches_alone or self.drop_last:
            first = batch * self.batch_size
            return first, min(first + self.batch_size, self.num_seeds)
        first = batch * self.num_seeds // self.num_batches
        return first, (batch + 1) * self.num_seeds // self.num_batches

    def key_of(self, batch: int, run_key: int) -> tuple[int, int]:
        """Return the run key and index that determine a batch's random draws.

        Without `keys`, these are the epoch's `run_key` and the index `batch` itself.
        """
        if self.keys is None:
            return run_key, batch
        run, index = self.keys[batch]
        return run, index

    def list_of(self, batch: int) -> int | None:
        """Return the index of the list (of `lists`) that a batch's seeds are from.

        None without lists.
        """
        return None if self.lists is None else self._turns[batch][0]

    @cached_property
    def _ends(self) -> list[int]:
        """With `sizes`, the first seed of each batch, and the number of all seeds."""
        return [0, *itertools.accumulate(self.sizes or [])]

    @cached_property
    def _turns(self) -> list[tuple[int, int, int]]:
        """For each batch, the index of its list, and the (first, end) of its seeds."""
        sizes = self.lists or []
        counts = [self._batches_of(size) for size in sizes]
        if not self.drop_last:
            _spread(sizes, counts, self.num_batches - sum(counts))
        turns: list[tuple[int, int, int, int]] = []
        start = 0
        for index, (size, count) in enumerate(zip(sizes, counts, strict=True)):
            cut = EpochPlan(size, self.batch_size, self.drop_last, count)
            bounds = [cut.bounds(batch) for batch in range(count)]
            turns += [(i, index, start + a, start + b) for i, (a, b) in enumerate(bounds)]
            start += size
        return [turn[1:] for turn in sorted(turns)]


def _spread(sizes: Sequence[int], counts: list[int], more: int) -> None:
    """Add `more` batches to `counts`, the numbers of batches of lists of `sizes` seeds.

    Each goes to the list whose batches are largest on average by then.
    """
    largest = [
        (-size / count, i)
        for i, (size, count) in enumerate(zip(sizes, counts, strict=True))
        if count
    ]
    heapq.heapify(largest)
    for _ in range(more):
        _, i = largest[0]
        counts[i] += 1
        heapq.heapreplace(largest, (-sizes[i] / counts[i], i))


def epoch_order(
    num_seeds: int, run_key: int, shuffle: bool, lists: Sequence[int] | None = None
) -> Int64Array | None:
    """Return a random permutation of an epoch's seeds, or None to keep the order of the input.

    Args:
        num_seeds: number of seeds.
        run_key: key of the epoch.
        shuffle: permute the seeds. If False, return None.
        lists: see `EpochPlan`. The seeds of each list are permuted among themselves.
    """
    if not shuffle:
        return None
    step_key = _native.step_key(run_key, 0, _native.SHUFFLE_HOP, 0)
    order = _native.permutation(num_seeds, step_key)
    if lists is None:
        return order
    list_of = np.repeat(np.arange(len(lists)), lists)
    return order[np.argsort(list_of[order], kind="stable")]


def seeds_of(order: Int64Array | None, first: int, last: int) -> Int64Array:
    """Return the input positions of the seeds at `first` to `last` - 1 in the epoch's order."""
    if order is None:
        return np.arange(first, last, dtype=np.int64)
    return order[first:last]
