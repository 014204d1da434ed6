"""Attributes that sampling depends on: times and weights, found in a graph and checked.

The rules are PyG's. Times are one attribute of nodes or one of edges, over the whole graph; types
that lack it have no constraint. Weights are one attribute of edges; neighbours over edge types that
lack it are drawn uniformly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from khop.data.times import time_keys
from khop.data.weights import weight_values
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.storage.folder import TimeMeta
from khop.typing import Array, EdgeType, Int64Array, NodeType


@dataclass(frozen=True)
class DrawAttrs:
    """Times and weights of a graph.

    Attributes:
        time: attribute that times come from, or None.
        node_times: node type -> [num_nodes] keys of times, by original id.
        edge_times: edge type -> [num_edges] keys of times, as the edge list is ordered.
        weight_attr: name of the attribute that weights come from, or None.
        weights: edge type -> [num_edges] float32 or float64, as the edge list is ordered.
    """

    time: TimeMeta | None = None
    node_times: dict[NodeType, Int64Array] = field(default_factory=dict)
    edge_times: dict[EdgeType, Int64Array] = field(default_factory=dict)
    weight_attr: str | None = None
    weights: dict[EdgeType, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, source: GraphSource, time_attr: str | None, weight_attr: str | None) -> DrawAttrs:
        """Look the attributes up and check them.

        Raises:
            ValueError: no such attribute, or one of another length; times of both levels, more
                than one value a row, NaN times, negative or infinite weights.
            TypeError: times that are booleans.
        """
        for option, name in (("time_attr", time_attr), ("weight_attr", weight_attr)):
            _check_lengths(source, option, name)
        time = None if time_attr is None else _time_of(source, time_attr)
        return cls(
            time,
            _keys(source.nodes, time) if time is not None and time.level == "node" else {},
            _keys(source.edges, time) if time is not None and time.level == "edge" else {},
            weight_attr,
            {} if weight_attr is None else _weights(source, weight_attr),
        )


def _check_lengths(source: GraphSource, option: str, name: str | None) -> None:
    """Raise ValueError if a type has the attribute, but not for each node or edge."""
    holders: dict[Any, NodeSource | EdgeSource] = {**source.nodes, **source.edges}
    for kind, holder in holders.items():
        if name in holder.left_out:
            raise ValueError(
                f"{option}='{name}' of {kind!r} has shape {list(holder.left_out[name])}, not an "
                "entry for each node or edge: the type would have none"
            )


def _time_of(source: GraphSource, name: str) -> TimeMeta:
    of_nodes, of_edges = _holders(source.nodes, name), _holders(source.edges, name)
    if of_nodes and of_edges:
        raise ValueError(
            f"time_attr='{name}' names attributes of nodes ({', '.join(of_nodes)}) and of edges "
            f"({', '.join(map(str, of_edges))}): times are either the nodes' or the edges'"
        )
    if not of_nodes and not of_edges:
        raise ValueError(
            f"time_attr='{name}' is no attribute: nodes have {_names(source.nodes)}, edges "
            f"{_names(source.edges)}"
        )
    holders = [*of_nodes.values(), *of_edges.values()]
    return TimeMeta(
        name, "node" if of_nodes else "edge", any(holder.attrs[name].floating for holder in holders)
    )


def _keys(types: Mapping[Any, NodeSource] | Mapping[Any, EdgeSource], time: TimeMeta) -> Any:
    return {
        name: time_keys(
            holder.attrs[time.name].numbers(), f"attribute '{time.name}' of {name}", time.floating
        )
        for name, holder in _holders(types, time.name).items()
    }


def _weights(source: GraphSource, name: str) -> dict[EdgeType, Array]:
    holders = _holders(source.edges, name)
    if not holders:
        raise ValueError(
            f"weight_attr='{name}' is no attribute of edges: they have {_names(source.edges)}"
        )
    return {
        edge_type: weight_values(edge.attrs[name].numbers(), f"attribute '{name}' of {edge_type}")
        for edge_type, edge in holders.items()
    }


def _holders(types: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    return {key: holder for key, holder in types.items() if name in holder.attrs}


def _names(types: Mapping[Any, Any]) -> list[str]:
    return sorted({name for holder in types.values() for name in holder.attrs})
