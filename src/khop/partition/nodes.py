"""Writer of the parts' nodes: ids, attributes, and copies of other parts' nodes.

Attributes are gathered some rows at a time, by several threads. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from khop.data import Feature
from khop.data.arrays import narrowest_int, storage_dtype
from khop.partition.numbering import Numbering
from khop.partition.source import NodeSource
from khop.partition.workspace import Workspace
from khop.storage.folder import (
    AttrMeta,
    FolderWriter,
    NodeTypeMeta,
    attr_metas,
    cache_attr_path,
    cache_path,
    map_path,
    node_attr_path,
    node_path,
    split_path,
    time_path,
)
from khop.typing import Array, Int64Array, IntArray, NodeType

# Bytes of rows copied at a time: limits the extra memory.
_CHUNK_BYTES = 32 << 20


class NodeWriter:
    """Writer of the nodes of each part.

    Args:
        writer: writes the folder.
        numbering: new ids of each node type.
        num_parts: number of parts.
        times: node type -> [num_nodes] keys of times, by original id.
        cached_nodes: returns the original ids that a part keeps copies of, of (node type, part,
            part of each node).
        workspace: its threads gather; it is told of each chunk.
        progress: called as progress(what, done, total).
    """

    def __init__(
        self,
        writer: FolderWriter,
        numbering: Mapping[NodeType, Numbering],
        num_parts: int,
        times: Mapping[NodeType, Int64Array],
        cached_nodes: Callable[[NodeType, int, IntArray], Int64Array],
        workspace: Workspace,
        progress: Callable[[str, int, int], None],
    ) -> None:
        self._writer = writer
        self._numbering = numbering
        self._num_parts = num_parts
        self._times = times
        self._cached_nodes = cached_nodes
        self._workspace = workspace
        self._progress = progress

    def write(self, node_type: NodeType, node: NodeSource) -> NodeTypeMeta:
        """Write a node type.

        Raises:
            ValueError: copies of nodes that do not exist, or that the part owns.
        """
        numbering = self._numbering[node_type]
        bounds, new_order = numbering.book.bounds, numbering.old_of_new
        self._writer.save(map_path(node_type), numbering.new_of_old)
        for part in range(self._num_parts):
            ids = new_order[bounds[part] : bounds[part + 1]]
            self._writer.save(node_path(part, node_type, "id"), ids)
            for name, feature in node.attrs.items():
                self._save_rows(node_attr_path(part, node_type, name), feature, ids)
            self._progress(f"nodes of type '{node_type}'", part + 1, self._num_parts)
        cached = [self._write_cache(node_type, node, part) for part in range(self._num_parts)]
        splits = [name for name, f in node.attrs.items() if f.dtype == "bool" and f.row_shape == ()]
        for name in splits:
            held = np.flatnonzero(node.attrs[name].gather(new_order))
            self._writer.save(split_path(node_type, name), held.astype(narrowest_int(node.count)))
        times = self._times.get(node_type)
        if times is not None:
            self._save_rows(time_path(node_type), Feature(times), new_order)
        return NodeTypeMeta(
            node_type, bounds, attr_metas(node.attrs), splits, cached, times is not None
        )

    def _write_cache(self, node_type: NodeType, node: NodeSource, part: int) -> int:
        """Write a part's copies; return how many there are."""
        numbering = self._numbering[node_type]
        ids = np.asarray(self._cached_nodes(node_type, part, numbering.owners), dtype=np.int64)
        if len(ids) == 0:
            return 0
        call = f"cached_nodes('{node_type}', {part})"
        if int(ids.min()) < 0 or int(ids.max()) >= node.count or len(np.unique(ids)) < len(ids):
            raise ValueError(f"{call} names a node that does not exist, or one node twice")
        if np.any(numbering.owners[ids] == part):
            raise ValueError(f"{call} names nodes that the part owns")
        self._writer.save(cache_path(part, node_type, "new_id"), numbering.new_of_old[ids])
        self._writer.save(cache_path(part, node_type, "id"), ids.astype(narrowest_int(node.count)))
        for name, feature in node.attrs.items():
            self._save_rows(cache_attr_path(part, node_type, name), feature, ids)
        return len(ids)

    def _save_rows(self, path: str, feature: Feature, rows: IntArray) -> None:
        """Write rows of an attribute, in their order."""
        if self._writer.has(path):
            return

        def gathered(first: int) -> Array:
            return feature.gather(np.ascontiguousarray(rows[first : first + step]))

        resources = self._workspace.resources
        row_bytes = max(1, AttrMeta(feature.dtype, feature.row_shape).row_bytes)
        step = max(1, min(_CHUNK_BYTES, resources.share()) // row_bytes)
        shape = (len(rows), *feature.row_shape)
        with self._writer.array(path, storage_dtype(feature.dtype), shape) as file:
            for chunk in resources.in_order(gathered, range(file.rows, len(rows), step)):
                file.append(chunk)
                self._workspace.release(feature)
                self._workspace.checkpoint(chunk.nbytes)
