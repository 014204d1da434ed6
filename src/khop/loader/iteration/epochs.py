"""Epochs of a loader: their batches, and the keys of their random numbers. Runs in the trainer.

An epoch has a *run key*, from the loader's seed, its stream and the epoch's number. Run key and
batch index determine all random numbers of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from khop import _native
from khop.sampler.arguments import check_key_part
from khop.sampler.plan import EpochPlan, epoch_order, seeds_of
from khop.sampler.pyg.draw_scope import BatchKey, open_scope
from khop.typing import Int64Array


class KeyedBatch(NamedTuple):
    """Batch to be made: its seeds and its random key.

    Attributes:
        positions: [n] int64 positions of the seeds in the loader's input. Not a view.
        key: key of the batch's random numbers.
    """

    positions: Int64Array
    key: BatchKey


class ListedBatch(KeyedBatch):
    """`KeyedBatch` that workers convert to a list of positions, for a user's `collate_fn`."""


class EpochKeys:
    """Counter of a loader's epochs. It computes each epoch's key of random numbers.

    If `seed` is None, the seed of an epoch is drawn from `generator`. If this is None, too, torch's
    default generator is used, which `torch.manual_seed` sets. Trainers with the same seed and
    different `stream` have different random numbers.
    """

    def __init__(self, seed: int | None, stream: int, generator: torch.Generator | None) -> None:
        for name, value in (("seed", seed), ("stream", stream)):
            check_key_part(name, value)
        self.seed = seed
        self.stream = stream
        self.generator = generator
        self.epoch = 0  # number of the next epoch; may be set

    def next_run_key(self) -> int:
        """Begin an epoch: return the key of its random numbers, and count it."""
        self.epoch += 1
        if self.seed is None:  # the generator alone decides: its state may be restored
            drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            return _native.run_key(int(drawn), 0, self.stream)
        return self.last_run_key()

    def last_run_key(self) -> int:
        """Return the key of random numbers of the last epoch that began.

        The loader must have a `seed`.
        """
        assert self.seed is not None and self.epoch > 0
        return _native.run_key(self.seed, self.epoch - 1, self.stream)


class PlannedBatches:
    """Batches of an epoch, with their seeds and keys, from batch `first` on.

    `plan` divides the seeds, which are permuted before with `shuffle`. `run_key` is the key of the
    epoch's random numbers.
    """

    def __init__(self, plan: EpochPlan, run_key: int, shuffle: bool, first: int = 0) -> None:
        self._plan = plan
        self._run_key = run_key
        self._order = epoch_order(plan.num_seeds, run_key, shuffle)
        self._first = first

    def __len__(self) -> int:
        return self._plan.num_batches - self._first

    def __iter__(self) -> Iterator[KeyedBatch]:
        for batch in range(self._first, self._plan.num_batches):
            positions = seeds_of(self._order, *self._plan.bounds(batch))
            yield KeyedBatch(positions.copy(), BatchKey(self._run_key, batch))


class SeedPositions:
    """Data set for a torch `DataLoader` whose items are positions in the loader's input.

    `collate_fn` gets a batch as its `KeyedBatch`: positions and random key. A user's own
    `collate_fn` gets a list of positions, as from PyG's loaders.
    """

    def __init__(self, num_seeds: int) -> None:
        self._num_seeds = num_seeds

    def __len__(self) -> int:
        return self._num_seeds

    def __getitem__(self, position: int) -> int:
        return position

    def __getitems__(self, positions: KeyedBatch) -> KeyedBatch | list[int]:
        if not isinstance(positions, ListedBatch):
            return positions
        open_scope(positions.key)
        listed: list[int] = positions.positions.tolist()
        return listed
