"""Clusters of a graph's nodes, by METIS, a user or a folder. Runs in the trainer."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from khop.data.arrays import check_range, to_int64
from khop.loader.inputs import as_tensor
from khop.partition.methods.metis import has_metis, run_metis
from khop.partition.writing.cluster_ids import CLUSTER
from khop.partition.writing.undirected import undirected_of_edges
from khop.storage.folder import PartitionFolder
from khop.typing import NODE, Int64Array, Numbers


def checked_clusters(
    assignment: Numbers | str | os.PathLike[str], num_nodes: int, num_parts: int
) -> Int64Array:
    """Check a user's clusters, and return the cluster of each node, [num_nodes] int64.

    Args:
        assignment: one integer per node, or the path of a partition folder. If it has no clusters,
            its parts are taken as clusters.
        num_nodes: number of nodes.
        num_parts: number of clusters.

    Raises:
        FolderError, IndexError, TypeError, ValueError: `assignment` does not fit the graph, or
            names clusters that do not exist.
    """
    if isinstance(assignment, (str, os.PathLike)):
        clusters = _clusters_of_folder(assignment)
    else:
        tensor = as_tensor(assignment, "assignment")
        if tensor.dim() != 1:
            raise ValueError(f"assignment must be one integer a node (got {list(tensor.shape)})")
        clusters = to_int64(tensor, "assignment")
    if len(clusters) != num_nodes:
        raise ValueError(
            f"assignment must hold a cluster for each of {num_nodes} nodes (got {len(clusters)})"
        )
    check_range(clusters, num_parts, "assignment")
    return clusters


def _clusters_of_folder(path: str | os.PathLike[str]) -> Int64Array:
    """Return the cluster of each node of a homogeneous partition folder, by original id.

    If the folder has `cluster_ids`, which partitioners may write, all its parts must be on this
    machine. Otherwise its parts are the clusters.
    """
    folder = PartitionFolder(path)
    if [t.name for t in folder.meta.node_types] != [NODE]:
        raise ValueError(f"'{path}' holds a heterogeneous graph, which has no clusters")
    new_ids = folder.id_map(NODE)
    if not folder.meta.method.get("cluster_ids"):
        return folder.meta.node_types[0].book.owner(new_ids)
    kept = [
        folder.node_feature(folder.check_part(part), NODE, CLUSTER).array
        for part in range(folder.num_parts)
    ]
    clusters: Int64Array = np.concatenate(kept)[new_ids].astype(np.int64)
    return clusters


def metis_clusters(
    edge_index: Tensor, num_nodes: int, num_parts: int, recursive: bool
) -> Int64Array:
    """Return METIS's cluster of each node, [num_nodes] int64. Edges count in both directions.

    Method: multilevel k-way partitioning (Karypis and Kumar, SIAM J. Sci. Comput. 20(1), 1998), by
    pymetis, pyg-lib or torch-sparse. ImportError if there is none of them.
    """
    if num_parts == 1:
        return np.zeros(num_nodes, np.int64)
    # METIS reads other memory if edges lack their reverses (pyg#3222).
    graph = undirected_of_edges(edge_index[0].numpy(), edge_index[1].numpy(), num_nodes).whole()
    if has_metis():
        each = np.ones(num_nodes, np.int64)
        return run_metis(graph, each, num_parts, recursive=recursive).astype(np.int64)
    rows = torch.from_numpy(graph.indptr), torch.from_numpy(graph.indices.astype(np.int64))
    try:
        from pyg_lib.partition import metis

        return _to_array(metis(*rows, num_parts, recursive=recursive))
    except ImportError:
        pass
    try:
        import torch_sparse  # noqa: F401 (registers the operation)

        return _to_array(torch.ops.torch_sparse.partition(*rows, None, num_parts, recursive))
    except (ImportError, AttributeError, RuntimeError):  # also if it was built without METIS
        raise ModuleNotFoundError(
            "METIS cannot be imported: 'pip install pymetis', or pass assignment=, the cluster of "
            "each node, or a folder that khop.partition wrote"
        ) from None


def _to_array(clusters: Tensor) -> Int64Array:
    array: Int64Array = clusters.numpy()
    return array
