"""`Ppr`: the nodes of highest personalised PageRank. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from khop.codec import Between
from khop.sampler.methods.access import GraphAccess, Waiting, add_all_seeds
from khop.sampler.methods.base import register
from khop.sampler.methods.entries import ranges
from khop.sampler.methods.ranked import RankedNeighbors, add_highest, weights_of
from khop.typing import Int64Array

_BITS = 62
_UNIT = 1 << _BITS  # all mass of a seed: sums of integers do not depend on their order
_MOST = 100_000


@register
@dataclass(frozen=True)
class Ppr(RankedNeighbors):
    """The nodes of highest personalised PageRank around each seed.

    A walk from the seed goes on to a uniform neighbour, among the neighbours that the loader draws,
    with chance 1 - `alpha`. A node's score is the chance that the walk ends there. Scores are
    approximated by pushes. The seed is pushed first, then nodes whose residual, the mass that waits
    there, is at least eps * degree, until no such node is left. The `max_nodes` best nodes (of
    equal scores the smaller id) are the seed's neighbours in the batch, with `edge_weight` the
    score. Most often the seed itself is the first. At nodes without neighbours walks are lost. The
    edges are not the graph's: batches have no `e_id` and no attributes of edges. Nothing is random.
    Homogeneous graphs without times. A batch takes memory for up to 1 / (alpha * eps) entries for
    each seed, beside its neighbours.

    Scores are too low. In an undirected graph, the error of node v is below eps * degree(v). In a
    directed graph it is below eps * sum over all u of degree(u) * (score of v from u). A degree is
    the number of neighbours that are drawn, at least 1. Rounding changes scores by less than 3e-19
    / (alpha * eps), and `edge_weight`, float32, by 6e-8 of itself.

    Method: push (https://doi.org/10.1109/FOCS.2006.44), in rounds and integers.

    Args:
        max_nodes: nodes that each seed is joined to.
        alpha: chance that a walk ends at a node, 0.01 to 1.
        eps: residual per neighbour below which a node is not pushed, 1e-8 to 1.

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

    @property
    def num_neighbors(self) -> list[int]:
        """Maximum number of neighbours of a seed, as the fan-out of one hop."""
        return [self.max_nodes]

    def draw(self, graph: GraphAccess) -> Waiting[None]:
        add_all_seeds(graph)
        seeds = graph.subgraph.frontier(0)[0]
        roots, nodes, scores = yield from self._scores(graph, seeds)
        kept = yield from add_highest(graph, roots, nodes, scores, self.max_nodes, False)
        graph.values["e0.edge_weight"] = weights_of([scores[kept] / _UNIT])

    def _scores(
        self, graph: GraphAccess, seeds: Int64Array
    ) -> Waiting[tuple[Int64Array, Int64Array, Int64Array]]:
        """Return (index of the seed, node, score) of all pairs with a score, [n] int64 each."""
        width = np.int64(graph.num_nodes[0])
        limit, ending = round(self.eps * _UNIT), round(self.alpha * _UNIT)
        pairs = np.sort(np.arange(len(seeds)) * width + seeds)  # seed and node as one number
        residuals = np.full(len(pairs), _UNIT, np.int64)
        scores = np.zeros(len(pairs), np.int64)
        degrees = yield from graph.degrees(0, pairs % width)
        pushed = np.ones(len(pairs), np.bool_)  # seeds first, whatever their degree
        while pushed.any():
            rows, amounts = pairs[pushed], residuals[pushed]
            ended = _share(amounts, ending)
            scores[pushed] += ended
            reached, shares, left = yield from _spread(graph, rows, amounts - ended, width)
            residuals[pushed] = left
            new = np.setdiff1d(reached, pairs)
            at = np.searchsorted(pairs, new)
            more = yield from graph.degrees(0, new % width)
            degrees = np.insert(degrees, at, more)
            residuals, scores = np.insert(residuals, at, 0), np.insert(scores, at, 0)
            pairs = np.insert(pairs, at, new)
            np.add.at(residuals, np.searchsorted(pairs, reached), shares)
            pushed = residuals // np.maximum(degrees, 1) >= limit
        scored = scores > 0
        return pairs[scored] // width, pairs[scored] % width, scores[scored]


def _share(amounts: Int64Array, part: int) -> Int64Array:
    """Return amounts * part >> 62, exactly, in 64 bits. Both are at most 2^62."""
    half = _BITS // 2
    low = (1 << half) - 1
    high, rest = amounts >> half, amounts & low
    cross = high * (part & low) + rest * (part >> half)
    shares: Int64Array = high * (part >> half) + ((cross + (rest * (part & low) >> half)) >> half)
    return shares


def _spread(
    graph: GraphAccess, rows: Int64Array, amounts: Int64Array, width: np.int64
) -> Waiting[tuple[Int64Array, Int64Array, Int64Array]]:
    """Divide the amount of each (seed, node) pair of `rows` among the node's neighbours.

    Returns:
        The pairs that get a share, their shares, and the remainder of each amount. The remainder is
        below the number of neighbours, or 0 without neighbours.
    """
    nodes, of_row = np.unique(rows % width, return_inverse=True)
    counts, neighbors, _ = yield from graph.neighbors(0, nodes, with_edge=False)
    begins, degrees = np.cumsum(counts, dtype=np.int64) - counts, counts[of_row].astype(np.int64)
    reached = neighbors[ranges(begins[of_row], degrees)]
    each, left = np.divmod(amounts, np.maximum(degrees, 1))
    reached = np.repeat(rows // width, degrees) * width + reached
    return reached, np.repeat(each, degrees), np.where(degrees > 0, left, 0)
