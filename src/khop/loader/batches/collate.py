"""Helpers to build batches: tensors from arrays, and the attributes that loaders add.

Runs in the trainer and its worker processes, for loaders in memory and distributed ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop.data.arrays import DTYPES
from khop.typing import Array, EdgeType, NodeType


def to_tensor(array: Array, dtype: str | None = None) -> Tensor:
    """Return an array as a tensor without copying.

    Args:
        array: a NumPy array.
        dtype: name of its dtype if NumPy lacks it ('bfloat16').
    """
    if dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def is_plain(value: Any) -> bool:
    """Return True for an array or CPU tensor that is row-major and of a dtype of `DTYPES`.

    False for a tensor that requires gradients: torch's own selection is differentiable.
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
    """Return `edge_index`, [2, num_edges]; a view if `row` and `col` are halves of one tensor."""
    halves = (
        row.is_contiguous()
        and col.is_contiguous()
        and row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
        and col.storage_offset() == row.storage_offset() + row.numel()
    )
    if halves and row.numel() > 0:
        return row.as_strided((2, row.numel()), (row.numel(), 1))
    return torch.stack([row, col])


# Attributes that PyG's loaders add. All loaders: ids and hop counts. `NodeLoader`: positions and
# number of seeds. `LinkLoader`: positions of the links' ends.


def name_nodes(target: Any, node: Tensor) -> None:
    """Add `n_id` unless the batch has it."""
    if "n_id" not in target:
        target.n_id = node


def name_edges(target: Any, edge: Tensor | None) -> None:
    """Add `e_id` if there are edge ids, unless the batch has it."""
    if edge is not None and "e_id" not in target:
        target.e_id = edge


def annotate_graph(batch: Data, out: SamplerOutput) -> None:
    """Add `batch` and hop counts of a homogeneous graph. Missing ones become None."""
    batch.batch = out.batch
    batch.num_sampled_nodes = out.num_sampled_nodes
    batch.num_sampled_edges = out.num_sampled_edges


def annotate_types(batch: HeteroData, out: HeteroSamplerOutput) -> None:
    """Add `batch` and hop counts of each type that has them."""
    batch.set_value_dict("batch", out.batch)
    batch.set_value_dict("num_sampled_nodes", out.num_sampled_nodes)
    batch.set_value_dict("num_sampled_edges", out.num_sampled_edges)


def annotate_seeds(batch: Data | HeteroData, seed_type: NodeType | None, metadata: Any) -> None:
    """Add the attributes about its seeds to a batch of nodes.

    Args:
        batch: a joined batch.
        seed_type: node type of the seeds, if the batch is heterogeneous.
        metadata: the sampler's metadata, (input_id, seed_time).
    """
    store = batch._store if seed_type is None else batch[seed_type]
    put(store, "input_id", metadata[0])
    put(store, "seed_time", metadata[1])
    put(store, "batch_size", metadata[0].size(0))


def annotate_links(
    batch: Data | HeteroData, link_type: EdgeType | None, metadata: Any, triplets: bool
) -> None:
    """Add the attributes about its links to a batch of links.

    Args:
        batch: a joined batch.
        link_type: edge type of the links, if the batch is heterogeneous.
        metadata: the sampler's metadata; see `khop.sampler.pyg.links.link_metadata`.
        triplets: store attributes of links with the node types of the ends, not the edge type.
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
    """Add what the sampling method delivers beside nodes and edges: the only way into batches.

    Args:
        batch: a joined batch.
        values: as of `khop.sampler.pyg.output.SampledSubgraph`.
        node_types: the graph's, which names of `values` refer to.
        edge_types: likewise.
    """
    for name, value in values.items():
        kind, _, attribute = name.rpartition(".")
        if isinstance(batch, Data):
            store = batch._store
        elif not kind:
            store = batch._global_store
        else:
            store = batch[(node_types if kind[0] == "n" else edge_types)[int(kind[1:])]]
        put(store, attribute, value)


def put(store: Any, name: str, value: Any) -> None:
    """Set `store[name] = value`; None removes. Faster than PyG's setter if nothing is cached.

    PyG looks for caches of a store by an exception, which takes longer than all the rest.
    """
    if "_cached_attr" in store.__dict__:
        store[name] = value
    elif value is None:
        store._mapping.pop(name, None)
    else:
        store._mapping[name] = value
