"""`build_partition_feature`: features added to a folder that was partitioned without them.

Each machine adds the features of its own part. All machines write the same meta.json, which has
checksums of all parts' files. So each machine reads all rows once, and writes only its own rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from khop.data import Feature
from khop.data.arrays import bytes_of
from khop.glt.arguments import by_type
from khop.glt.partition.part_writer import Files, describe
from khop.glt.partition.parts import EDGE_FEATURES, FEATURES
from khop.glt.typing import EdgeType, NodeLabel, TensorDataType
from khop.storage.folder import (
    AttrMeta,
    EdgeTypeMeta,
    NodeTypeMeta,
    PartitionFolder,
    cache_attr_path,
    cache_path,
    edge_array,
    edge_attr_path,
    node_attr_path,
    npy_header,
)
from khop.storage.folder.checksums import RangeHash
from khop.typing import EDGE, NODE, IntArray

_K = TypeVar("_K")
_V = TypeVar("_V")


def build_partition_feature(
    root_dir: str | os.PathLike[str],
    partition_idx: int,
    chunk_size: int = 10000,
    node_feat: NodeLabel | None = None,
    node_feat_dtype: torch.dtype = torch.float32,
    edge_feat: TensorDataType | Mapping[EdgeType, TensorDataType] | None = None,
    edge_feat_dtype: torch.dtype = torch.float32,
) -> None:
    """Add a part's features to a folder that was partitioned with `with_feature=False`.

    Call it once for each part, on a machine that has the part. Calls can run at the same time.
    Features of edges need a folder with the edges of all parts.

    Args:
        root_dir: the folder.
        partition_idx: the part.
        chunk_size: rows that are read at a time.
        node_feat: [num_nodes, ...] features of all nodes, as a tensor or a (mapped) array, or
            {node type: features}.
        node_feat_dtype: dtype in which node features are stored.
        edge_feat: [num_edges, ...] features of all edges by id, or {edge type: features}.
        edge_feat_dtype: dtype in which edge features are stored.

    Raises:
        FolderError, IndexError: the folder or the part does not exist.
        KeyError: features of a type that the graph does not have.
        ValueError: features have another length, differ from features in the folder, or are of
            edges whose original ids the folder does not keep.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be positive (got {chunk_size})")
    folder = PartitionFolder(root_dir)
    own, meta, files = folder.check_part(partition_idx), folder.meta, folder.written()

    def put(part: int, path: str, rows: _Rows, ids: IntArray) -> None:
        _put(folder, files, path, rows.pieces(ids, chunk_size), part == own)

    nodes = {t.name: t for t in meta.node_types}
    for node_type, values in by_type(node_feat, NODE).items():
        described = _of(nodes, node_type)
        rows = _Rows(described, values, node_feat_dtype)
        original = folder.original_ids(node_type)
        for part in range(folder.num_parts):
            first, last = described.bounds[part], described.bounds[part + 1]
            put(part, node_attr_path(part, node_type, FEATURES), rows, original[first:last])
            if described.cached and described.cached[part]:
                copied = folder.open(cache_path(part, node_type, "id"))
                put(part, cache_attr_path(part, node_type, FEATURES), rows, copied)
        nodes[node_type] = replace(described, attrs={**described.attrs, FEATURES: rows.meta})
    edges = {t.name: t for t in meta.edge_types}
    for edge_type, values in by_type(edge_feat, EDGE).items():
        edge = _of(edges, edge_type)
        if not edge.edge_ids:
            raise ValueError(
                f"'{folder.root}' keeps no original ids of edges {edge_type}, by which edge_feat "
                "has its rows: partition again with edge_ids=True, or give edge features to the "
                "partitioner"
            )
        rows = _Rows(edge, values, edge_feat_dtype)
        for part in range(folder.num_parts):
            ids = edge_array(folder, part, edge_type, "edge_id")
            put(part, edge_attr_path(part, edge_type, EDGE_FEATURES), rows, ids)
        edges[edge_type] = replace(edge, attrs={**edge.attrs, EDGE_FEATURES: rows.meta})
    meta = replace(meta, node_types=[*nodes.values()], edge_types=[*edges.values()])
    describe(folder.root, meta, files, own)


def _of(types: Mapping[_K, _V], name: _K) -> _V:
    if name not in types:
        raise KeyError(f"the graph has no type {name}: there are {list(types)}")
    return types[name]


class _Rows:
    """Feature rows of a node or edge type by id, with the dtype in which they will be stored."""

    def __init__(
        self, of: NodeTypeMeta | EdgeTypeMeta, values: TensorDataType, dtype: torch.dtype
    ) -> None:
        if len(values) != of.count:
            raise ValueError(f"{len(values)} rows of features for {of.count} of {of.name}")
        self._values, self._dtype = values, dtype
        self._none = self._stored(np.empty(0, np.int64))
        self.meta = AttrMeta.of(self._none.dtype, self._none.row_shape)

    def _stored(self, ids: IntArray) -> Feature:
        rows = torch.as_tensor(self._values[np.asarray(ids, np.int64)])
        return Feature(rows.to(self._dtype))

    def pieces(self, ids: IntArray, count: int) -> Iterator[Any]:
        """Yield the bytes of an .npy file with the rows of `ids`, `count` rows at a time."""
        none = self._none.array
        yield npy_header(none.dtype, (len(ids), *none.shape[1:]))
        for first in range(0, len(ids), count):
            rows = self._stored(ids[first : first + count]).array
            yield bytes_of(np.ascontiguousarray(rows))


def _put(
    folder: PartitionFolder, files: Files, path: str, pieces: Iterator[Any], is_own: bool
) -> None:
    """Add a file's length and checksums to `files`. With `is_own`, also write it to the folder."""
    checksums, file = RangeHash(), folder.root / path
    written = file.with_suffix(".tmp")
    with (written if is_own else Path(os.devnull)).open("wb") as opened:
        for piece in pieces:
            checksums.update(memoryview(piece))
            opened.write(piece)
    known = checksums.written()
    if files.setdefault(path, known) != known:
        written.unlink(missing_ok=True)
        raise ValueError(f"'{folder.root}' has other features: '{path}' differs")
    if is_own:
        written.replace(file)
