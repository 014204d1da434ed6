"""Rows of a graph store's tensors in batches. Runs in trainers and readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from khop.distributed.tensors.graph_tensor import GraphTensor, Pull
from khop.distributed.tensors.tensor_view import TensorView
from khop.loader.batches.collate import to_tensor
from khop.typing import Array, Int64Array

BatchT = TypeVar("BatchT", Data, HeteroData)


def rows_in_batches(
    tensors: Sequence[TensorView],
    read: Callable[[list[Int64Array]], tuple[list[Array], int]],
) -> Callable[[BatchT], BatchT]:
    """Return a function that adds present rows of tensors to batches.

    Args:
        tensors: the tensors.
        read: returns rows of all tensors by original ids, and the number of completed steps.
    """

    def add_rows(batch: BatchT) -> BatchT:
        rows, version = read([tensor._ids(_ids(batch, tensor)) for tensor in tensors])
        values = [to_tensor(own, t.spec.dtype) for t, own in zip(tensors, rows, strict=True)]
        return _add(batch, tensors, values, version)

    return add_rows


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
    batch: BatchT, tensors: Sequence[TensorView], rows: Sequence[Tensor], version: int
) -> BatchT:
    for tensor, values in zip(tensors, rows, strict=True):
        _target(batch, tensor)[tensor.name] = values
    batch.store_version = version
    return batch


def _target(batch: Data | HeteroData, tensor: TensorView) -> Any:
    return batch[tensor.group] if isinstance(batch, HeteroData) else batch


def _ids(batch: Data | HeteroData, tensor: TensorView) -> Tensor:
    target = _target(batch, tensor)
    ids: Tensor = target.n_id if tensor.spec.element == "node" else target.e_id
    return ids
