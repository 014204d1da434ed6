"""Graph after a cut, as neighbour lists in new ids, which number nodes part after part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from khop import _native
from khop.data.arrays import check_pointers, check_range, narrowest_int
from khop.partition.base import PartitionerBase
from khop.partition.source import feature_bytes
from khop.sampler.drawing.hotness import TypedRows
from khop.storage.folder import AttrMeta, PartitionFolder, edge_array
from khop.storage.part import Part
from khop.typing import EdgeType, Int64Array, IntArray


class CutNodes(NamedTuple):
    """Nodes of one type after a cut. New ids number them part after part.

    Attributes:
        bounds: [num_parts + 1] bounds of the parts' ranges of new ids.
        originals: [num_nodes] original id of each new id.
        copies: for each part, new ids of the nodes of other parts that it keeps copies of.
        row_bytes: bytes of a node's attributes.
    """

    bounds: list[int]
    originals: IntArray
    copies: list[Int64Array]
    row_bytes: int


class CutEdges(NamedTuple):
    """Edges of one type after a cut, as CSR rows of all parts, in new ids.

    A row has the neighbours of a node in the direction of sampling.

    Attributes:
        edge_type: the edge type.
        neighbors, rows: indices in `CutGraph.nodes` of the neighbours' type and of the rows' type.
        indptr: [num_rows + 1] row pointers.
        indices: [num_edges] new ids of neighbours.
        row_bytes: bytes of an edge's attributes.
    """

    edge_type: EdgeType
    neighbors: int
    rows: int
    indptr: IntArray
    indices: IntArray
    row_bytes: int


class CutGraph(NamedTuple):
    """Graph after a cut, with new ids that number nodes part after part.

    `nodes` and `edges` have one entry per type. `CutReport.of_cut` counts its edges.
    """

    num_parts: int
    nodes: list[CutNodes]
    edges: list[CutEdges]

    def typed_rows(self) -> TypedRows:
        """Return neighbour lists for sampling. Draws depend on original ids, as in training."""
        csrs = [
            _native.Csr(e.indptr, e.indices, np.ascontiguousarray(self.nodes[e.rows].originals))
            for e in self.edges
        ]
        relations = [(edges.neighbors, edges.rows) for edges in self.edges]
        return TypedRows([nodes.bounds[-1] for nodes in self.nodes], relations, csrs)

    def neighbors(self, edges: CutEdges, part: int) -> IntArray:
        """Return the neighbour's new id of each edge of a type in a part: [n] integers."""
        low, high = edges.indptr[self.nodes[edges.rows].bounds[part : part + 2]]
        return edges.indices[int(low) : int(high)]

    def bytes_of(self, part: int) -> int:
        """Return the bytes of a part: its nodes' and edges' attributes, ids, and copies."""
        total = 0
        for nodes in self.nodes:
            width = narrowest_int(nodes.bounds[-1]).itemsize
            total += (nodes.bounds[part + 1] - nodes.bounds[part]) * (nodes.row_bytes + width)
            total += len(nodes.copies[part]) * (nodes.row_bytes + 2 * width)
        for edges in self.edges:
            width = narrowest_int(len(edges.indices)).itemsize + edges.indices.itemsize
            total += len(self.neighbors(edges, part)) * (edges.row_bytes + width)
        return total

    @classmethod
    def of_folder(cls, folder: PartitionFolder) -> CutGraph:
        """Read the graph of a folder, all parts of which are on this machine.

        Several parts take 4 or 8 bytes of memory per edge.

        Raises:
            FolderError, IndexError, ValueError: a part is missing or damaged.
        """
        meta = folder.meta
        parts = [Part(folder, p) for p in range(folder.num_parts)]
        nodes = [
            CutNodes(
                t.bounds,
                folder.original_ids(t.name),
                [_copies_of(part, i) for part in parts],
                _row_bytes(t.attrs),
            )
            for i, t in enumerate(meta.node_types)
        ]
        edges = []
        for edge_type, relation in zip(meta.edge_types, parts[0].relations, strict=True):
            names = ("indptr", "indices")
            pieces = [
                [edge_array(folder, p, edge_type.name, n) for n in names] for p in range(len(parts))
            ]
            for part, (indptr, indices) in enumerate(pieces):
                where = f"part-{part} of '{folder.root}', edge type {edge_type.name}"
                check_pointers(indptr, len(indices), where)
                check_range(indices, meta.neighbor_type(edge_type).count, where)
            indptr, indices = pieces[0]
            if len(pieces) > 1:
                indices = np.concatenate([piece[1] for piece in pieces])
                counts = np.concatenate([np.diff(piece[0]) for piece in pieces])
                indptr = np.zeros(len(counts) + 1, np.int64)
                np.cumsum(counts, out=indptr[1:])
            attrs = _row_bytes(edge_type.attrs)
            edges.append(CutEdges(edge_type.name, *relation, indptr, indices, attrs))
        return cls(len(parts), nodes, edges)

    @classmethod
    def of_partitioner(cls, partitioner: PartitionerBase) -> CutGraph:
        """Assign a partitioner's nodes and cut its graph in memory. Nothing is written.

        Raises:
            IndexError: an edge names a node that does not exist.
        """
        numbering, source = partitioner.numbering or partitioner.number_nodes(), partitioner.source
        nodes = []
        for node_type, known in numbering.items():
            cached = [
                partitioner.cached_nodes(node_type, part, known.owners)
                for part in range(partitioner.num_parts)
            ]
            copies = [known.new_of_old[ids].astype(np.int64, copy=False) for ids in cached]
            row_bytes = feature_bytes(source.nodes[node_type].attrs)
            nodes.append(CutNodes(known.book.bounds, known.old_of_new, copies, row_bytes))
        edges, node_types = [], list(numbering)
        for edge_type, edge in source.edges.items():
            types, ends = (edge_type[0], edge_type[2]), edge.endpoints()
            if partitioner.edge_dir == "out":
                types, ends = types[::-1], ends[::-1]
            (neighbors, rows), (others, keys) = (numbering[t] for t in types), ends
            key_map, neighbor_map = (
                known.new_of_old.astype(np.int64, copy=False) for known in (rows, neighbors)
            )
            counts = rows.book.num_ids, neighbors.book.num_ids
            indptr, indices, _ = _native.coo_to_csr(
                keys, others, *counts, key_map, neighbor_map, with_edge_ids=False
            )
            neighbor_index, row_index = (node_types.index(node_type) for node_type in types)
            attrs = feature_bytes(edge.attrs)
            edges.append(CutEdges(edge_type, neighbor_index, row_index, indptr, indices, attrs))
        return cls(partitioner.num_parts, nodes, edges)


def _row_bytes(attrs: Mapping[str, AttrMeta]) -> int:
    return sum(attr.row_bytes for attr in attrs.values())


def _copies_of(part: Part, index: int) -> Int64Array:
    cached = part.cached(index)
    if cached is None:
        return np.empty(0, np.int64)
    ids = np.asarray(cached.features["id"].array)
    node_type = part.meta.node_types[index]
    check_range(ids, node_type.count, f"copies of '{node_type.name}' in part-{part.part}")
    new_ids: Int64Array = part.folder.id_map(node_type.name)[ids].astype(np.int64)
    return new_ids
