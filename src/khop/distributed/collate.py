"""Batches as PyG has them, from what a pipeline wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from khop.loader.collate import to_tensor
from khop.partition.folder import FolderMeta
from khop.typing import Array


def to_data(
    arrays: Mapping[str, tuple[Array, str]],
    meta: Mapping[str, Any],
    folder: FolderMeta,
    input_id: Tensor,
    labels: Tensor | None,
) -> Data:
    """A batch of a homogeneous graph.

    Args:
        arrays: as `khop.sampler.collect` names them, with the names of their dtypes.
        meta: the batch's header.
        folder: what the folder holds.
        input_id: [batch_size] positions of the seeds in the input.
        labels: [num_nodes, ...] labels that the folder does not hold, by original id.
    """
    tensors = {name: to_tensor(array, dtype) for name, (array, dtype) in arrays.items()}
    batch = Data()
    for name in folder.node_types[0].attrs:
        if f"n0.{name}" in tensors:
            batch[name] = tensors[f"n0.{name}"]
    batch.edge_index = tensors["e0.edge_index"]
    for name in folder.edge_types[0].attrs:
        if f"e0.{name}" in tensors:
            batch[name] = tensors[f"e0.{name}"]
    batch.n_id = tensors["n0.id"]
    if "e0.edge_id" in tensors:
        batch.e_id = tensors["e0.edge_id"]
    if labels is not None:
        batch.y = labels[batch.n_id]
    if "x" not in batch:  # PyG cannot infer it
        batch.num_nodes = batch.n_id.numel()
    batch.num_sampled_nodes = meta["nodes_per_hop"][0]
    batch.num_sampled_edges = meta["edges_per_hop"][0]
    batch.input_id = input_id
    batch.batch_size = input_id.numel()
    return batch


def pin_ring(address: int, nbytes: int) -> None:
    """Registers shared memory with CUDA, so that copies to a device need no staging."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = runtime.cudaHostRegister(address, nbytes, 0)
    if int(error) != 0:
        raise RuntimeError(f"cudaHostRegister failed for {nbytes} bytes: {error}")
