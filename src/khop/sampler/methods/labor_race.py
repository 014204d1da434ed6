"""LABOR's sequential draws: each row takes the neighbours that arrive first. Imports no torch.

A neighbour t arrives at a row at r_t / pi_t, or, with replacement, as often as the row takes
neighbours: at its sorted uniform numbers, divided by the edge's weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from khop.sampler.methods.labor_layer import Layer
from khop.sampler.methods.normal import exp_of_minus, log_of
from khop.typing import BoolArray, Float64Array, Int64Array

Numbers = Callable[[int], Float64Array]
"""The i-th uniform number of each of a layer's nodes, [num_nodes] within [0, 1]."""


class Picks(NamedTuple):
    """Edges that a layer's rows take.

    Attributes:
        edges: [n] int64 edges of the layer, ascending; with replacement, some repeat.
        chances: [n] float64: 1 / chance, of a draw with replacement divided by the row's number of
            draws, has no bias. None if they were not asked for.
    """

    edges: Int64Array
    chances: Float64Array | None


class _Arrivals(NamedTuple):
    """Arrivals in order of rows, then of time, then of edges; those of a group share a number."""

    edge: Int64Array
    group: Int64Array
    time: Float64Array

    def first(self, row: Int64Array, most: Int64Array) -> tuple[_Arrivals, Int64Array]:
        """Return the first arrivals at each row, `most` of them, sorted; and where each was."""
        of = row[self.edge]
        order = np.lexsort((self.edge, self.time, of))
        of = of[order]
        order = order[_places(of) < most[of]]
        return _Arrivals(self.edge[order], self.group[order], self.time[order]), order

    def behind(self, others: _Arrivals) -> _Arrivals:
        """Return these behind others."""
        return _Arrivals(*(np.concatenate(both) for both in zip(others, self, strict=True)))


def take_once(layer: Layer, numbers: Numbers, masses: Float64Array, weigh: bool) -> Picks:
    """Take the edges of smallest r_t / pi_t in each row, as many as its fan-out.

    Args:
        layer: the rows.
        numbers: r_t.
        masses: [num_edges] pi_t.
        weigh: return chances. That of an edge is given the other nodes' numbers (priority sampling,
            Duffield, Lund and Thorup, 2007), or where all pi_t of a row without parallel edges are
            1, fanout / degree.
    """
    is_open = layer.fanout < layer.degree
    everything = np.flatnonzero(is_open[layer.row])
    node = layer.node[everything]
    race = _Arrivals(everything, node, numbers(0)[node] / masses[everything])
    arrivals, _ = race.first(layer.row, layer.degree)
    even = layer.fanout / np.maximum(layer.degree, 1)
    return _winners(layer, arrivals, layer.fanout, ~is_open, masses, even if weigh else None)


def take_repeatedly(layer: Layer, numbers: Numbers, weigh: bool) -> Picks:
    """Take as many edges in each row as its fan-out, with replacement; all once if it is -1.

    Each neighbour arrives at the k sorted uniform numbers that it has for a row with the fan-out k,
    divided by the edge's weight; the row takes the first k arrivals. The i-th sorted number follows
    from that before it (Rényi, 1953): -log(1 - r) grows by -log(u_i) / (k + 1 - i).

    Args:
        layer: the rows.
        numbers: u_i.
        weigh: return chances.
    """
    row, draws = layer.row, layer.asked.clip(0)
    masses = np.ones(len(row)) if layer.share is None else layer.share
    most = draws + _parallel(layer) if weigh else draws
    arrivals = _Arrivals(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    edge = np.flatnonzero(draws[row] > 0)
    spent = np.zeros(len(edge))  # -log(1 - r)
    number = 0
    while len(edge):
        node = layer.node[edge]
        uniform = np.clip(numbers(number)[node], 2.0**-54, 1.0)
        spent = spent - log_of(uniform) / (draws[row[edge]] - number)
        time = (1.0 - exp_of_minus(np.minimum(spent, 40.0))) / masses[edge]
        later = _Arrivals(edge, node + number * len(layer.nodes), time)
        before = len(arrivals.edge)
        arrivals, origin = later.behind(arrivals).first(row, most)
        came = np.sort(origin[origin >= before]) - before
        number += 1
        came = came[draws[row[edge[came]]] > number]  # those in time may come once more
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
        arrivals: at the others; beyond `draws` of a row, for chances.
        draws: [num_rows] how many each row takes.
        takes_all: [num_rows].
        masses: [num_edges] what arrivals were divided by.
        even: [num_rows] chance of each arrival of a row whose arrivals are all alike. If None, no
            chances are returned.
    """
    row = layer.row[arrivals.edge]
    taken = np.flatnonzero(_places(row) < draws[row])
    all_of = np.flatnonzero(takes_all[layer.row])
    edges = np.concatenate([arrivals.edge[taken], all_of])
    order = np.argsort(edges, kind="stable")
    if even is None:
        return Picks(edges[order], None)
    chances = _chances(row, arrivals, taken, draws[row], masses[arrivals.edge])
    if layer.share is None and (masses == 1.0).all():
        is_plain = _parallel(layer)[row[taken]] == 1
        chances = np.where(is_plain, even[row[taken]], chances)
    return Picks(edges[order], np.concatenate([chances, np.ones(len(all_of))])[order])


def _chances(
    row: Int64Array,
    arrivals: _Arrivals,
    taken: Int64Array,
    draws: Int64Array,
    masses: Float64Array,
) -> Float64Array:
    """Return the chance of arrivals that were taken, given the numbers of other groups.

    If i arrivals of its own group come before it, that is the chance to arrive before the
    (draws - i)-th of the others.
    """
    place = _places(row)
    by_group = np.lexsort((place, arrivals.group, row))
    begins = np.diff(arrivals.group[by_group], prepend=-1) != 0
    begins |= np.diff(row[by_group], prepend=-1) != 0
    first = np.flatnonzero(begins)  # of each group, in order of groups
    group, before = np.empty_like(row), np.empty_like(row)
    group[by_group] = np.cumsum(begins) - 1
    before[by_group] = np.arange(len(row)) - first[group[by_group]]
    width = 2 * len(row) + 1
    codes = group[by_group] * width + place[by_group]
    rest = draws[taken] - before[taken] - 1
    passed = rest  # place of the last of the others who may come before it
    while True:
        own = np.searchsorted(codes, group[taken] * width + passed, side="right")
        further = rest + own - first[group[taken]]
        if (further == passed).all():
            break
        passed = further
    sizes = np.bincount(row)
    is_sure = passed >= sizes[row[taken]]
    threshold = arrivals.time[np.where(is_sure, taken, taken - place[taken] + passed)]
    chances: Float64Array = np.minimum(masses[taken] * threshold, 1.0)
    return np.where(is_sure, 1.0, chances)


def _parallel(layer: Layer) -> Int64Array:
    """Return the largest number of edges between each row and one neighbour, [num_rows]."""
    pairs, counts = np.unique(layer.row * len(layer.nodes) + layer.node, return_counts=True)
    most = np.zeros(len(layer.degree), np.int64)
    np.maximum.at(most, pairs // max(len(layer.nodes), 1), counts)
    return most


def _places(row: Int64Array) -> Int64Array:
    """Return the place of each entry in its row; rows ascend."""
    begins = np.flatnonzero(np.diff(row, prepend=-1) != 0)
    sizes = np.diff(begins, append=len(row))
    places: Int64Array = np.arange(len(row)) - np.repeat(begins, sizes)
    return places
