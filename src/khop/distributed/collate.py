"""Batches as PyG has them, from what a pipeline wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from khop.loader.collate import to_tensor
from khop.partition.folder import FolderMeta
from khop.typing import Array, EdgeType, NodeType

Tensors: TypeAlias = dict[str, Tensor]
"""A batch's arrays, as `khop.sampler.collect` names them."""


def to_tensors(arrays: Mapping[str, tuple[Array, str]]) -> Tensors:
    """Wraps arrays, given with the names of their dtypes."""
    return {name: to_tensor(array, dtype) for name, (array, dtype) in arrays.items()}


def to_pyg(
    tensors: Tensors,
    meta: Mapping[str, Any],
    folder: FolderMeta,
    labels: Mapping[NodeType, Tensor],
    edge_types: Sequence[EdgeType],
) -> Data | HeteroData:
    """A batch but for what concerns its seeds: `Data` of a homogeneous folder, else `HeteroData`.

    Args:
        tensors: the batch's arrays.
        meta: the batch's header.
        folder: what the folder holds.
        labels: {node type: [num_nodes, ...]} labels that the folder does not hold, by original id.
        edge_types: what the batch calls the folder's edge types; see `batch_edge_types`.
    """
    batch: Any = HeteroData() if folder.heterogeneous else Data()

    def store_of(name: Any) -> Any:
        return batch[name] if folder.heterogeneous else batch

    nodes_per_hop = meta.get("nodes_per_hop")
    for i, node_type in enumerate(folder.node_types):
        store = store_of(node_type.name)
        _take(store, tensors, f"n{i}", node_type.attrs)
        if i == 0 and not folder.heterogeneous:  # in the order of PyG's attributes
            _fill_edges(store_of, tensors, meta, folder, edge_types)
        store.n_id = tensors[f"n{i}.id"]
        if node_type.name in labels:
            store.y = labels[node_type.name][store.n_id]
        if "x" not in store:  # PyG cannot infer it
            store.num_nodes = store.n_id.numel()
        if f"t{i}" in tensors:
            store.batch = tensors[f"t{i}"]
        if nodes_per_hop is not None:
            store.num_sampled_nodes = nodes_per_hop[i]
    if folder.heterogeneous:
        _fill_edges(store_of, tensors, meta, folder, edge_types)
    joined: Data | HeteroData = batch
    return joined


def batch_edge_types(folder: FolderMeta) -> list[EdgeType]:
    """What batches call the edge types of a folder.

    Edges of batches lead from neighbours to seeds. In a folder of out-neighbours they are the
    reverses of the graph's: between types, `(a, 'r', b)` becomes `(b, 'rev_r', a)` and
    `(a, 'rev_r', b)` becomes `(b, 'r', a)`, as with GraphLearn-for-PyTorch.

    Raises:
        ValueError: two edge types would have the same name.
    """
    names = [t.name for t in folder.edge_types]
    if not folder.heterogeneous or folder.edge_dir == "in":
        return names
    turned = [_reverse(name) for name in names]
    for i, name in enumerate(turned):
        if name in turned[:i]:
            raise ValueError(
                f"edge types {names[turned.index(name)]} and {names[i]} have the same reverse "
                f"{name}, by which batches of out-neighbours call them: rename one of them"
            )
    return turned


def _reverse(edge_type: EdgeType) -> EdgeType:
    src, relation, dst = edge_type
    if src == dst:
        return edge_type
    bare = relation.removeprefix("rev_")
    return dst, f"rev_{relation}" if bare == relation else bare, src


def _fill_edges(
    store_of: Any,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    folder: FolderMeta,
    names: Sequence[EdgeType],
) -> None:
    edges_per_hop = meta.get("edges_per_hop")
    for i, edge_type in enumerate(folder.edge_types):
        store = store_of(names[i])
        store.edge_index = tensors[f"e{i}.edge_index"]
        _take(store, tensors, f"e{i}", edge_type.attrs)
        if f"e{i}.edge_id" in tensors:
            store.e_id = tensors[f"e{i}.edge_id"]
        if edges_per_hop is not None:
            store.num_sampled_edges = edges_per_hop[i]


def _take(store: Any, tensors: Mapping[str, Tensor], prefix: str, names: Iterable[str]) -> None:
    for name in names:
        if f"{prefix}.{name}" in tensors:
            store[name] = tensors[f"{prefix}.{name}"]


def pin_ring(address: int, nbytes: int) -> None:
    """Registers shared memory with CUDA, so that copies to a device need no staging."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = runtime.cudaHostRegister(address, nbytes, 0)
    if int(error) != 0:
        raise RuntimeError(f"cudaHostRegister failed for {nbytes} bytes: {error}")
