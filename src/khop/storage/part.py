"""One part of a partition folder, opened: a graph that holds only the part's own rows.

Used by samplers, partition servers, graph servers and trainers. Imports no torch.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from khop import _native
from khop.data import ConsecutiveIds, Feature
from khop.storage.folder import (
    INTS,
    ORDERS,
    PartitionFolder,
    cache_attr_path,
    cache_path,
    edge_array,
    edge_attr_path,
)
from khop.typing import Array, EdgeType, Int64Array, IntArray, NodeType


class CachedRows(NamedTuple):
    """Copies of hot rows of other parts, and the position of each, by its new id."""

    places: _native.IdIndex
    features: dict[str, Feature]


class Part:
    """Arrays of one part, mapped when first used. Types are named by their index in the folder.

    Args:
        folder: the partition folder.
        part: index of the part.
    """

    def __init__(self, folder: PartitionFolder, part: int) -> None:
        self.folder = folder
        self.meta = folder.meta
        self.part = folder.check_part(part)
        self._node_features: dict[tuple[int, str], Feature] = {}
        self._edge_features: dict[tuple[int, str], Feature] = {}
        self._cached: dict[int, CachedRows | None] = {}
        self._indptrs: dict[int, IntArray] = {}
        self._row_orders: dict[int, tuple[Int64Array, Int64Array]] = {}

    @cached_property
    def relations(self) -> list[tuple[int, int]]:
        """(node type of neighbours, node type of rows) of each edge type, as indices."""
        place = {t.name: i for i, t in enumerate(self.meta.node_types)}
        ends = [(place[t.name[0]], place[t.name[2]]) for t in self.meta.edge_types]
        return ends if self.meta.edge_dir == "in" else [(dst, src) for src, dst in ends]

    @cached_property
    def csrs(self) -> list[_native.Csr]:
        """CSR of the part's rows for each edge type."""
        return [self._csr(i) for i in range(len(self.meta.edge_types))]

    def _csr(self, index: int) -> _native.Csr:
        edge_type = self.meta.edge_types[index]
        rows = self.meta.node_types[self.relations[index][1]]
        row_ids = self.node_ids(rows.name) if self.meta.renumbered else None
        return _native.Csr(
            self._edge_array(edge_type.name, "indptr"),
            self._edge_array(edge_type.name, "indices"),
            row_ids,
            first_row=rows.bounds[self.part],
            first_edge=edge_type.bounds[self.part],
            times=self._edge_array(edge_type.name, "time") if edge_type.timed else None,
            weight_sums=(
                self._edge_array(edge_type.name, "weight_sum") if edge_type.weighted else None
            ),
            weight_guide=(
                self._edge_array(edge_type.name, "weight_guide") if edge_type.weighted else None
            ),
            neighbor_ids=(
                self._edge_array(edge_type.name, "neighbor_id") if edge_type.neighbor_ids else None
            ),
        )

    def indptr(self, index: int) -> IntArray:
        """Return the row pointers of an edge type, [num_rows + 1]."""
        if index not in self._indptrs:
            name = self.meta.edge_types[index].name
            self._indptrs[index] = self._edge_array(name, "indptr")
        return self._indptrs[index]

    def rows(self, index: int) -> tuple[IntArray, IntArray]:
        """Return row pointers and new ids of neighbours of an edge type."""
        name = self.meta.edge_types[index].name
        return self._edge_array(name, "indptr"), self._edge_array(name, "indices")

    def edge_ends(self, index: int, places: Int64Array | None = None) -> Int64Array:
        """Return sources and destinations of the part's edges of a type.

        Edges are numbered in the order of their rows' original ids, however rows lie.

        Args:
            index: the edge type.
            places: [n] numbers of the edges in the part. If None, all edges.

        Returns:
            [2, n] int64 original ids.
        """
        edge_type = self.meta.edge_types[index]
        indptr, neighbors = self.rows(index)
        row_type = self.meta.row_type(edge_type)
        if places is None:
            places = np.arange(len(neighbors))
        rows = np.searchsorted(indptr, places, side="right") - 1
        if self.meta.order != ORDERS[0]:
            by_id, bounds = self._by_original_id(index)
            number = np.searchsorted(bounds, places, side="right") - 1
            rows = by_id[number]
            places = indptr[rows] + (places - bounds[number])
        far = self.folder.original_ids(self.meta.neighbor_type(edge_type).name)[neighbors[places]]
        near = self.folder.original_ids(row_type.name)[rows + row_type.bounds[self.part]]
        ends = (far, near) if self.meta.edge_dir == "in" else (near, far)
        return np.stack(ends).astype(np.int64)

    def _by_original_id(self, index: int) -> tuple[Int64Array, Int64Array]:
        """Return the part's rows in the order of their original ids, and bounds of their edges."""
        if index not in self._row_orders:
            ids = self.node_ids(self.meta.row_type(self.meta.edge_types[index]).name)
            by_id = np.argsort(ids).astype(np.int64)
            bounds = np.concatenate([[0], np.cumsum(np.diff(self.indptr(index))[by_id])])
            self._row_orders[index] = by_id, bounds.astype(np.int64)
        return self._row_orders[index]

    def _edge_array(self, edge_type: EdgeType, name: str) -> Array:
        return edge_array(self.folder, self.part, edge_type, name)

    def node_times(self, index: int) -> Int64Array | None:
        """Return [num_nodes] time keys of a type's nodes in all parts, by new id, or None."""
        return self.folder.node_times(self.meta.node_types[index].name)

    def node_ids(self, node_type: NodeType) -> IntArray:
        """Return [n] original ids of the part's nodes."""
        return self.folder.node_ids(self.part, node_type)

    def node_feature(self, index: int, name: str) -> Feature:
        """Return a node attribute by its name; 'id' holds original ids."""
        key = (index, name)
        if key not in self._node_features:
            node_type = self.meta.node_types[index]
            self._node_features[key] = (
                Feature(self.node_ids(node_type.name))
                if name == "id"
                else self.folder.node_feature(self.part, node_type.name, name)
            )
        return self._node_features[key]

    def edge_feature(self, index: int, name: str) -> Feature:
        """Return an edge attribute by its name; 'edge_id' holds original ids, or positions."""
        key = (index, name)
        if key not in self._edge_features:
            edge_type = self.meta.edge_types[index]
            if name == "edge_id" and not edge_type.edge_ids:
                first, end = edge_type.bounds[self.part : self.part + 2]
                self._edge_features[key] = ConsecutiveIds(first, end - first)
            elif name == "edge_id":
                self._edge_features[key] = Feature(self._edge_array(edge_type.name, name))
            else:
                path = edge_attr_path(self.part, edge_type.name, name)
                size = edge_type.bounds[self.part + 1] - edge_type.bounds[self.part]
                self._edge_features[key] = self.folder.open_attr(path, edge_type.attrs[name], size)
        return self._edge_features[key]

    def feature(self, kind: str, index: int, name: str) -> Feature:
        """Return an attribute of a node ('node') or edge type ('edge') by its name."""
        feature_of = self.node_feature if kind == "node" else self.edge_feature
        return feature_of(index, name)

    def cached(self, index: int) -> CachedRows | None:
        """Return the copies of other parts' hot rows of a node type, or None if there are none."""
        if index not in self._cached:
            self._cached[index] = self._open_cache(index)
        return self._cached[index]

    def _open_cache(self, index: int) -> CachedRows | None:
        node_type = self.meta.node_types[index]
        if not node_type.cached or node_type.cached[self.part] == 0:
            return None
        count = node_type.cached[self.part]
        ids, new_ids = (
            self.folder.open_as(cache_path(self.part, node_type.name, name), (count,), *INTS)
            for name in ("id", "new_id")
        )
        features = {
            name: self.folder.open_attr(
                cache_attr_path(self.part, node_type.name, name), attr, count
            )
            for name, attr in node_type.attrs.items()
        }
        features["id"] = Feature(ids)
        return CachedRows(_native.IdIndex(np.asarray(new_ids, np.int64)), features)
