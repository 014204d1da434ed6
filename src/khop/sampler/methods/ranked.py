"""Base of `Ppr` and `PinSage`: joins each root to its highest-ranked nodes.

These edges need not exist in the graph. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from khop.sampler.methods.access import GraphAccess, Waiting
from khop.sampler.methods.base import ProgramMethod, check_numbers
from khop.sampler.methods.entries import positions_in_rows
from khop.typing import Array, Int64Array


@dataclass(frozen=True)
class RankedNeighbors(ProgramMethod):
    """Base of methods whose edges join a root and the nodes that rank highest around it.

    These edges need not exist in the graph. So batches have no `e_id` and no attributes of edges,
    but `edge_weight`.
    """

    edge_values: ClassVar[tuple[str, ...]] = ("edge_weight",)
    draws_edges: ClassVar[bool] = False
    _is_homogeneous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_numbers(self)


def add_highest(
    graph: GraphAccess, roots: Array, nodes: Int64Array, scores: Array, most: int, largest_id: bool
) -> Waiting[Int64Array]:
    """Join each root of the frontier to the nodes of highest score, best first.

    Args:
        graph: the graph.
        roots: [n] index in the frontier of the root of each (root, node) pair.
        nodes: [n] int64 node of each pair. Each pair occurs once.
        scores: [n] integer score of each pair.
        most: nodes per root.
        largest_id: of equal scores the larger original id comes first. If False, the smaller.

    Returns:
        [m] indices of the pairs that are edges now, in the order of the edges.
    """
    original = yield from graph.original_ids(0, nodes)
    ids = -original if largest_id else original
    order = np.lexsort((ids, -scores.astype(np.int64), roots))
    counts = np.bincount(roots, minlength=len(graph.subgraph.frontier(0)[0]))
    kept = order[positions_in_rows(roots[order]) < most]
    graph.add_hop(0, (np.minimum(counts, most).astype(np.int32), nodes[kept], None))
    graph.subgraph.end_hop()
    return kept


def weights_of(parts: list[Array]) -> Array:
    """Return the weights of all hops as one array, [num_edges] float32."""
    return np.concatenate([*parts, np.empty(0)]).astype(np.float32)
