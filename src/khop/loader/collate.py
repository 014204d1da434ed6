"""Joins a sampled subgraph with its attributes, exactly as PyG's loaders do."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.utils import index_select
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop.channel.pool import BufferPool
from khop.data import Feature
from khop.data.arrays import DTYPES
from khop.loader.adjacency import Drawn, sampled_adjacency
from khop.typing import Array, EdgeType, NodeType


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


class Gatherer:
    """Copies the rows of a batch.

    Args:
        num_threads: threads that copy a long attribute.
    """

    def __init__(self, num_threads: int) -> None:
        self._pool = BufferPool()
        self._num_threads = num_threads

    def __reduce__(self) -> tuple[type[Gatherer], tuple[int]]:
        """Another process has memory of its own."""
        return Gatherer, (self._num_threads,)

    def select(self, value: Any, index: Tensor, dim: int) -> Any:
        """`value`'s entries at `index` along `dim`: by khop's gather if it applies, else by PyG's.

        Args:
            value: tensor, NumPy array (memory-mapped or not) or TensorFrame.
            index: [n] int64 on the CPU.
            dim: axis to select from.
        """
        plain = (isinstance(value, Tensor) and value.layout == torch.strided) or isinstance(
            value, np.ndarray
        )
        if plain and dim == 0 and _is_gatherable(value):
            feature = Feature(value)
            out = self._pool.empty((index.numel(), *feature.row_shape), feature.array.dtype)
            feature.gather(index.numpy(), out, num_threads=self._num_threads)
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


def join_data(data: Data, out: SamplerOutput, gatherer: Gatherer) -> Data:
    """A batch of a homogeneous graph: the attributes of the sampled nodes and edges.

    Args:
        data: the whole graph.
        out: the sampled subgraph; `edge` holds the user's own edge ids.
        gatherer: copies the rows.
    """
    batch = copy.copy(data)
    _join_nodes(data, data._store, batch._store, out.node, gatherer)
    drawn = Drawn(out.row, out.col, out.edge, (out.node.numel(), out.node.numel()))
    _join_edges(data, data._store, batch._store, drawn, gatherer)
    name_nodes(batch._store, out.node)
    name_edges(batch._store, out.edge)
    annotate_graph(batch, out)
    return batch


def join_hetero_data(data: HeteroData, out: HeteroSamplerOutput, gatherer: Gatherer) -> HeteroData:
    """A batch of a heterogeneous graph; every node and edge type is there, be it empty.

    Args:
        data: the whole graph.
        out: the sampled subgraph, with an entry for each type of `data`.
        gatherer: copies the rows.
    """
    batch = copy.copy(data)
    for node_type, node in out.node.items():
        _join_nodes(data, data[node_type], batch[node_type], node, gatherer)
        name_nodes(batch[node_type], node)
    for edge_type, edge in out.edge.items():
        sizes = (out.node[edge_type[0]].numel(), out.node[edge_type[2]].numel())
        drawn = Drawn(out.row[edge_type], out.col[edge_type], edge, sizes)
        _join_edges(data, data[edge_type], batch[edge_type], drawn, gatherer)
        name_edges(batch[edge_type], edge)
    annotate_types(batch, out)
    return batch


def _join_nodes(data: Any, store: Any, target: Any, node: Tensor, gatherer: Gatherer) -> None:
    for name, value in store.items():
        if name == "num_nodes":
            target.num_nodes = node.numel()
        elif name != "adj_t" and store.is_node_attr(name):
            dim = data.__cat_dim__(name, value, store)
            target[name] = gatherer.select(value, node, dim)


def _join_edges(data: Any, store: Any, target: Any, drawn: Drawn, gatherer: Gatherer) -> None:
    edge = drawn.edge
    for name, value in store.items():
        if name == "edge_index":
            target.edge_index = stack_endpoints(drawn.row, drawn.col).to(value.device)
        elif name == "adj_t":
            target.adj_t = sampled_adjacency(value, drawn)
        elif store.is_edge_attr(name):
            dim = data.__cat_dim__(name, value, store)
            target[name] = None if edge is None else gatherer.select(value, edge, dim)


# What PyG's loaders add: ids and hop counts; `NodeLoader`, the seeds' positions and number;
# `LinkLoader`, where the links' ends are.


def name_nodes(target: Any, node: Tensor) -> None:
    """Adds `n_id`."""
    if "n_id" not in target:
        target.n_id = node


def name_edges(target: Any, edge: Tensor | None) -> None:
    """Adds `e_id`."""
    if edge is not None and "e_id" not in target:
        target.e_id = edge


def annotate_graph(batch: Data, out: SamplerOutput) -> None:
    """Adds `batch` and hop counts of a homogeneous graph; None where there are none."""
    batch.batch = out.batch
    batch.num_sampled_nodes = out.num_sampled_nodes
    batch.num_sampled_edges = out.num_sampled_edges


def annotate_types(batch: HeteroData, out: HeteroSamplerOutput) -> None:
    """Adds `batch` and hop counts of each type, where there are any."""
    batch.set_value_dict("batch", out.batch)
    batch.set_value_dict("num_sampled_nodes", out.num_sampled_nodes)
    batch.set_value_dict("num_sampled_edges", out.num_sampled_edges)


def annotate_seeds(batch: Data | HeteroData, seed_type: NodeType | None, metadata: Any) -> None:
    """Adds what a batch of nodes says of its seeds.

    Args:
        batch: a joined batch.
        seed_type: node type of the seeds, if the batch is heterogeneous.
        metadata: the sampler's: (input_id, seed_time).
    """
    target = batch._store if seed_type is None else batch[seed_type]
    target.input_id = metadata[0]
    target.seed_time = metadata[1]
    target.batch_size = metadata[0].size(0)


def annotate_links(
    batch: Data | HeteroData, link_type: EdgeType | None, metadata: Any, triplets: bool
) -> None:
    """Adds what a batch of links says of them.

    Args:
        batch: a joined batch.
        link_type: edge type of the links, if the batch is heterogeneous.
        metadata: the sampler's; see `khop.sampler.pyg_links.link_metadata`.
        triplets: what is of a link stands with its ends' node types, not with its edge type.
    """
    store = batch._store if link_type is None else batch[link_type]
    store.input_id = metadata[0]
    if not triplets:
        store.edge_label_index, store.edge_label, store.edge_label_time = metadata[1:]
        return
    src = store if link_type is None else batch[link_type[0]]
    dst = store if link_type is None else batch[link_type[2]]
    src.src_index, dst.dst_pos_index, dst.dst_neg_index = metadata[1:4]
    src.seed_time = dst.seed_time = metadata[4]
    # The whole graph may have attributes of these names.
    for name in ("edge_label_index", "edge_label_time"):
        if name in store:
            del store[name]
