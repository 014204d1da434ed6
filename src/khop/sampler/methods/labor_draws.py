"""One hop of LABOR: the chance of each edge, and the edges that rows take. Imports no torch.

Sums are added in the batch's order, one number after the other. So they are the same on all
machines and over any number of partitions. In sequential draws each row takes the neighbours that
*arrive* first. A neighbour t with uniform number r_t and mass pi_t arrives at the time r_t / pi_t.
With replacement, and a fan-out of k, a neighbour arrives k times. The times are its k sorted
uniform numbers, divided by the edge's weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from khop.sampler.methods.access import Rows
from khop.sampler.methods.entries import numbered, positions_in_rows
from khop.sampler.methods.normal import exp_of_minus, log_of
from khop.typing import BoolArray, Float64Array, Int64Array

_CONVERGED = 1.0 - 1e-4
_MOST_MASS = 2.0**300  # products with c_s stay finite
_LEAST_SHARE = 2.0**-62  # of a row's weight: as in the kernels' tables, positive stays positive

UniformNumbers: TypeAlias = Callable[[int], Float64Array]
"""Function from i to the i-th uniform number of each of a layer's nodes, [num_nodes] in [0, 1]."""


@dataclass(frozen=True)
class Layer:
    """The rows (frontier nodes) of a LABOR hop, and their neighbours, which are of one node type.

    Attributes:
        nodes: [num_nodes] int64 ids of the neighbours, in the order of first appearance.
        node: [num_edges] int64 index in `nodes` of each edge's neighbour.
        row: [num_edges] int64 row of each edge, ascending.
        degree: [num_rows] int64 edges of each row.
        asked: [num_rows] int64 fan-out of each row. Negative fan-outs take all.
        weight: [num_edges] float64 weight of each edge, above 0. If None, all are 1.
        share: [num_edges] float64 weights, scaled so that each row's sum is 1. If there are no
            weights, None.
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
        """Join rows of edge types with one neighbour type. `fanouts`, `weights`: by edge type."""
        degree = np.concatenate([[], *(counts for counts, _, _ in rows)]).astype(np.int64)
        asked = np.repeat(fanouts, [len(counts) for counts, _, _ in rows]).astype(np.int64)
        neighbors = np.concatenate([np.empty(0, np.int64), *(ids for _, ids, _ in rows)])
        row = np.repeat(np.arange(len(degree)), degree)
        weight = share = None
        if weights is not None:
            weight = np.concatenate([[], *weights])
            share = np.maximum(weight / np.bincount(row, weight, len(degree))[row], _LEAST_SHARE)
        return cls(*numbered(neighbors), row, degree, asked, weight, share)

    @property
    def fanout(self) -> Int64Array:
        """[num_rows] edges that each row takes without replacement, at most its degree."""
        return np.where(self.asked < 0, self.degree, np.minimum(self.asked, self.degree))

    def masses(self, iterations: int) -> Float64Array:
        """Return pi_t of each edge's neighbour t.

        Args:
            iterations: iterations of the fixed point, or -1 to iterate until convergence. With 0,
                each pi_t is 1, or in a weighted layer the edge's `share`.
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
        """Return c_s of each row s, so that the row's mean has the variance of uniform draws.

        The equation is sum_t 1 / min(1, c_s pi_t) = degree^2 / fanout. In a weighted layer, a row's
        weights A have the sum 1. There the equation is sum_t A^2 / min(1, c_s pi_t) = 1 / fanout -
        1 / degree + sum_t A^2. An edge is certain where c_s pi_t >= 1, and adds 1 (or A^2). The
        value of c_s begins without certain edges and rises with each of them, until there are no
        more.

        If a row takes all its neighbours, c_s is the least value by which all are certain. It is at
        least fanout / degree (fanout, in a weighted layer). So nodes that are taken anyway gain
        mass for other rows, which saves 1 to 3 % of a batch's nodes.

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
        """Return the equation's right side (`scales`), 0 for rows that take all. `square`: A^2."""
        degree, targets = self.degree.astype(np.float64), np.zeros(len(self.degree))
        if square is None:
            return np.divide(degree * degree, self.fanout, out=targets, where=is_open)
        np.divide(1.0, self.fanout, out=targets, where=is_open)
        inverse = np.divide(1.0, degree, out=np.zeros_like(degree), where=is_open)
        return targets - inverse + np.bincount(row, square, len(degree))

    def chances(self, masses: Float64Array | None) -> Float64Array:
        """Return the chance of each edge in Poisson draws.

        Args:
            masses: [num_edges] pi_t: the chance is min(1, c_s pi_t). If None, LABOR-0's chance in a
                weighted layer: min(1, fanout A / sum A).
        """
        fanout = self.fanout
        if masses is None:
            assert self.share is not None
            chance = np.minimum(fanout[self.row] * self.share, 1.0)
        else:
            chance = np.minimum(self.scales(masses)[self.row] * masses, 1.0)
        chance[(fanout == self.degree)[self.row]] = 1.0
        return chance

    def most_parallel(self) -> Int64Array:
        """Return the largest number of edges between each row and one neighbour, [num_rows]."""
        pairs, counts = np.unique(self.row * len(self.nodes) + self.node, return_counts=True)
        most = np.zeros(len(self.degree), np.int64)
        np.maximum.at(most, pairs // max(len(self.nodes), 1), counts)
        return most


def _sum(values: Float64Array) -> float:
    """Return the sum of values, added one after the other. NumPy's own sum adds pairs."""
    return float(np.bincount(np.zeros(len(values), np.int64), values, 1)[0])


class Picks(NamedTuple):
    """Edges that a layer's rows take.

    Attributes:
        edges: [n] int64 edges of the layer, ascending. With replacement, some repeat.
        chances: [n] float64 chance of each edge. The inverse is an unbiased weight, with
            replacement after division by the row's number of draws. None if not requested.
    """

    edges: Int64Array
    chances: Float64Array | None


class _Arrivals(NamedTuple):
    """Times at which neighbours are drawn by rows. Entries of a `group` share a random number."""

    edge: Int64Array
    group: Int64Array
    time: Float64Array

    def first(self, row: Int64Array, most: Int64Array) -> tuple[_Arrivals, Int64Array]:
        """Return the first `most` arrivals at each row, and their positions among all arrivals."""
        of = row[self.edge]
        order = np.lexsort((self.edge, self.time, of))
        of = of[order]
        order = order[positions_in_rows(of) < most[of]]
        return _Arrivals(self.edge[order], self.group[order], self.time[order]), order


def take_poisson(
    layer: Layer, numbers: UniformNumbers, chances: Float64Array, weigh: bool
) -> Picks:
    """Take edges whose neighbour's number is below their chance. `weigh`: add chances."""
    edges = np.flatnonzero(numbers(0)[layer.node] < chances)
    return Picks(edges, chances[edges] if weigh else None)


def take_once(layer: Layer, numbers: UniformNumbers, masses: Float64Array, weigh: bool) -> Picks:
    """Take the edges of smallest r_t / pi_t in each row, as many as its fan-out.

    Args:
        layer: the rows.
        numbers: r_t.
        masses: [num_edges] pi_t.
        weigh: return chances. An edge's chance is conditional on the other nodes' numbers (priority
            sampling, Duffield, Lund and Thorup, 2007). In a row without parallel edges where all
            pi_t are 1, it is fanout / degree.
    """
    is_open = layer.fanout < layer.degree
    edges = np.flatnonzero(is_open[layer.row])
    node = layer.node[edges]
    arrivals, _ = _Arrivals(edges, node, numbers(0)[node] / masses[edges]).first(
        layer.row, layer.degree
    )
    even = layer.fanout / np.maximum(layer.degree, 1)
    return _winners(layer, arrivals, layer.fanout, ~is_open, masses, even if weigh else None)


def take_repeatedly(layer: Layer, numbers: UniformNumbers, weigh: bool) -> Picks:
    """Take as many edges in each row as its fan-out, with replacement.

    A fan-out of -1 takes all edges once. For a row with the fan-out k each neighbour has k sorted
    uniform numbers, and arrives at these numbers, divided by the edge's weight. The row takes the
    first k arrivals. The i-th sorted number follows from the one before it (Rényi, 1953):
    -log(1 - r) grows by -log(u_i) / (k + 1 - i).

    Args:
        layer: the rows.
        numbers: u_i.
        weigh: return chances.
    """
    row, draws = layer.row, layer.asked.clip(0)
    masses = np.ones(len(row)) if layer.share is None else layer.share
    most = draws + layer.most_parallel() if weigh else draws
    arrivals = _Arrivals(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    edge = np.flatnonzero(draws[row] > 0)
    spent = np.zeros(len(edge))  # -log(1 - r)
    draw = 0
    while len(edge):
        node = layer.node[edge]
        uniform = np.clip(numbers(draw)[node], 2.0**-54, 1.0)
        spent = spent - log_of(uniform) / (draws[row[edge]] - draw)
        time = (1.0 - exp_of_minus(np.minimum(spent, 40.0))) / masses[edge]
        before = len(arrivals.edge)
        later = _Arrivals(edge, node + draw * len(layer.nodes), time)
        both = _Arrivals(*(np.concatenate(pair) for pair in zip(arrivals, later, strict=True)))
        arrivals, origin = both.first(row, most)
        came = np.sort(origin[origin >= before]) - before
        draw += 1
        came = came[draws[row[edge[came]]] > draw]  # can arrive once more
        edge, spent = edge[came], spent[came]
    even = 1.0 / np.maximum(layer.degree, 1)
    return _winners(layer, arrivals, draws, layer.asked < 0, masses, even if weigh else None)


def _winners(
    layer: Layer,
    arrivals: _Arrivals,
    draws: Int64Array,
    takes_all: BoolArray,
    masses: Float64Array,
    even: Float64Array | None,
) -> Picks:
    """Return the first arrivals at each row, and all edges of rows that take all.

    Args:
        layer: the rows.
        arrivals: at rows that do not take all. To compute chances, more than `draws` per row.
        draws: [num_rows] edges that each row takes.
        takes_all: [num_rows] True for rows that take all edges.
        masses: [num_edges] divisors of the arrival times.
        even: [num_rows] chance of each edge of a row whose edges are equally likely. If None, no
            chances are returned.
    """
    row = layer.row[arrivals.edge]
    taken = np.flatnonzero(positions_in_rows(row) < draws[row])
    all_of = np.flatnonzero(takes_all[layer.row])
    edges = np.concatenate([arrivals.edge[taken], all_of])
    order = np.argsort(edges, kind="stable")
    if even is None:
        return Picks(edges[order], None)
    chances = _chances(row, arrivals, taken, draws[row], masses[arrivals.edge])
    if layer.share is None and (masses == 1.0).all():
        is_plain = layer.most_parallel()[row[taken]] == 1
        chances = np.where(is_plain, even[row[taken]], chances)
    return Picks(edges[order], np.concatenate([chances, np.ones(len(all_of))])[order])


def _chances(
    row: Int64Array, arrivals: _Arrivals, taken: Int64Array, draws: Int64Array, masses: Float64Array
) -> Float64Array:
    """Return the chance with which each taken arrival is taken, given other groups' arrivals.

    `row`, `draws` and `masses` have an entry per arrival. `taken` are indices of arrivals.
    An arrival that comes after i arrivals of its own group is taken if it comes before the (draws -
    i)-th arrival of other groups.
    """
    position = positions_in_rows(row)
    by_group = np.lexsort((position, arrivals.group, row))
    begins = np.diff(arrivals.group[by_group], prepend=-1) != 0
    begins |= np.diff(row[by_group], prepend=-1) != 0
    first = np.flatnonzero(begins)  # of each group, in order of groups
    group, before = np.empty_like(row), np.empty_like(row)
    group[by_group] = np.cumsum(begins) - 1
    before[by_group] = np.arange(len(row)) - first[group[by_group]]
    width = 2 * len(row) + 1
    codes = group[by_group] * width + position[by_group]
    rest = draws[taken] - before[taken] - 1
    passed = rest  # position of the last arrival of other groups that can come before it
    while True:
        own = np.searchsorted(codes, group[taken] * width + passed, side="right")
        further = rest + own - first[group[taken]]
        if (further == passed).all():
            break
        passed = further
    sizes = np.bincount(row)
    is_sure = passed >= sizes[row[taken]]
    threshold = arrivals.time[np.where(is_sure, taken, taken - position[taken] + passed)]
    return np.where(is_sure, 1.0, np.minimum(masses[taken] * threshold, 1.0))
