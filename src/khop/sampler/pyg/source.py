"""Graphs from users' data: a PyG `Data` or `HeteroData`, or a pair of PyG's stores.

`open_input` wraps either, and both wrappers have the same interface. Edges keep the order of the
user's data, and so do rows of edge attributes. The types of a homogeneous graph are
`khop.typing.NODE` and `khop.typing.EDGE`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData

from khop.data import Graph
from khop.data.arrays import check_count
from khop.data.info import GraphInfo
from khop.data.times import is_floating, time_keys
from khop.data.weights import weight_values
from khop.sampler.pyg.edges import EdgeArrays, edges_of_adjacency, same_edges
from khop.sampler.pyg.stores import StoreInput
from khop.typing import EDGE, NODE, Array, ArrayLike, EdgeDir, EdgeType, Int64Array, NodeType


def as_input(data: object) -> Data | HeteroData | tuple[FeatureStore, GraphStore]:
    """Return the user's data in the form that PyG's loaders know.

    Returns:
        A `Data` or `HeteroData`, also if it was passed twice, as a pair of stores. For other
        stores, a (feature store, graph store) tuple.

    Raises:
        TypeError: data of another type.
        ValueError: two graphs.
    """
    if isinstance(data, (Data, HeteroData)):
        return data
    if isinstance(data, FeatureStore) and isinstance(data, GraphStore):
        return data, data
    if isinstance(data, (tuple, list)) and len(data) == 2:
        features, edges = data
        if features is edges and isinstance(features, (Data, HeteroData)):
            return features
        if all(isinstance(part, (Data, HeteroData)) for part in (features, edges)):
            raise ValueError(
                f"got two graphs, a {type(features).__name__} and a {type(edges).__name__}: a "
                "loader is of one graph. Make a loader of each; a pair is (feature store, graph "
                "store) of the same graph"
            )
        if isinstance(features, FeatureStore) and isinstance(edges, GraphStore):
            return features, edges
        raise TypeError(
            "a pair must be a PyG (FeatureStore, GraphStore) (got "
            f"('{type(features).__name__}', '{type(edges).__name__}'))"
        )
    raise TypeError(
        "expected a PyG Data or HeteroData object, or a (FeatureStore, GraphStore) pair (got "
        f"'{type(data)}'): of a data set pass its graph, dataset[0]"
    )


def open_input(data: object) -> PygInput | StoreInput:
    """Wrap the user's data, which may have any form that `as_input` accepts.

    Both wrappers have the same interface: types, counts, edges and attributes.
    """
    data = as_input(data)
    return PygInput(data) if isinstance(data, (Data, HeteroData)) else StoreInput(*data)


def graph_of(
    data: Data | HeteroData | tuple[FeatureStore, GraphStore],
    edge_dir: EdgeDir = "in",
    *,
    time_attr: str | None = None,
    weight_attr: str | None = None,
    is_sorted: bool = False,
) -> Graph:
    """Return the graph of the user's data, compressed.

    Args:
        data: a `Data`, a `HeteroData` or a pair of stores.
        edge_dir: 'in' compresses by destination, 'out' by source.
        time_attr: name of the node or edge attribute that holds times.
        weight_attr: name of the edge attribute that holds weights.
        is_sorted: edges are in order of destinations already and, with times, in order of time for
            each destination. Checked, not trusted, where times matter.

    Raises:
        TypeError: data of another type.
        IndexError: an edge that joins nodes which do not exist.
        ValueError: arrays that are no edges, times or weights.
    """
    source = open_input(data)
    counts = source.num_nodes
    node_times, edge_times, floating = times_of(source, time_attr)
    weights = weights_of(source, weight_attr)
    topologies = {}
    for edge_type, edges in source.edges.items():
        neighbor_type = edge_type[0] if edge_dir == "in" else edge_type[2]
        topologies[edge_type] = edges.topology(
            f"edge type {edge_type}" if source.heterogeneous else "the graph",
            counts[edge_type[0]],
            counts[edge_type[2]],
            edge_dir,
            node_time=node_times.get(neighbor_type),
            edge_time=edge_times.get(edge_type),
            weights=weights.get(edge_type),
            is_sorted=is_sorted and time_attr is not None,
        )
    return Graph(
        topologies if source.heterogeneous else topologies[EDGE],
        num_nodes=counts,
        node_times=node_times,
        floating_times=floating,
    )


def times_of(
    source: PygInput | StoreInput, name: str | None
) -> tuple[dict[NodeType, Int64Array], dict[EdgeType, Int64Array], bool]:
    """Return times of nodes or of edges, as keys that kernels compare.

    Args:
        source: the graph.
        name: name of the attribute. If None, there are no times.

    Returns:
        Keys of nodes, keys of edges, of which one is empty, and True for floating-point times.

    Raises:
        ValueError, TypeError: invalid times, or the attribute is not of nodes alone or edges alone.
    """
    if name is None:
        return {}, {}, False
    nodes, edges = source.node_attribute(name), source.edge_attribute(name)
    if bool(nodes) == bool(edges):
        raise ValueError(
            f"time_attr='{name}' is an attribute both of nodes and of edges: rename one of them"
            if nodes
            else f"time_attr='{name}' is an attribute neither of nodes nor of edges: set it, as in "
            f"data.{name} = ..."
        )
    floating = any(is_floating(values) for values in (*nodes.values(), *edges.values()))
    shown = f"time_attr='{name}'"
    return (
        {t: time_keys(v, _of_type(shown, t), floating) for t, v in nodes.items()},
        {t: time_keys(v, _of_type(shown, t), floating) for t, v in edges.items()},
        floating,
    )


def weights_of(source: PygInput | StoreInput, name: str | None) -> dict[EdgeType, Array]:
    """Return weights of edges, in a dtype that kernels read. If `name` is None, there are none.

    Raises:
        ValueError: no such attribute, or invalid weights.
    """
    if name is None:
        return {}
    weights = source.edge_attribute(name)
    if not weights and not source.heterogeneous:
        # If there are as many nodes as edges, PyG takes the weights for an attribute of nodes.
        values = source.node_attribute(name).get(NODE)
        if values is not None and len(values) == source.edges[EDGE].num_edges:
            weights = {EDGE: values}
    if not weights:
        raise ValueError(
            f"weight_attr='{name}' is not an attribute of edges: set it, a number for each, as in "
            f"data.{name} = ..."
        )
    shown = f"weight_attr='{name}'"
    return {t: weight_values(values, _of_type(shown, t)) for t, values in weights.items()}


def _of_type(attribute: str, graph_type: NodeType | EdgeType) -> str:
    """Return an attribute's name for error messages, with its type in a heterogeneous graph."""
    return attribute if graph_type in (NODE, EDGE) else f"{attribute} of {graph_type!r}"


class PygInput:
    """Graph of a PyG `Data` or `HeteroData`, with attributes.

    Attributes:
        heterogeneous: True if there are node and edge types.
    """

    def __init__(self, data: Data | HeteroData) -> None:
        self._data = data
        self.heterogeneous = isinstance(data, HeteroData)

    @cached_property
    def _node_stores(self) -> dict[NodeType, Any]:
        if self.heterogeneous:
            return {t: self._data[t] for t in self._data.node_types}
        return {NODE: self._data._store}

    @cached_property
    def _edge_stores(self) -> dict[EdgeType, Any]:
        if self.heterogeneous:
            return {t: self._data[t] for t in self._data.edge_types}
        return {EDGE: self._data._store}

    @property
    def info(self) -> GraphInfo:
        """Node and edge types and their counts, for checks of users' input. Reads no edges."""
        return GraphInfo(self.num_nodes, list(self._edge_stores), self.heterogeneous)

    @cached_property
    def num_nodes(self) -> dict[NodeType, int]:
        """Number of nodes of each node type, in a fixed order."""
        counts = {t: store.num_nodes for t, store in self._node_stores.items()}
        for edge_type in self._edge_stores if self.heterogeneous else ():
            for node_type in (edge_type[0], edge_type[2]):
                if node_type not in counts:
                    raise ValueError(
                        f"edge type {edge_type} joins nodes of type '{node_type}', which the data "
                        f"object does not have: set data['{node_type}'].num_nodes"
                    )
        for node_type, count in counts.items():
            if count is None:
                raise ValueError(
                    f"the number of nodes of type '{node_type}' is not known: set its 'num_nodes'"
                )
        return {t: check_count(n, _of_type("num_nodes", t)) for t, n in counts.items()}

    @cached_property
    def edges(self) -> dict[EdgeType, EdgeArrays]:
        """Edges of each edge type, in a fixed order, from `edge_index` or `adj_t`."""
        return {
            t: _edges(store, f"edge type {t}" if self.heterogeneous else "the data object")
            for t, store in self._edge_stores.items()
        }

    def node_attribute(self, name: str) -> dict[NodeType, ArrayLike]:
        """Return a node attribute [num_nodes, ...] of each node type that has it."""
        return self._attribute(name, self._node_stores, "nodes")

    def edge_attribute(self, name: str) -> dict[EdgeType, ArrayLike]:
        """Return an edge attribute [num_edges, ...] of each type with it, in `edges` order."""
        return self._attribute(name, self._edge_stores, "edges")

    def _attribute(self, name: str, stores: dict[Any, Any], unit: str) -> dict[Any, ArrayLike]:
        values = {}
        for graph_type, store in stores.items():
            if name not in store:
                continue
            if store.is_node_attr(name) if unit == "nodes" else store.is_edge_attr(name):
                values[graph_type] = store[name]
            elif self.heterogeneous:  # a homogeneous graph has one store for nodes and edges
                count = store.num_nodes if unit == "nodes" else store.num_edges
                shape = list(getattr(store[name], "shape", [])) or type(store[name]).__name__
                raise ValueError(
                    f"attribute '{name}' of {graph_type!r} has shape {shape} for {count} {unit}"
                )
        return values


def _edges(store: Any, owner: str) -> EdgeArrays:
    """Return the edges of PyG's store. `owner` is its name in error messages."""
    edge_index, adj_t = store.get("edge_index"), store.get("adj_t")
    if edge_index is None and adj_t is None:
        if "adj" in store:
            raise ValueError(
                f"{owner} has an 'adj' in place of 'edge_index': transpose it into an 'adj_t'"
            )
        return EdgeArrays("COO", np.empty(0, np.int64), np.empty(0, np.int64))  # as in PyG
    if edge_index is None:
        return edges_of_adjacency(adj_t, owner)
    shape = getattr(edge_index, "shape", None)
    if shape is None:
        raise TypeError(f"edge_index of {owner} must be a tensor (got {type(edge_index).__name__})")
    if len(shape) != 2 or shape[0] != 2:
        raise ValueError(
            f"edge_index of {owner} must have shape [2, num_edges], sources and destinations (got "
            f"{list(shape)})"
        )
    if adj_t is not None and not same_edges(edge_index, edges_of_adjacency(adj_t, owner)):
        raise ValueError(
            f"'edge_index' and 'adj_t' of {owner} hold different edges, or the same in another "
            "order, so that edge attributes cannot belong to both: remove one of them"
        )
    return EdgeArrays("COO", edge_index[0], edge_index[1])
