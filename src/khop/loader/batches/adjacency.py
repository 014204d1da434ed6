"""Sampled part of a transposed adjacency matrix, of the same kind as the graph's.

Runs in the trainer and its worker processes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch_geometric.typing
from torch import Tensor


class Drawn(NamedTuple):
    """Sampled edges of one type.

    Attributes:
        row: [num_edges] positions of sources in the batch.
        col: [num_edges] positions of destinations in the batch.
        edge: [num_edges] edge ids, or None.
        size: numbers of sampled source and destination nodes.
    """

    row: Tensor
    col: Tensor
    edge: Tensor | None
    size: tuple[int, int]


def sampled_adjacency(adj_t: Any, drawn: Drawn) -> Any:
    """Return the adjacency matrix of a batch.

    Args:
        adj_t: matrix of the whole graph: a `torch_sparse.SparseTensor` or a sparse torch tensor.
        drawn: the sampled edges; their ids index the entries of `adj_t`.

    Returns:
        [num_dst, num_src] matrix of the same kind, entries ordered by row and column. An edge that
        was drawn twice has two entries. For means, torch first sums such entries of a coordinate
        matrix, which is wrong; other kinds of matrices are right. Without edge ids, a
        `SparseTensor` has no values (as with PyG), and other matrices have values of 1.
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
