"""Border of a growing batch, for `Hgt` and `RippleWalk`. Imports no torch."""

from __future__ import annotations

import numpy as np

from khop.data.arrays import distinct
from khop.sampler.methods.access import GraphAccess, Waiting
from khop.typing import Array, Int64Array


class Border:
    """The nodes of one type in a batch, and the nodes joined to it that are not in it.

    Args:
        graph: the graph.
        node_type: index of the nodes' type.
        seeds: [n] int64, the first nodes. They can repeat.

    Attributes:
        members: [n] int64, nodes of the batch, in the order in which they joined.
        joined: [m] int64, members whose neighbours have not been read yet, each once.
        ids: [k] int64, nodes of the border, ascending.
        original: [k] int64, their original ids.
        budgets: [k] int64, sums of the amounts that `extend` added.
    """

    def __init__(self, graph: GraphAccess, node_type: int, seeds: Int64Array) -> None:
        self._graph = graph
        self._node_type = node_type
        self.members = seeds
        self.joined = distinct(seeds)
        self.ids, self.original, self.budgets = (np.empty(0, np.int64) for _ in range(3))

    def extend(self, neighbors: Int64Array, amounts: Int64Array) -> Waiting[None]:
        """Add amounts to the budgets of nodes that are no members.

        Args:
            neighbors: [n] int64. They can repeat.
            amounts: [n] int64.
        """
        nodes, inverse = np.unique(neighbors, return_inverse=True)
        sums = np.zeros(len(nodes), np.int64)
        np.add.at(sums, inverse, amounts)
        outside = ~np.isin(nodes, self.members)
        nodes, sums = nodes[outside], sums[outside]
        new = np.setdiff1d(nodes, self.ids, assume_unique=True)
        if len(new):
            original = yield from self._graph.original_ids(self._node_type, new)
            at = np.searchsorted(self.ids, new)
            self.ids = np.insert(self.ids, at, new)
            self.original = np.insert(self.original, at, original)
            self.budgets = np.insert(self.budgets, at, 0)
        self.budgets[np.searchsorted(self.ids, nodes)] += sums

    def take(self, ranks: Array, count: int) -> None:
        """Move the nodes of least rank into the batch, in this order, then by original id.

        Args:
            ranks: [k] rank of each node of the border.
            count: most nodes that move.
        """
        least = np.arange(len(self.ids))
        if 0 < count < len(least):
            least = np.flatnonzero(ranks <= np.partition(ranks, count - 1)[count - 1])
        least = least[np.lexsort((self.original[least], ranks[least]))][:count]
        self.join(self.ids[least])

    def join(self, nodes: Int64Array) -> None:
        """Add nodes to the batch, and remove them from the border."""
        self.members = np.concatenate([self.members, nodes])
        self.joined = np.concatenate([self.joined, nodes])
        left = ~np.isin(self.ids, nodes)
        self.ids, self.original = self.ids[left], self.original[left]
        self.budgets = self.budgets[left]
