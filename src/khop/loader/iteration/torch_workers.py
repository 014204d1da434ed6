"""Epochs made in torch's worker processes (`worker_type='process'`). Runs in the trainer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from time import monotonic_ns
from typing import Any, Protocol

import torch

from khop.loader.iteration.epochs import KeyedBatch, ListedBatch
from khop.loader.iteration.iterator import UNKNOWN, BatchSource, Cost, Taken
from khop.loader.iteration.resume import EpochProgress


class EpochLoader(Protocol):
    """Type of a loader here: members of `khop.loader.base.EpochLoader` that are used."""

    generator: Any
    persistent_workers: bool
    _begun: EpochProgress | None

    def __len__(self) -> int: ...

    def _is_replaced(self, name: str) -> bool: ...

    def filter_fn(self, out: Any) -> Any: ...

    def _batches(self, progress: EpochProgress) -> Iterable[KeyedBatch]: ...


def torch_iterator(loader: EpochLoader, make: Callable[[], Any], progress: EpochProgress) -> Any:
    """Return torch's iterator over a loader, whose worker processes end when the loader is freed.

    `make` is torch's method that makes the iterator, `progress` belongs to its first epoch.
    """
    # Workers are seeded by the epoch's key. If torch drew their seed from the generator of epoch
    # keys, epochs would depend on when workers were started.
    generator, loader.generator = loader.generator, _WorkerSeeds()
    loader.generator.manual_seed(progress.run_key)
    try:
        iterator = make()
    finally:
        loader.generator = generator
    if loader.persistent_workers:
        # The loader keeps the iterator. If the iterator kept the loader, too, only the garbage
        # collector would end both, after the workers' queues: it would wait seconds for each.
        alive = weakref.ref(loader)
        torchs = getattr(iterator, "iterator", iterator)
        torchs._collate_fn = None  # only workers use it, and they have it
        if torchs is not iterator:
            iterator.transform_fn = lambda out: _alive(alive).filter_fn(out)
    return iterator


class LazyEpoch:
    """Batches of the loader's last begun epoch, looked up when torch requests the first batch.

    The epoch is not known earlier: torch makes more iterators than it uses, and keeps this object
    for all epochs of persistent workers.
    """

    def __init__(self, loader: EpochLoader) -> None:
        self._loader = weakref.ref(loader)

    def __len__(self) -> int:
        return len(_alive(self._loader))

    def __iter__(self) -> Iterator[KeyedBatch]:
        begun = _alive(self._loader)._begun
        assert begun is not None  # making an iterator begins an epoch
        for batch in _alive(self._loader)._batches(begun):
            yield ListedBatch(*batch) if _alive(self._loader)._is_replaced("collate_fn") else batch


class TorchBatches(BatchSource):
    """Source of batches that torch's worker processes make and finish."""

    def __init__(self, epoch: Iterator[Any]) -> None:
        self._epoch = epoch

    def take(self, index: int) -> Taken:
        """Wait for the next batch.

        After a worker's exception, the next call returns the batch after it.
        """
        batch = next(self._epoch)
        return monotonic_ns(), batch

    def finish(self, pending: Any) -> tuple[Any, Cost]:
        """Return the batch, and `UNKNOWN` as its cost: torch's workers measure none."""
        return pending, UNKNOWN

    def close(self) -> None:
        """Drop torch's iterator. Workers that are not persistent end with it."""
        self._epoch = iter(())


class _WorkerSeeds(torch.Generator):
    """Generator from which torch draws its workers' seeds. Pickled as None: workers need none."""

    def __reduce__(self) -> Any:
        return type(None), ()


def _alive(loader: weakref.ref[EpochLoader]) -> EpochLoader:
    alive = loader()
    assert alive is not None  # the iterating code holds it
    return alive
