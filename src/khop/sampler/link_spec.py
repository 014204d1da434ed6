"""Specification of link batches. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from khop.codec import AtMost, Between, Id
from khop.sampler.spec import MAX_TYPES
from khop.typing import EdgeDir, EdgeType, NodeType

NegativeMode: TypeAlias = Literal["binary", "triplet"]

# A batch holds fewer nodes of a type.
_MAX_AMOUNT = 2**31

ExcludeSeedEdges: TypeAlias = "bool | Literal['self', 'reverse'] | EdgeType"
"""Edges that a link batch's neighbourhoods leave out. False: none. True or 'self': the links.
'reverse': the links and their reverses. An edge type: the links, and the reverses of this type."""


@dataclass(frozen=True)
class LinkSpec:
    """Properties of link batches: their types, negatives and excluded edges.

    All values are plain, so that JSON can hold them.

    Attributes:
        src_type, dst_type: index of the node types that links join.
        relation: index of their edge type. If None, links have no edge type of the graph.
        edge_dir: 'in' if the graph lists sources for each destination, 'out' for the reverse.
        disjoint: each end is the root of a separate tree.
        mode: 'binary' for negative pairs, 'triplet' for negative destinations. If None, there are
            no negatives.
        amount: negatives per link, a whole number for triplets.
        strict: negatives are no edges of the graph.
        excluded: edges that the neighbourhoods leave out: (index of the edge type, True if it holds
            the reversed links).
    """

    src_type: Id = 0
    dst_type: Id = 0
    relation: Id | None = 0
    edge_dir: EdgeDir = "in"
    disjoint: bool = False
    mode: NegativeMode | None = None
    amount: Annotated[float, Between(0, 1e6)] = 1
    strict: bool = False
    excluded: Annotated[tuple[tuple[Id, bool], ...], AtMost(MAX_TYPES)] = ()

    @classmethod
    def create(
        cls,
        node_types: Sequence[NodeType],
        edge_types: Sequence[EdgeType],
        link_type: EdgeType,
        *,
        edge_dir: EdgeDir = "in",
        disjoint: bool = False,
        mode: NegativeMode | None = None,
        amount: float = 1,
        strict: bool = False,
        exclude: ExcludeSeedEdges = False,
    ) -> LinkSpec:
        """Check the options of `LinkSpec`, and convert types to indices.

        `node_types` and `edge_types` are the graph's. `link_type` need not be an edge type of the
        graph. `exclude` names the edges that the neighbourhoods leave out.

        Raises:
            ValueError: a type that does not exist, options that contradict one another.
        """
        for node_type in (link_type[0], link_type[2]):
            if node_type not in node_types:
                raise ValueError(
                    f"links of type {link_type} join nodes of type '{node_type}', but there are "
                    f"{list(node_types)}"
                )
        relation = edge_types.index(link_type) if link_type in edge_types else None
        if mode not in (None, "binary", "triplet"):
            raise ValueError(f"negatives are 'binary' or 'triplet' (got '{mode}')")
        if mode is not None and not 0 < amount < _MAX_AMOUNT:
            raise ValueError(
                f"the amount of negatives per link must be positive and below 2^31 (got {amount})"
            )
        if mode == "triplet" and amount != math.ceil(amount):
            raise ValueError(f"the amount of negatives a triplet must be whole (got {amount})")
        if strict and mode is None:
            raise ValueError("strict negatives need negatives: pass neg_sampling")
        if strict and relation is None:
            raise ValueError(
                f"strict negatives are no edges of type {link_type}, but the graph has only "
                f"{list(edge_types)}"
            )
        return cls(
            node_types.index(link_type[0]),
            node_types.index(link_type[2]),
            relation,
            edge_dir,
            disjoint,
            mode,
            amount,
            strict,
            excluded_relations(exclude, edge_types, link_type),
        )

    def num_negatives(self, num_links: int) -> int:
        """Return the number of negatives of a batch of `num_links` links."""
        return 0 if self.mode is None else math.ceil(num_links * self.amount)


def excluded_relations(
    exclude: ExcludeSeedEdges, edge_types: Sequence[EdgeType], link_type: EdgeType
) -> tuple[tuple[int, bool], ...]:
    """Return the edge types whose edges are left out: the links' and, if asked, the reverses'.

    The reverse of (a, r, b) is (b, rev_r, a), and vice versa, as PyG's `ToUndirected` names them.
    If there is no such edge type, (a, r, a) reverses itself, and the only edge type from b to a
    reverses (a, r, b).

    Returns:
        (index of the edge type, True if it holds the reversed links) of each.

    Raises:
        ValueError: the links or their reverses have no edge type, or several possible ones.
    """
    if exclude is False or exclude is None:
        return ()
    if link_type not in edge_types:
        raise ValueError(
            f"exclude_seed_edges={exclude!r}, but links of type {link_type} are no edges of the "
            f"graph: it has {list(edge_types)}"
        )
    itself = (edge_types.index(link_type), False)
    if exclude is True or exclude == "self":
        return (itself,)
    if exclude == "reverse":
        return (itself, (edge_types.index(_reverse_of(link_type, edge_types)), True))
    if not isinstance(exclude, (tuple, list)) or tuple(exclude) not in edge_types:
        raise ValueError(
            "exclude_seed_edges must be False, 'self' (or True), 'reverse' or the edge type of the "
            f"reverse edges (got {exclude!r}); there are {list(edge_types)}"
        )
    back = (exclude[0], exclude[1], exclude[2])
    if (back[0], back[2]) != (link_type[2], link_type[0]):
        raise ValueError(f"edges of type {back} do not reverse links of type {link_type}")
    return (itself, (edge_types.index(back), True))


def _reverse_of(link_type: EdgeType, edge_types: Sequence[EdgeType]) -> EdgeType:
    src, relation, dst = link_type
    bare = relation.removeprefix("rev_")
    named = (dst, f"rev_{relation}" if bare == relation else bare, src)
    if named in edge_types:
        return named
    if src == dst:
        return link_type
    back = [t for t in edge_types if (t[0], t[2]) == (dst, src)]
    if not back:
        raise ValueError(
            f"exclude_seed_edges='reverse', but no edge type reverses {link_type}; there are "
            f"{list(edge_types)}"
        )
    if len(back) > 1:
        raise ValueError(
            f"exclude_seed_edges='reverse': any of {back} could reverse {link_type}; pass the one "
            "that does instead"
        )
    return back[0]
