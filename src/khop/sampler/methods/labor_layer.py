"""One hop of LABOR: rows, their neighbours, and the chance of each. Imports no torch.

All sums are added in the batch's order, one number after the other, so that they are the same on
all machines and over any number of partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from khop.sampler.methods.access import Rows
from khop.typing import BoolArray, Float64Array, Int64Array

_CONVERGED = 1.0 - 1e-4
_MOST_MASS = 2.0**300  # products with c_s stay finite
_LEAST_SHARE = 2.0**-62  # of a row's weight: as in the kernels' tables, positive stays positive


@dataclass(frozen=True)
class Layer:
    """Rows of a hop and their neighbours, which are of one node type.

    Attributes:
        nodes: [num_nodes] int64 ids of the neighbours, in the order in which rows name them first.
        node: [num_edges] int64 place of each edge's neighbour in `nodes`.
        row: [num_edges] int64 row of each edge, ascending.
        degree: [num_rows] int64 edges of each row.
        asked: [num_rows] int64 fan-out of each row; negative: all.
        weight: [num_edges] float64 weight of each edge, above 0. If None, all are 1.
        share: [num_edges] float64 weights, scaled so that a row's add up to 1. None without
            weights.
    """

    nodes: Int64Array
    node: Int64Array
    row: Int64Array
    degree: Int64Array
    asked: Int64Array
    weight: Float64Array | None
    share: Float64Array | None

    @classmethod
    def of(
        cls, rows: list[Rows], fanouts: list[int], weights: Sequence[Float64Array] | None = None
    ) -> Layer:
        """Return the rows of several edge types as one layer."""
        degree = np.concatenate([[], *(counts for counts, _, _ in rows)]).astype(np.int64)
        asked = np.repeat(fanouts, [len(counts) for counts, _, _ in rows]).astype(np.int64)
        found = np.concatenate([np.empty(0, np.int64), *(neighbors for _, neighbors, _ in rows)])
        ids, first, place = np.unique(found, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        row = np.repeat(np.arange(len(degree)), degree)
        weight = share = None
        if weights is not None:
            weight = np.concatenate([[], *weights])
            share = np.maximum(weight / np.bincount(row, weight, len(degree))[row], _LEAST_SHARE)
        return cls(ids[order], rank[place.reshape(-1)], row, degree, asked, weight, share)

    @property
    def fanout(self) -> Int64Array:
        """[num_rows] edges that each row takes without replacement: at most all."""
        return np.where(self.asked < 0, self.degree, np.minimum(self.asked, self.degree))

    def masses(self, iterations: int) -> Float64Array:
        """Return pi_t of each edge's neighbour t after some iterations; at convergence if negative.

        Without iterations: 1, or of weighted layers the edge's weight.
        """
        weighted = self.share is not None
        of_edge = np.ones(len(self.row)) if self.share is None else self.share
        of_node = np.ones(len(self.nodes))
        expected = float(len(self.nodes))
        left = iterations + (weighted and iterations > 0)
        is_first = True
        while left:
            raised = self.scales(of_edge)[self.row]
            if weighted and is_first:  # the weights stand for pi: from then on pi is a node's
                raised = raised * of_edge
            highest = np.zeros_like(of_node)
            np.maximum.at(highest, self.node, raised)
            of_node = np.minimum(of_node * highest, _MOST_MASS)
            of_edge = of_node[self.node]
            is_first = False
            left -= 1
            before, expected = expected, _sum(np.minimum(of_node, 1.0))
            if left < 0 and expected >= before * _CONVERGED:
                break
        return of_edge

    def scales(self, masses: Float64Array) -> Float64Array:
        """Return c_s of each row, so that its mean has the variance of uniform draws.

        sum_t 1 / min(1, c_s pi_t) = degree^2 / fanout; of weighted layers, whose rows have weights
        A with the sum 1, sum_t A^2 / min(1, c_s pi_t) = 1 / fanout - 1 / degree + sum_t A^2. Edges
        with c_s pi_t >= 1 add 1 (A^2) each; c_s rises from its value without such ones, and edges
        once among them stay, until there are no more.

        Rows that take all their neighbours are certain of them from some c_s on. Theirs is fanout /
        degree (fanout, of weights) or more: nodes that are taken anyway gain mass for other rows,
        which saves 1 to 3 % of a batch's nodes.

        Args:
            masses: [num_edges] pi_t of each edge.
        """
        scales, fanout = np.zeros(len(self.degree)), self.fanout
        size = np.maximum(self.degree, 1) if self.share is None else 1
        np.divide(self.asked, size, out=scales, where=self.asked > 0)
        np.maximum.at(scales, self.row, 1.0 / masses)  # of rows that take all their neighbours
        is_open = fanout < self.degree
        edges = is_open[self.row]
        row, mass = self.row[edges], masses[edges]
        square = None if self.share is None else np.square(self.share[edges])
        inverse = 1.0 / mass if square is None else square / mass
        target = self._targets(is_open, row, square)
        sure = np.zeros(len(row), np.bool_)
        while True:
            certain = sure if square is None else np.where(sure, square, 0.0)
            left = target - np.bincount(row, certain, len(scales))
            sums = np.bincount(row, np.where(sure, 0.0, inverse), len(scales))
            np.divide(sums, left, out=scales, where=is_open)
            more = sure | (scales[row] * mass >= 1.0)
            if (more == sure).all():
                return scales
            sure = more

    def _targets(
        self, is_open: BoolArray, row: Int64Array, square: Float64Array | None
    ) -> Float64Array:
        degree, targets = self.degree.astype(np.float64), np.zeros(len(self.degree))
        if square is None:
            return np.divide(degree * degree, self.fanout, out=targets, where=is_open)
        np.divide(1.0, self.fanout, out=targets, where=is_open)
        inverse = np.divide(1.0, degree, out=np.zeros_like(degree), where=is_open)
        return targets - inverse + np.bincount(row, square, len(degree))

    def chances(self, masses: Float64Array) -> Float64Array:
        """Return the chance of each edge in Poisson draws: min(1, c_s pi_t)."""
        return self._all_or(np.minimum(self.scales(masses)[self.row] * masses, 1.0))

    def chances_by_weight(self) -> Float64Array:
        """Return min(1, fanout A / sum A) of each edge of a weighted layer: LABOR-0's."""
        assert self.share is not None
        return self._all_or(np.minimum(self.fanout[self.row] * self.share, 1.0))

    def _all_or(self, chance: Float64Array) -> Float64Array:
        chance[(self.fanout == self.degree)[self.row]] = 1.0
        return chance


def _sum(values: Float64Array) -> float:
    """Return the sum of values, added one after the other; NumPy's own sum adds pairs."""
    return float(np.bincount(np.zeros(len(values), np.int64), values, 1)[0])
