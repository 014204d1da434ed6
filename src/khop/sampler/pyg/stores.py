"""PyG's (FeatureStore, GraphStore) pairs as a graph with attributes.

A store lists its edge lists by edge type (None in a homogeneous graph) and layout. It lists its
attributes by group: a node type, an edge type, or None in a homogeneous graph. PyG does not define
edge attributes in stores. They are recognised by their group, a tuple. In the group None, PyG's
rule for `Data` decides: edge attributes have one row per edge, and 'edge' in their name if nodes
and edges are equal in number.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

from torch_geometric.data import Data, EdgeAttr, FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeLayout

from khop.data.arrays import check_count
from khop.data.info import GraphInfo
from khop.sampler.pyg.edges import EdgeArrays
from khop.typing import EDGE, NODE, ArrayLike, EdgeType, GraphLayout, NodeType

_LAYOUTS: dict[Any, GraphLayout] = {
    EdgeLayout.COO: "COO",
    EdgeLayout.CSC: "CSC",
    EdgeLayout.CSR: "CSR",
}
# PyG's choice if a type's edges are stored in several layouts: it samples from CSC.
_PREFERENCE: tuple[GraphLayout, ...] = ("CSC", "COO", "CSR")


class StoreInput:
    """Graph of a pair of PyG's stores, with the interface of `PygInput`.

    Args:
        features: holds the attributes.
        edges: holds the edges. Edge i is the i-th entry of the layout that is stored. If an edge
            type has several layouts, CSC is preferred, then COO, then CSR. In a homogeneous graph
            the first layout in the list counts, as in PyG.
    """

    def __init__(self, features: FeatureStore, edges: GraphStore) -> None:
        self.features = features
        self._graph_store = edges
        self._edge_level: dict[str, bool] = {}

    @cached_property
    def _edge_attrs(self) -> dict[EdgeType, EdgeAttr]:
        """For each edge type, the edge list to read: PyG's `EdgeAttr` in the graph store."""
        listed = [copy.copy(attr) for attr in self._graph_store.get_all_edge_attrs()]
        if not listed:
            raise ValueError(f"the graph store '{self._graph_store}' lists no edges")
        if all(attr.edge_type is None for attr in listed):
            return {EDGE: listed[0]}
        if any(attr.edge_type is None for attr in listed):
            raise ValueError("the graph store lists edges both with and without an edge type")
        by_type: dict[EdgeType, list[EdgeAttr]] = {}
        for attr in listed:
            by_type.setdefault(tuple(attr.edge_type), []).append(attr)
        return {
            t: min(attrs, key=lambda attr: _PREFERENCE.index(_LAYOUTS[attr.layout]))
            for t, attrs in by_type.items()
        }

    @property
    def heterogeneous(self) -> bool:
        attrs = self._edge_attrs
        return list(attrs) != [EDGE] or attrs[EDGE].edge_type is not None

    @property
    def info(self) -> GraphInfo:
        return GraphInfo(self.num_nodes, list(self._edge_attrs), self.heterogeneous)

    @cached_property
    def edges(self) -> dict[EdgeType, EdgeArrays]:
        """Edges of each edge type, fetched from the store."""
        made = {}
        for edge_type, attr in self._edge_attrs.items():
            src, dst = self._graph_store.get_edge_index(attr)
            made[edge_type] = EdgeArrays(_LAYOUTS[attr.layout], src, dst)
        return made

    @cached_property
    def num_nodes(self) -> dict[NodeType, int]:
        """Number of nodes of each node type: from the edges, else from rows of attributes."""
        if not self.heterogeneous:
            return {NODE: self._count(NODE)}
        groups = [_group(attr) for attr in self.features.get_all_tensor_attrs()]
        named = [group for group in groups if isinstance(group, str)]
        ends = [end for t in self._edge_attrs for end in (t[0], t[2])]
        return {t: self._count(t) for t in dict.fromkeys([*named, *ends])}

    def _count(self, node_type: NodeType) -> int:
        sizes = self._sizes(node_type)
        if not sizes:  # PyG's `Data` sets sizes when edges are fetched; row pointers give them, too
            for edge_type, edges in self.edges.items():
                if edges.layout == "CSC" and edge_type[2] == node_type:
                    sizes.append(len(edges.dst) - 1)
                if edges.layout == "CSR" and edge_type[0] == node_type:
                    sizes.append(len(edges.src) - 1)
            sizes += self._sizes(node_type)
        sizes = sizes or self._rows(node_type)
        if not sizes:
            raise ValueError(
                f"the number of nodes of type '{node_type}' is not known: set the 'size' of the "
                "EdgeAttr of their edges"
            )
        return max(sizes)

    def _sizes(self, node_type: NodeType) -> list[int]:
        """Return the numbers of nodes of a type that the `size` of edge lists state."""
        return [
            check_count(attr.size[side], f"the size of edge type {t}")
            for t, attr in self._edge_attrs.items()
            for side, end in ((0, t[0]), (1, t[2]))
            if end == node_type and attr.size is not None and attr.size[side] is not None
        ]

    def _rows(self, node_type: NodeType) -> list[int]:
        """Return the number of rows of each attribute of a node type, if it is known."""
        listed = self.features.get_all_tensor_attrs()
        if self.heterogeneous:
            named = [attr for attr in listed if _group(attr) == node_type]
            return [size for size in map(self._size, named) if size is not None]
        named = [attr for attr in listed if "edge" not in str(attr.attr_name)]
        sizes = [self._size(attr) for attr in named if not isinstance(_group(attr), (tuple, list))]
        num_edges = self.edges[EDGE].num_edges  # attributes with as many rows may be the edges'
        known = [size for size in sizes if size is not None]
        return [size for size in known if size != num_edges] or known

    def _size(self, attr: TensorAttr) -> int | None:
        """Return the number of rows of an attribute, or None if the store does not report it."""
        whole = with_index(attr, None)
        if isinstance(self.features, Data):  # it calls methods of tensors on NumPy arrays
            return len(self.features[attr.attr_name])
        size = self.features.get_tensor_size(whole)
        return int(size[0]) if size is not None and len(size) > 0 else None

    def owner(self, attr: TensorAttr) -> NodeType | EdgeType | None:
        """Return the node or edge type that an attribute of the feature store belongs to.

        None if it belongs to no type of the graph.
        """
        group = _group(attr)
        if self.heterogeneous:
            group = tuple(group) if isinstance(group, list) else group
            known = group in self.num_nodes or group in self._edge_attrs
            return group if known else None
        if isinstance(group, (tuple, list)):
            return EDGE
        name = str(attr.attr_name)
        if name not in self._edge_level:
            self._edge_level[name] = self._is_edge_level(attr)
        return EDGE if self._edge_level[name] else NODE

    def _is_edge_level(self, attr: TensorAttr) -> bool:
        if isinstance(self.features, Data):  # lists attributes of nodes only
            return False
        named = "edge" in str(attr.attr_name)
        size, count = self._size(attr), self.num_nodes[NODE]
        if size is None:
            return named
        if size == count and not named:
            return False
        return size == self.edges[EDGE].num_edges

    def node_attribute(self, name: str) -> dict[NodeType, ArrayLike]:
        return {t: value for t, value in self._whole(name).items() if isinstance(t, str)}

    def edge_attribute(self, name: str) -> dict[EdgeType, ArrayLike]:
        return {t: value for t, value in self._whole(name).items() if isinstance(t, tuple)}

    def _whole(self, name: str) -> dict[NodeType | EdgeType, ArrayLike]:
        listed = [a for a in self.features.get_all_tensor_attrs() if a.attr_name == name]
        queries = {self.owner(attr): with_index(attr, None) for attr in listed}
        values = self.features.multi_get_tensor(list(queries.values()))
        return {t: v for t, v in zip(queries, values, strict=True) if t is not None}


def _group(attr: TensorAttr) -> Any:
    """Return an attribute's group: node type, edge type, or None if it is unset, as in a `Data`."""
    return attr.group_name if attr.is_set("group_name") else None


def with_index(attr: TensorAttr, index: Any) -> TensorAttr:
    """Return a copy of an attribute's description that requests these rows (None: all)."""
    asked = copy.copy(attr)
    asked.group_name = _group(attr)
    asked.index = index
    return asked
