"""The epochs of a loader: their keys, and the batches of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from khop import _native
from khop.sampler.neighbor import BatchKey
from khop.sampler.plan import EpochPlan, epoch_order, seeds_of
from khop.typing import Int64Array


class KeyedBatch(NamedTuple):
    """What is to be made: a batch of a loader's input.

    Attributes:
        positions: [n] int64, where the batch's seeds stand in the input; nobody else's.
        key: of the batch's draws.
    """

    positions: Int64Array
    key: BatchKey


class EpochKeys:
    """Numbers epochs and makes their keys.

    Args:
        seed: of all epochs; None: each epoch takes one from `generator`, so that
            `torch.manual_seed` decides.
        stream: separates trainers of the same seed.
        generator: default: torch's default generator.
    """

    def __init__(self, seed: int | None, stream: int, generator: torch.Generator | None) -> None:
        for name, value in (("seed", seed), ("stream", stream)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError(f"{name} must be an integer (got {value!r})")
            if value is not None and not 0 <= value < 2**64:
                raise ValueError(f"{name} must lie in [0, 2^64) (got {value})")
        self.seed = seed
        self.stream = stream
        self.generator = generator
        self.epoch = 0  # of those that `seed` makes

    def next_run_key(self) -> int:
        """Key of the epoch that begins now."""
        if self.seed is None:  # the generator alone decides: its state may be set back
            drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            return _native.run_key(int(drawn), 0, self.stream)
        key = _native.run_key(self.seed, self.epoch, self.stream)
        self.epoch += 1
        return key


class PlannedBatches:
    """The batches of an epoch by plan."""

    def __init__(self, plan: EpochPlan, run_key: int, shuffle: bool) -> None:
        self._plan = plan
        self._run_key = run_key
        self._order = epoch_order(plan.num_seeds, run_key, shuffle)

    def __len__(self) -> int:
        return self._plan.num_batches

    def __iter__(self) -> Iterator[KeyedBatch]:
        for batch in range(self._plan.num_batches):
            positions = seeds_of(self._order, *self._plan.bounds(batch))
            yield KeyedBatch(positions.copy(), BatchKey(self._run_key, batch))


class GivenBatches:
    """The batches that a user's own `sampler` or `batch_sampler` makes, keyed by their number."""

    def __init__(self, batches: Iterable[Any], run_key: int) -> None:
        self._batches = batches
        self._run_key = run_key

    def __iter__(self) -> Iterator[KeyedBatch]:
        for number, given in enumerate(self._batches):
            listed = given.tolist() if isinstance(given, Tensor) else given
            positions = torch.tensor(listed, dtype=torch.int64).numpy()
            yield KeyedBatch(positions, BatchKey(self._run_key, number))


class SeedPositions:
    """The data set that a torch `DataLoader` reads: hands a batch's positions on, key included."""

    def __init__(self, num_seeds: int) -> None:
        self._num_seeds = num_seeds

    def __len__(self) -> int:
        return self._num_seeds

    def __getitem__(self, position: int) -> int:
        return position

    def __getitems__(self, positions: KeyedBatch) -> KeyedBatch:
        return positions
