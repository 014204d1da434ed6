"""Neighbour sampling: users' options, and the specification that is made of them.

Imports no torch.
"""

from __future__ import annotations

import dataclasses
import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

from khop.codec import INT64, AtMost, Between, Id
from khop.data.info import GraphInfo
from khop.sampler.methods import NEIGHBOR, MethodSpec, SamplingMethod, as_method
from khop.sampler.requests import HopRequest
from khop.typing import EdgeType, NumNeighbors

MAX_HOPS = 1024
"""Most hops of a batch, or steps of a user's method."""

MAX_TYPES = 1024
"""Most edge types, or node types, that a specification names."""

_SUBGRAPH_TYPES = ("directional", "bidirectional", "induced")
_STRATEGIES = ("uniform", "last")


@dataclass(frozen=True)
class SamplingSpec:
    """Checked fan-outs and options of neighbour sampling, by index of edge type.

    Attributes:
        fanouts: for each edge type, in the graph's order, the fan-out of each hop. -1 takes all.
        replace: draw with replacement.
        with_edge: record which edges were drawn.
        subgraph_type: 'directional' (the drawn edges), 'bidirectional' (and their reverses) or
            'induced' (all edges among the drawn nodes).
        disjoint: give each seed a separate subgraph.
        temporal: draw only neighbours or edges whose time is not later than the seed's.
        last: draw the latest neighbours, not random ones.
        weighted: for each edge type, True to draw by weight.
        reversals: for subgraph type 'bidirectional': (edge type, its reverse, True if the reverse
            gets the same edges, mirrored), by index.
        keep_edge: edges keep their ids when reverses are added.
        method: sampling method.

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
    def summary(self) -> str:
        """Text for `repr`: the fan-outs if all edge types have the same, else the method's name."""
        if self.method.program is None and len(set(self.fanouts)) == 1:
            return str(list(self.fanouts[0]))
        return self.method.name

    @property
    def num_hops(self) -> int:
        """Number of hops."""
        return len(self.fanouts[0]) if self.fanouts else 0

    @property
    def counts_hops(self) -> bool:
        """True if batches' nodes and edges are grouped by hop, as PyG's counts need."""
        return self.subgraph_type == "directional"

    def records_edge(self, relation: int) -> bool:
        """Return True if batches record the ids of edges of the edge type `relation`."""
        if not self.with_edge or self.keep_edge:
            return self.with_edge
        reversed_ones = {i for r in self.reversals for i in (r[:2] if r[2] else r[:1])}
        return relation not in reversed_ones

    def is_weighted(self, relation: int) -> bool:
        """Return True if neighbours over the edge type `relation` are drawn by weight."""
        return relation < len(self.weighted) and self.weighted[relation]

    def hop_requests(self, relation: int) -> list[HopRequest]:
        """Return the parameters of each hop over an edge type, without random keys.

        Each batch sets their keys.

        :meta private:
        """
        weighted = self.is_weighted(relation)
        return [self._request(fanout, weighted) for fanout in self.fanouts[relation]]

    def distinct_requests(self) -> list[HopRequest]:
        """Return the parameters of all hops over all edge types, without repetition.

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
        num_neighbors: NumNeighbors | SamplingMethod,
        edge_types: Sequence[EdgeType],
        replace: bool = False,
        with_edge: bool = True,
        *,
        subgraph_type: str | Enum = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        temporal: bool = False,
        weighted: Sequence[bool] = (),
        heterogeneous: bool = False,
    ) -> SamplingSpec:
        """Check options and arrange `num_neighbors` by edge type.

        `num_neighbors` is the fan-out of each hop, {edge type: fan-out of each hop}, PyG's
        `NumNeighbors`, or a method with one of these. Edge types have any form that PyG knows.
        `heterogeneous` means that types have names. The other options are attributes of the
        specification or of `SamplingOptions`.

        Raises:
            ValueError: unequal numbers of hops, a fan-out below -1 or beyond 2^63 - 1, a missing or
                unknown edge type, an unknown subgraph type or strategy.
            TypeError: fan-outs that are no integers.
        """
        method = as_method(num_neighbors)
        fanouts = method.num_neighbors
        default: object = None
        if hasattr(fanouts, "values") and not callable(fanouts.values):  # PyG's NumNeighbors
            default, fanouts = getattr(fanouts, "default", None), fanouts.values
        if isinstance(fanouts, Mapping):
            fanouts = {_edge_type(key): hops for key, hops in fanouts.items()}
            if default is not None:
                fanouts = {**dict.fromkeys(edge_types, default), **fanouts}
            unknown = [t for t in fanouts if t not in edge_types]
            missing = [t for t in edge_types if t not in fanouts]
            if unknown:
                raise ValueError(
                    f"num_neighbors names edge types {unknown}, but there are {edge_types}"
                )
            if missing:
                raise ValueError(f"num_neighbors names no fan-outs for edge types {missing}")
            by_type = [_hops(fanouts[t], f"num_neighbors[{t}]") for t in edge_types]
        else:
            by_type = [_hops(fanouts, "num_neighbors")] * max(1, len(edge_types))
        if len({len(hops) for hops in by_type}) > 1:
            raise ValueError(
                "num_neighbors: the number of hops must be the same across all edge types (got "
                f"{ {t: len(h) for t, h in zip(edge_types, by_type, strict=True)} })"
            )
        type_name: Any = getattr(subgraph_type, "value", subgraph_type)
        if type_name not in _SUBGRAPH_TYPES:
            raise ValueError(f"subgraph_type must be of {_SUBGRAPH_TYPES} (got {type_name!r})")
        if temporal_strategy not in _STRATEGIES:
            raise ValueError(
                f"temporal_strategy must be of {_STRATEGIES} (got {temporal_strategy!r})"
            )
        method.check_strategy(temporal_strategy)
        method.check_form(heterogeneous, bool(disjoint) or temporal)
        if temporal_strategy == "last" and not temporal:
            raise ValueError("temporal_strategy='last' needs times: pass time_attr, too")
        reversals: tuple[tuple[int, int, bool], ...] = ()
        if type_name == "bidirectional":
            reversals = find_reversals(edge_types) if heterogeneous else ((0, 0, False),)
        return cls(
            tuple(by_type),
            bool(replace),
            bool(with_edge),
            type_name,
            bool(disjoint) or temporal,
            temporal,
            temporal and temporal_strategy == "last",
            tuple(bool(w) for w in weighted),
            reversals,
            not heterogeneous,
            method.spec(),
        )


@dataclass(frozen=True)
class SamplingOptions:
    """Options of samplers and loaders beside `num_neighbors`, with PyG's names.

    Attributes:
        replace, with_edge, disjoint: see `SamplingSpec`. Temporal sampling is always disjoint.
        subgraph_type: 'directional', 'bidirectional' or 'induced', or PyG's `SubgraphType`.
        temporal_strategy: 'uniform' or 'last'.
        time_attr: attribute that holds times. If None, draws do not depend on times.
        weight_attr: attribute of edges to draw by. If None, draws are uniform.
    """

    replace: bool = False
    with_edge: bool = True
    subgraph_type: str | Enum = "directional"
    disjoint: bool = False
    temporal_strategy: str = "uniform"
    time_attr: str | None = None
    weight_attr: str | None = None

    def settled(self, num_neighbors: NumNeighbors | SamplingMethod) -> SamplingOptions:
        """Return these options, completed by the ones that a sampling method determines.

        Raises:
            ValueError: an option contradicts the method's own, or the method does not support it.
        """
        method = as_method(num_neighbors)
        replace, weight_attr = method.settle(self.replace, self.weight_attr)
        return dataclasses.replace(
            self,
            replace=replace,
            with_edge=self.with_edge and method.draws_edges,
            weight_attr=weight_attr,
            subgraph_type=method.settle_subgraph_type(self.subgraph_type),
        )

    def spec(self, num_neighbors: NumNeighbors | SamplingMethod, info: GraphInfo) -> SamplingSpec:
        """Return the checked specification of draws from a graph.

        Args:
            num_neighbors: fan-outs or a method.
            info: the graph, with the times and weights that draws use.

        Raises:
            TypeError, ValueError: as `SamplingSpec.create`, or the graph lacks weights to draw by.
        """
        options = self.settled(num_neighbors)
        as_method(num_neighbors).check_node_types(info.node_types)
        if options.weight_attr is not None and not any(info.weighted):
            raise ValueError(
                f"the graph has no weights '{options.weight_attr}' to draw by: make a sampler with "
                "them"
            )
        return SamplingSpec.create(
            num_neighbors,
            info.edge_types,
            options.replace,
            options.with_edge,
            subgraph_type=options.subgraph_type,
            disjoint=options.disjoint,
            temporal_strategy=options.temporal_strategy,
            temporal=info.is_temporal,
            weighted=info.weighted,
            heterogeneous=info.heterogeneous,
        )


def find_reversals(edge_types: Sequence[EdgeType]) -> tuple[tuple[int, int, bool], ...]:
    """Return the edge types that are each other's reverses, by PyG's rules.

    `(b, 'rev_r', a)` reverses `(a, r, b)` and gets the same edges, mirrored. If there is no such
    type, `(a, r, a)` reverses itself. Any other type is reversed by the only type from b to a, if
    there is exactly one. A type without a reverse keeps its edges as drawn, with a warning.

    Args:
        edge_types: the graph's edge types.

    Returns:
        (edge type, its reverse, True if the reverse gets the same edges, mirrored), by index.
    """
    reversals = []
    index = {t: i for i, t in enumerate(edge_types)}
    for i, (src, relation, dst) in enumerate(edge_types):
        if relation.startswith("rev_"):
            continue
        named = index.get((dst, f"rev_{relation}", src))
        back = [j for j, (a, _, b) in enumerate(edge_types) if (a, b) == (dst, src)]
        if named is not None:
            reversals.append((i, named, True))
        elif src == dst:
            reversals.append((i, i, False))
        elif len(back) == 1:
            reversals.append((i, back[0], False))
        else:
            warnings.warn(
                f"edge type {(src, relation, dst)} has no reverse that is unique, so that its "
                f"edges stay directed: call the reverse {(dst, f'rev_{relation}', src)}",
                stacklevel=4,
            )
    return tuple(reversals)


def _edge_type(key: Any) -> Any:
    """Convert an edge type to a triple. PyG also accepts pairs (relation 'to') and one string."""
    if hasattr(key, "to_tuple"):  # PyG's EdgeTypeStr
        return key.to_tuple()
    names = key.split("__") if isinstance(key, str) else key
    if isinstance(names, (list, tuple)) and len(names) == 2:
        names = (names[0], "to", names[1])
    return tuple(names) if isinstance(names, list) else names


def _hops(values: Any, name: str) -> tuple[int, ...]:
    """Check a list of fan-outs and return it. Error messages call it `name`."""
    is_list = hasattr(values, "__iter__") and getattr(values, "ndim", 1) == 1
    if isinstance(values, (str, bytes)) or not is_list:
        raise TypeError(f"{name} must be a list of fan-outs, one per hop (got {values!r})")
    hops: list[int] = []
    for value in values:
        if len(hops) == MAX_HOPS:
            raise ValueError(f"{name} has more than {MAX_HOPS} hops")
        try:
            hops.append(operator.index(value))
        except TypeError:
            raise TypeError(f"{name} must hold integers (got {value!r})") from None
        if not -1 <= hops[-1] < 2**63:
            raise ValueError(
                f"{name} holds {value}: a fan-out is -1 (all), 0 or positive, and below 2^63"
            )
    return tuple(hops)
