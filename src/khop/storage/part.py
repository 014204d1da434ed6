"""Reader of one part of a partition folder: a graph with the rows that the part owns.

Used by samplers, partition servers, graph servers and trainers.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from khop import _native
from khop.data import ConsecutiveIds, Feature, RowStore
from khop.data.direct_reads import DiskCounts
from khop.data.direct_rows import DirectRows
from khop.data.files import advise_reads
from khop.data.joined import TakenFeature
from khop.storage.folder import (
    INTS,
    ORDERS,
    AttrMeta,
    PartitionFolder,
    cache_attr_path,
    cache_path,
    edge_array,
    edge_attr_path,
    edge_path,
    node_attr_path,
)
from khop.storage.named_stores import StoreKey
from khop.typing import Array, EdgeType, Int64Array, IntArray, NodeType

# Arrays with an entry per edge by the names of `_native.Csr`.
_COLUMNS = {
    "indices": "indices",
    "time": "times",
    "weight_sum": "weight_sums",
    "weight_guide": "weight_guide",
    "neighbor_id": "neighbor_ids",
}


class HotCopies(NamedTuple):
    """Copies of frequently read rows of other parts that a part keeps, for one node type.

    `positions` finds the copy of a new id. `features` has the copied rows by attribute.
    """

    positions: _native.IdIndex
    features: dict[str, RowStore]


class Part:
    """Arrays of one part, mapped when first used. Samplers and servers open it.

    Methods take types as indices in the lists of `folder.meta`.

    Args:
        folder: the partition folder.
        part: index of the part.
        others: further parts whose files are read here, and not asked of their servers.

    Attributes:
        others: {index: part} of these.
        caches_edge_ids: whether ids of edges have a share of the memory for reads of the disk. It
            is set before anything is read.
    """

    def __init__(self, folder: PartitionFolder, part: int, others: Iterable[int] = ()) -> None:
        self.folder = folder
        self.meta = folder.meta
        self.part = folder.check_part(part)
        self.others = {other: Part(folder, other) for other in others if other != part}
        self.caches_edge_ids = False
        self._num_local = 1 + len(self.others)  # parts that share the memory for reads of the disk
        for opened in self.others.values():
            opened._num_local = self._num_local
        self._features: dict[tuple[str, int, str], RowStore] = {}
        self._on_disk: list[DirectRows] = []
        self._columns: dict[tuple[int, str], DirectRows] = {}
        self._cached: dict[int, HotCopies | None] = {}
        self._indptrs: dict[int, IntArray] = {}
        self._row_orders: dict[int, tuple[Int64Array, Int64Array]] = {}

    @cached_property
    def relations(self) -> list[tuple[int, int]]:
        """For each edge type, the indices of its neighbours' node type and its rows' node type.

        A row is a node whose neighbours are drawn.
        """
        index = {t.name: i for i, t in enumerate(self.meta.node_types)}
        ends = [(index[t.name[0]], index[t.name[2]]) for t in self.meta.edge_types]
        return ends if self.meta.edge_dir == "in" else [(dst, src) for src, dst in ends]

    @cached_property
    def csrs(self) -> list[_native.Csr]:
        """For each edge type, the neighbour lists (CSR) of the part's nodes, in new ids."""
        return [self._csr(i) for i in range(len(self.meta.edge_types))]

    def _csr(self, index: int) -> _native.Csr:
        edge_type = self.meta.edge_types[index]
        rows = self.meta.node_types[self.relations[index][1]]

        def array(name: str, exists: bool) -> Array | None:
            return self._edge_array(edge_type.name, name) if exists else None

        return _native.Csr(
            *self.rows(index),
            self.node_ids(rows.name) if self.meta.renumbered else None,
            first_row=rows.bounds[self.part],
            first_edge=edge_type.bounds[self.part],
            times=array("time", edge_type.timed),
            weight_sums=array("weight_sum", edge_type.weighted),
            weight_guide=array("weight_guide", edge_type.weighted),
            neighbor_ids=array("neighbor_id", edge_type.neighbor_ids),
        )

    def indptr(self, index: int) -> IntArray:
        """Return the row pointers of the edge type with this index, [num_rows + 1]."""
        if index not in self._indptrs:
            name = self.meta.edge_types[index].name
            self._indptrs[index] = self._edge_array(name, "indptr")
        return self._indptrs[index]

    def rows(self, index: int) -> tuple[IntArray, IntArray]:
        """Return an edge type's row pointers [num_rows + 1] and neighbours' new ids [num_edges]."""
        name = self.meta.edge_types[index].name
        return self._edge_array(name, "indptr"), self._edge_array(name, "indices")

    def columns(self, index: int) -> dict[str, RowStore] | None:
        """Return the arrays with an entry per edge of a type that are read past the page cache.

        Returns:
            {name: store}: 'indices', and 'times', 'weight_sums', 'weight_guide', 'neighbor_ids'
            where the type has them, which are names of `_native.Csr`. None if all are mapped.
        """
        edge_type = self.meta.edge_types[index]
        first, end = edge_type.bounds[self.part : self.part + 2]
        if self.folder.disk is None or not self.folder.disk.structure or first == end:
            return None
        stored = {_COLUMNS[name]: name for name in edge_type.columns if name in _COLUMNS}
        return {name: self._column(index, array) for name, array in stored.items()}

    def _column(self, index: int, name: str) -> DirectRows:
        key = index, name
        if key not in self._columns:
            edge_type = self.meta.edge_types[index].name
            path = edge_path(self.part, edge_type, name)
            array = self._edge_array(edge_type, name)
            is_cached = name in self._cached_columns
            self._columns[key] = self._direct(path, array, array.dtype.name, is_cached)
        return self._columns[key]

    def edge_ends(self, index: int, edges: Int64Array | None = None) -> Int64Array:
        """Return the sources and destinations, in original ids, of the part's edges of a type.

        Edges are numbered by the original ids of their rows, whatever order the rows are in.

        Args:
            index: index of the edge type.
            edges: [n] numbers of the edges in the part. If None, all edges.

        Returns:
            [2, n] int64 original ids.
        """
        edge_type = self.meta.edge_types[index]
        indptr, neighbors = self.rows(index)
        row_type = self.meta.row_type(edge_type)
        if edges is None:
            edges = np.arange(len(neighbors))
        rows = np.searchsorted(indptr, edges, side="right") - 1
        positions = edges
        if self.meta.order != ORDERS[0]:
            by_id, bounds = self._by_original_id(index)
            rank = np.searchsorted(bounds, edges, side="right") - 1
            rows = by_id[rank]
            positions = indptr[rows] + (edges - bounds[rank])
        neighbor_type = self.meta.neighbor_type(edge_type)
        far = self.folder.original_ids(neighbor_type.name)[neighbors[positions]]
        near = self.folder.original_ids(row_type.name)[rows + row_type.bounds[self.part]]
        ends = (far, near) if self.meta.edge_dir == "in" else (near, far)
        return np.stack(ends).astype(np.int64)

    def _by_original_id(self, index: int) -> tuple[Int64Array, Int64Array]:
        """Return the part's rows of the edge type `index` in the order of original ids.

        Returns:
            [num_rows] int64 rows, and [num_rows + 1] int64 bounds of their edges in this order.
        """
        if index not in self._row_orders:
            ids = self.node_ids(self.meta.row_type(self.meta.edge_types[index]).name)
            by_id = np.argsort(ids).astype(np.int64)
            bounds = np.concatenate([[0], np.cumsum(np.diff(self.indptr(index))[by_id])])
            self._row_orders[index] = by_id, bounds.astype(np.int64)
        return self._row_orders[index]

    def _edge_array(self, edge_type: EdgeType, name: str) -> Array:
        array = edge_array(self.folder, self.part, edge_type, name)
        advise_reads(array, self._bytes_of_files)
        return array

    def node_times(self, index: int) -> Int64Array | None:
        """Return [num_nodes] int64 time keys, by new id, of nodes of type `index`, or None."""
        return self.folder.node_times(self.meta.node_types[index].name)

    def node_ids(self, node_type: NodeType) -> IntArray:
        """Return the original ids of the part's nodes of a type: [n] integers."""
        return self.folder.node_ids(self.part, node_type)

    def node_feature(self, index: int, name: str) -> RowStore:
        """Return the rows of a node attribute of type `index`. 'id' has original ids."""
        return self.feature("node", index, name)

    def edge_feature(self, index: int, name: str) -> RowStore:
        """Return the rows of an edge attribute of type `index`. 'edge_id' has original ids."""
        return self.feature("edge", index, name)

    def feature(self, level: str, index: int, name: str) -> RowStore:
        """Return attribute `name`.

        `level` is 'node' or 'edge', and `index` the index of the type.
        """
        key = (level, index, name)
        if key not in self._features:
            opened = self._open_node_feature if level == "node" else self._open_edge_feature
            self._features[key] = store = opened(index, name)
            if isinstance(store, Feature):
                advise_reads(store.array, self._bytes_of_files)
        return self._features[key]

    def _open_node_feature(self, index: int, name: str) -> RowStore:
        node_type = self.meta.node_types[index].name
        store = self.folder.stores.get(StoreKey("node", node_type, name))
        if store is not None:
            return TakenFeature(store, self.node_ids(node_type))
        if name == "id":
            return Feature(self.node_ids(node_type))
        described = self.meta.node_types[index]
        path = node_attr_path(self.part, node_type, name)
        return self._open_attr(path, name, described.attrs[name], described.book.size(self.part))

    def _open_edge_feature(self, index: int, name: str) -> RowStore:
        edge_type = self.meta.edge_types[index]
        first, end = edge_type.bounds[self.part : self.part + 2]
        store = self.folder.stores.get(StoreKey("edge", edge_type.name, name))
        if store is not None:
            return TakenFeature(store, self.edge_feature(index, "edge_id").array)
        if name == "edge_id":
            if not edge_type.edge_ids:
                return ConsecutiveIds(first, end - first)
            if self.folder.disk is not None and self.folder.disk.structure and first < end:
                return self._column(index, name)
            return Feature(self._edge_array(edge_type.name, name))
        path = edge_attr_path(self.part, edge_type.name, name)
        return self._open_attr(path, name, edge_type.attrs[name], end - first)

    def _open_attr(self, path: str, name: str, attr: AttrMeta, num_rows: int) -> RowStore:
        mapped = self.folder.open_attr(path, attr, num_rows)
        disk = self.folder.disk
        if disk is None or name not in disk.names or num_rows == 0:
            return mapped
        opened = self._direct(path, mapped.as_stored.array, attr.stored.dtype)
        self._on_disk.append(opened)
        return attr.delivering(opened)

    def _direct(self, path: str, array: Array, dtype: str, is_cached: bool = True) -> DirectRows:
        """Open a file of the part, mapped as `array`, to be read past the page cache."""
        disk = self.folder.disk
        assert disk is not None
        share = is_cached * array.nbytes / max(self._bytes_on_disk, 1) / self._num_local
        return DirectRows(
            array,
            self.folder.open_file(path),
            str(self.folder.root / path),
            disk._replace(cache_memory=int(share * disk.cache_memory)),
            dtype,
        )

    @cached_property
    def _bytes_of_files(self) -> int:
        """Bytes of the files of all parts that are read here, if each is as large as this one."""
        prefix = f"part-{self.part}/"
        sizes = (f.bytes for path, f in self.folder.files.items() if path.startswith(prefix))
        return self._num_local * sum(sizes)

    @cached_property
    def _cached_columns(self) -> set[str]:
        return {*_COLUMNS, "edge_id"} if self.caches_edge_ids else {*_COLUMNS}

    @cached_property
    def _bytes_on_disk(self) -> int:
        """Bytes of the part's files that are read past the page cache."""
        disk, stores = self.folder.disk, self.folder.stores
        assert disk is not None
        nbytes = sum(
            attr.row_bytes * (described.bounds[self.part + 1] - described.bounds[self.part])
            for level in ("node", "edge")
            for described in self.meta.types(level)
            for name, attr in described.attrs.items()
            if name in disk.names and StoreKey(level, described.name, name) not in stores
        )
        for edge_type in self.meta.edge_types if disk.structure else ():
            for name in self._cached_columns & set(edge_type.columns):
                nbytes += edge_array(self.folder, self.part, edge_type.name, name).nbytes
        return nbytes

    def disk_counts(self) -> DiskCounts:
        """Return the counts of reads past the page cache so far, also in files of `others`."""
        counts = [opened.disk_counts() for opened in self.others.values()]
        counts += [store.counts() for store in self._on_disk]
        counts += [store.counts().of_structure() for store in self._columns.values()]
        return DiskCounts(*map(sum, zip(DiskCounts(), *counts, strict=True)))

    def cached(self, index: int) -> HotCopies | None:
        """Return this part's copies of other parts' rows of the node type `index`, or None."""
        if index not in self._cached:
            self._cached[index] = self._open_cache(index)
        return self._cached[index]

    def _open_cache(self, index: int) -> HotCopies | None:
        node_type = self.meta.node_types[index]
        if not node_type.cached or node_type.cached[self.part] == 0:
            return None
        count = node_type.cached[self.part]
        ids, new_ids = (
            self.folder.open_as(cache_path(self.part, node_type.name, name), (count,), *INTS)
            for name in ("id", "new_id")
        )
        features: dict[str, RowStore] = {
            name: self.folder.open_attr(
                cache_attr_path(self.part, node_type.name, name), attr, count
            )
            for name, attr in node_type.attrs.items()
            if StoreKey("node", node_type.name, name) not in self.folder.stores
        }
        features["id"] = Feature(ids)
        return HotCopies(_native.IdIndex(np.asarray(new_ids, np.int64)), features)
