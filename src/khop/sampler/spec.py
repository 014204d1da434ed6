"""How neighbours are drawn: fan-outs, checked once, and options."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from khop.typing import EdgeType


@dataclass(frozen=True)
class SamplingSpec:
    """How neighbours are drawn.

    Attributes:
        fanouts: for each edge type, in the graph's order, the fan-out of each hop; -1 takes all.
        replace: draw with replacement.
        with_edge: record which edges were drawn.
    """

    fanouts: tuple[tuple[int, ...], ...]
    replace: bool = False
    with_edge: bool = True

    @property
    def num_hops(self) -> int:
        """Number of hops."""
        return len(self.fanouts[0]) if self.fanouts else 0

    @classmethod
    def create(
        cls,
        num_neighbors: Any,
        edge_types: Sequence[EdgeType],
        replace: bool = False,
        with_edge: bool = True,
    ) -> SamplingSpec:
        """Checks `num_neighbors` and lays it out by edge type.

        Args:
            num_neighbors: fan-out of each hop, or {edge type: fan-out of each hop}, or PyG's
                `NumNeighbors`.
            edge_types: the graph's edge types.
            replace: draw with replacement.
            with_edge: record which edges were drawn.

        Raises:
            ValueError: hops that differ in number between edge types, a fan-out below -1, an edge
                type that is missing or does not exist.
            TypeError: fan-outs that are no integers.
        """
        if hasattr(num_neighbors, "values") and not callable(num_neighbors.values):
            default = getattr(num_neighbors, "default", None)
            num_neighbors = num_neighbors.values  # PyG's NumNeighbors
            if isinstance(num_neighbors, Mapping):
                num_neighbors = {_edge_type(k): v for k, v in num_neighbors.items()}
                if default is not None:
                    num_neighbors = {t: num_neighbors.get(t, default) for t in edge_types}
        if isinstance(num_neighbors, Mapping):
            _check_edge_types(num_neighbors, edge_types)
            by_type = [_hops(num_neighbors[t], f"num_neighbors[{t}]") for t in edge_types]
        else:
            by_type = [_hops(num_neighbors, "num_neighbors")] * max(1, len(edge_types))
        if len({len(hops) for hops in by_type}) > 1:
            raise ValueError(
                "num_neighbors must name the same number of hops for each edge type (got "
                f"{ {t: len(h) for t, h in zip(edge_types, by_type, strict=True)} })"
            )
        return cls(tuple(by_type), bool(replace), bool(with_edge))


def _edge_type(key: Any) -> Any:
    if hasattr(key, "to_tuple"):  # PyG's EdgeTypeStr
        return key.to_tuple()
    return tuple(key.split("__")) if isinstance(key, str) else key


def _check_edge_types(given: Mapping[Any, Any], edge_types: Sequence[EdgeType]) -> None:
    unknown = [t for t in given if t not in edge_types]
    missing = [t for t in edge_types if t not in given]
    if unknown:
        raise ValueError(f"num_neighbors names edge types {unknown}, but there are {edge_types}")
    if missing:
        raise ValueError(f"num_neighbors names no fan-outs for edge types {missing}")


def _hops(values: Any, what: str) -> tuple[int, ...]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise TypeError(f"{what} must be a list of fan-outs, one a hop (got {values!r})")
    hops = []
    for value in values:
        try:
            hops.append(operator.index(value))
        except TypeError:
            raise TypeError(f"{what} must hold integers (got {value!r})") from None
        if hops[-1] < -1:
            raise ValueError(f"{what} holds {value}: a fan-out is -1 (all), 0 or positive")
    return tuple(hops)
