"""GLT's batches: PyG's `Data` and `HeteroData` with GLT's attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from khop.glt.sampler import HeteroSamplerOutput, SamplerOutput
from khop.glt.typing import EdgeType, NodeType, reverse_edge_type


def to_data(
    sampler_out: SamplerOutput,
    batch_labels: Tensor | None = None,
    node_feats: Tensor | None = None,
    edge_feats: Tensor | None = None,
    **kwargs: Any,
) -> Data:
    """Make a batch, PyG's `Data`, of a sampled subgraph.

    Args:
        sampler_out: the subgraph.
        batch_labels: [num_nodes, ...] labels, attribute `y`.
        node_feats: [num_nodes, ...] features, attribute `x`.
        edge_feats: [num_edges, ...] features, attribute `edge_attr`.
        **kwargs: further attributes of the batch.

    Returns:
        A batch with `node`, `edge`, `batch` (ids of the seeds), `batch_size`, `num_sampled_nodes`,
        `num_sampled_edges`, and the entries of the subgraph's `metadata`. `edge_label_index` is
        (destinations, sources), as in GLT.
    """
    edge_index = torch.stack([sampler_out.row, sampler_out.col])
    data = Data(x=node_feats, edge_index=edge_index, edge_attr=edge_feats, y=batch_labels, **kwargs)
    data.node, data.edge, data.batch = sampler_out.node, sampler_out.edge, sampler_out.batch
    data.batch_size = 0 if sampler_out.batch is None else sampler_out.batch.numel()
    if node_feats is None:
        data.num_nodes = sampler_out.node.numel()
    data.num_sampled_nodes = sampler_out.num_sampled_nodes
    data.num_sampled_edges = sampler_out.num_sampled_edges
    if isinstance(sampler_out.metadata, dict):
        for name, value in sampler_out.metadata.items():
            data[name] = value.flip(0) if name == "edge_label_index" else value
    elif sampler_out.metadata is not None:
        data.metadata = sampler_out.metadata
    return data


def to_hetero_data(
    hetero_sampler_out: HeteroSamplerOutput,
    batch_label_dict: Mapping[NodeType, Tensor] | None = None,
    node_feat_dict: Mapping[NodeType, Tensor] | None = None,
    edge_feat_dict: Mapping[EdgeType, Tensor] | None = None,
    edge_dir: Literal["in", "out"] = "out",
    **kwargs: Any,
) -> HeteroData:
    """Make a batch, PyG's `HeteroData`, of a sampled subgraph.

    Args:
        hetero_sampler_out: the subgraph.
        batch_label_dict: {node type: [num_nodes, ...] labels}.
        node_feat_dict: {node type: [num_nodes, ...] features}.
        edge_feat_dict: {edge type of the batch: [num_edges, ...] features}.
        edge_dir: direction of the draws. With 'out', links are under the reversed edge type.
        **kwargs: further attributes of the batch.

    Returns:
        A batch with the attributes of `to_data` by type. `num_sampled_nodes` and
        `num_sampled_edges` are dictionaries of tensors of equal lengths.
    """
    out, data = hetero_sampler_out, HeteroData(**kwargs)
    ends = out.get_edge_index()
    hops = max((len(counts) for counts in out.num_sampled_edges.values()), default=0)
    for edge_type, edge_index in ends.items():
        edge, attr = (out.edge or {}).get(edge_type), (edge_feat_dict or {}).get(edge_type)
        _put(data[edge_type], edge_index=edge_index, edge=edge, edge_attr=attr)
    for node_type, ids in out.node.items():
        x = (node_feat_dict or {}).get(node_type)
        _put(data[node_type], node=ids, x=x, num_nodes=ids.numel() if x is None else None)
    for node_type, seeds in (out.batch or {}).items():
        y = (batch_label_dict or {}).get(node_type)
        _put(data[node_type], batch=seeds, batch_size=seeds.numel(), y=y)
    data.num_sampled_nodes = _padded(out.num_sampled_nodes, out.node, hops + 1)
    data.num_sampled_edges = _padded(out.num_sampled_edges, ends, hops)
    if isinstance(out.metadata, dict):
        _put_links(data, out, edge_dir)
    elif out.metadata is not None:
        data.metadata = out.metadata
    return data


def _put(store: Any, **values: Any) -> None:
    for name, value in values.items():
        if value is not None:
            store[name] = value


def _padded(counts: Mapping[Any, Any], types: Any, length: int) -> dict[Any, Tensor]:
    known = {name: torch.as_tensor(counts.get(name, []), dtype=torch.int64) for name in types}
    return {name: F.pad(per_hop, (0, length - len(per_hop))) for name, per_hop in known.items()}


def _put_links(data: HeteroData, out: HeteroSamplerOutput, edge_dir: str) -> None:
    link_type: Any = out.input_type
    store = data[reverse_edge_type(link_type) if edge_dir == "out" else link_type]
    for name, value in out.metadata.items():
        if name == "edge_label_index":
            store[name] = value.flip(0) if edge_dir == "out" else value
        elif name == "edge_label":
            store[name] = value
        else:
            data[link_type[0] if name == "src_index" else link_type[2]][name] = value
