"""`load_partition`: reader of a part of a khop folder as GLT's tensors, by original id."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from khop.data import RowStore
from khop.glt.partition.part_writer import WEIGHTS
from khop.glt.typing import Device, FeaturePartitionData, GraphPartitionData
from khop.loader.batches.collate import to_tensor
from khop.storage.folder import (
    EdgeTypeMeta,
    NodeTypeMeta,
    PartitionFolder,
    cache_attr_path,
    cache_path,
    edge_array,
    edge_rows,
)
from khop.typing import Int64Array

FEATURES, EDGE_FEATURES, LABELS = "x", "edge_attr", "y"


def load_partition(
    root_dir: str | os.PathLike[str],
    partition_idx: int,
    graph_caching: bool = False,
    device: Device = None,
) -> tuple[int, int, Any, Any, Any, Any, Any]:
    """Read a part of a khop folder into tensors.

    khop's loaders do not need this: `DistDataset.load` maps the folder's files. GLT's own folders
    are pickles, and are not read.

    Args:
        root_dir: the folder.
        partition_idx: the part.
        graph_caching: accepted, not needed: the part's own edges are read.
        device: where to put the tensors. If None, the CPU.

    Returns:
        Seven values: number of parts, the part, and its edges (`GraphPartitionData`). Then its rows
        of 'x' and of 'edge_attr' (`FeaturePartitionData` or None). Then the part of each node and
        of each edge. In a heterogeneous graph all but the first two are dictionaries by type. The
        part of an edge is -1 if its part is not on this machine.

    Raises:
        FolderError, IndexError: the folder or the part does not exist.
    """
    del graph_caching
    folder = PartitionFolder(root_dir)
    part, meta = folder.check_part(partition_idx), folder.meta
    on = torch.device("cpu" if device is None else device)
    graphs = {t.name: load_edges(folder, part, t, on) for t in meta.edge_types}
    node_feats = {t.name: _node_rows(folder, part, t, on) for t in meta.node_types}
    edge_feats = {t.name: _edge_rows(folder, part, t, on) for t in meta.edge_types}
    node_books = {
        t.name: _int64(np.searchsorted(t.bounds[1:], folder.id_map(t.name), side="right"), on)
        for t in meta.node_types
    }
    edge_books = {t.name: _int64(_edge_owners(folder, t), on) for t in meta.edge_types}
    content = [graphs, _known(node_feats), _known(edge_feats), node_books, edge_books]
    if not meta.heterogeneous:
        content = [None if d is None else next(iter(d.values())) for d in content]
    return (folder.num_parts, part, *content)  # type: ignore[return-value]


def _known(rows: dict[Any, Any]) -> dict[Any, Any] | None:
    return {name: value for name, value in rows.items() if value is not None} or None


def _int64(array: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(np.asarray(array).astype(np.int64)).to(device)


def _rows(feature: RowStore, device: torch.device) -> Tensor:
    return to_tensor(np.array(feature.array), feature.dtype).to(device)


def load_edges(
    folder: PartitionFolder, part: int, described: EdgeTypeMeta, device: torch.device
) -> GraphPartitionData:
    """Return a part's edges of a type in memory, with original ids of nodes.

    `described` is the type's description in meta.json.
    """
    meta, edge_type = folder.meta, described.name
    indptr, indices, ids = (
        edge_array(folder, part, edge_type, name) for name in ("indptr", "indices", "edge_id")
    )
    row_type, other_type = meta.row_type(described).name, meta.neighbor_type(described).name
    rows = np.repeat(folder.node_ids(part, row_type), np.diff(indptr))
    ends = _int64(rows, device), _int64(folder.original_ids(other_type)[indices], device)
    weights = None
    name = str(meta.weight_attr if described.weighted else WEIGHTS)
    if name in described.attrs:
        weights = _rows(edge_rows(folder, part, described, name), device)
    src, dst = ends if meta.edge_dir == "out" else ends[::-1]
    return GraphPartitionData((src, dst), _int64(ids, device), weights)


def _node_rows(
    folder: PartitionFolder, part: int, described: NodeTypeMeta, device: torch.device
) -> FeaturePartitionData | None:
    node_type, attr = described.name, described.attrs.get(FEATURES)
    if attr is None:
        return None
    own = _rows(folder.node_feature(part, node_type, FEATURES), device)
    ids = _int64(folder.node_ids(part, node_type), device)
    count = described.cached[part] if described.cached else 0
    if not count:
        return FeaturePartitionData(own, ids, None, None)
    copies = folder.open_attr(cache_attr_path(part, node_type, FEATURES), attr, count)
    cached = folder.open(cache_path(part, node_type, "id"))
    return FeaturePartitionData(own, ids, _rows(copies, device), _int64(cached, device))


def _edge_rows(
    folder: PartitionFolder, part: int, described: EdgeTypeMeta, device: torch.device
) -> FeaturePartitionData | None:
    if EDGE_FEATURES not in described.attrs:
        return None
    ids = _int64(edge_array(folder, part, described.name, "edge_id"), device)
    rows = edge_rows(folder, part, described, EDGE_FEATURES)
    return FeaturePartitionData(_rows(rows, device), ids, None, None)


def _edge_owners(folder: PartitionFolder, described: EdgeTypeMeta) -> Int64Array:
    owners: Int64Array = np.full(described.count, -1, np.int64)
    for part in range(folder.num_parts):
        if folder.has_part(part):
            owners[edge_array(folder, part, described.name, "edge_id")] = part
    return owners


def cat_feature_cache(
    partition_idx: int, feat_pdata: FeaturePartitionData, feat_pb: Tensor
) -> tuple[float, Tensor | None, Tensor, Tensor]:
    """Join a part's rows and its copies of other parts' rows, copies first.

    Args:
        partition_idx: the part.
        feat_pdata: its rows and copies.
        feat_pb: part of each id.

    Returns:
        Share of copies, the rows, the row of each id (-1: none), and a book in which the part owns
        its copies, too.
    """
    ids, cached = feat_pdata.ids, feat_pdata.cache_ids
    assert ids is not None
    assert feat_pdata.feats is not None
    rows = torch.full((len(feat_pb),), -1, dtype=torch.int64)
    if cached is None or feat_pdata.cache_feats is None:
        rows[ids] = torch.arange(len(ids))
        return 0.0, feat_pdata.feats, rows, feat_pb
    rows[ids] = torch.arange(len(ids)) + len(cached)
    rows[cached] = torch.arange(len(cached))  # a copy of an own row comes first
    book = feat_pb.clone()
    book[cached] = partition_idx
    share = len(cached) / (len(cached) + len(ids))
    return share, torch.cat([feat_pdata.cache_feats, feat_pdata.feats]), rows, book
