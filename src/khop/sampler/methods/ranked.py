"""Neighbours by rank, joined to their roots by edges that the graph need not have.

What `Ppr` and `PinSage` share. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from khop.sampler.methods.access import GraphAccess, Waiting
from khop.sampler.methods.base import ProgramMethod
from khop.typing import Array, Int64Array


@dataclass(frozen=True)
class RankedNeighbors(ProgramMethod):
    """Base of methods whose edges join a root and the nodes that rank highest around it.

    These are no edges of the graph: batches have no `e_id` and no attributes of edges, but
    `edge_weight`.
    """

    edge_values: ClassVar[tuple[str, ...]] = ("edge_weight",)
    draws_edges: ClassVar[bool] = False

    def check_form(self, heterogeneous: bool, disjoint: bool) -> None:
        """See `SamplingMethod`."""
        if heterogeneous:
            raise ValueError(
                f"{type(self).__name__} ranks nodes of graphs of one node and edge type: this one "
                "is heterogeneous"
            )
        if disjoint:
            raise ValueError(
                f"{type(self).__name__} makes one subgraph of all seeds, and knows no times: leave "
                "disjoint and time_attr out"
            )


def add_highest(
    graph: GraphAccess, roots: Array, nodes: Int64Array, scores: Array, most: int, largest_id: bool
) -> Waiting:
    """Join each root of the frontier to the nodes of highest score, best first.

    Args:
        graph: the graph.
        roots: [n] place in the frontier of each pair's root.
        nodes: [n] int64, the pair's node; a pair is there once.
        scores: [n] integers.
        most: nodes of a root.
        largest_id: of equal scores the larger original id comes first; else the smaller.

    Returns:
        [m] indices of the pairs that are edges now, in order of these.
    """
    original = yield from graph.original_ids(0, nodes)
    ids = -original if largest_id else original
    order = np.lexsort((ids, -scores.astype(np.int64), roots))
    num_roots = len(graph.subgraph.frontier(0)[0])
    counts = np.bincount(roots, minlength=num_roots)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = order[rank < most]
    graph.add_hop(0, (np.minimum(counts, most).astype(np.int32), nodes[kept], None))
    graph.subgraph.end_hop()
    return kept


def weights_of(parts: list[Array]) -> Array:
    """Return the weights of all hops as one array, [num_edges] float32."""
    return np.concatenate([*parts, np.empty(0)]).astype(np.float32)
