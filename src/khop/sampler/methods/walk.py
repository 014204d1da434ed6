"""Random walks over whatever part of the graph is here. Imports no torch.

Where all rows are here, one call of the kernels walks (`khop/core/walk.hpp`); over partitions all
walks take a step at a time, which waits for the rows' owners. Both make the same walks: every
number is keyed by a walk's index, its step and its trial, and rows are drawn by original ids.
Chances are integers of 2^-32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from khop import _native
from khop.sampler.methods.access import GraphAccess, Waiting
from khop.typing import Array, Int64Array, UInt64Array

STEP, ACCEPT, STOP = 16, 17, 18
"""Purposes of keys: of a step's neighbour, of its acceptance, and of an end before it."""

ONE = 1 << 32
"""Certainty."""

TRIALS = 16
"""Neighbours that a biased step tries before it looks at all of a node's neighbours."""

_MOST_ENTRIES = 1 << 22  # neighbours looked at together where trials have failed


@dataclass(frozen=True, slots=True)
class WalkPlan:
    """Steps of walks.

    Attributes:
        relations: index of the edge type of each step.
        stops: chance that a walk ends before each step, of 2^32.
        back: chance to accept the previous node as the next one, of 2^32.
        near: likewise a neighbour of the previous node.
        far: likewise any other node.
        first_step: number of the first step in keys.
    """

    relations: tuple[int, ...]
    stops: tuple[int, ...]
    back: int = ONE
    near: int = ONE
    far: int = ONE
    first_step: int = 0

    @property
    def is_biased(self) -> bool:
        """True if a step depends on the node before."""
        return not self.back == self.near == self.far


def acceptance(p: float, q: float) -> tuple[int, int, int]:
    """Return the chances `back`, `near` and `far` of node2vec's p and q, the largest of them 1."""
    weights = 1 / p, 1.0, 1 / q
    back, near, far = (max(1, round(w / max(weights) * ONE)) for w in weights)
    return back, near, far


def walks(graph: GraphAccess, starts: Int64Array, plan: WalkPlan, with_edge: bool) -> Waiting:
    """Walk from nodes, along the edge types of a plan.

    Args:
        graph: the graph.
        starts: [n] int64 engine's ids.
        plan: the steps.
        with_edge: return edges, too.

    Returns:
        ([n, L + 1] int64 nodes, [n, L] int64 edges or None); -1 where a walk has ended.
    """
    length = len(plan.relations)
    if graph.whole_rows is not None:
        walk = partial(_native.random_walks, num_threads=graph.num_threads)
        return walks_at_once(walk, graph.whole_rows, starts, plan, graph.place, with_edge)
    # Step by step while walks are made: a row each, so that what a step reads lies together.
    nodes = np.full((length + 1, len(starts)), -1, np.int64)
    edges = np.full((length, len(starts)), -1, np.int64) if with_edge else None
    nodes[0] = starts
    going = np.arange(len(starts))
    for step in range(length):
        if plan.stops[step]:
            words = _native.draw_words(graph.key(STOP, plan.first_step + step), going) >> np.uint64(
                32
            )
            going = going[words >= plan.stops[step]]
        biased = plan.is_biased and step > 0
        take = _biased_step if biased else _uniform_step
        moved, found, passed = yield from take(graph, plan, step, going, nodes, with_edge)
        going = moved
        nodes[step + 1, going] = found
        if edges is not None:
            edges[step, going] = passed
    return np.ascontiguousarray(nodes.T), None if edges is None else np.ascontiguousarray(edges.T)


def walks_at_once(
    walk: Callable[..., None],
    graphs: Sequence[Any],
    starts: Int64Array,
    plan: WalkPlan,
    place: tuple[int, int],
    with_edge: bool,
) -> tuple[Int64Array, Int64Array | None]:
    """Walk by one call of a kernel; return nodes and edges, as `walks` does.

    Args:
        walk: `_native.random_walks`, or a device's method of that name.
        graphs: the rows of each edge type, whole, as it takes them.
        starts: [n] int64 nodes.
        plan: the steps.
        place: (key of the epoch, index of the batch).
        with_edge: return edges, too.
    """
    count, length = len(starts), len(plan.relations)
    nodes = np.empty((count, length + 1), np.int64)
    edges = np.empty((count, length), np.int64) if with_edge else None
    walk(
        graphs,
        plan.relations,
        plan.stops,
        (plan.back, plan.near, plan.far),
        *place,
        plan.first_step,
        starts,
        nodes,
        edges,
    )
    return nodes, edges


def _uniform_step(
    graph: GraphAccess,
    plan: WalkPlan,
    step: int,
    going: Int64Array,
    nodes: Int64Array,
    with_edge: bool,
    trial: int = 0,
) -> Waiting:
    """Draw a neighbour for each walk; return those that have one, their neighbours and edges."""
    if not len(going):
        return going, going, going
    counts, found, edges = yield from graph.neighbors(
        plan.relations[step],
        nodes[step, going],
        1,
        key=graph.key(STEP, plan.first_step + step, trial),
        replace=True,
        trees=going.astype(np.int32),
        with_edge=with_edge,
    )
    return going[counts > 0], found, found if edges is None else edges


def _biased_step(
    graph: GraphAccess,
    plan: WalkPlan,
    step: int,
    going: Int64Array,
    nodes: Int64Array,
    with_edge: bool,
) -> Waiting:
    """As `_uniform_step`, by node2vec's chances: by rejection, then by the whole row."""
    taken: list[tuple[Int64Array, Int64Array, Int64Array]] = []
    waiting = going
    for trial in range(TRIALS):
        if not len(waiting):
            break
        waiting, found, edges = yield from _uniform_step(
            graph, plan, step, waiting, nodes, with_edge, trial
        )
        words = _native.draw_words(
            graph.key(ACCEPT, plan.first_step + step, trial), waiting
        ) >> np.uint64(32)
        before = nodes[step - 1, waiting]
        chances = yield from _chances(graph, plan, step, before, found, words)
        kept = words < chances
        taken.append((waiting[kept], found[kept], edges[kept]))
        waiting = waiting[~kept]
    if len(waiting):
        degrees = yield from graph.degrees(plan.relations[step], nodes[step, waiting])
        pieces = np.cumsum(degrees) // _MOST_ENTRIES
        for piece in np.split(waiting, np.flatnonzero(np.diff(pieces)) + 1):
            taken.append((yield from _whole_row_step(graph, plan, step, piece, nodes, with_edge)))
    if not taken:
        return going, going, going
    moved, found, edges = (np.concatenate([part[i] for part in taken]) for i in range(3))
    order = np.argsort(moved)
    return moved[order], found[order], edges[order]


def _chances(
    graph: GraphAccess,
    plan: WalkPlan,
    step: int,
    before: Int64Array,
    found: Int64Array,
    words: UInt64Array | None = None,
) -> Waiting:
    """Return the chance of each candidate; whether it is near matters between near and far."""
    chances = np.full(len(found), plan.far, np.uint64)
    asked = found != before
    chances[~asked] = plan.back
    if words is not None:
        asked &= (words < max(plan.near, plan.far)) & (words >= min(plan.near, plan.far))
    if plan.near != plan.far and asked.any():
        near = yield from graph.has_edges(plan.relations[step], before[asked], found[asked])
        chances[np.flatnonzero(asked)[near]] = plan.near
    return chances


def _whole_row_step(
    graph: GraphAccess,
    plan: WalkPlan,
    step: int,
    going: Int64Array,
    nodes: Int64Array,
    with_edge: bool,
) -> Waiting:
    """Draw among all neighbours of each walk's node, by running sums of their chances."""
    counts, found, edges = yield from graph.neighbors(
        plan.relations[step], nodes[step, going], -1, with_edge=with_edge
    )
    before = np.repeat(nodes[step - 1, going], counts)
    chances = yield from _chances(graph, plan, step, before, found)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(chances, dtype=np.uint64)])
    ends = np.cumsum(counts, dtype=np.int64)
    low, high = sums[ends - counts], sums[ends]
    words = _native.draw_words(graph.key(ACCEPT, plan.first_step + step, TRIALS), going)
    place = np.searchsorted(sums, low + below(words, high - low), side="right") - 1
    return going, found[place], (found if edges is None else edges)[place]


def below(words: UInt64Array, bounds: Array) -> UInt64Array:
    """Map 64-bit words to [0, bound): the upper half of their products, [n] uint64."""
    half, low = np.uint64(32), np.uint64(ONE - 1)
    bounds = np.asarray(bounds, np.uint64)
    inner, outer = (words >> half) * (bounds & low), (words & low) * (bounds >> half)
    carry = (inner & low) + (outer & low) + (((words & low) * (bounds & low)) >> half)
    upper = (words >> half) * (bounds >> half) + (inner >> half) + (outer >> half)
    return upper + (carry >> half)  # type: ignore[no-any-return]
