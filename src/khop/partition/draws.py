"""Attributes that sampling depends on: times and weights, found in a graph and checked.

The rules are PyG's. Times are one attribute of nodes or one of edges, over the whole graph; types
that lack it have no constraint. Weights are one attribute of edges; neighbours over edge types that
lack it are drawn uniformly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from khop.data import RowStore
from khop.data.arrays import bfloat16_as_float32
from khop.data.times import time_keys
from khop.data.weights import weight_values
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.storage.folder import TimeMeta
from khop.typing import Array, EdgeType, Int64Array, NodeType

# Rows that are checked at a time.
_STEP = 1 << 22


@dataclass(frozen=True)
class DrawAttrs:
    """Times and weights of a graph.

    Attributes:
        time: attribute that times come from, or None.
        node_times: node type -> [num_nodes] keys of times, by original id.
        timed: edge types that have times.
        weight_attr: name of the attribute that weights come from, or None.
        weighted: edge types that have weights.
    """

    time: TimeMeta | None = None
    node_times: dict[NodeType, Int64Array] = field(default_factory=dict)
    timed: frozenset[EdgeType] = frozenset()
    weight_attr: str | None = None
    weighted: frozenset[EdgeType] = frozenset()

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
        draws = cls(
            time,
            _keys(source.nodes, time) if time is not None and time.level == "node" else {},
            _timed(source, time) if time is not None and time.level == "edge" else frozenset(),
            weight_attr,
            frozenset() if weight_attr is None else _weighted(source, weight_attr),
        )
        draws._check(source)
        return draws

    def edge_times(self, edge_type: EdgeType, rows: Array, dtype: str) -> Int64Array:
        """Return keys of times.

        Args:
            edge_type: one of `timed`.
            rows: [n] rows of the attribute.
            dtype: name of the attribute's dtype.
        """
        assert self.time is not None
        what = f"attribute '{self.time.name}' of {edge_type}"
        return time_keys(_numbers(rows, dtype), what, self.time.floating)

    def weights(self, edge_type: EdgeType, rows: Array, dtype: str) -> Array:
        """Return [n] float32 or float64 weights of an edge type of `weighted`; see `edge_times`."""
        return weight_values(
            _numbers(rows, dtype), f"attribute '{self.weight_attr}' of {edge_type}"
        )

    def _check(self, source: GraphSource) -> None:
        """Raise an error for values of edges that are no times or weights, before work begins."""
        for edge_type, edge in source.edges.items():
            if self.time is not None and edge_type in self.timed:
                _in_steps(edge_type, edge.attrs[self.time.name], self.edge_times)
            if self.weight_attr is not None and edge_type in self.weighted:
                _in_steps(edge_type, edge.attrs[self.weight_attr], self.weights)


def _in_steps(edge_type: EdgeType, feature: RowStore, convert: Callable[..., Array]) -> None:
    """Convert an attribute some rows at a time; if that fails, once more as a whole."""
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
    """Raise ValueError if a type has the attribute, but not for each node or edge."""
    holders: dict[Any, NodeSource | EdgeSource] = {**source.nodes, **source.edges}
    for kind, holder in holders.items():
        if name in holder.left_out:
            raise ValueError(
                f"{option}='{name}' of {kind!r} {holder.left_out[name]}, not an entry for each "
                "node or edge: the type would have none"
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


def _keys(types: Mapping[NodeType, NodeSource], time: TimeMeta) -> dict[NodeType, Int64Array]:
    return {
        name: time_keys(
            holder.attrs[time.name].numbers(), f"attribute '{time.name}' of {name}", time.floating
        )
        for name, holder in _holders(types, time.name).items()
    }


def _timed(source: GraphSource, time: TimeMeta) -> frozenset[EdgeType]:
    return frozenset(_holders(source.edges, time.name))


def _weighted(source: GraphSource, name: str) -> frozenset[EdgeType]:
    holders = _holders(source.edges, name)
    if not holders:
        raise ValueError(
            f"weight_attr='{name}' is no attribute of edges: they have {_names(source.edges)}"
        )
    return frozenset(holders)


def _holders(types: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    return {key: holder for key, holder in types.items() if name in holder.attrs}


def _names(types: Mapping[Any, Any]) -> list[str]:
    return sorted({name for holder in types.values() for name in holder.attrs})
