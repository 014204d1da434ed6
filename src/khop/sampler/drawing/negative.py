"""Sampling of the negatives of link batches. Imports no torch.

The draws are a function of the key of the run, the index of the batch, its links and the graph.
Each round and each side has one key, the step key of hop `NEGATIVE_HOP`, and draws one 64-bit word
per negative. Nodes are named by their original ids, so the partitioning does not matter.

Weighted draws use inverse transform sampling. The weights of all nodes are scaled to integers and
summed up once. A draw below the total falls on the node whose share of the sums holds it, and a
binary search returns this node. With times, the sums run over the nodes in ascending time, so that
the nodes that exist at a time are a prefix. One draw below the prefix's total is exact.

Strict negatives are no edges of the graph. Drawn edges are replaced by new draws, for some rounds.
For a source that is linked to nearly all nodes, the last draw is from the list of all valid nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from khop import _native
from khop.sampler.methods.access import Waiting
from khop.typing import Array, ArrayLike, BoolArray, Int64Array

ROUNDS = 32
"""Rounds of draws before strict negatives are drawn from the list of all that are valid."""

CheckEdges: TypeAlias = Callable[[Int64Array, Int64Array], Waiting[BoolArray]]
"""Function that returns for each (source, destination), by original ids, if it is an edge."""

_SRC, _DST = 0, 1
_MASS = 2.0**62
_CHUNK = 1 << 20


class Candidates:
    """Nodes that one end of a negative is drawn from.

    Args:
        num_nodes: number of nodes of the type.
        weight: [num_nodes] relative probability of each node. Nodes of weight 0 are never drawn.
            If None, all have the same.
        time: [num_nodes] time from which each node exists. If None, always.
        weight_name: name of the weights in error messages.

    Raises:
        ValueError: weights or times of another length, weights that are negative, not finite or
            all zero.
    """

    def __init__(
        self,
        num_nodes: int,
        weight: ArrayLike | None = None,
        time: Array | None = None,
        weight_name: str = "weight",
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
            mass = _integer_weights(weight, num_nodes, weight_name)
            self._sums = np.cumsum(mass if self._order is None else mass[self._order])

    def limits(self, times: Array | None, count: int) -> Int64Array:
        """Return for each negative the number of candidates that exist at its time: the first ones.

        Where no node exists yet, the node of minimum time is a candidate, as in PyG.

        Args:
            times: [count] time of each negative. If None, all nodes are candidates.
            count: number of negatives.
        """
        if times is None or self._times is None:
            return np.full(count, self.num_nodes, np.int64)
        return np.maximum(np.searchsorted(self._times, times, side="right"), 1)

    def draw(self, key: int, limits: Int64Array) -> Int64Array:
        """Draw a node id for each negative, [n] int64, by weight.

        Negative i draws among the first `limits[i]` candidates. If these all have weight 0, it is
        the first one. `key` determines the random numbers.
        """
        if self._sums is None:
            return self.nodes(_native.draw_below(key, limits))
        mass = self._sums[limits - 1]
        indices = np.searchsorted(self._sums, _native.draw_below(key, mass), side="right")
        return self.nodes(np.where(mass > 0, indices, 0))

    def nodes(self, indices: Int64Array) -> Int64Array:
        """Return the node ids of candidates, by their positions (`indices`) in their order."""
        return indices if self._order is None else self._order[indices]

    @property
    def columns(self) -> tuple[int, Int64Array | None, Int64Array | None, Int64Array | None]:
        """Number of candidates, sums of weights, ids and times in their order, as a device's."""
        return self.num_nodes, self._sums, self._order, self._times

    def masses(self, count: int) -> Int64Array:
        """Return the weights of the first `count` candidates, scaled to integers."""
        if self._sums is None:
            return np.ones(count, np.int64)
        return np.diff(self._sums[:count], prepend=0)


def _integer_weights(weight: ArrayLike, num_nodes: int, name: str) -> Int64Array:
    """Scale weights to integers with a sum of about 2^62. Positive weights stay positive.

    Raises:
        ValueError: not [num_nodes] finite weights, none negative, with a positive sum.
    """
    weights = np.asarray(weight, np.float64)
    if weights.shape != (num_nodes,):
        raise ValueError(
            f"{name} must hold a weight for each of the {num_nodes} nodes (got shape "
            f"{weights.shape})"
        )
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise ValueError(
            f"{name} must be finite and not negative (got {weights[bad[0]]} for node {bad[0]})"
        )
    # Summed one after the other: the same total on every machine.
    total = np.cumsum(weights)[-1] if num_nodes else 0.0
    if not 0 < total < np.inf:
        raise ValueError(f"{name} must have a positive, finite sum (got {total})")
    mass = np.floor(weights / total * _MASS).astype(np.int64)
    return np.where(weights > 0, np.maximum(mass, 1), 0)


class NegativeSampler:
    """Sampler of the negatives of link batches.

    Args:
        dst: candidates for destinations.
        src: candidates for sources. If None, `sample` gets the sources.
    """

    def __init__(self, dst: Candidates, src: Candidates | None = None) -> None:
        self._dst = dst
        self._src = src

    @property
    def ends(self) -> tuple[Candidates | None, Candidates]:
        """Candidates for sources, if these are drawn, and for destinations."""
        return self._src, self._dst

    def sample(
        self,
        count: int,
        sources: Int64Array | None,
        times: Array | None,
        run_key: int,
        batch: int,
        check_edges: CheckEdges | None = None,
    ) -> Waiting[tuple[Int64Array, Int64Array]]:
        """Draw the negatives of one batch.

        Args:
            count: number of negatives.
            sources: [count] the source of each negative. If None, sources are drawn, too.
            times: [count] time of each negative. Nodes that do not exist then are not drawn. If
                None, all nodes can be drawn.
            run_key: key of the epoch.
            batch: index of the batch.
            check_edges: finds edges, which are then not drawn. If None, edges can be drawn.

        Returns:
            [count] sources and [count] destinations, original ids.

        Raises:
            ValueError: each pair that could be drawn is an edge. The message names the source.
        """
        draw = _Draw(
            lambda index: _native.step_key(run_key, batch, _native.NEGATIVE_HOP, index),
            self._src if sources is None else None,
            self._dst,
            np.empty(count, np.int64) if sources is None else sources,
            times,
        )
        if check_edges is not None and count:
            yield from draw.make_strict(check_edges)
        return draw.src, draw.dst


class _Draw:
    """The negatives of one batch while `NegativeSampler.sample` draws them.

    `dst_from` are the nodes that may be destinations, `times` the times of links. `key` returns the
    random key of the i-th draw. If `src_from` is None, `sources` are kept.
    """

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
        if self._src_from is not None:
            key = self._key(2 * round_number + _SRC)
            self.src[which] = self._src_from.draw(key, self._src_limits[which])
        key = self._key(2 * round_number + _DST)
        self.dst[which] = self._dst_from.draw(key, self._dst_limits[which])

    def make_strict(self, check_edges: CheckEdges) -> Waiting[None]:
        """Replace the negatives that are edges of the graph, which `check_edges` finds."""
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
            drawn = yield from self._draw_valid(int(source), self._dst_limits[mine], check_edges)
            self.dst[mine] = drawn
            for negative in mine[drawn < 0]:
                if self._src_from is None:
                    raise ValueError(self._why_none(int(source), int(self._dst_limits[negative])))
                yield from self._draw_another_source(int(negative), check_edges)

    def _next_key(self) -> int:
        self._num_keys += 1
        return self._key(self._num_keys - 1)

    def _draw_valid(
        self, source: int, limits: Int64Array, check_edges: CheckEdges
    ) -> Waiting[Int64Array]:
        """Draw destinations without an edge from `source`, one for each limit. -1 if there is none.

        A limit is the number of candidates that exist, as from `Candidates.limits`.
        """
        last = int(limits.max())
        mass = self._dst_from.masses(last)
        for first in range(0, last, _CHUNK):
            indices = np.arange(first, min(first + _CHUNK, last))
            nodes = self._dst_from.nodes(indices)
            exists = yield from check_edges(np.full(len(nodes), source), nodes)
            mass[indices[exists]] = 0
        sums = np.cumsum(mass)
        bounds = sums[limits - 1]
        drawn = np.searchsorted(sums, _native.draw_below(self._next_key(), bounds), side="right")
        return np.where(bounds > 0, self._dst_from.nodes(np.where(bounds > 0, drawn, 0)), -1)

    def _draw_another_source(self, negative: int, check_edges: CheckEdges) -> Waiting[None]:
        """Replace a source that is linked to all nodes by another one, tried in random order."""
        assert self._src_from is not None
        limit = int(self._src_limits[negative])
        mass = self._src_from.masses(limit)
        for index in _native.permutation(limit, self._next_key()):
            if mass[index] == 0:
                continue
            source = int(self._src_from.nodes(np.array([index]))[0])
            limits = self._dst_limits[[negative]]
            drawn = yield from self._draw_valid(source, limits, check_edges)
            if drawn[0] >= 0:
                self.src[negative], self.dst[negative] = source, drawn[0]
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
