"""Scope of a loader's batch: what a sampler knows of the loader that calls it.

Code of users may stand between a loader and its sampler: a `collate_fn` written for PyG calls
`sample_from_nodes(inputs)` and passes no key. Within the scope, calls without a key draw by the
batch's key, and the loader adds the method's values to the batch. Scopes belong to threads. Runs in
trainers and in PyG's worker processes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

from khop import _native

_AGAIN = 2**64 - 2
"""Stream of the keys of further calls in a batch's scope."""


class BatchKey(NamedTuple):
    """Random key of a batch: the key of its epoch, and its index in the epoch.

    Example:
        >>> seeds = torch_geometric.sampler.NodeSamplerInput(None, torch.tensor([0]))
        >>> key = BatchKey(run=7, batch=0)
        >>> NeighborSampler(data, [2]).sample_from_nodes(seeds, key=key).node
        tensor([0, 1, 2])
    """

    run: int
    batch: int


class _Scope(threading.local):
    is_open = False
    key: BatchKey | None = None
    calls = 0


_scope = _Scope()


@contextlib.contextmanager
def batch_scope(key: BatchKey | None = None) -> Iterator[None]:
    """Open the scope of a batch in this thread. Within an open scope, do nothing.

    Args:
        key: key of the batch. If None, samplers take their own keys.
    """
    if _scope.is_open:
        yield
        return
    open_scope(key)
    try:
        yield
    finally:
        _scope.is_open, _scope.key = False, None


def open_scope(key: BatchKey | None) -> None:
    """Open the scope of a batch for the rest of this worker process, or until the next call.

    Calls of samplers in the scope draw by `key`. If None, samplers take their own keys. For a
    process that only makes a loader's batches.
    """
    _scope.is_open, _scope.key, _scope.calls = True, key, 0


def in_scope() -> bool:
    """Return True if this thread is making a loader's batch: within the scope of a batch."""
    return _scope.is_open


def next_key() -> BatchKey | None:
    """Return the random key for the next call of a sampler in the scope, or None outside a scope.

    The first call gets the batch's key. Further calls get keys derived from it.
    """
    key, calls = _scope.key, _scope.calls
    if key is None:
        return None
    _scope.calls = calls + 1
    return key if calls == 0 else BatchKey(_native.run_key(key.run, calls, _AGAIN), key.batch)
