"""`Ppr`: the nodes of highest personalised PageRank. Imports no torch."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from khop.codec import Between
from khop.sampler.methods.access import GraphAccess, Waiting
from khop.sampler.methods.base import register
from khop.sampler.methods.ranked import RankedNeighbors, add_highest, weights_of
from khop.typing import Int64Array

_UNIT = 1 << 38  # of scores and residuals: sums of integers do not depend on their order
_KEPT = 1 << 25  # of the share that goes on; a product with a residual stays below 2^63
_MOST = 100_000


@register
@dataclass(frozen=True)
class Ppr(RankedNeighbors):
    """The nodes of highest personalised PageRank around each seed.

    A walk from the seed goes on to a uniform neighbour (of those that the loader draws) with chance
    1 - `alpha`; a node's score is the chance that the walk ends there. Scores are approximated by
    pushes: the seed's, then until no node's residual reaches alpha * eps * degree. The `max_nodes`
    best nodes (of equal scores the smaller id), most often the seed first, are the seed's
    neighbours in the batch, with `edge_weight` the score. At nodes without neighbours walks are
    lost. The edges are not the graph's: batches have no `e_id` and no attributes of edges. Nothing
    is random. Homogeneous graphs without times. A batch takes memory for up to 1 / (alpha * eps)
    entries for each seed, beside its neighbours.

    Method: push (https://doi.org/10.1109/FOCS.2006.44), in rounds and integers.

    Args:
        max_nodes: nodes that each seed is joined to.
        alpha: chance that a walk ends at a node, 0.01 to 1.
        eps: precision, 1e-8 to 1.

    Raises:
        ValueError: options out of range. When the loader is made: a heterogeneous graph, or a
            `disjoint` batch.

    Example:
        >>> loader = NeighborLoader(data, Ppr(3), torch.tensor([0]), batch_size=1)
        >>> batch = next(iter(loader))
        >>> batch.n_id[batch.edge_index[0]].tolist(), batch.edge_weight.shape
        ([0, 2, 1], torch.Size([3]))
    """

    name: ClassVar[str] = "ppr"

    max_nodes: Annotated[int, Between(1, _MOST)]
    alpha: Annotated[float, Between(0.01, 1)] = 0.25
    eps: Annotated[float, Between(1e-8, 1)] = 1e-4

    def __post_init__(self) -> None:
        """Checks options."""
        most = self.max_nodes
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= _MOST:
            raise ValueError(f"max_nodes must be an integer from 1 to {_MOST:,} (got {most!r})")
        for name, value, least in (("alpha", self.alpha, 0.01), ("eps", self.eps, 1e-8)):
            if not least <= value <= 1:
                raise ValueError(f"{name} must be a number from {least} to 1 (got {value!r})")

    @property
    def num_neighbors(self) -> list[int]:
        """Most neighbours of a seed."""
        return [self.max_nodes]

    def draw(self, graph: GraphAccess) -> Generator[list[Any], None, None]:
        """See `ProgramMethod`."""
        for node_type, ids, _ in graph.seeds:
            graph.subgraph.add_seeds(node_type, ids)
        seeds = graph.subgraph.frontier(0)[0]
        roots, nodes, scores = yield from self._scores(graph, seeds)
        kept = yield from add_highest(graph, roots, nodes, scores, self.max_nodes, False)
        graph.values["e0.edge_weight"] = weights_of([scores[kept] / _UNIT])

    def _scores(self, graph: GraphAccess, seeds: Int64Array) -> Waiting:
        """Return (place of the seed, node, score) of all pairs with a score, [n] int64 each."""
        width = np.int64(graph.num_nodes[0])
        limit = max(1, round(self.alpha * self.eps * _UNIT))
        pairs = np.sort(np.arange(len(seeds)) * width + seeds)  # seed and node as one number
        residuals = np.full(len(pairs), round(self.alpha * _UNIT), np.int64)
        scores = np.zeros(len(pairs), np.int64)
        degrees = yield from graph.degrees(0, pairs % width)
        pushed = np.ones(len(pairs), np.bool_)  # seeds are, whatever their degree
        while pushed.any():
            rows, amounts = pairs[pushed], residuals[pushed]
            scores[pushed] += amounts
            residuals[pushed] = 0
            found, shares = yield from self._spread(graph, rows, amounts, width)
            new = np.setdiff1d(found, pairs)
            place = np.searchsorted(pairs, new)
            more = yield from graph.degrees(0, new % width)
            degrees = np.insert(degrees, place, more)
            residuals, scores = np.insert(residuals, place, 0), np.insert(scores, place, 0)
            pairs = np.insert(pairs, place, new)
            np.add.at(residuals, np.searchsorted(pairs, found), shares)
            pushed = residuals >= limit * np.maximum(degrees, 1)
        scored = scores > 0
        return pairs[scored] // width, pairs[scored] % width, scores[scored]

    def _spread(
        self, graph: GraphAccess, rows: Int64Array, amounts: Int64Array, width: np.int64
    ) -> Waiting:
        """Return the pairs that pushes of `rows` reach, and what each of them is given."""
        nodes, of_row = np.unique(rows % width, return_inverse=True)
        counts, neighbors, _ = yield from graph.neighbors(0, nodes, with_edge=False)
        ends, degrees = np.cumsum(counts, dtype=np.int64), counts[of_row].astype(np.int64)
        first = np.repeat((ends - counts)[of_row] - (np.cumsum(degrees) - degrees), degrees)
        reached = neighbors[first + np.arange(len(first))]
        kept = amounts * round((1 - self.alpha) * _KEPT) // _KEPT
        shares = np.repeat(kept // np.maximum(degrees, 1), degrees)
        return np.repeat(rows // width, degrees) * width + reached, shares
