"""Rows of a graph store's tensors in batches. Runs in trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from khop.distributed.tensors.graph_tensor import GraphTensor, Pull

BatchT = TypeVar("BatchT", Data, HeteroData)


def with_rows(batch: BatchT, tensors: Sequence[GraphTensor], version: int) -> BatchT:
    """Add the present rows of tensors to a batch. See `GraphStore.transform`."""
    return _add(batch, tensors, [t.pull(_ids(batch, t)) for t in tensors], version)


def rows_ahead(
    batches: Iterable[BatchT], tensors: Sequence[GraphTensor], version: Callable[[], int]
) -> Iterator[BatchT]:
    """Yield batches with rows whose pulls began a batch earlier. See `GraphStore.prefetch`."""
    waiting: tuple[BatchT, list[Pull], int] | None = None
    for batch in batches:
        following = batch, [t.start_pull(_ids(batch, t)) for t in tensors], version()
        if waiting is not None:
            yield _finished(tensors, *waiting)
        waiting = following
    if waiting is not None:
        yield _finished(tensors, *waiting)


def _finished(
    tensors: Sequence[GraphTensor], batch: BatchT, pulls: Sequence[Pull], version: int
) -> BatchT:
    return _add(batch, tensors, [pull.wait() for pull in pulls], version)


def _add(
    batch: BatchT, tensors: Sequence[GraphTensor], rows: Sequence[Tensor], version: int
) -> BatchT:
    for tensor, values in zip(tensors, rows, strict=True):
        _target(batch, tensor)[tensor.name] = values
    batch.store_version = version
    return batch


def _target(batch: Data | HeteroData, tensor: GraphTensor) -> Any:
    return batch[tensor.group] if isinstance(batch, HeteroData) else batch


def _ids(batch: Data | HeteroData, tensor: GraphTensor) -> Tensor:
    target = _target(batch, tensor)
    ids: Tensor = target.n_id if tensor.spec.element == "node" else target.e_id
    return ids
