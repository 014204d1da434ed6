"""Epochs made in torch's worker processes (`worker_type='process'`). Runs in the trainer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from time import monotonic_ns
from typing import Any, Protocol

import torch

from khop.loader.epochs import KeyedBatch
from khop.loader.profile import LoaderProfile
from khop.loader.resume import EpochProgress
from khop.metrics.watch import UNKNOWN, DeliveryWatch


class EpochLoader(Protocol):
    """Required part of `khop.loader.base.EpochLoader`, which is a torch `DataLoader`."""

    generator: Any
    persistent_workers: bool
    _begun: EpochProgress | None
    _profile: LoaderProfile

    def __len__(self) -> int: ...

    def filter_fn(self, out: Any) -> Any: ...

    def _batches(self, progress: EpochProgress) -> Iterable[KeyedBatch]: ...


def torch_iterator(loader: EpochLoader, make: Callable[[], Any], progress: EpochProgress) -> Any:
    """Return torch's iterator over a loader, whose workers end with the loader.

    Args:
        loader: the loader.
        make: torch's method that makes the iterator.
        progress: progress of its first epoch.
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
    """Batches of the epoch that a loader began last, looked up when torch requests the first batch.

    Torch makes more iterators than it uses, and keeps this object for all epochs of persistent
    workers.
    """

    def __init__(self, loader: EpochLoader) -> None:
        self._loader = weakref.ref(loader)

    def __len__(self) -> int:
        return len(_alive(self._loader))

    def __iter__(self) -> Iterator[KeyedBatch]:
        begun = _alive(self._loader)._begun
        assert begun is not None  # making an iterator begins an epoch
        yield from _alive(self._loader)._batches(begun)


class TorchEpoch(Iterator[Any]):
    """Epoch made in torch's worker processes. It keeps the loader, with which workers end."""

    def __init__(self, loader: EpochLoader, epoch: Any, progress: EpochProgress) -> None:
        self._loader = loader
        self._epoch = epoch
        self._progress = progress
        self._watch = DeliveryWatch(loader._profile.tally)

    def __next__(self) -> Any:
        asked = monotonic_ns()
        try:
            batch = next(self._epoch)
        except StopIteration:
            self._progress.end()
            raise
        except BaseException:
            self._progress.fail()
            raise
        self._watch.deliver(asked, monotonic_ns(), *UNKNOWN)
        self._progress.deliver()
        return batch

    def __len__(self) -> int:
        return len(self._epoch)


class _WorkerSeeds(torch.Generator):
    """Generator for the seed of torch's worker processes, which do not use it themselves."""

    def __reduce__(self) -> Any:
        return type(None), ()


def _alive(loader: weakref.ref[EpochLoader]) -> EpochLoader:
    found = loader()
    assert found is not None  # the iterating code holds it
    return found
