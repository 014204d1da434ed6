"""Writer of the parts' nodes: ids, attributes, and copies of other parts' nodes.

The workspace runs the functions that write, in this process or as tasks on other machines.
Attributes are gathered some rows at a time, by several threads. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from khop.data import Feature, RowFormat, RowStore
from khop.data.arrays import narrowest_int, storage_dtype
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import NodeSource
from khop.partition.writing.numbering import FolderJob, Numbering
from khop.storage.folder import (
    ArrayWriter,
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

CachedNodes = Callable[[NodeType, int, IntArray], Int64Array]
"""Function that returns the nodes that a part keeps copies of: `PartitionerBase.cached_nodes`."""

# Bytes of rows copied at a time: limits the extra memory.
_CHUNK_BYTES = 32 << 20


def write_node_type(
    job: FolderJob, node_type: NodeType, node: NodeSource, cached_nodes: CachedNodes
) -> NodeTypeMeta:
    """Write the nodes of a type in all parts: ids, attributes, and copies of other parts' nodes.

    Returns the type's entry for meta.json. `cached_nodes` returns the nodes that a part keeps
    copies of.

    Raises:
        ValueError: `cached_nodes` names nodes that do not exist, or that the part owns.
    """
    writer, workspace, numbering = job.writer, job.workspace, job.numbering[node_type]
    writer.save(map_path(node_type), numbering.new_of_old)
    write = partial(_write_part, node_type, node, numbering)
    for part in workspace.write(write, range(job.num_parts)):
        job.progress(f"nodes of type '{node_type}'", part + 1, job.num_parts)
    cached = [0] * job.num_parts
    write_copies = partial(_write_copies, node_type, node, numbering)
    copies = _copies(job.num_parts, node_type, numbering.owners, cached_nodes)
    for part, ids in workspace.write(write_copies, copies):
        cached[part] = len(ids)
    splits = [name for name, f in node.attrs.items() if f.dtype == "bool" and f.row_shape == ()]
    for name in splits:
        held = np.flatnonzero(node.attrs[name].gather(numbering.old_of_new))
        writer.save(split_path(node_type, name), held.astype(narrowest_int(node.count)))
    times = job.draws.node_times.get(node_type)
    if times is not None:
        path = time_path(node_type)
        _save_rows(writer, workspace, path, Feature(times), numbering.old_of_new)
    bounds, attrs = numbering.book.bounds, attr_metas(node.attrs)
    return NodeTypeMeta(node_type, bounds, attrs, splits, cached, times is not None)


def _copies(
    num_parts: int, node_type: NodeType, owners: IntArray, cached_nodes: CachedNodes
) -> Iterator[tuple[int, Int64Array]]:
    """Yield (part, original ids of the nodes to copy) for each part that keeps copies."""
    for part in range(num_parts):
        ids = np.asarray(cached_nodes(node_type, part, owners), dtype=np.int64)
        if len(ids) == 0:
            continue
        call = f"cached_nodes('{node_type}', {part})"
        if int(ids.min()) < 0 or int(ids.max()) >= len(owners) or len(np.unique(ids)) < len(ids):
            raise ValueError(f"{call} names a node that does not exist, or one node twice")
        if np.any(owners[ids] == part):
            raise ValueError(f"{call} names nodes that the part owns")
        yield part, ids


def _write_part(
    node_type: NodeType,
    node: NodeSource,
    numbering: Numbering,
    writer: ArrayWriter,
    workspace: Workspace,
    part: int,
) -> tuple[()]:
    """Write the original ids and attributes of the nodes of a type that a part owns."""
    first, last = numbering.book.bounds[part : part + 2]
    ids = numbering.old_of_new[first:last]
    writer.save(node_path(part, node_type, "id"), ids)
    for name, feature in node.attrs.items():
        _save_rows(writer, workspace, node_attr_path(part, node_type, name), feature, ids)
    return ()


def _write_copies(
    node_type: NodeType,
    node: NodeSource,
    numbering: Numbering,
    writer: ArrayWriter,
    workspace: Workspace,
    item: tuple[int, Int64Array],
) -> tuple[()]:
    """Write a part's copies of other parts' nodes. `item` is (part, original ids)."""
    part, ids = item
    writer.save(cache_path(part, node_type, "new_id"), numbering.new_of_old[ids])
    writer.save(cache_path(part, node_type, "id"), ids.astype(narrowest_int(node.count)))
    for name, feature in node.attrs.items():
        _save_rows(writer, workspace, cache_attr_path(part, node_type, name), feature, ids)
    return ()


def _save_rows(
    writer: ArrayWriter, workspace: Workspace, path: str, feature: RowStore, rows: IntArray
) -> None:
    """Write an attribute's rows at positions `rows` to a file, in this order."""
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
