"""PyG's feature store and graph store over a `DistDataset`. Runs in trainers and PyG's workers.

Ids are original ids. Attributes are requested for a node type or an edge type, PyG's "group". In a
homogeneous graph it is None for nodes, and for edges (None, None), as in PyG's `LocalFeatureStore`,
or any other tuple. Rows come from the partition that the trainer has loaded, its copies of others'
rows, or other partitions' servers. `multi_get_tensor` sends all its requests together. Whole arrays
(`index=None`, `get_edge_index`) are assembled from all partitions. `edge_lookup` describes how
PyG's loaders get edge attributes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import EdgeAttr, FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeLayout

from khop import _native
from khop.data.arrays import check_range, to_array, to_ids
from khop.distributed.partitions.reader import Table
from khop.distributed.stores.edge_lookup import (
    EdgeTensorAttr,
    SampledEdges,
    edges_of_nodes,
    stored_edges,
)
from khop.loader.batches.collate import to_tensor
from khop.storage.folder import FolderMeta
from khop.typing import NODE, Array, EdgeType, Int64Array

EDGES = (None, None)
"""Group of a homogeneous graph's edge attributes."""


class _AttrQuery(NamedTuple):
    """Attribute that PyG requests from the feature store, for a type of nodes or edges.

    Attributes:
        index: requested rows, as passed by the user. If None, all.
        is_label: True if it comes from the dataset's `node_labels`.
    """

    element: Literal["node", "edge"]
    type_index: int
    name: str
    index: Any
    is_label: bool = False


class PartitionStores(FeatureStore, GraphStore):  # type: ignore[misc]
    """Base of `DistDataset` that implements PyG's feature store and graph store."""

    def __init__(self) -> None:
        FeatureStore.__init__(self)
        GraphStore.__init__(self)

    __hash__ = object.__hash__  # stores are compared by identity

    # Feature store -----------------------------------------------------------------------------

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return descriptions of the attributes of all node types, then edge types, for PyG."""
        meta: FolderMeta = self.meta
        listed = []
        for node_type in meta.node_types:
            group = node_type.name if meta.heterogeneous else None
            extra = {"y": None} if node_type.name in self.node_labels else {}
            listed += [TensorAttr(group, name) for name in {**node_type.attrs, **extra}]
        for edge_type in meta.edge_types:
            if meta.heterogeneous:
                listed += [TensorAttr(edge_type.name, name) for name in edge_type.attrs]
            else:
                listed += [EdgeTensorAttr(EDGES, name) for name in edge_type.attrs]
        return listed

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        try:
            query = self._query_of(attr)
        except KeyError:
            return None
        if query.is_label:
            return tuple(self.node_labels[self.meta.node_types[query.type_index].name].shape)
        meta = self.meta.types(query.element)[query.type_index]
        return meta.count, *meta.attrs[query.name].shape

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        return self._multi_get_tensor([attr])[0]

    def _multi_get_tensor(self, attrs: Sequence[TensorAttr]) -> list[Tensor | None]:
        query = [self._query_of(attr) for attr in attrs]
        # PyG's loaders pass the same index for all attributes of a type: it is looked up once.
        groups: dict[tuple[str, int, int], list[str]] = {}
        for a in query:
            if not (a.index is None or a.is_label or a.index is LEFT_OUT):
                names = groups.setdefault((a.element, a.type_index, id(a.index)), [])
                names += [] if a.name in names else [a.name]
        indices = {id(a.index): a.index for a in query}
        tables = [
            (Table(element, i, names), self._stored_rows(element, i, indices[index]))
            for (element, i, index), names in groups.items()
        ]
        read = self.reader.rows(tables, self.peers) if tables else []
        rows = dict(zip(groups, read, strict=True))
        return [self._value(a, rows.get((a.element, a.type_index, id(a.index)))) for a in query]

    def _value(self, query: _AttrQuery, rows: dict[str, Array] | None) -> Tensor | None:
        if query.index is LEFT_OUT:
            return None
        element, type_index, name, index, is_label = query
        meta = self.meta.types(element)[type_index]
        value: Tensor
        if is_label:
            value = self.node_labels[meta.name]
            if index is not None:
                value = value[torch.from_numpy(selected_ids(index, meta.count))]
        else:
            if rows is None:
                array = self.reader.attribute(element, type_index, name, self.peers)
            else:
                array = rows[name]
            value = to_tensor(array, meta.attrs[name].dtype)
        return value[0] if isinstance(index, (int, np.integer)) else value

    def _query_of(self, attr: TensorAttr) -> _AttrQuery:
        """Find the attribute that PyG requests.

        Raises:
            KeyError: there is none. The message lists all attributes.
        """
        meta: FolderMeta = self.meta
        group = attr.group_name if attr.is_set("group_name") else None
        index = attr.index if attr.is_set("index") else None
        if isinstance(group, (tuple, list)):
            type_index = self._edge_type_index(tuple(group))
            if type_index is not None and attr.attr_name in meta.edge_types[type_index].attrs:
                return _AttrQuery("edge", type_index, attr.attr_name, edge_ids_of(attr, index))
        else:
            name = NODE if group is None and not meta.heterogeneous else group
            type_index = _find([t.name for t in meta.node_types], name)
            attrs = {} if type_index is None else meta.node_types[type_index].attrs
            is_label = name in self.node_labels and attr.attr_name == "y"
            if type_index is not None and (attr.attr_name in attrs or is_label):
                return _AttrQuery("node", type_index, attr.attr_name, index, is_label)
        raise KeyError(
            f"no attribute '{attr.attr_name}' of group {group!r}: there are "
            f"{[(a.group_name, a.attr_name) for a in self.get_all_tensor_attrs()]}"
        )

    def _stored_rows(self, element: str, type_index: int, index: Any) -> Int64Array:
        """Return the new ids of nodes, or the positions of edges in the folder: [n] int64.

        `element` is 'node' or 'edge'. `index` has original ids, a slice or a mask. If None, all.
        """
        if element == "edge":
            known = stored_edges(index)
            if known is not None and known[:2] == (self.opened.fingerprint, type_index):
                return known.positions
            ids = selected_ids(index, self.meta.edge_types[type_index].count)
            positions: Int64Array = self.reader.positions(type_index, ids, self.peers)
            return positions
        node_type = self.meta.node_types[type_index]
        id_map: Array = self.opened.id_map(node_type.name)
        return id_map[selected_ids(index, node_type.count)].astype(np.int64)

    def _put_tensor(self, *_: object) -> NoReturn:
        raise RuntimeError(
            "a DistDataset is read-only: partition the graph again with what shall be changed"
        )

    _remove_tensor = _put_edge_index = _remove_edge_index = _put_tensor

    # Graph store -------------------------------------------------------------------------------

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Return descriptions of the edge list of each edge type, for PyG. Entry i is edge id i."""
        meta: FolderMeta = self.meta
        counts = {t.name: t.count for t in meta.node_types}
        return [
            EdgeAttr(
                t.name if meta.heterogeneous else None,
                EdgeLayout.COO,
                size=(counts[t.name[0]], counts[t.name[2]]),
            )
            for t in meta.edge_types
        ]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        """Return sources and destinations of all edges, by edge id. None for layouts but COO."""
        index = self._edge_type_index(edge_attr.edge_type)
        if index is None or edge_attr.layout != EdgeLayout.COO:
            return None
        src, dst = self.reader.edge_list(index, self.peers)
        return torch.from_numpy(src), torch.from_numpy(dst)

    def _edge_type_index(self, edge_type: EdgeType | None) -> int | None:
        if not self.meta.heterogeneous:
            return 0 if self.meta.edge_types else None
        return _find([t.name for t in self.meta.edge_types], edge_type)

    def _edges_to_layout(
        self, layout: EdgeLayout, edge_types: Sequence[EdgeType] | None = None, store: bool = False
    ) -> Any:
        """Return rows, columns and edge ids in a layout, as PyG's `coo`, `csr` and `csc` do."""
        if store:
            self._put_tensor()
        attrs = {attr.edge_type: attr for attr in self.get_all_edge_attrs()}
        for edge_type in edge_types or ():
            if edge_type not in attrs:
                raise ValueError(f"no edge type {edge_type}: there are {list(attrs)}")
        chosen = attrs if edge_types is None else {t: attrs[t] for t in edge_types}
        made = {t: self._in_layout(attr, layout) for t, attr in chosen.items()}
        if not self.meta.heterogeneous:
            return made[None]
        return tuple({t: arrays[i] for t, arrays in made.items()} for i in range(3))

    def _in_layout(
        self, attr: EdgeAttr, layout: EdgeLayout
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        row, col = self.get_edge_index(attr)
        if layout == EdgeLayout.COO:
            return row, col, None
        by_column = layout == EdgeLayout.CSC
        keys, others = (col, row) if by_column else (row, col)
        sizes = attr.size[::-1] if by_column else attr.size
        indptr, indices, ids = (
            torch.from_numpy(array.astype(np.int64))
            for array in _native.coo_to_csr(keys.numpy(), others.numpy(), *sizes)
        )
        return (indices, indptr, ids) if by_column else (indptr, indices, ids)


def _find(names: Sequence[Any], name: Any) -> int | None:
    return names.index(name) if name in names else None


def edge_ids_of(attr: TensorAttr, index: Any) -> Any:
    """Return the index by edge id of an attribute of edges, for which PyG may have nodes.

    `LEFT_OUT` if the nodes are of no sampler of khop.
    """
    if isinstance(attr, EdgeTensorAttr) and index is not None:
        edge = edges_of_nodes(index)
        return _left_out(attr) if edge is None else edge
    return index.edge if isinstance(index, SampledEdges) else index


def selected_ids(index: Any, count: int) -> Int64Array:
    """Return the ids, [n] int64, that an index selects from `count` rows.

    Raises:
        IndexError: an id does not exist.
        TypeError, ValueError: `index` is not a valid index.
    """
    if isinstance(index, slice):
        return np.arange(*index.indices(count), dtype=np.int64)
    index = [int(index)] if isinstance(index, (int, np.integer)) else index
    values, dtype = to_array(index, "index")
    if dtype == "bool":
        if values.shape != (count,):
            raise ValueError(f"index is a mask of shape {values.shape} for {count} rows")
        return np.flatnonzero(values)
    ids = to_ids(index, "index").astype(np.int64)
    check_range(ids, count, "index")
    return ids


LEFT_OUT = object()
"""Placeholder for the index of an attribute that is left out of a batch."""


def _left_out(attr: TensorAttr) -> object:
    warnings.warn(
        f"edge attribute '{attr.attr_name}' is left out: PyG's loaders ask for it by node id. Draw "
        "with khop.distributed.PartitionSampler, or get it by edge id: "
        f"dataset.get_tensor({EDGES}, '{attr.attr_name}', index=batch.e_id)",
        stacklevel=2,
    )
    return LEFT_OUT
