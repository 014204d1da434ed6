"""The sampled part of a transposed adjacency matrix, of the kind that the graph's own is."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch_geometric.typing
from torch import Tensor


class Drawn(NamedTuple):
    """Sampled edges of one type.

    Attributes:
        row: [num_edges] numbers of sources in the batch.
        col: [num_edges] numbers of destinations in the batch.
        edge: [num_edges] edge ids, or None.
        size: number of sampled source nodes and destination nodes.
    """

    row: Tensor
    col: Tensor
    edge: Tensor | None
    size: tuple[int, int]


def sampled_adjacency(adj_t: Any, drawn: Drawn) -> Any:
    """The adjacency matrix of a batch.

    Args:
        adj_t: that of the whole graph: a `torch_sparse.SparseTensor` or a sparse torch tensor.
        drawn: the sampled edges; their ids count the entries of `adj_t`.

    Returns:
        [num_dst, num_src] of the same kind, entries ordered by row and column. Edges that were
        drawn twice are there twice; note that torch adds those of a coordinate matrix up before
        it takes means, which matrices of other kinds do right. Without edge ids, values are left
        out (`SparseTensor`, as with PyG) or 1.
    """
    size = (drawn.size[1], drawn.size[0])
    sparse_tensor = torch_geometric.typing.SparseTensor
    if isinstance(adj_t, sparse_tensor):
        device = adj_t.device()
        value = adj_t.storage.value()
        return sparse_tensor(
            row=drawn.col.to(device),
            col=drawn.row.to(device),
            value=None if value is None else _select(value, drawn.edge),
            sparse_sizes=size,
            is_sorted=False,
            trust_data=True,
        )
    is_csr = adj_t.layout == torch.sparse_csr
    all_values = adj_t.values() if is_csr else adj_t._values()
    values = _select(all_values, drawn.edge)
    if values is None:
        values = all_values.new_ones((drawn.row.numel(), *all_values.shape[1:]))
    row, col = drawn.col.to(adj_t.device), drawn.row.to(adj_t.device)
    order = torch.argsort(row * max(size[1], 1) + col, stable=True)
    row, col, values = row[order], col[order], values[order]
    shape = (*size, *all_values.shape[1:])
    if is_csr:
        pointers = row.new_zeros(size[0] + 1)
        torch.cumsum(torch.bincount(row, minlength=size[0]), 0, out=pointers[1:])
        return torch.sparse_csr_tensor(pointers, col, values, shape, device=adj_t.device)
    return torch.sparse_coo_tensor(torch.stack([row, col]), values, shape, device=adj_t.device)


def _select(values: Tensor, edge: Tensor | None) -> Tensor | None:
    return None if edge is None else values[edge.to(values.device)]
