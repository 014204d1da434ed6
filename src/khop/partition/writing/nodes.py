"""Writer of the parts' nodes: ids, attributes, and copies of other parts' nodes.

Attributes are gathered some rows at a time, by several threads, or by tasks on other machines, as
the workspace has it. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from khop.data import Feature, RowFormat
from khop.data.arrays import narrowest_int, storage_dtype
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import NodeSource
from khop.partition.writing.numbering import Numbering
from khop.storage.folder import (
    ArrayWriter,
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
        new_order = numbering.old_of_new
        self._writer.save(map_path(node_type), numbering.new_of_old)
        write = partial(write_nodes, node_type, node, numbering)
        for part in self._workspace.write(write, range(self._num_parts)):
            self._progress(f"nodes of type '{node_type}'", part + 1, self._num_parts)
        cached = [0] * self._num_parts
        copies = partial(write_copies, node_type, node, numbering)
        for part, ids in self._workspace.write(copies, self._copies(node_type, node)):
            cached[part] = len(ids)
        splits = [name for name, f in node.attrs.items() if f.dtype == "bool" and f.row_shape == ()]
        for name in splits:
            held = np.flatnonzero(node.attrs[name].gather(new_order))
            self._writer.save(split_path(node_type, name), held.astype(narrowest_int(node.count)))
        times = self._times.get(node_type)
        if times is not None:
            path = time_path(node_type)
            save_rows(self._writer, self._workspace, path, Feature(times), new_order)
        bounds = numbering.book.bounds
        return NodeTypeMeta(
            node_type, bounds, attr_metas(node.attrs), splits, cached, times is not None
        )

    def _copies(self, node_type: NodeType, node: NodeSource) -> Iterator[tuple[int, Int64Array]]:
        """Yield the parts that keep copies, and of which nodes."""
        owners = self._numbering[node_type].owners
        for part in range(self._num_parts):
            ids = np.asarray(self._cached_nodes(node_type, part, owners), dtype=np.int64)
            if len(ids) == 0:
                continue
            call = f"cached_nodes('{node_type}', {part})"
            if int(ids.min()) < 0 or int(ids.max()) >= node.count or len(np.unique(ids)) < len(ids):
                raise ValueError(f"{call} names a node that does not exist, or one node twice")
            if np.any(owners[ids] == part):
                raise ValueError(f"{call} names nodes that the part owns")
            yield part, ids


def write_nodes(
    node_type: NodeType,
    node: NodeSource,
    numbering: Numbering,
    writer: ArrayWriter,
    workspace: Workspace,
    part: int,
) -> tuple[()]:
    """Write the nodes of a part: ids and attributes."""
    first, last = numbering.book.bounds[part : part + 2]
    ids = numbering.old_of_new[first:last]
    writer.save(node_path(part, node_type, "id"), ids)
    for name, feature in node.attrs.items():
        save_rows(writer, workspace, node_attr_path(part, node_type, name), feature, ids)
    return ()


def write_copies(
    node_type: NodeType,
    node: NodeSource,
    numbering: Numbering,
    writer: ArrayWriter,
    workspace: Workspace,
    item: tuple[int, Int64Array],
) -> tuple[()]:
    """Write a part's copies of other parts' nodes: new ids, ids and attributes."""
    part, ids = item
    writer.save(cache_path(part, node_type, "new_id"), numbering.new_of_old[ids])
    writer.save(cache_path(part, node_type, "id"), ids.astype(narrowest_int(node.count)))
    for name, feature in node.attrs.items():
        save_rows(writer, workspace, cache_attr_path(part, node_type, name), feature, ids)
    return ()


def save_rows(
    writer: ArrayWriter, workspace: Workspace, path: str, feature: Feature, rows: IntArray
) -> None:
    """Write rows of an attribute, in their order."""
    if writer.has(path):
        return

    def gathered(first: int) -> Array:
        return feature.gather(np.ascontiguousarray(rows[first : first + step]))

    resources = workspace.resources
    row_bytes = max(1, RowFormat(feature.dtype, feature.row_shape).nbytes)
    step = max(1, min(_CHUNK_BYTES, resources.share()) // row_bytes)
    shape = (len(rows), *feature.row_shape)
    with writer.array(path, storage_dtype(feature.dtype), shape) as file:
        for chunk in resources.in_order(gathered, range(file.rows, len(rows), step)):
            file.append(chunk)
            workspace.release(feature)
            workspace.checkpoint(chunk.nbytes)
