"""Specification of neighbour sampling: fan-outs, a method and options. Imports no torch."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from khop.codec import INT64, AtMost, Between, Id
from khop.sampler.methods import NEIGHBOR, MethodSpec, as_method
from khop.sampler.requests import HopRequest
from khop.typing import EdgeType

MAX_HOPS = 1024
"""Most hops of a batch. Methods of users' own have as many steps."""

MAX_TYPES = 1024
"""Most edge types, or node types, that a specification names."""

_SUBGRAPH_TYPES = ("directional", "bidirectional", "induced")
_STRATEGIES = ("uniform", "last")


@dataclass(frozen=True)
class SamplingSpec:
    """Fan-outs and options of neighbour sampling.

    Attributes:
        fanouts: for each edge type, in the graph's order, the fan-out of each hop. -1 takes all.
        replace: draw with replacement.
        with_edge: record which edges were drawn.
        subgraph_type: 'directional' (the drawn edges), 'bidirectional' (and their reverses) or
            'induced' (all edges among the drawn nodes).
        disjoint: give each seed a separate subgraph.
        temporal: draw only what is not later than the seed.
        last: draw the latest neighbours instead of random ones.
        weighted: for each edge type, True to draw by weight.
        reversals: for subgraph type 'bidirectional': (edge type, its reverse, True if the reverse
            becomes the mirror image), by index.
        keep_edge: edges keep their ids when reverses are added.
        method: sampling method. See `khop.sampler.methods`.

    Example:
        >>> spec = SamplingSpec.create([15, 10], [("node", "to", "node")])
        >>> spec.fanouts, spec.num_hops
        (((15, 10),), 2)
    """

    fanouts: Annotated[
        tuple[Annotated[tuple[Annotated[int, Between(-1, INT64)], ...], AtMost(MAX_HOPS)], ...],
        AtMost(MAX_TYPES),
    ]
    replace: bool = False
    with_edge: bool = True
    subgraph_type: Literal["directional", "bidirectional", "induced"] = "directional"
    disjoint: bool = False
    temporal: bool = False
    last: bool = False
    weighted: Annotated[tuple[bool, ...], AtMost(MAX_TYPES)] = ()
    reversals: Annotated[tuple[tuple[Id, Id, bool], ...], AtMost(MAX_TYPES)] = ()
    keep_edge: bool = True
    method: MethodSpec = NEIGHBOR

    @property
    def num_hops(self) -> int:
        """Number of hops."""
        return len(self.fanouts[0]) if self.fanouts else 0

    @property
    def counts_hops(self) -> bool:
        """True if nodes and edges are grouped by hop in the end, so that hops can be counted."""
        return self.subgraph_type == "directional"

    def records_edge(self, relation: int) -> bool:
        """Return True if the batch's edges of an edge type have ids."""
        if not self.with_edge or self.keep_edge:
            return self.with_edge
        reversed_ones = {i for r in self.reversals for i in (r[:2] if r[2] else r[:1])}
        return relation not in reversed_ones

    def is_weighted(self, relation: int) -> bool:
        """Return True if an edge type is drawn by weight."""
        return relation < len(self.weighted) and self.weighted[relation]

    def hop_requests(self, relation: int) -> list[HopRequest]:
        """Return the parameters of each hop over an edge type, without keys, which batches have.

        :meta private:
        """
        weighted = self.is_weighted(relation)
        return [self._request(fanout, weighted) for fanout in self.fanouts[relation]]

    def distinct_requests(self) -> list[HopRequest]:
        """Return the parameters of all hops over all edge types, each once.

        :meta private:
        """
        relations = range(len(self.fanouts))
        pairs = {(self.is_weighted(r), fanout) for r in relations for fanout in self.fanouts[r]}
        return [self._request(fanout, weighted) for weighted, fanout in pairs]

    def _request(self, fanout: int, weighted: bool) -> HopRequest:
        method = self.method if self.method.program is None else NEIGHBOR
        return HopRequest(fanout, self.replace, self.with_edge, 0, weighted, self.last, method)

    @classmethod
    def create(
        cls,
        num_neighbors: Any,
        edge_types: Sequence[EdgeType],
        replace: bool = False,
        with_edge: bool = True,
        *,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        temporal: bool = False,
        weighted: Sequence[bool] = (),
        heterogeneous: bool = False,
    ) -> SamplingSpec:
        """Check options and arrange `num_neighbors` by edge type.

        Args:
            num_neighbors: fan-out of each hop, or {edge type: fan-out of each hop}, or PyG's
                `NumNeighbors`. Edge types in any form that PyG knows. Or a method with such.
            edge_types: the graph's edge types.
            replace: draw with replacement.
            with_edge: record which edges were drawn.
            subgraph_type: 'directional', 'bidirectional' or 'induced', or PyG's `SubgraphType`.
            disjoint: give each seed a separate subgraph. Temporal sampling always does.
            temporal_strategy: 'uniform' or 'last'.
            temporal: draw only what is not later than the seed.
            weighted: for each edge type, True to draw by weight.
            heterogeneous: the graph has named types.

        Raises:
            ValueError: hops that differ in number between edge types, a fan-out below -1 or beyond
                2^63 - 1, an edge type that is missing or does not exist, an unknown subgraph type
                or strategy.
            TypeError: fan-outs that are no integers.
        """
        method = as_method(num_neighbors)
        num_neighbors = method.num_neighbors
        if hasattr(num_neighbors, "values") and not callable(num_neighbors.values):
            default = getattr(num_neighbors, "default", None)
            num_neighbors = num_neighbors.values  # PyG's NumNeighbors
            if isinstance(num_neighbors, Mapping) and default is not None:
                given = [_edge_type(key) for key in num_neighbors]
                rest = {t: default for t in edge_types if t not in given}
                num_neighbors = {**num_neighbors, **rest}
        if isinstance(num_neighbors, Mapping):
            num_neighbors = {_edge_type(key): hops for key, hops in num_neighbors.items()}
            _check_edge_types(num_neighbors, edge_types)
            by_type = [_hops(num_neighbors[t], f"num_neighbors[{t}]") for t in edge_types]
        else:
            by_type = [_hops(num_neighbors, "num_neighbors")] * max(1, len(edge_types))
        if len({len(hops) for hops in by_type}) > 1:
            raise ValueError(
                "num_neighbors: the number of hops must be the same across all edge types (got "
                f"{ {t: len(h) for t, h in zip(edge_types, by_type, strict=True)} })"
            )
        subgraph_type = getattr(subgraph_type, "value", subgraph_type)
        if subgraph_type not in _SUBGRAPH_TYPES:
            raise ValueError(f"subgraph_type must be of {_SUBGRAPH_TYPES} (got {subgraph_type!r})")
        if temporal_strategy not in _STRATEGIES:
            raise ValueError(
                f"temporal_strategy must be of {_STRATEGIES} (got {temporal_strategy!r})"
            )
        method.check_strategy(temporal_strategy)
        method.check_form(heterogeneous, bool(disjoint) or temporal)
        if temporal_strategy == "last" and not temporal:
            raise ValueError("temporal_strategy='last' needs times: pass time_attr, too")
        reversals: tuple[tuple[int, int, bool], ...] = ()
        if subgraph_type == "bidirectional":
            reversals = find_reversals(edge_types) if heterogeneous else ((0, 0, False),)
        return cls(
            tuple(by_type),
            bool(replace),
            bool(with_edge),
            subgraph_type,
            bool(disjoint) or temporal,
            temporal,
            temporal and temporal_strategy == "last",
            tuple(bool(w) for w in weighted),
            reversals,
            not heterogeneous,
            method.spec(),
        )


def find_reversals(edge_types: Sequence[EdgeType]) -> tuple[tuple[int, int, bool], ...]:
    """Return the edge types that are each other's reverses, by PyG's rules.

    `(b, 'rev_r', a)` reverses `(a, r, b)` and becomes its mirror image. A type from a node type to
    itself without such a partner reverses itself. Else the only type from b to a serves, if there
    is just one. A type without a reverse keeps its edges as drawn, with a warning.

    Args:
        edge_types: the graph's edge types.

    Returns:
        (edge type, its reverse, True if the reverse becomes the mirror image), by index.
    """
    found = []
    place = {t: i for i, t in enumerate(edge_types)}
    for i, (src, relation, dst) in enumerate(edge_types):
        if relation.startswith("rev_"):
            continue
        named = place.get((dst, f"rev_{relation}", src))
        back = [j for j, (a, _, b) in enumerate(edge_types) if (a, b) == (dst, src)]
        if named is not None:
            found.append((i, named, True))
        elif src == dst:
            found.append((i, i, False))
        elif len(back) == 1:
            found.append((i, back[0], False))
        else:
            warnings.warn(
                f"edge type {(src, relation, dst)} has no reverse that is unique, so that its "
                f"edges stay directed: call the reverse {(dst, f'rev_{relation}', src)}",
                stacklevel=4,
            )
    return tuple(found)


def _edge_type(key: Any) -> Any:
    """Return an edge type in full. PyG also omits the relation ('to') or uses one string."""
    if hasattr(key, "to_tuple"):  # PyG's EdgeTypeStr
        return key.to_tuple()
    names = key.split("__") if isinstance(key, str) else key
    if isinstance(names, (list, tuple)) and len(names) == 2:
        names = (names[0], "to", names[1])
    return tuple(names) if isinstance(names, list) else names


def _check_edge_types(given: Mapping[Any, Any], edge_types: Sequence[EdgeType]) -> None:
    unknown = [t for t in given if t not in edge_types]
    missing = [t for t in edge_types if t not in given]
    if unknown:
        raise ValueError(f"num_neighbors names edge types {unknown}, but there are {edge_types}")
    if missing:
        raise ValueError(f"num_neighbors names no fan-outs for edge types {missing}")


def _hops(values: Any, what: str) -> tuple[int, ...]:
    is_list = hasattr(values, "__iter__") and getattr(values, "ndim", 1) == 1
    if isinstance(values, (str, bytes)) or not is_list:
        raise TypeError(f"{what} must be a list of fan-outs, one a hop (got {values!r})")
    hops: list[int] = []
    for value in values:
        if len(hops) == MAX_HOPS:
            raise ValueError(f"{what} has more than {MAX_HOPS} hops")
        try:
            hops.append(operator.index(value))
        except TypeError:
            raise TypeError(f"{what} must hold integers (got {value!r})") from None
        if not -1 <= hops[-1] < 2**63:
            raise ValueError(
                f"{what} holds {value}: a fan-out is -1 (all), 0 or positive, and below 2^63"
            )
    return tuple(hops)
