"""Helpers to build batches: tensors from arrays, copies of graphs, attributes that loaders add.

Runs in the trainer and its worker processes, for loaders in memory and distributed ones.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from khop.data.arrays import DTYPES
from khop.typing import Array, EdgeType, NodeType


def to_tensor(array: Array, dtype: str | None = None) -> Tensor:
    """Return an array as a tensor, without a copy. 'bfloat16' reinterprets the array's bits."""
    if dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def is_plain(value: Any) -> bool:
    """Return True for an array or CPU tensor that is row-major and of a dtype of `DTYPES`.

    False for a tensor that requires gradients: only torch's own selection is differentiable.
    """
    if isinstance(value, Tensor):
        name = str(value.dtype).removeprefix("torch.")
        on_cpu = value.layout == torch.strided and value.device.type == "cpu"
        return on_cpu and value.is_contiguous() and name in DTYPES and not value.requires_grad
    return (
        isinstance(value, np.ndarray)
        and bool(value.flags.c_contiguous)
        and value.dtype.name in DTYPES
    )


def stack_endpoints(row: Tensor, col: Tensor) -> Tensor:
    """Return `edge_index`, [2, num_edges]: a view if `row` and `col` are halves of one tensor."""
    halves = (
        row.is_contiguous()
        and col.is_contiguous()
        and row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
        and col.storage_offset() == row.storage_offset() + row.numel()
    )
    if halves and row.numel() > 0:
        return row.as_strided((2, row.numel()), (row.numel(), 1))
    return torch.stack([row, col])


# PyG copies a store in 5 us: it copies the dictionary, which is then replaced, and its setters look
# for properties. A batch of 20 node and edge types has 21 stores.


def copy_with(data: Data, mapping: dict[str, Any]) -> Data:
    """Return a shallow copy of a graph, with `mapping` as its attributes."""
    batch = _bare_copy(data, Data)
    batch.__dict__["_store"] = _store_around(data._store, mapping, weakref.ref(batch))
    return batch


def hetero_data_around(
    data: HeteroData,
    nodes: Mapping[NodeType, dict[str, Any]],
    edges: Mapping[EdgeType, dict[str, Any]],
) -> HeteroData:
    """Return a shallow copy of a graph. Its types have the attributes in `nodes` and `edges`."""
    batch = _bare_copy(data, HeteroData)
    fields, parent = batch.__dict__, weakref.ref(batch)
    shared = data._global_store
    fields["_global_store"] = _store_around(shared, shared._mapping.copy(), parent)
    fields["_node_store_dict"] = {
        t: _store_around(data._node_store_dict[t], mapping, parent) for t, mapping in nodes.items()
    }
    fields["_edge_store_dict"] = {
        t: _store_around(data._edge_store_dict[t], mapping, parent) for t, mapping in edges.items()
    }
    return batch


def _bare_copy(data: Any, base: type) -> Any:
    """Return a copy of a graph with its stores, for replacement. `base` is its class in PyG."""
    if type(data).__copy__ is not base.__copy__:  # type: ignore[attr-defined]
        return copy.copy(data)  # a user's class may copy more
    batch = object.__new__(type(data))
    batch.__dict__.update(data.__dict__)
    return batch


def _store_around(store: Any, mapping: dict[str, Any], parent: weakref.ref[Any]) -> Any:
    made = object.__new__(type(store))
    fields = made.__dict__
    fields.update(store.__dict__)
    fields.pop("_cached_attr", None)  # classifies the attributes of the graph, not of the batch
    fields["_mapping"] = mapping
    fields["_parent"] = parent
    return made


def annotate_seeds(batch: Data | HeteroData, seed_type: NodeType | None, metadata: Any) -> None:
    """Add `input_id`, `seed_time` and `batch_size` to a batch of nodes.

    `seed_type` is None in a homogeneous graph. `metadata` is (input_id, seed_time).
    """
    store = batch._store if seed_type is None else batch[seed_type]
    put(store, "input_id", metadata[0])
    put(store, "seed_time", metadata[1])
    put(store, "batch_size", metadata[0].size(0))


def annotate_links(
    batch: Data | HeteroData, link_type: EdgeType | None, metadata: Any, triplets: bool
) -> None:
    """Add `input_id` and the attributes about links, such as `edge_label`, to a batch of links.

    `link_type` is None in a homogeneous graph. `metadata` is the result of
    `khop.sampler.pyg.links.link_metadata`. Node types of the links get the attributes of triplets.
    """
    store = batch._store if link_type is None else batch[link_type]
    put(store, "input_id", metadata[0])
    if not triplets:
        put(store, "edge_label_index", metadata[1])
        put(store, "edge_label", metadata[2])
        put(store, "edge_label_time", metadata[3])
        return
    src = store if link_type is None else batch[link_type[0]]
    dst = store if link_type is None else batch[link_type[2]]
    put(src, "src_index", metadata[1])
    put(dst, "dst_pos_index", metadata[2])
    put(dst, "dst_neg_index", metadata[3])
    put(src, "seed_time", metadata[4])
    put(dst, "seed_time", metadata[4])
    # The whole graph may have attributes of these names.
    for name in ("edge_label_index", "edge_label_time"):
        put(store, name, None)


def add_values(
    batch: Data | HeteroData,
    values: Mapping[str, Any],
    node_types: Sequence[NodeType],
    edge_types: Sequence[EdgeType],
) -> None:
    """Add a sampling method's own values to a batch, such as `edge_norm`. No other code adds them.

    `khop.sampler.pyg.output.SampledSubgraph` describes `values`. A name such as 'e0.edge_norm' has
    an index into `node_types` ('n') or `edge_types` ('e').
    """
    for name, value in values.items():
        owner, _, attribute = name.rpartition(".")
        if isinstance(batch, Data):
            store = batch._store
        elif not owner:
            store = batch._global_store
        else:
            store = batch[(node_types if owner[0] == "n" else edge_types)[int(owner[1:])]]
        put(store, attribute, value)


def put(store: Any, name: str, value: Any) -> None:
    """Set `store[name] = value`. If `value` is None, remove the entry.

    A store without cached attributes is changed directly. PyG's setter detects a missing cache by
    an exception, which takes longer than all the rest.
    """
    if "_cached_attr" in store.__dict__:
        store[name] = value
    elif value is None:
        store._mapping.pop(name, None)
    else:
        store._mapping[name] = value
