"""Inputs of a `StepMethod`'s step: the batch so far (`Sample`), and the rows of `Transits`.

All nodes are original ids, so that the results of a method do not depend on partitions.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from khop import _native
from khop.sampler.methods.walk import below
from khop.typing import Array, Int64Array, UInt64Array

# Purposes of keys. A node's i-th repetition among the transits has _OF_TRANSITS + i.
_OF_SAMPLES, _OF_NEIGHBORS, _OF_TRANSITS = 1, 2, 3


@dataclass(frozen=True, eq=False)
class Sample:
    """A batch that a `StepMethod` is drawing.

    Attributes:
        nodes: [n] int64, the batch's nodes, each once: the seeds, then in the order in which steps
            added them.
        new: [m] int64, the nodes that the last step added. Before the first step, the seeds.
        transits: [t] int64 transits of each step so far.
        picks: int64 nodes that each step so far picked, -1 for none: [t, sample_size] of an
            individual step, [sample_size] of a collective one.
        key: function that returns keys of random words, for `words`.

    Example:
        >>> sample = Sample(np.array([7, 3, 5]), np.array([5]), [np.array([7, 3])], [])
        >>> sample.nodes[-len(sample.new):]
        array([5])
    """

    nodes: Int64Array
    new: Int64Array
    transits: list[Int64Array] = field(default_factory=list)
    picks: list[Int64Array] = field(default_factory=list)
    key: Callable[[int, int, int], int] = lambda purpose, step, index: 0

    def after(self, new: Int64Array, transits: Int64Array, picks: Int64Array) -> Sample:
        """Return the sample after a step that drew `picks` for `transits` and added `new`."""
        return Sample(
            np.concatenate([self.nodes, new]),
            new,
            [*self.transits, transits],
            [*self.picks, picks],
            self.key,
        )

    def words(self, ids: Int64Array, draw: int = 0) -> UInt64Array:
        """Draw a random word for each id: a function of the batch, the step, `draw` and the id.

        `step_transits` and `next` get the same words in a step unless their `draw` differs.

        Args:
            ids: [n] int64, nodes, or other numbers that need a random word.
            draw: from 0 to 2^32 - 1. Each value gives different words for the same ids.

        Returns:
            [n] uint64.
        """
        key = self.key(_OF_SAMPLES, len(self.picks), draw)
        return _native.draw_words(key, np.ascontiguousarray(ids, np.int64))


@dataclass(frozen=True, eq=False)
class Transits:
    """The transits of a step, nodes that draw neighbours, and all their neighbours, row by row.

    An *entry* is an index into `neighbors`: the entries of transit i are `begins[i]` to
    `begins[i] + counts[i] - 1`, in the order of the graph's edges. `StepMethod.next` returns
    entries. Each parallel edge is an entry.

    Attributes:
        ids: [t] int64, the transits. In an individual step a node can occur several times.
        counts: [t] int64, their numbers of neighbours.
        begins: [t] int64, their first entries.
        rows: [n] int64, the transit of each entry, from 0 to t - 1.
        neighbors: [n] int64.
        degrees: [n] int64, the neighbours' own numbers of neighbours. None unless the method has
            `needs_degrees = True`.
        sample: the batch so far.

    Example:
        >>> rows = Transits.of(np.array([4, 8]), np.array([2, 1]), np.array([5, 6, 5]))
        >>> rows.smallest(np.array([9, 1, 3]), 2)
        array([[ 1,  0],
               [ 2, -1]])
    """

    ids: Int64Array
    counts: Int64Array
    begins: Int64Array
    rows: Int64Array
    neighbors: Int64Array
    degrees: Int64Array | None
    sample: Sample

    @classmethod
    def of(
        cls,
        ids: Int64Array,
        counts: Array,
        neighbors: Int64Array,
        degrees: Int64Array | None = None,
        sample: Sample | None = None,
    ) -> Transits:
        """Return the transits of a step. If `sample` is None, it has the nodes `ids` alone."""
        counts = counts.astype(np.int64)
        rows = np.repeat(np.arange(len(ids)), counts)
        begins = np.cumsum(counts) - counts
        sample = Sample(ids, ids) if sample is None else sample
        return cls(ids, counts, begins, rows, neighbors, degrees, sample)

    def words(self, count: int) -> UInt64Array:
        """Draw random words for each transit.

        Args:
            count: words per transit.

        Returns:
            [t, count] uint64. A node that is a transit several times has different words.
        """
        order = np.argsort(self.ids, kind="stable")
        ordered = self.ids[order]
        repeats = np.empty(len(order), np.int64)  # earlier occurrences of the same node
        repeats[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        words = np.empty((len(order), count), np.uint64)
        step = len(self.sample.picks)
        for repeat in range(int(repeats.max(initial=-1)) + 1):
            where = np.flatnonzero(repeats == repeat)
            for draw in range(count):
                key = self.sample.key(_OF_TRANSITS + repeat, step, draw)
                words[where, draw] = _native.draw_words(key, self.ids[where])
        return words

    def neighbor_words(self, draw: int = 0) -> UInt64Array:
        """Draw a random word for each neighbour: the same for all entries of a node.

        Args:
            draw: from 0 to 2^32 - 1. Each value gives different words for the same neighbours.

        Returns:
            [n] uint64.
        """
        key = self.sample.key(_OF_NEIGHBORS, len(self.sample.picks), draw)
        return _native.draw_words(key, self.neighbors)

    def uniform(self, count: int) -> Int64Array:
        """Draw entries uniformly, with replacement.

        Args:
            count: entries per transit.

        Returns:
            [t, count] int64. -1 for transits without neighbours.
        """
        positions = below(self.words(count), self.counts[:, None]).astype(np.int64)
        return np.where(self.counts[:, None] > 0, self.begins[:, None] + positions, -1)

    def smallest(self, values: Array, count: int) -> Int64Array:
        """Return each transit's entries of smallest value. Equal values go by entry.

        Args:
            values: [n] of any dtype that can be sorted.
            count: entries per transit.

        Returns:
            [t, count] int64, the smallest first. -1 where a transit has fewer neighbours.
        """
        order = np.lexsort((np.asarray(values), self.rows))
        ranks = np.arange(len(order)) - self.begins[self.rows]  # of entries in their row
        chosen = np.full((len(self.ids), count), -1, np.int64)
        kept = ranks < count
        chosen[self.rows[kept], ranks[kept]] = order[kept]
        return chosen
