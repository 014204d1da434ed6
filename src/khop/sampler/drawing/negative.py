"""Sampling of the negatives of link batches. Imports no torch.

The draws are a function of the key of the run, the index of the batch, its links and the graph:
each round and each side takes one key, the step key of hop `NEGATIVE_HOP`, and one 64-bit word of
it per negative. Nodes are named by their original ids, so the partitioning does not matter.

Weights: inverse transform sampling. The weights of all nodes are scaled to integers once and
summed up; a draw below the total falls on the node whose share of the sums holds it, which a binary
search finds. Times: the sums run over the nodes in ascending time, so that the nodes that exist at
a time are a prefix of them, and one draw below the prefix's total is exact.

Strict negatives are no edges of the graph. Those that are edges are drawn again, for some rounds.
What is left after that (a source that is linked to nearly all nodes) is drawn from the list of all
valid nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias

import numpy as np

from khop import _native
from khop.data.tickets import Ticket
from khop.typing import Array, ArrayLike, BoolArray, Int64Array

ROUNDS = 32
"""Rounds of draws before strict negatives are drawn from the list of all that are valid."""

CheckEdges: TypeAlias = Callable[[Int64Array, Int64Array], Generator[list[Ticket], None, BoolArray]]
"""Checks for each (source, destination), by original ids, if it is an edge; yields the tickets that
it waits for."""

_SRC, _DST = 0, 1
_MASS = 2.0**62
_CHUNK = 1 << 20


class Candidates:
    """Nodes that one end of a negative is drawn from.

    Args:
        num_nodes: number of nodes of the type.
        weight: [num_nodes] how likely each node is to be drawn, relative to the others; nodes of
            weight 0 are never drawn. If None, all alike.
        time: [num_nodes] time from which each node exists. If None, always.
        what: what the weights are called in error messages.

    Raises:
        ValueError: weights or times of another length, weights that are negative, not finite or
            all zero.
    """

    def __init__(
        self,
        num_nodes: int,
        weight: ArrayLike | None = None,
        time: Array | None = None,
        what: str = "weight",
    ) -> None:
        self.num_nodes = num_nodes
        self._order: Int64Array | None = None  # if None: by id
        self._times: Array | None = None
        self._sums: Int64Array | None = None  # if None: each node weighs 1
        if time is not None:
            if time.shape != (num_nodes,):
                raise ValueError(f"times of shape {time.shape} for {num_nodes} nodes")
            self._order = np.argsort(time, kind="stable")
            self._times = time[self._order]
        if weight is not None:
            mass = _integer_weights(weight, num_nodes, what)
            self._sums = np.cumsum(mass if self._order is None else mass[self._order])

    def limits(self, times: Array | None, count: int) -> Int64Array:
        """Return how many candidates, in their order, may be drawn for each negative.

        Where no node exists yet, the one of minimum time may, as in PyG.

        Args:
            times: [count] time of each negative. If None, all candidates may be drawn.
            count: number of negatives.
        """
        if times is None or self._times is None:
            return np.full(count, self.num_nodes, np.int64)
        return np.maximum(np.searchsorted(self._times, times, side="right"), 1)

    def draw(self, key: int, limits: Int64Array) -> Int64Array:
        """Draw an id for each limit; the first candidate where all that are allowed weigh 0."""
        if self._sums is None:
            return self.nodes(_native.draw_below(key, limits))
        mass = self._sums[limits - 1]
        places = np.searchsorted(self._sums, _native.draw_below(key, mass), side="right")
        return self.nodes(np.where(mass > 0, places, 0))

    def nodes(self, places: Int64Array) -> Int64Array:
        """Return the ids of the candidates at `places`."""
        return places if self._order is None else self._order[places]

    def masses(self, count: int) -> Int64Array:
        """Return the integer weight of each of the first `count` candidates."""
        if self._sums is None:
            return np.ones(count, np.int64)
        return np.diff(self._sums[:count], prepend=0)


def _integer_weights(weight: ArrayLike, num_nodes: int, what: str) -> Int64Array:
    """Return weights as integers that sum up to about 2^62; positive ones stay positive."""
    weights = np.asarray(weight, np.float64)
    if weights.shape != (num_nodes,):
        raise ValueError(
            f"{what} must hold a weight for each of the {num_nodes} nodes (got shape "
            f"{weights.shape})"
        )
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise ValueError(
            f"{what} must be finite and not negative (got {weights[bad[0]]} for node {bad[0]})"
        )
    # Summed one after the other: the same total on every machine.
    total = np.cumsum(weights)[-1] if num_nodes else 0.0
    if not 0 < total < np.inf:
        raise ValueError(f"{what} must have a positive, finite sum (got {total})")
    mass = np.floor(weights / total * _MASS).astype(np.int64)
    return np.where(weights > 0, np.maximum(mass, 1), 0)


class NegativeSampler:
    """Sampler of the negatives of batches.

    Args:
        dst: candidates for destinations.
        src: candidates for sources. If None, sources are given.
    """

    def __init__(self, dst: Candidates, src: Candidates | None = None) -> None:
        self._dst = dst
        self._src = src

    def sample(
        self,
        count: int,
        sources: Int64Array | None,
        times: Array | None,
        run_key: int,
        batch: int,
        check_edges: CheckEdges | None = None,
    ) -> Generator[list[Ticket], None, tuple[Int64Array, Int64Array]]:
        """Draw the negatives of a batch.

        Args:
            count: number of negatives.
            sources: [count] the source of each negative. If None, sources are drawn, too.
            times: [count] time of each negative; nodes that do not exist then are not drawn. If
                None, all may be.
            run_key: key of the epoch.
            batch: index of the batch.
            check_edges: checks pairs; none that is an edge is drawn. If None, edges may be.

        Returns:
            [count] sources and [count] destinations, original ids.

        Raises:
            ValueError: each pair that could be drawn is an edge; the message names the source.
        """
        draw = _Draw(
            lambda number: _native.step_key(run_key, batch, _native.NEGATIVE_HOP, number),
            self._src if sources is None else None,
            self._dst,
            np.empty(count, np.int64) if sources is None else sources,
            times,
        )
        if check_edges is not None and count:
            yield from draw.make_strict(check_edges)
        return draw.src, draw.dst


class _Draw:
    """The negatives of one batch while they are drawn."""

    def __init__(
        self,
        key: Callable[[int], int],
        src_from: Candidates | None,
        dst_from: Candidates,
        sources: Int64Array,
        times: Array | None,
    ) -> None:
        self._key = key
        self._num_keys = 2 * ROUNDS
        self._src_from = src_from
        self._dst_from = dst_from
        self._dst_limits = dst_from.limits(times, len(sources))
        if src_from is not None:
            self._src_limits = src_from.limits(times, len(sources))
        self.src = sources
        self.dst = np.empty(len(sources), np.int64)
        self.redraw(np.arange(len(sources)), 0)

    def redraw(self, which: Int64Array, round_number: int) -> None:
        """Draw some negatives again."""
        if self._src_from is not None:
            key = self._key(2 * round_number + _SRC)
            self.src[which] = self._src_from.draw(key, self._src_limits[which])
        key = self._key(2 * round_number + _DST)
        self.dst[which] = self._dst_from.draw(key, self._dst_limits[which])

    def make_strict(self, check_edges: CheckEdges) -> Generator[list[Ticket], None, None]:
        """Replace the negatives that are edges."""
        wrong = np.arange(len(self.dst))
        for round_number in range(ROUNDS):
            if round_number > 0:
                self.redraw(wrong, round_number)
            exists = yield from check_edges(self.src[wrong], self.dst[wrong])
            wrong = wrong[exists]
            if len(wrong) == 0:
                return
        sources = self.src[wrong]
        for source in np.unique(sources):
            mine = wrong[sources == source]
            found = yield from self._draw_valid(int(source), self._dst_limits[mine], check_edges)
            self.dst[mine] = found
            for negative in mine[found < 0]:
                if self._src_from is None:
                    raise ValueError(self._why_none(int(source), int(self._dst_limits[negative])))
                yield from self._draw_another_source(int(negative), check_edges)

    def _next_key(self) -> int:
        self._num_keys += 1
        return self._key(self._num_keys - 1)

    def _draw_valid(
        self, source: int, limits: Int64Array, check_edges: CheckEdges
    ) -> Generator[list[Ticket], None, Int64Array]:
        """Draw destinations among all that are no neighbours of a source; -1 if there is none."""
        last = int(limits.max())
        mass = self._dst_from.masses(last)
        for first in range(0, last, _CHUNK):
            places = np.arange(first, min(first + _CHUNK, last))
            nodes = self._dst_from.nodes(places)
            exists = yield from check_edges(np.full(len(nodes), source), nodes)
            mass[places[exists]] = 0
        sums = np.cumsum(mass)
        bounds = sums[limits - 1]
        drawn = _native.draw_below(self._next_key(), bounds)
        found = np.searchsorted(sums, drawn, side="right")
        return np.where(bounds > 0, self._dst_from.nodes(np.where(bounds > 0, found, 0)), -1)

    def _draw_another_source(
        self, negative: int, check_edges: CheckEdges
    ) -> Generator[list[Ticket], None, None]:
        """Replace a source that is linked to all: try the others in random order."""
        assert self._src_from is not None
        limit = int(self._src_limits[negative])
        mass = self._src_from.masses(limit)
        for place in _native.permutation(limit, self._next_key()):
            if mass[place] == 0:
                continue
            source = int(self._src_from.nodes(np.array([place]))[0])
            limits = self._dst_limits[[negative]]
            found = yield from self._draw_valid(source, limits, check_edges)
            if found[0] >= 0:
                self.src[negative], self.dst[negative] = source, found[0]
                return
        raise ValueError(
            "no strict negative can be drawn: each source that may be drawn is linked to all "
            "destinations that may be; pass strict_negatives=False"
        )

    def _why_none(self, source: int, limit: int) -> str:
        which = f"all {limit} nodes that may be drawn"
        if limit < self._dst_from.num_nodes:
            which = f"all {limit} nodes that exist at the link's time"
        return (
            f"no strict negative can be drawn for source {source}: it is linked to {which}, or "
            "their weights are 0; leave its links out, or pass strict_negatives=False"
        )
