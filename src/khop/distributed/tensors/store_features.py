"""PyG's `FeatureStore` over the tensors of a graph store. Runs in trainers and PyG's workers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import FeatureStore, TensorAttr

from khop.data.arrays import to_array
from khop.distributed.stores.dataset_stores import EDGES, LEFT_OUT, edge_ids_of, selected_ids
from khop.distributed.stores.edge_lookup import EdgeTensorAttr
from khop.distributed.tensors.graph_store import GraphStore
from khop.distributed.tensors.graph_tensor import GraphTensor
from khop.distributed.tensors.tensor_view import TensorView
from khop.typing import NODE, Array, EdgeType, NodeType


class StoreFeatures(FeatureStore):  # type: ignore[misc]
    """Tensors of a `GraphStore` as PyG's `FeatureStore`, with the attributes of its dataset.

    PyG's loaders take it in place of the dataset: `NodeLoader((features, dataset),
    PartitionSampler(dataset, ...))`. Groups are as in the dataset: node types and edge types, or
    None and (None, None) in a homogeneous graph.

    `get_tensor` gives rows as `GraphTensor.pull`. `put_tensor` makes a tensor, and all trainers
    call it together with the same values. With a name that exists it sets rows at once, outside of
    steps (`relaxed=True`), as `update_tensor` does. One trainer is enough then. `remove_tensor`
    deletes a tensor, and all trainers call it together. Attributes of the dataset are read-only.

    In worker processes of loaders it is read-only, and rows are of completed steps.

    Args:
        store: the store.

    Example:
        >>> dataset = DistDataset.from_folder(folder)
        >>> features = StoreFeatures(GraphStore(dataset))
        >>> features[None, "h", None] = torch.zeros(6, 2)
        >>> features[None, "h", [4]] = torch.ones(1, 2)
        >>> features.get_tensor(None, "h", index=slice(3, 5)).tolist()
        [[0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(self, store: GraphStore) -> None:
        super().__init__()
        graph = store._client.access.graph
        self._store: GraphStore | None = store
        self._owner = os.getpid()
        self._reader = store.reader()
        self._dataset = graph if isinstance(graph, FeatureStore) else None
        self._meta = graph.meta

    __hash__ = object.__hash__  # compared by identity

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker process needs to read."""
        return {**self.__dict__, "_store": None}

    # Finding tensors ----------------------------------------------------------------------------

    def _tensors(self) -> Mapping[tuple[NodeType | EdgeType, str], TensorView]:
        """Return all tensors of the store, by group and attribute name."""
        is_owner = self._store is not None and os.getpid() == self._owner
        source = self._store if is_owner and self._store else self._reader
        return {
            (t.group, t.name.removeprefix(_prefix(t.group))): t for t in source.tensors().values()
        }

    def _key(self, attr: TensorAttr) -> tuple[Any, str]:
        group = attr.group_name if attr.is_set("group_name") else None
        if isinstance(group, (tuple, list)):
            types = self._meta.edge_types
            group = tuple(group) if self._meta.heterogeneous or not types else types[0].name
        elif group is None and not self._meta.heterogeneous:
            group = NODE
        return group, attr.attr_name

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return descriptions of the dataset's attributes, then of the store's tensors."""
        listed = [] if self._dataset is None else self._dataset.get_all_tensor_attrs()
        for (group, name), tensor in self._tensors().items():
            if self._meta.heterogeneous:
                listed.append(TensorAttr(group, name))
            elif tensor.spec.element == "node":
                listed.append(TensorAttr(None, name))
            else:
                listed.append(EdgeTensorAttr(EDGES, name))
        return listed

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        tensor = self._tensors().get(self._key(attr))
        if tensor is not None:
            return tuple(tensor.shape)
        size: tuple[int, ...] | None = None
        if self._dataset is not None:
            size = self._dataset.get_tensor_size(attr)
        return size

    # Reads --------------------------------------------------------------------------------------

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        return self._multi_get_tensor([attr])[0]

    def _multi_get_tensor(self, attrs: Sequence[TensorAttr]) -> list[Tensor | None]:
        known = self._tensors()
        tensors = [known.get(self._key(attr)) for attr in attrs]
        others = [attr for attr, tensor in zip(attrs, tensors, strict=True) if tensor is None]
        if others and self._dataset is None:
            key = self._key(others[0])
            raise KeyError(f"no attribute '{key[1]}' of group {key[0]!r}: there are {list(known)}")
        read = iter(self._dataset._multi_get_tensor(others) if self._dataset and others else ())
        return [
            next(read) if tensor is None else _rows_of(tensor, attr)
            for attr, tensor in zip(attrs, tensors, strict=True)
        ]

    # Writes -------------------------------------------------------------------------------------

    def _put_tensor(self, tensor: Tensor | Array, attr: TensorAttr) -> bool:
        if self._key(attr) in self._tensors():
            return self._set_rows(tensor, attr)
        if self._dataset is not None and self._dataset.get_tensor_size(attr) is not None:
            self._dataset._put_tensor()  # an error: it is read-only
        if attr.index is not None:
            raise ValueError(
                f"'{attr.attr_name}' does not exist: put all rows first (index=None), then some"
            )
        store, (group, name) = self._writable(), self._key(attr)
        values, dtype = to_array(tensor, attr.attr_name)
        is_edge = isinstance(group, tuple)
        make = store.create_edge_tensor if is_edge else store.create_node_tensor
        unique = f"{_prefix(group)}{name}" if name in store else name
        make(unique, group, values.shape[1:], getattr(torch, dtype), tensor)
        return True

    def update_tensor(self, tensor: Tensor | Array, *args: Any, **kwargs: Any) -> bool:
        """Set rows of a tensor at once, outside of steps. Other trainers need not call it.

        Args:
            tensor: [n, *shape] values of the tensor's dtype.
            *args: arguments of PyG's `TensorAttr`: group, name and index.
            **kwargs: the same by name.

        Raises:
            KeyError: no such tensor.
        """
        attr = self._tensor_attr_cls.cast(*args, **kwargs)
        if self._key(attr) not in self._tensors():
            raise KeyError(f"no tensor '{attr.attr_name}' of group {attr.group_name!r}")
        return self._set_rows(tensor, attr)

    def _set_rows(self, values: Tensor | Array, attr: TensorAttr) -> bool:
        self._writable()
        tensor, index = self._tensors()[self._key(attr)], _index_of(attr)
        assert isinstance(tensor, GraphTensor)
        is_row = isinstance(index, (int, np.integer))
        ids = None if index is None else selected_ids(index, len(tensor))
        tensor.push(ids, values[None] if is_row else values, relaxed=True).wait()
        return True

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        tensor = self._tensors().get(self._key(attr))
        if tensor is None:
            return False
        if attr.index is not None:
            raise ValueError("rows cannot be removed, only whole tensors: index must be None")
        self._writable().delete(tensor.name)
        return True

    def _writable(self) -> GraphStore:
        if self._store is None or os.getpid() != self._owner:
            raise RuntimeError("tensors are read-only here: trainers change them")
        return self._store


def _prefix(group: NodeType | EdgeType) -> str:
    """Return the start of names of tensors whose attribute other groups have, too."""
    return f"{group if isinstance(group, str) else '__'.join(group)}/"


def _index_of(attr: TensorAttr) -> Any:
    return attr.index if attr.is_set("index") else None


def _rows_of(tensor: TensorView, attr: TensorAttr) -> Tensor | None:
    index = _index_of(attr)
    if tensor.spec.element == "edge":
        index = edge_ids_of(attr, index)
    if index is LEFT_OUT:
        return None
    rows = tensor.pull(None if index is None else selected_ids(index, len(tensor)))
    return rows[0] if isinstance(index, (int, np.integer)) else rows
