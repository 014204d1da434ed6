"""A partition folder as the input of a partitioner: the graph by original ids, read back.

Edge lists are read into memory (8 bytes an edge, 16 beyond 2^31 nodes), and places of nodes and
edges. Attributes stay in the folder's files, mapped, and are read row by row as they are copied.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from khop.data import Feature
from khop.data.arrays import check_pointers, narrowest_int, storage_dtype
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.storage.folder import AttrMeta, EdgeTypeMeta, NodeTypeMeta, PartitionFolder, edge_array
from khop.storage.part import Part
from khop.typing import Array, Int64Array, IntArray


class FolderFeature(Feature):
    """Rows of an attribute by original id, gathered from the parts of a folder.

    Args:
        pieces: the attribute of each part, one after the other.
        places: [num_rows] where each row is in all pieces together.
        attr: dtype and shape of a row.
    """

    def __init__(self, pieces: list[Feature], places: IntArray, attr: AttrMeta) -> None:
        self._pieces, self._places = pieces, places
        self._bounds = np.cumsum([0, *(piece.num_rows for piece in pieces)])
        self._shape, self._storage = attr.shape, storage_dtype(attr.dtype)
        self.dtype = attr.dtype

    @cached_property
    def array(self) -> Array:  # type: ignore[override]
        """All rows, in memory once they are asked for."""
        return self.gather(np.arange(self.num_rows))

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self._places)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; () for 1-D features."""
        return self._shape

    @property
    def floating(self) -> bool:
        """True if values are floating-point numbers."""
        return self._storage.kind == "f" or self.dtype == "bfloat16"

    def gather(
        self,
        rows: IntArray,
        out: Array | None = None,
        places: Int64Array | None = None,
        num_threads: int = 1,
    ) -> Array:
        """Copy rows; see `Feature.gather`."""
        if out is None:
            out = np.empty((len(rows), *self._shape), self._storage)
        stored = self._places[rows]
        owners = np.searchsorted(self._bounds, stored, side="right") - 1
        for part in np.unique(owners):
            here = np.flatnonzero(owners == part)
            to = here if places is None else places[here]
            piece = (stored[here] - self._bounds[part]).astype(np.int64)
            self._pieces[part].gather(piece, out, to, num_threads)
        return out


def folder_source(folder: PartitionFolder, without: tuple[str, ...] = ()) -> GraphSource:
    """Read the graph of a folder, all of whose parts are on this machine.

    Args:
        folder: the folder.
        without: names of node attributes to leave out.

    Returns:
        The graph that the folder was made of: ids and the order of edges are the original ones.

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
    parts: list[Part], kind: str, index: int, places: IntArray, without: tuple[str, ...] = ()
) -> dict[str, Feature]:
    meta: NodeTypeMeta | EdgeTypeMeta = parts[0].meta.types(kind)[index]
    return {
        name: FolderFeature([part.feature(kind, index, name) for part in parts], places, attr)
        for name, attr in meta.attrs.items()
        if name not in without
    }


def _edges(parts: list[Part], index: int) -> EdgeSource:
    folder, meta = parts[0].folder, parts[0].meta
    edge_type = meta.edge_types[index]
    row_ids, neighbor_ids = (
        folder.original_ids(t.name)
        for t in (meta.row_type(edge_type), meta.neighbor_type(edge_type))
    )
    places = np.full(edge_type.count, -1, narrowest_int(edge_type.count))
    rows = np.empty(edge_type.count, row_ids.dtype)
    neighbors = np.empty(edge_type.count, neighbor_ids.dtype)
    what = f"list of original ids of edge type {edge_type.name}"
    with folder.complete(places, what):
        for part in parts:
            ids = edge_array(folder, part.part, edge_type.name, "edge_id")
            first = meta.row_type(edge_type).bounds[part.part]
            indptr, columns = part.rows(index)
            check_pointers(indptr, len(columns), f"part-{part.part}, edge type {edge_type.name}")
            places[ids] = np.arange(len(ids), dtype=places.dtype) + edge_type.bounds[part.part]
            rows[ids] = np.repeat(row_ids[first : first + len(indptr) - 1], np.diff(indptr))
            neighbors[ids] = neighbor_ids[columns]
    ends = (neighbors, rows) if meta.edge_dir == "in" else (rows, neighbors)
    return EdgeSource(*ends, _attrs(parts, "edge", index, places))
