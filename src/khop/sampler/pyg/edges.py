"""Edges of one type as users pass them: an edge list, compressed, or a sparse matrix."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch_geometric.typing
from torch import Tensor

from khop.data import Topology
from khop.data.arrays import check_pointers, to_ids
from khop.typing import ArrayLike, EdgeDir, GraphLayout, IntArray


class EdgeArrays(NamedTuple):
    """Edges of one type. Edge i, in every sampler's output, is the i-th entry here.

    Attributes:
        layout: 'COO', 'CSC' (compressed by destination) or 'CSR' (by source).
        src: [num_edges] sources, or [num_src + 1] row pointers of layout 'CSR'.
        dst: [num_edges] destinations, or [num_dst + 1] row pointers of layout 'CSC'.
    """

    layout: GraphLayout
    src: ArrayLike
    dst: ArrayLike

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.dst if self.layout == "CSR" else self.src)

    def ends(self) -> tuple[ArrayLike, ArrayLike]:
        """Return the source and the destination of each edge, [num_edges] each."""
        src, dst = self.src, self.dst
        if self.layout == "CSC":
            dst = _expanded(to_ids(dst, "row pointers"))
        elif self.layout == "CSR":
            src = _expanded(to_ids(src, "row pointers"))
        return src, dst

    def topology(
        self, owner: str, num_src: int, num_dst: int, edge_dir: EdgeDir = "in", **attributes: Any
    ) -> Topology:
        """Compress the edges by destination, or by source, to a `Topology`.

        Args:
            owner: name of the graph in error messages.
            num_src: number of source nodes.
            num_dst: number of destination nodes.
            edge_dir: 'in' by destination, 'out' by source.
            **attributes: times, weights and `is_sorted`, as `Topology` takes them.

        Raises:
            IndexError: an edge that joins nodes which do not exist.
            TypeError, ValueError: arrays that are no edges, or as `Topology`.
        """
        src, dst = self.src, self.dst
        if self.layout == "CSC":
            pointers = _pointers(dst, owner, "destination", num_dst, self.num_edges)
            if edge_dir == "in":
                return Topology((pointers, src), input_layout="CSC", num_src=num_src, **attributes)
            dst = _expanded(pointers)
        elif self.layout == "CSR":
            pointers = _pointers(src, owner, "source", num_src, self.num_edges)
            src = _expanded(pointers)
        return Topology(
            (src, dst), num_src=num_src, num_dst=num_dst, edge_dir=edge_dir, **attributes
        )


def _expanded(pointers: IntArray) -> IntArray:
    """Return the row of each entry of a compressed matrix, from its row pointers."""
    return np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))


def _pointers(values: ArrayLike, owner: str, unit: str, num_rows: int, num_edges: int) -> IntArray:
    """Return row pointers [num_rows + 1]. Trailing rows that the user left out have no edges.

    Raises:
        ValueError: too many rows, or pointers that do not ascend to `num_edges`. The message has
            the graph's name (`owner`) and the nodes' role (`unit`).
    """
    pointers = to_ids(values, f"row pointers of {owner}")
    check_pointers(pointers, num_edges, owner)
    missing = num_rows + 1 - len(pointers)
    if missing < 0:
        raise ValueError(
            f"{owner} has row pointers for {len(pointers) - 1} {unit} nodes, but there are "
            f"{num_rows}"
        )
    return np.pad(pointers, (0, missing), mode="edge") if missing else pointers


def edges_of_adjacency(adj_t: object, owner: str) -> EdgeArrays:
    """Return the edges of a transposed adjacency matrix, in the order of its entries.

    Args:
        adj_t: [num_dst, num_src] `torch_sparse.SparseTensor`, or a torch tensor of layout
            `torch.sparse_csr` or `torch.sparse_coo`, as PyG's `ToSparseTensor` makes them.
        owner: name of its graph in error messages.

    Raises:
        TypeError: another layout, or no sparse matrix at all.
    """
    if isinstance(adj_t, torch_geometric.typing.SparseTensor):
        pointers, sources, _ = adj_t.csr()
        return EdgeArrays("CSC", sources, pointers)
    form: object = type(adj_t)
    if isinstance(adj_t, Tensor):
        form = adj_t.layout
        if form == torch.sparse_csr:
            return EdgeArrays("CSC", adj_t.col_indices(), adj_t.crow_indices())
        if form == torch.sparse_coo:
            destinations, sources = adj_t._indices()[:2]
            return EdgeArrays("COO", sources, destinations)
    raise TypeError(
        f"'adj_t' of {owner} must be a torch_sparse.SparseTensor or a torch tensor of layout "
        f"torch.sparse_csr or torch.sparse_coo (got '{form}'): "
        "torch_geometric.transforms.ToSparseTensor makes them"
    )


def same_edges(edge_index: Tensor, adj_t: EdgeArrays) -> bool:
    """Return True if an edge list names the entries of an adjacency matrix in the same order."""
    src, dst = (to_ids(side, "edge_index") for side in edge_index)
    if len(src) != adj_t.num_edges or not np.array_equal(src, to_ids(adj_t.src, "adj_t")):
        return False
    columns = to_ids(adj_t.dst, "adj_t")
    if adj_t.layout == "CSC":
        columns = _expanded(columns)
    return bool(np.array_equal(dst, columns))
