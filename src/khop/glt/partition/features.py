"""`build_partition_feature`: features added to a folder that was partitioned without them.

Each machine adds its own part's. All of them write the same meta.json, which lists the files of all
parts with their checksums: so each reads all rows once, and keeps its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from khop.data import Feature
from khop.data.arrays import bytes_of
from khop.glt.arguments import by_type
from khop.glt.partition.part_writer import describe
from khop.glt.partition.parts import EDGE_FEATURES, FEATURES
from khop.glt.typing import EdgeType, NodeLabel, TensorDataType
from khop.storage.folder import (
    AttrMeta,
    EdgeTypeMeta,
    FolderMeta,
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
from khop.typing import EDGE, NODE, Array, Int64Array, IntArray


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

    Call it once for each part, on the machine of the part or where all parts are, at the same time
    or one after another. Features of edges need the folder with all parts' edges.

    Args:
        root_dir: the folder.
        partition_idx: the part.
        chunk_size: rows that are read at a time.
        node_feat: [num_nodes, ...] features of all nodes, a tensor or an array, which may be
            mapped. Or {node type: such}.
        node_feat_dtype: dtype to store them in.
        edge_feat: [num_edges, ...] features of all edges by id, or {edge type: such}.
        edge_feat_dtype: dtype to store them in.

    Raises:
        FolderError, IndexError: no such folder or part.
        KeyError: features of a type that the graph does not have.
        ValueError: features of another length, or other features than the folder's. Or features of
            edges whose original ids the folder does not keep.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be positive (got {chunk_size})")
    folder = PartitionFolder(root_dir)
    builder = _Builder(folder, folder.check_part(partition_idx), chunk_size)
    meta = folder.meta
    nodes = {t.name: t for t in meta.node_types}
    edges = {t.name: t for t in meta.edge_types}
    for node_type, rows in by_type(node_feat, NODE).items():
        nodes[node_type] = builder.add_nodes(_of(nodes, node_type), rows, node_feat_dtype)
    for edge_type, rows in by_type(edge_feat, EDGE).items():
        edges[edge_type] = builder.add_edges(_of(edges, edge_type), rows, edge_feat_dtype)
    builder.finish(replace(meta, node_types=[*nodes.values()], edge_types=[*edges.values()]))


def _of(types: dict[Any, Any], name: Any) -> Any:
    if name not in types:
        raise KeyError(f"the graph has no type {name}: there are {list(types)}")
    return types[name]


@dataclass
class _Rows:
    """Rows by id, and the dtype to store them in."""

    values: Any
    dtype: torch.dtype

    def stored(self, ids: IntArray) -> Feature:
        rows = torch.as_tensor(self.values[np.asarray(ids, np.int64)])
        return Feature(rows.to(self.dtype))


class _Builder:
    def __init__(self, folder: PartitionFolder, part: int, chunk_size: int) -> None:
        self._folder, self._part, self._chunk = folder, part, chunk_size
        self._files = folder.written()

    def add_nodes(self, described: NodeTypeMeta, values: Any, dtype: torch.dtype) -> NodeTypeMeta:
        """Add rows of a node type, and copies of other parts' rows where the part has such."""
        rows = self._checked(described, values, dtype)
        original = self._folder.original_ids(described.name)
        for part in range(self._folder.num_parts):
            first, last = described.bounds[part], described.bounds[part + 1]
            self._put(
                part, node_attr_path(part, described.name, FEATURES), rows, original[first:last]
            )
            if described.cached and described.cached[part]:
                copied = self._folder.open(cache_path(part, described.name, "id"))
                self._put(part, cache_attr_path(part, described.name, FEATURES), rows, copied)
        return replace(described, attrs={**described.attrs, FEATURES: self._described(rows)})

    def add_edges(self, described: EdgeTypeMeta, values: Any, dtype: torch.dtype) -> EdgeTypeMeta:
        """Add rows of an edge type."""
        if not described.edge_ids:
            raise ValueError(
                f"'{self._folder.root}' keeps no original ids of edges {described.name}, by which "
                "edge_feat has its rows: partition again with edge_ids=True, or give edge features "
                "to the partitioner"
            )
        rows = self._checked(described, values, dtype)
        for part in range(self._folder.num_parts):
            ids = edge_array(self._folder, part, described.name, "edge_id")
            self._put(part, edge_attr_path(part, described.name, EDGE_FEATURES), rows, ids)
        return replace(described, attrs={**described.attrs, EDGE_FEATURES: self._described(rows)})

    def finish(self, meta: FolderMeta) -> None:
        """Replace the files that describe the folder."""
        describe(self._folder.root, meta, self._files, self._part)

    def _checked(self, of: NodeTypeMeta | EdgeTypeMeta, values: Any, dtype: torch.dtype) -> _Rows:
        if len(values) != of.count:
            raise ValueError(f"{len(values)} rows of features for {of.count} of {of.name}")
        return _Rows(values, dtype)

    def _described(self, rows: _Rows) -> AttrMeta:
        feature = rows.stored(np.empty(0, np.int64))
        return AttrMeta.of(feature.dtype, feature.row_shape)

    def _put(self, part: int, path: str, rows: _Rows, ids: IntArray) -> None:
        """List a file of a part, and write it if the part is this one."""
        checksums, file = RangeHash(), self._folder.root / path
        own = part == self._part
        written = file.with_suffix(".tmp")
        with (written if own else Path(os.devnull)).open("wb") as opened:
            for piece in self._pieces(rows, ids):
                checksums.update(memoryview(piece))
                opened.write(piece)
        known = checksums.written()
        if self._files.setdefault(path, known) != known:
            written.unlink(missing_ok=True)
            raise ValueError(f"'{self._folder.root}' has other features: '{path}' differs")
        if own:
            written.replace(file)

    def _pieces(self, rows: _Rows, ids: IntArray) -> Iterator[Any]:
        none: Array = rows.stored(np.empty(0, np.int64)).array
        yield npy_header(none.dtype, (len(ids), *none.shape[1:]))
        for first in range(0, len(ids), self._chunk):
            chosen: Int64Array = np.asarray(ids[first : first + self._chunk], np.int64)
            yield bytes_of(np.ascontiguousarray(rows.stored(chosen).array))
