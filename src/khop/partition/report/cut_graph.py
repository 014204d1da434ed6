"""A graph that is cut: rows of all parts in new ids, as reports count and sample them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from khop import _native
from khop.data.arrays import check_pointers, check_range, narrowest_int
from khop.partition.base import PartitionerBase
from khop.partition.writing.numbering import Numbering
from khop.sampler.drawing.hotness import TypedRows
from khop.storage.folder import AttrMeta, PartitionFolder, attr_metas, edge_array
from khop.storage.part import Part
from khop.typing import EdgeType, Int64Array, IntArray, NodeType

Rows = tuple[IntArray, IntArray]
"""indptr [num_rows + 1] and indices [num_edges]."""


class CutGraph(NamedTuple):
    """A graph in new ids.

    Attributes:
        bounds: {node type: [num_parts + 1] bounds of the parts' ranges of new ids}.
        relations: for each edge type, indices of the types of neighbours and of rows.
        edges: {edge type: rows of all parts, in new ids}.
        originals: for each node type [num_nodes] original id of each new id.
        copies: for each part and node type, new ids of the rows that the part keeps copies of.
        node_bytes: bytes of a node's attributes, for each node type.
        edge_bytes: bytes of an edge's attributes, for each edge type.
    """

    bounds: dict[NodeType, Sequence[int]]
    relations: list[tuple[int, int]]
    edges: dict[EdgeType, Rows]
    originals: list[IntArray]
    copies: list[list[Int64Array]]
    node_bytes: list[int]
    edge_bytes: list[int]

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.copies)

    def rows(self) -> TypedRows:
        """Return the rows with original ids, by which draws are keyed."""
        csrs = [
            _native.Csr(*of_type, np.ascontiguousarray(self.originals[rows]))
            for (_, rows), of_type in zip(self.relations, self.edges.values(), strict=True)
        ]
        return TypedRows([b[-1] for b in self.bounds.values()], self.relations, csrs)

    def bytes_of(self, part: int) -> int:
        """Return the bytes of a part's rows, edges and copies, ids included."""
        total = 0
        for i, bounds in enumerate(self.bounds.values()):
            width = narrowest_int(bounds[-1]).itemsize
            total += (bounds[part + 1] - bounds[part]) * (self.node_bytes[i] + width)
            total += len(self.copies[part][i]) * (self.node_bytes[i] + 2 * width)
        for i, of_type in enumerate(self.edges.values()):
            count = len(of_type[1])
            width = narrowest_int(count).itemsize + of_type[1].itemsize
            low, high = self.edge_range(i, part)
            total += (high - low) * (self.edge_bytes[i] + width)
        return int(total)

    def edge_range(self, index: int, part: int) -> tuple[int, int]:
        """Return the range of a part's edges of a type, by index."""
        bounds = list(self.bounds.values())[self.relations[index][1]]
        indptr, _ = list(self.edges.values())[index]
        return int(indptr[bounds[part]]), int(indptr[bounds[part + 1]])

    @classmethod
    def of_folder(cls, folder: PartitionFolder) -> CutGraph:
        """Read a folder, all of whose parts are on this machine: 4 or 8 bytes per edge.

        Raises:
            FolderError, IndexError, ValueError: a part is missing or damaged.
        """
        meta = folder.meta
        parts = [Part(folder, p) for p in range(folder.num_parts)]
        edges = {}
        for edge_type in meta.edge_types:
            pieces = [_checked_rows(part, edge_type.name) for part in parts]
            edges[edge_type.name] = pieces[0] if len(pieces) == 1 else _joined(pieces)
        return cls(
            {t.name: t.bounds for t in meta.node_types},
            parts[0].relations,
            edges,
            [folder.original_ids(t.name) for t in meta.node_types],
            [[_copies_of(part, i) for i in range(len(meta.node_types))] for part in parts],
            [_row_bytes(t.attrs) for t in meta.node_types],
            [_row_bytes(t.attrs) for t in meta.edge_types],
        )

    @classmethod
    def of_partitioner(cls, partitioner: PartitionerBase) -> CutGraph:
        """Assign a partitioner's nodes and cut its graph in memory. Nothing is written.

        Raises:
            IndexError: an edge names a node that does not exist.
        """
        numbering, source = partitioner.numbering or partitioner.number_nodes(), partitioner.source
        index = {node_type: i for i, node_type in enumerate(numbering)}
        parts = range(partitioner.num_parts)
        relations, edges = [], {}
        for edge_type, edge in source.edges.items():
            types, ends = (edge_type[0], edge_type[2]), edge.endpoints()
            if partitioner.edge_dir == "out":
                types, ends = types[::-1], ends[::-1]
            (neighbors, rows), (others, keys) = (numbering[t] for t in types), ends
            key_map, neighbor_map = (
                known.new_of_old.astype(np.int64, copy=False) for known in (rows, neighbors)
            )
            edges[edge_type] = _native.coo_to_csr(
                keys,
                others,
                rows.book.num_ids,
                neighbors.book.num_ids,
                key_map,
                neighbor_map,
                with_edge_ids=False,
            )[:2]
            relations.append((index[types[0]], index[types[1]]))

        def copies(part: int, node_type: NodeType, known: Numbering) -> Int64Array:
            ids = partitioner.cached_nodes(node_type, part, known.owners)
            return known.new_of_old[ids].astype(np.int64, copy=False)

        return cls(
            {t: known.book.bounds for t, known in numbering.items()},
            relations,
            edges,
            [known.old_of_new for known in numbering.values()],
            [[copies(p, *of_type) for of_type in numbering.items()] for p in parts],
            [_row_bytes(attr_metas(node.attrs)) for node in source.nodes.values()],
            [_row_bytes(attr_metas(edge.attrs)) for edge in source.edges.values()],
        )


def _row_bytes(attrs: Mapping[str, AttrMeta]) -> int:
    return sum(attr.row_bytes for attr in attrs.values())


def _checked_rows(part: Part, edge_type: EdgeType) -> Rows:
    folder = part.folder
    indptr, indices = (edge_array(folder, part.part, edge_type, n) for n in ("indptr", "indices"))
    meta = next(t for t in folder.meta.edge_types if t.name == edge_type)
    where = f"part-{part.part} of '{folder.root}', edge type {edge_type}"
    check_pointers(indptr, len(indices), where)
    check_range(indices, folder.meta.neighbor_type(meta).count, where)
    return indptr, indices


def _joined(pieces: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, one after the other."""
    counts = np.concatenate([np.diff(indptr) for indptr, _ in pieces])
    indptr = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    return indptr, np.concatenate([indices for _, indices in pieces])


def _copies_of(part: Part, index: int) -> Int64Array:
    cached = part.cached(index)
    if cached is None:
        return np.empty(0, np.int64)
    ids = np.asarray(cached.features["id"].array)
    node_type = part.meta.node_types[index]
    check_range(ids, node_type.count, f"copies of '{node_type.name}' in part-{part.part}")
    new_ids: Int64Array = part.folder.id_map(node_type.name)[ids].astype(np.int64)
    return new_ids
