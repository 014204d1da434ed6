"""Joins a sampled subgraph with its attributes, exactly as PyG's loaders do."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader.utils import index_select
from torch_geometric.sampler import SamplerOutput

from khop.channel.pool import BufferPool
from khop.data import Feature
from khop.data.arrays import DTYPES
from khop.typing import Array


def to_tensor(array: Array, dtype: str | None = None) -> Tensor:
    """Wraps an array as a tensor without copying.

    Args:
        array: a NumPy array.
        dtype: name of its dtype, where NumPy cannot tell ('bfloat16').
    """
    if dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def stack_endpoints(row: Tensor, col: Tensor) -> Tensor:
    """[2, num_edges] `edge_index`; a view if `row` and `col` are the halves of one already."""
    halves = (
        row.is_contiguous()
        and col.is_contiguous()
        and row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
        and col.storage_offset() == row.storage_offset() + row.numel()
    )
    if halves and row.numel() > 0:
        return row.as_strided((2, row.numel()), (row.numel(), 1))
    return torch.stack([row, col])


def select_rows(value: Any, index: Tensor, dim: int, pool: BufferPool) -> Any:
    """`value`'s entries at `index` along `dim`: by khop's gather where it applies, else by PyG's.

    Args:
        value: tensor, NumPy array (memory-mapped or not) or TensorFrame.
        index: [n] int64 on the CPU.
        dim: axis to select from.
        pool: where the memory comes from.
    """
    plain = (isinstance(value, Tensor) and value.layout == torch.strided) or isinstance(
        value, np.ndarray
    )
    if plain and dim == 0 and _is_gatherable(value):
        feature = Feature(value)
        out = pool.empty((index.numel(), *feature.row_shape), feature.array.dtype)
        feature.gather(index.numpy(), out, num_threads=torch.get_num_threads())
        return to_tensor(out, feature.dtype)
    if isinstance(value, Tensor):
        index = index.to(value.device)
    return index_select(value, index, dim=dim)


def _is_gatherable(value: Any) -> bool:
    if isinstance(value, Tensor):
        name = str(value.dtype).removeprefix("torch.")
        on_cpu = value.device.type == "cpu" and value.is_contiguous() and name in DTYPES
        return on_cpu and not value.requires_grad  # torch's own selection is differentiable
    return bool(value.flags.c_contiguous) and value.dtype.name in DTYPES


def join_data(data: Data, out: SamplerOutput, pool: BufferPool) -> Data:
    """A batch of a homogeneous graph: the attributes of the sampled nodes and edges.

    Args:
        data: the whole graph.
        out: the sampled subgraph; `edge` holds the user's own edge ids.
        pool: where the memory comes from.
    """
    batch = copy.copy(data)
    store = data._store
    edge_index = stack_endpoints(out.row, out.col)
    for name, value in store.items():
        if name == "num_nodes":
            batch.num_nodes = out.node.numel()
        elif name == "edge_index":
            batch.edge_index = edge_index.to(value.device)
        elif store.is_node_attr(name):
            dim = data.__cat_dim__(name, value, store)
            batch[name] = select_rows(value, out.node, dim, pool)
        elif store.is_edge_attr(name):
            dim = data.__cat_dim__(name, value, store)
            batch[name] = None if out.edge is None else select_rows(value, out.edge, dim, pool)
    annotate(batch, out)
    return batch


def annotate(batch: Data, out: SamplerOutput) -> None:
    """Adds what PyG's `NodeLoader` adds: ids, hop counts, the seeds' positions and number."""
    if "n_id" not in batch:
        batch.n_id = out.node
    if out.edge is not None and "e_id" not in batch:
        batch.e_id = out.edge
    batch.batch = out.batch
    batch.num_sampled_nodes = out.num_sampled_nodes
    batch.num_sampled_edges = out.num_sampled_edges
    batch.input_id = out.metadata[0]
    batch.seed_time = out.metadata[1]
    batch.batch_size = out.metadata[0].size(0)
