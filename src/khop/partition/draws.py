"""Attributes with times and weights, for temporal and weighted sampling, and their checks.

The rules are PyG's. One name is the attribute of times in the whole graph, either of nodes or of
edges. Types without this attribute have no time constraint. One name is the edge attribute of
weights. Neighbours along edge types without this attribute are drawn uniformly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from khop.data import RowStore
from khop.data.arrays import bfloat16_as_float32
from khop.data.times import time_keys
from khop.data.weights import weight_values
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.storage.folder import TimeMeta
from khop.typing import Array, EdgeType, Int64Array, NodeType

_Type = TypeVar("_Type", NodeType, EdgeType)
_Source = TypeVar("_Source", NodeSource, EdgeSource)
# Rows that are checked at a time.
_STEP = 1 << 22


@dataclass(frozen=True)
class DrawAttrs:
    """Times and weights of a graph, for temporal and weighted sampling.

    Attributes:
        time: name of the attribute of times, and whether nodes or edges have it. None without
            times.
        node_times: {node type: [num_nodes] int64 keys that sort as the times do, by original id}.
        timed: edge types whose edges have times.
        weight_attr: name of the edge attribute with weights, or None.
        weighted: edge types that have weights.
    """

    time: TimeMeta | None = None
    node_times: dict[NodeType, Int64Array] = field(default_factory=dict)
    timed: frozenset[EdgeType] = frozenset()
    weight_attr: str | None = None
    weighted: frozenset[EdgeType] = frozenset()

    @classmethod
    def of(cls, source: GraphSource, time_attr: str | None, weight_attr: str | None) -> DrawAttrs:
        """Find the attributes of times and weights in a graph by name, and check them.

        Raises:
            ValueError: an attribute is missing or has a wrong length, or both nodes and edges have
                the attribute of times. Or a row has several values, a time is NaN, or a weight is
                negative or infinite.
            TypeError: times are booleans.
        """
        for option, name in (("time_attr", time_attr), ("weight_attr", weight_attr)):
            _check_lengths(source, option, name)
        time = None if time_attr is None else _time_of(source, time_attr)
        node_times, timed = {}, frozenset[EdgeType]()
        if time is not None and time.level == "node":
            for node_type, node in _holders(source.nodes, time.name).items():
                described = f"attribute '{time.name}' of {node_type}"
                values = node.attrs[time.name].numbers()
                node_times[node_type] = time_keys(values, described, time.floating)
        elif time is not None:
            timed = frozenset(_holders(source.edges, time.name))
        weighted = frozenset(_holders(source.edges, weight_attr))
        if weight_attr is not None and not weighted:
            raise ValueError(
                f"weight_attr='{weight_attr}' is no attribute of edges: they have "
                f"{_names(source.edges)}"
            )
        draws = cls(time, node_times, timed, weight_attr, weighted)
        for edge_type, edge in source.edges.items():  # values are checked before work begins
            if time is not None and edge_type in timed:
                _in_steps(edge_type, edge.attrs[time.name], draws.edge_times)
            if weight_attr is not None and edge_type in weighted:
                _in_steps(edge_type, edge.attrs[weight_attr], draws.weights)
        return draws

    def edge_times(self, edge_type: EdgeType, rows: Array, dtype: str) -> Int64Array:
        """Convert edge times to [n] int64 keys that sort as the times do.

        Args:
            edge_type: a type in `timed`.
            rows: [n] values of the attribute of times.
            dtype: stored dtype of the attribute, such as 'bfloat16'.
        """
        assert self.time is not None
        described = f"attribute '{self.time.name}' of {edge_type}"
        return time_keys(_numbers(rows, dtype), described, self.time.floating)

    def weights(self, edge_type: EdgeType, rows: Array, dtype: str) -> Array:
        """Convert edge weights to [n] float32 or float64, and check them.

        Args:
            edge_type: a type in `weighted`.
            rows: [n] values of the attribute of weights.
            dtype: stored dtype of the attribute, such as 'bfloat16'.
        """
        described = f"attribute '{self.weight_attr}' of {edge_type}"
        return weight_values(_numbers(rows, dtype), described)


def _in_steps(
    edge_type: EdgeType, feature: RowStore, convert: Callable[[EdgeType, Array, str], Array]
) -> None:
    """Check an edge attribute by calling `convert` on some rows at a time.

    If `convert` raises ValueError, it is called on all rows, so that its message has the right
    index.
    """
    for first in range(0, max(1, feature.num_rows), _STEP):
        try:
            rows = np.arange(first, min(first + _STEP, feature.num_rows))
            convert(edge_type, feature.gather(rows), feature.dtype)
        except ValueError:
            convert(edge_type, feature.array, feature.dtype)  # names the position in all rows
            raise
        feature.release()


def _numbers(rows: Array, dtype: str) -> Array:
    return bfloat16_as_float32(rows) if dtype == "bfloat16" else rows


def _check_lengths(source: GraphSource, option: str, name: str | None) -> None:
    """Raise ValueError if a type has attribute `name`, but not one row per node or edge.

    `option` is the option with this name, for the message.
    """
    holders: dict[Any, NodeSource | EdgeSource] = {**source.nodes, **source.edges}
    for holder_type, holder in holders.items():
        if name in holder.left_out:
            raise ValueError(
                f"{option}='{name}' of {holder_type!r} {holder.left_out[name]}, not an entry for "
                "each node or edge: the type would have none"
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
    holders: list[NodeSource | EdgeSource] = [*of_nodes.values(), *of_edges.values()]
    is_floating = any(holder.attrs[name].floating for holder in holders)
    return TimeMeta(name, "node" if of_nodes else "edge", is_floating)


def _holders(types: Mapping[_Type, _Source], name: str | None) -> dict[_Type, _Source]:
    return {key: holder for key, holder in types.items() if name in holder.attrs}


def _names(types: Mapping[_Type, _Source]) -> list[str]:
    return sorted({name for holder in types.values() for name in holder.attrs})
