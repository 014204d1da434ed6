"""Epochs that torch's worker processes make (`worker_type='process'`)."""

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
    """What is needed of a `khop.loader.base.EpochLoader`, which is a torch `DataLoader`."""

    generator: Any
    persistent_workers: bool
    _begun: EpochProgress | None
    _profile: LoaderProfile

    def __len__(self) -> int: ...

    def filter_fn(self, out: Any) -> Any: ...

    def _batches(self, progress: EpochProgress) -> Iterable[KeyedBatch]: ...


def torch_iterator(loader: EpochLoader, make: Callable[[], Any], progress: EpochProgress) -> Any:
    """Torch's iterator over a loader, whose workers end with the loader.

    Args:
        loader: the loader.
        make: torch's own way to make it.
        progress: how far the epoch has come that it begins with.
    """
    # Workers are seeded by the epoch's key. If torch drew their seed from where keys of epochs come
    # from, epochs would depend on when workers were started.
    generator, loader.generator = loader.generator, _WorkerSeeds()
    loader.generator.manual_seed(progress.run_key)
    try:
        iterator = make()
    finally:
        loader.generator = generator
    if loader.persistent_workers:
        # The loader keeps it. If it kept the loader, too, only the garbage collector would end
        # both, after the queues that workers are told by: it would wait seconds for each.
        alive = weakref.ref(loader)
        torchs = getattr(iterator, "iterator", iterator)
        torchs._collate_fn = None  # that is for workers, which have it
        if torchs is not iterator:
            iterator.transform_fn = lambda out: _alive(alive).filter_fn(out)
    return iterator


class LazyEpoch:
    """The epoch that a loader has begun last, looked up with the first batch that torch asks for.

    Torch makes more iterators than it uses, and keeps this object over the epochs of persistent
    workers.
    """

    def __init__(self, loader: EpochLoader) -> None:
        self._loader = weakref.ref(loader)

    def __len__(self) -> int:
        return len(_alive(self._loader))

    def __iter__(self) -> Iterator[KeyedBatch]:
        begun = _alive(self._loader)._begun
        assert begun is not None  # whoever asks for an iterator begins an epoch
        yield from _alive(self._loader)._batches(begun)


class TorchEpoch(Iterator[Any]):
    """An epoch of torch's worker processes. It keeps the loader: persistent ones end with that."""

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
    """What torch draws the seed of worker processes from. These have no use for it."""

    def __reduce__(self) -> Any:
        return type(None), ()


def _alive(loader: weakref.ref[EpochLoader]) -> EpochLoader:
    found = loader()
    assert found is not None  # whoever iterates holds it
    return found
