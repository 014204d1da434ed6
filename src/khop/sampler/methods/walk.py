"""Random walks over a graph in memory or over partitions. Imports no torch.

If all rows are local, one call of a kernel makes all walks (`khop/core/walk.hpp`). Over partitions
all walks take one step at a time, and each step waits for the rows' owners. Both ways make the same
walks: random numbers are keyed by a walk's index, its step and its trial, and rows are drawn by
original ids. Chances are integers, in units of 2^-32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from khop import _native
from khop.sampler.methods.access import GraphAccess, Waiting
from khop.typing import Array, Int64Array, UInt64Array

STEP, ACCEPT, STOP = 16, 17, 18
"""Purposes of keys: a step's neighbour, its acceptance, and whether a walk ends before it."""

ONE = 1 << 32
"""The chance 1, in units of 2^-32."""

TRIALS = 16
"""Neighbours that a biased step tries before it looks at all of a node's neighbours."""

_MOST_ENTRIES = 1 << 22  # neighbours looked at together where trials have failed


@dataclass(frozen=True, slots=True)
class WalkPlan:
    """Steps of walks, with chances in units of 2^-32.

    Attributes:
        relations: index of the edge type of each step.
        stops: chance that a walk ends before each step.
        back: chance to accept the previous node as the next one.
        near: chance to accept a neighbour of the previous node.
        far: chance to accept any other node.
        first_step: number of the first step in the keys of random numbers.
    """

    relations: tuple[int, ...]
    stops: tuple[int, ...]
    back: int = ONE
    near: int = ONE
    far: int = ONE
    first_step: int = 0


def acceptance(p: float, q: float) -> tuple[int, int, int]:
    """Return a `WalkPlan`'s chances back, near and far, by node2vec's p and q."""
    weights = 1 / p, 1.0, 1 / q
    back, near, far = (max(1, round(w / max(weights) * ONE)) for w in weights)
    return back, near, far


def walks(
    graph: GraphAccess, starts: Int64Array, plan: WalkPlan, with_edge: bool
) -> Waiting[tuple[Int64Array, Int64Array | None]]:
    """Walk from nodes, along the edge types of a plan.

    Args:
        graph: the graph.
        starts: [n] int64 engine's ids.
        plan: the steps.
        with_edge: return edges, too.

    Returns:
        ([n, L + 1] int64 nodes, [n, L] int64 edges or None), with -1 where a walk has ended.
    """
    if graph.whole_rows is not None:
        walk = partial(_native.random_walks, num_threads=graph.num_threads)
        return walks_at_once(walk, graph.whole_rows, starts, plan, graph.batch_key, with_edge)
    return (yield from _StepwiseWalks(graph, starts, plan, with_edge).run())


def walks_at_once(
    walk: Callable[..., None],
    graphs: Sequence[_native.Csr] | Sequence[_native.DeviceGraph],
    starts: Int64Array,
    plan: WalkPlan,
    batch_key: tuple[int, int],
    with_edge: bool,
) -> tuple[Int64Array, Int64Array | None]:
    """Make all walks by one call of a kernel. Return the same as `walks`.

    Args:
        walk: `_native.random_walks`, or a device's method of that name.
        graphs: for each edge type the graph with all its rows, in the memory of `walk`.
        starts: [n] int64 nodes.
        plan: the steps.
        batch_key: (key of the epoch, index of the batch).
        with_edge: return edges, too.
    """
    count, length = len(starts), len(plan.relations)
    nodes = np.empty((count, length + 1), np.int64)
    edges = np.empty((count, length), np.int64) if with_edge else None
    chances = plan.back, plan.near, plan.far
    walk(
        graphs,
        plan.relations,
        plan.stops,
        chances,
        *batch_key,
        plan.first_step,
        starts,
        nodes,
        edges,
    )
    return nodes, edges


_Moves: TypeAlias = tuple[Int64Array, Int64Array, Int64Array]
"""Walks that move in a step, their next nodes and edges. Without edges, the nodes again."""


class _StepwiseWalks:
    """Walks over partitions: one step at a time for all walks, with requests to other parts."""

    def __init__(
        self, graph: GraphAccess, starts: Int64Array, plan: WalkPlan, with_edge: bool
    ) -> None:
        self._graph = graph
        self._plan = plan
        self._with_edge = with_edge
        length = len(plan.relations)
        # A row per step, so that the reads of a step are adjacent.
        self._nodes = np.full((length + 1, len(starts)), -1, np.int64)
        self._edges = np.full((length, len(starts)), -1, np.int64) if with_edge else None
        self._nodes[0] = starts

    def run(self) -> Waiting[tuple[Int64Array, Int64Array | None]]:
        """Make all walks. Return their nodes, and their edges if requested."""
        nodes, edges, plan = self._nodes, self._edges, self._plan
        going = np.arange(nodes.shape[1])
        for step in range(len(plan.relations)):
            if plan.stops[step]:
                going = going[self._words(STOP, step, 0, going) >= plan.stops[step]]
            is_uniform = step == 0 or plan.back == plan.near == plan.far
            take = self._uniform_step if is_uniform else self._biased_step
            going, reached, passed = yield from take(step, going)
            nodes[step + 1, going] = reached
            if edges is not None:
                edges[step, going] = passed
        ordered = None if edges is None else np.ascontiguousarray(edges.T)
        return np.ascontiguousarray(nodes.T), ordered

    def _words(self, purpose: int, step: int, trial: int, walk: Int64Array) -> UInt64Array:
        """Draw a random number below 2^32 for each walk (by index), step and trial."""
        key = self._graph.key(purpose, self._plan.first_step + step, trial)
        words: UInt64Array = _native.draw_words(key, walk) >> np.uint64(32)
        return words

    def _uniform_step(self, step: int, going: Int64Array, trial: int = 0) -> Waiting[_Moves]:
        """Draw a uniform neighbour for each walk in `going`. Walks without neighbours stay."""
        if not len(going):
            return going, going, going
        graph, plan = self._graph, self._plan
        counts, reached, edges = yield from graph.neighbors(
            plan.relations[step],
            self._nodes[step, going],
            1,
            key=graph.key(STEP, plan.first_step + step, trial),
            replace=True,
            trees=going.astype(np.int32),
            with_edge=self._with_edge,
        )
        return going[counts > 0], reached, reached if edges is None else edges

    def _biased_step(self, step: int, going: Int64Array) -> Waiting[_Moves]:
        """Draw a neighbour by node2vec's chances: by rejection, in the end from the whole row."""
        taken: list[_Moves] = []
        waiting = going
        for trial in range(TRIALS):
            if not len(waiting):
                break
            waiting, reached, edges = yield from self._uniform_step(step, waiting, trial)
            words = self._words(ACCEPT, step, trial, waiting)
            before = self._nodes[step - 1, waiting]
            accepted = words < (yield from self._chances(step, before, reached, words))
            taken.append((waiting[accepted], reached[accepted], edges[accepted]))
            waiting = waiting[~accepted]
        if len(waiting):
            relation = self._plan.relations[step]
            degrees = yield from self._graph.degrees(relation, self._nodes[step, waiting])
            pieces = np.cumsum(degrees) // _MOST_ENTRIES
            for piece in np.split(waiting, np.flatnonzero(np.diff(pieces)) + 1):
                taken.append((yield from self._whole_row_step(step, piece)))
        if not taken:
            return going, going, going
        moved, reached, edges = (np.concatenate([part[i] for part in taken]) for i in range(3))
        order = np.argsort(moved)
        return moved[order], reached[order], edges[order]

    def _chances(
        self, step: int, before: Int64Array, reached: Int64Array, words: UInt64Array | None = None
    ) -> Waiting[UInt64Array]:
        """Return the chance of each candidate.

        Args:
            step: the step.
            before: [n] int64 previous node of each candidate's walk.
            reached: [n] int64 candidates.
            words: [n] numbers that are compared with the chances. Only if a number is between
                `near` and `far`, the exact chance is looked up. If None, all are.
        """
        plan = self._plan
        chances = np.full(len(reached), plan.far, np.uint64)
        asked = reached != before
        chances[~asked] = plan.back
        if words is not None:
            asked &= (words < max(plan.near, plan.far)) & (words >= min(plan.near, plan.far))
        if plan.near != plan.far and asked.any():
            near = yield from self._graph.has_edges(
                plan.relations[step], before[asked], reached[asked]
            )
            chances[np.flatnonzero(asked)[near]] = plan.near
        return chances

    def _whole_row_step(self, step: int, going: Int64Array) -> Waiting[_Moves]:
        """Draw among all neighbours of each walk's node, by running sums of their chances."""
        graph, plan = self._graph, self._plan
        counts, neighbors, edges = yield from graph.neighbors(
            plan.relations[step], self._nodes[step, going], -1, with_edge=self._with_edge
        )
        before = np.repeat(self._nodes[step - 1, going], counts)
        chances = yield from self._chances(step, before, neighbors)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(chances, dtype=np.uint64)])
        ends = np.cumsum(counts, dtype=np.int64)
        low, high = sums[ends - counts], sums[ends]
        words = _native.draw_words(graph.key(ACCEPT, plan.first_step + step, TRIALS), going)
        entry = np.searchsorted(sums, low + below(words, high - low), side="right") - 1
        return going, neighbors[entry], (neighbors if edges is None else edges)[entry]


def below(words: UInt64Array, bounds: Array) -> UInt64Array:
    """Map 64-bit words to [0, bound): the upper 64 bits of word * bound, [n] uint64."""
    half, low = np.uint64(32), np.uint64(ONE - 1)
    bounds = np.asarray(bounds, np.uint64)
    inner, outer = (words >> half) * (bounds & low), (words & low) * (bounds >> half)
    carry = (inner & low) + (outer & low) + (((words & low) * (bounds & low)) >> half)
    upper = (words >> half) * (bounds >> half) + (inner >> half) + (outer >> half)
    return upper + (carry >> half)  # type: ignore[no-any-return]
