"""GLT's helpers for compressed rows (CSR) and columns (CSC)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from khop import _native
from khop.typing import Int64Array

Compressed = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def ptr2ind(ptr: Tensor) -> Tensor:
    """Expand row offsets, [num_rows + 1], to the row of each edge, [num_edges]."""
    return torch.arange(ptr.numel() - 1, device=ptr.device).repeat_interleave(ptr.diff())


def _ids(values: Tensor) -> Int64Array:
    ids: Int64Array = np.ascontiguousarray(values.detach().cpu().numpy(), np.int64)
    return ids


def coo_to_csr(
    row: Tensor,
    col: Tensor,
    edge_id: Tensor | None = None,
    edge_weight: Tensor | None = None,
    node_sizes: tuple[int, int] | None = None,
) -> Compressed:
    """Compress an edge list by row, columns ascending in each row, in linear time.

    Args:
        row: [num_edges] rows.
        col: [num_edges] columns.
        edge_id: [num_edges] ids.
        edge_weight: [num_edges] weights.
        node_sizes: numbers of rows and columns. If None, the largest ids plus one.

    Returns:
        Row offsets [num_rows + 1], columns, and ids and weights in their order (or None).

    Raises:
        IndexError: an id is beyond `node_sizes`.
        ValueError: lists have different lengths.
    """
    rows, cols = _ids(row), _ids(col)
    for name, values in (("col", cols), ("edge_id", edge_id), ("edge_weight", edge_weight)):
        if values is not None and len(values) != len(rows):
            raise ValueError(f"{name} has {len(values)} entries for {len(rows)} edges")
    if node_sizes is None:
        node_sizes = int(rows.max(initial=-1)) + 1, int(cols.max(initial=-1)) + 1
    num_rows, num_cols = node_sizes
    # By column first: the second sort keeps the order of equal rows.
    _, _, by_col = _native.coo_to_csr(cols, rows, num_cols, num_rows)
    indptr, indices, by_row = _native.coo_to_csr(rows[by_col], cols[by_col], num_rows, num_cols)
    order = torch.from_numpy(np.asarray(by_col[by_row], np.int64))
    return (
        torch.from_numpy(indptr.astype(np.int64)),
        torch.from_numpy(indices.astype(np.int64)),
        None if edge_id is None else edge_id[order],
        None if edge_weight is None else edge_weight[order],
    )


def coo_to_csc(
    row: Tensor,
    col: Tensor,
    edge_id: Tensor | None = None,
    edge_weight: Tensor | None = None,
    node_sizes: tuple[int, int] | None = None,
) -> Compressed:
    """Compress an edge list by column, with arguments as for `coo_to_csr`.

    Returns:
        Rows, column offsets [num_cols + 1], and ids and weights in their order (or None).
    """
    sizes = None if node_sizes is None else (node_sizes[1], node_sizes[0])
    indptr, indices, ids, weights = coo_to_csr(col, row, edge_id, edge_weight, sizes)
    return indices, indptr, ids, weights
