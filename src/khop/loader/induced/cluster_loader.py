"""`ClusterData` and `ClusterLoader`: batches of whole clusters. Runs in the trainer."""

from __future__ import annotations

import copy
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.utils.data
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import select

from khop.data.arrays import check_range
from khop.loader.arguments import EpochOptions, check_positive
from khop.loader.induced.base import InducedLoader, check_homogeneous
from khop.loader.induced.clusters import checked_clusters, metis_clusters
from khop.loader.induced.saved_tensors import saved_tensors
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.requests import SeedSet
from khop.typing import Int64Array, Numbers

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class ClusterPartition:
    """A graph sorted by clusters, as in PyG's `ClusterData.partition`. All tensors are int64.

    Attributes:
        indptr: [num_nodes + 1] bounds of the edges of each node, in the order of `node_perm`.
        index: [num_edges] the other end of each edge, as a position in `node_perm`.
        partptr: [num_parts + 1] bounds of the nodes of each cluster in `node_perm`.
        node_perm: [num_nodes] ids of the nodes, cluster by cluster, ascending in each.
        edge_perm: [num_edges] ids of the edges, in the order of `index`.
        sparse_format: 'csr' (edges belong to their sources) or 'csc' (to their destinations).
    """

    indptr: Tensor
    index: Tensor
    partptr: Tensor
    node_perm: Tensor
    edge_perm: Tensor
    sparse_format: str


class ClusterData(torch.utils.data.Dataset[Data]):
    """PyG's `ClusterData`: a graph whose nodes are divided into clusters.

    `cluster_data[i]` is the i-th cluster with the edges in it, its attributes, `n_id` and `e_id`.

    Method: Cluster-GCN (https://arxiv.org/abs/1905.07953).

    Args:
        data: a PyG `Data` with `edge_index`.
        num_parts: number of clusters.
        recursive: METIS bisects recursively.
        save_dir: folder in which METIS's clusters are kept, and looked up by the next
            `ClusterData` of the same graph. If None, they are not kept.
        filename: name of the file in it. If None, 'metis.pt'.
        log: write a line to stderr when METIS begins.
        keep_inter_cluster_edges: `cluster_data[i]` has all edges of its nodes. The other end of
            each edge is then a position in `partition.node_perm`. `ClusterLoader` always finds the
            edges between a batch's clusters.
        sparse_format: 'csr' (edges belong to their sources, and are sorted by these) or 'csc' (to
            their destinations).
        assignment: [num_nodes] integers, the cluster of each node, or the path of a partition
            folder of the graph. If it has no clusters (`cluster_ids`), its parts are the clusters.
            If None, METIS divides the nodes, by pymetis, pyg-lib or torch-sparse.

    Attributes:
        data: the graph, in its own order.
        partition: PyG's view of the clusters: `indptr`, `index`, `partptr`, `node_perm`,
            `edge_perm`, `sparse_format`.

    Raises:
        ImportError: no METIS can be imported, and there is no `assignment`.
        IndexError, TypeError, ValueError: arguments do not fit the graph, or a file in `save_dir`
            is of another graph.

    Example:
        >>> clusters = ClusterData(data, 3, assignment=torch.tensor([0, 0, 1, 1, 2, 2]))
        >>> clusters[1].n_id.tolist(), clusters.partition.partptr.tolist()
        ([2, 3], [0, 2, 4, 6])
    """

    def __init__(
        self,
        data: Data,
        num_parts: int,
        recursive: bool = False,
        save_dir: str | None = None,
        filename: str | None = None,
        log: bool = True,
        keep_inter_cluster_edges: bool = False,
        sparse_format: Literal["csr", "csc"] = "csr",
        *,
        assignment: Numbers | str | os.PathLike[str] | None = None,
    ) -> None:
        check_homogeneous(data, "ClusterData")
        check_positive(num_parts, "num_parts")
        if data.edge_index is None:
            raise ValueError("ClusterData needs edge_index: the data object has none")
        if sparse_format not in ("csr", "csc"):
            raise ValueError(f"sparse_format must be 'csr' or 'csc' (got {sparse_format!r})")
        if assignment is not None and save_dir is not None:
            raise ValueError("save_dir keeps METIS's clusters: with an assignment leave it out")
        self.data = data
        self.num_parts = num_parts
        self.recursive = recursive
        self.keep_inter_cluster_edges = keep_inter_cluster_edges
        self.sparse_format = sparse_format
        num_nodes = int(data.num_nodes)
        ends = data.edge_index.cpu().long()
        check_range(ends.numpy().reshape(-1), num_nodes, "edge_index")
        if assignment is not None:
            clusters = checked_clusters(assignment, num_nodes, num_parts)
        elif num_parts > num_nodes:
            raise ValueError(f"METIS divides {num_nodes} nodes into at most {num_nodes} clusters")
        else:

            def divide() -> dict[str, Tensor]:
                if log:
                    print("Computing METIS partitioning...", file=sys.stderr)
                divided = metis_clusters(ends, num_nodes, num_parts, recursive)
                return {"clusters": torch.from_numpy(divided)}

            folder = f"part_{num_parts}{'_recursive' if recursive else ''}"
            path = None
            if save_dir is not None:
                path = Path(save_dir) / folder / (filename or "metis.pt")
            made_from = [ends, num_nodes, num_parts, bool(recursive)]
            lengths = {"clusters": num_nodes}
            saved = saved_tensors(path, made_from, lengths, torch.int64, divide)
            clusters = checked_clusters(saved["clusters"], num_nodes, num_parts)
        self.partition = _sorted_by(clusters, ends, num_parts, sparse_format)

    def __len__(self) -> int:
        """Return the number of clusters."""
        return self.num_parts

    def __getitem__(self, idx: int) -> Data:
        """Return cluster `idx` as a graph, with its attributes, `n_id` and `e_id`."""
        if not 0 <= idx < self.num_parts:
            raise IndexError(f"cluster {idx} of {self.num_parts}")
        partition = self.partition
        first, last = partition.partptr[idx : idx + 2].tolist()
        indptr = partition.indptr[first : last + 1]
        own = torch.arange(last - first).repeat_interleave(indptr.diff())
        edges = slice(int(indptr[0]), int(indptr[-1]))
        other, edge = partition.index[edges], partition.edge_perm[edges]
        if not self.keep_inter_cluster_edges:
            inside = (other >= first) & (other < last)
            own, other, edge = own[inside], other[inside] - first, edge[inside]
        ends = [own, other] if self.sparse_format == "csr" else [other, own]
        return _selected(self.data, partition.node_perm[first:last], edge, torch.stack(ends))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_parts})"


class ClusterLoader(InducedLoader):
    """PyG's `ClusterLoader`: batches of clusters, with all edges in and between them.

    Clusters are in the epoch's order, nodes ascending in each. Edges are sorted by source ('csr')
    or destination ('csc'), and the edges of a node are in the graph's order (PyG's: by the other
    end). Batches also have `n_id` and `e_id`.

    Method: Cluster-GCN (https://arxiv.org/abs/1905.07953).

    Args:
        cluster_data: the clusters.
        batch_size: clusters per batch.
        **kwargs: `EpochOptions`: `transform`, `seed`, `shuffle`, `drop_last`, `num_workers`, ...

    Raises:
        TypeError, ValueError: arguments are invalid.

    Example:
        >>> clusters = ClusterData(data, 3, assignment=torch.tensor([0, 0, 1, 1, 2, 2]))
        >>> loader = ClusterLoader(clusters, batch_size=2)
        >>> [batch.n_id.tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]
    """

    def __init__(
        self,
        cluster_data: ClusterData,
        *,
        batch_size: int | None = 1,
        **kwargs: Unpack[EpochOptions],
    ) -> None:
        if not isinstance(cluster_data, ClusterData):
            raise TypeError(
                f"ClusterLoader takes a khop.loader.ClusterData (got '{type(cluster_data)}')"
            )
        self.cluster_data = cluster_data
        self._nodes: Int64Array = cluster_data.partition.node_perm.numpy()
        self._bounds: list[int] = cluster_data.partition.partptr.tolist()
        super().__init__(
            cluster_data.data,
            len(cluster_data),
            batch_size=batch_size,
            by_source=cluster_data.sparse_format == "csr",
            **kwargs,
        )

    def _chosen(self, items: Int64Array, key: BatchKey) -> list[SeedSet]:
        bounds = self._bounds
        nodes = [self._nodes[bounds[i] : bounds[i + 1]] for i in items.tolist()]
        return [SeedSet(0, np.concatenate(nodes))]

    def _settings(self) -> list[Any]:
        return [self._nodes, self._bounds]


def _sorted_by(
    clusters: Int64Array, ends: Tensor, num_parts: int, sparse_format: str
) -> ClusterPartition:
    """Sort nodes by cluster, and edges by the nodes that they belong to.

    `clusters` has the cluster of each node, and `ends` is the graph's `edge_index`. Edges belong to
    their sources ('csr') or destinations ('csc').
    """
    node_perm = np.argsort(clusters, kind="stable")
    position = np.empty_like(node_perm)
    position[node_perm] = np.arange(len(node_perm))
    src, dst = position[ends.numpy()]
    own, other = (src, dst) if sparse_format == "csr" else (dst, src)
    edge_perm = np.lexsort((other, own))
    wrap = torch.from_numpy
    return ClusterPartition(
        wrap(_bounds_of(own, len(node_perm))),
        wrap(other[edge_perm]),
        wrap(_bounds_of(clusters, num_parts)),
        wrap(node_perm),
        wrap(edge_perm),
        sparse_format,
    )


def _bounds_of(values: Int64Array, count: int) -> Int64Array:
    """Return [count + 1] bounds of the runs of 0, 1, ..., count - 1 in the sorted `values`."""
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(values, minlength=count), out=bounds[1:])
    return bounds


def _selected(data: Data, node: Tensor, edge: Tensor, edge_index: Tensor) -> Data:
    """Return the subgraph of some nodes and edges of `data`, with their attributes and ids.

    `node` and `edge` are ids. `edge_index` has the edges' ends, as positions in `node`.
    """
    out = copy.copy(data)
    for name, value in data.items():
        if name == "num_nodes":
            out.num_nodes = len(node)
        elif name != "edge_index" and data.is_node_attr(name):
            out[name] = select(value, node, data.__cat_dim__(name, value))
        elif name != "edge_index" and data.is_edge_attr(name):
            out[name] = select(value, edge, data.__cat_dim__(name, value))
    out.edge_index, out.n_id, out.e_id = edge_index, node, edge
    return out
