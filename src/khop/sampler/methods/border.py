"""Nodes around a batch that grows: what `Hgt` and `RippleWalk` share. Imports no torch."""

from __future__ import annotations

import numpy as np

from khop.data.arrays import distinct
from khop.sampler.methods.access import GraphAccess, Waiting
from khop.typing import Array, Int64Array


class Border:
    """The nodes of one type in a batch, and those joined to it that are not in it.

    Args:
        graph: the graph.
        node_type: index of the nodes' type.
        seeds: [n] int64, the first nodes; they may repeat.

    Attributes:
        members: [n] int64, nodes of the batch, in the order in which they joined.
        joined: [m] int64, those of them whose neighbours have not been seen, each once.
        ids: [k] int64, nodes of the border, ascending.
        original: [k] int64, their original ids.
        budgets: [k] int64, sums of what `extend` was given for each.
    """

    def __init__(self, graph: GraphAccess, node_type: int, seeds: Int64Array) -> None:
        self._graph = graph
        self._node_type = node_type
        self.members = seeds
        self.joined = distinct(seeds)
        self.ids, self.original, self.budgets = (np.empty(0, np.int64) for _ in range(3))

    def extend(self, neighbors: Int64Array, amounts: Int64Array) -> Waiting:
        """Add amounts to the budgets of nodes; members have none.

        Args:
            neighbors: [n] int64; they may repeat.
            amounts: [n] int64.
        """
        found, place = np.unique(neighbors, return_inverse=True)
        sums = np.zeros(len(found), np.int64)
        np.add.at(sums, place, amounts)
        outside = ~np.isin(found, self.members)
        found, sums = found[outside], sums[outside]
        new = np.setdiff1d(found, self.ids, assume_unique=True)
        if len(new):
            original = yield from self._graph.original_ids(self._node_type, new)
            at = np.searchsorted(self.ids, new)
            self.ids = np.insert(self.ids, at, new)
            self.original = np.insert(self.original, at, original)
            self.budgets = np.insert(self.budgets, at, 0)
        self.budgets[np.searchsorted(self.ids, found)] += sums

    def take(self, ranks: Array, count: int) -> None:
        """Move the nodes of least rank into the batch, in this order; of equals the smaller id.

        Args:
            ranks: [k], of the nodes of the border.
            count: how many; all, if there are no more.
        """
        places = np.arange(len(self.ids))
        if 0 < count < len(places):
            places = np.flatnonzero(ranks <= np.partition(ranks, count - 1)[count - 1])
        places = places[np.lexsort((self.original[places], ranks[places]))][:count]
        self.join(self.ids[places])

    def join(self, nodes: Int64Array) -> None:
        """Make nodes members that are none."""
        self.members = np.concatenate([self.members, nodes])
        self.joined = np.concatenate([self.joined, nodes])
        left = ~np.isin(self.ids, nodes)
        self.ids, self.original = self.ids[left], self.original[left]
        self.budgets = self.budgets[left]
