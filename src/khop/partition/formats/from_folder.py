"""A partition folder as the input of a partitioner: the graph by original ids, read back.

Edge lists and positions of nodes and edges are read into memory: 8 bytes per edge, 16 beyond 2^31
nodes. Attributes stay in the folder's files, mapped, and are copied row by row.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from khop.data import RowStore
from khop.data.arrays import check_pointers, narrowest_int
from khop.data.joined import JoinedFeature, TakenFeature
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.storage.folder import EdgeTypeMeta, NodeTypeMeta, PartitionFolder, edge_array
from khop.storage.part import Part
from khop.typing import IntArray


def folder_source(folder: PartitionFolder, without: tuple[str, ...] = ()) -> GraphSource:
    """Read the graph of a folder, all of whose parts are on this machine.

    Args:
        folder: the folder.
        without: names of node attributes to leave out.

    Returns:
        The graph that the folder was made of, with original ids and the original order of edges.

    Raises:
        FolderError: a part is missing, or the folder is damaged.

    Example:
        >>> source = folder_source(PartitionFolder(folder))
        >>> source.nodes["node"].count, list(source.nodes["node"].attrs)
        (6, ['x', 'y', 'train_mask'])
    """
    parts = [Part(folder, p) for p in range(folder.num_parts)]
    for node_type in folder.meta.node_types:
        folder.original_ids(node_type.name)  # checks the map
    nodes = {
        t.name: NodeSource(t.count, _attrs(parts, "node", i, folder.id_map(t.name), without))
        for i, t in enumerate(folder.meta.node_types)
    }
    edges = {t.name: _edges(parts, i) for i, t in enumerate(folder.meta.edge_types)}
    return GraphSource(nodes, edges, folder.meta.heterogeneous)


def _attrs(
    parts: list[Part],
    level: Literal["node", "edge"],
    index: int,
    positions: IntArray,
    without: tuple[str, ...] = (),
) -> dict[str, RowStore]:
    meta: NodeTypeMeta | EdgeTypeMeta = parts[0].meta.types(level)[index]
    return {
        name: TakenFeature(JoinedFeature([p.feature(level, index, name) for p in parts]), positions)
        for name in meta.attrs
        if name not in without
    }


def _edges(parts: list[Part], index: int) -> EdgeSource:
    folder, meta = parts[0].folder, parts[0].meta
    edge_type = meta.edge_types[index]
    row_type, neighbor_type = meta.row_type(edge_type), meta.neighbor_type(edge_type)
    row_ids, neighbor_ids = (folder.original_ids(t.name) for t in (row_type, neighbor_type))
    positions = np.full(edge_type.count, -1, narrowest_int(edge_type.count))
    rows = np.empty(edge_type.count, row_ids.dtype)
    neighbors = np.empty(edge_type.count, neighbor_ids.dtype)
    with folder.complete(positions, f"list of original ids of edge type {edge_type.name}"):
        for part in parts:
            ids = edge_array(folder, part.part, edge_type.name, "edge_id")
            first = row_type.bounds[part.part]
            indptr, columns = part.rows(index)
            check_pointers(indptr, len(columns), f"part-{part.part}, edge type {edge_type.name}")
            positions[ids] = (
                np.arange(len(ids), dtype=positions.dtype) + edge_type.bounds[part.part]
            )
            rows[ids] = np.repeat(row_ids[first : first + len(indptr) - 1], np.diff(indptr))
            neighbors[ids] = neighbor_ids[columns]
    ends = (neighbors, rows) if meta.edge_dir == "in" else (rows, neighbors)
    return EdgeSource(*ends, _attrs(parts, "edge", index, positions))
