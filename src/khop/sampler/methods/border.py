"""Border of a growing batch, for `Hgt` and `RippleWalk`. Imports no torch."""

from __future__ import annotations

import numpy as np

from khop import _native
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
        ids: [k] int64, nodes of the border, in the order in which they were reached.
        original: [k] int64, their original ids.
        budgets: [k] int64, sums of the amounts that `extend` added.
    """

    def __init__(self, graph: GraphAccess, node_type: int, seeds: Int64Array) -> None:
        self._graph = graph
        self._node_type = node_type
        self.members = seeds
        self.joined = distinct(seeds)
        self.ids, self.original, self.budgets = (np.empty(0, np.int64) for _ in range(3))
        # Nodes of the batch and of the border, and their budgets, in the order of arrival.
        self._reached = _native.NodeNumbers(graph.num_nodes[node_type])
        self._sums = np.empty(0, np.int64)
        self._numbers = np.empty(0, np.int64)  # of the border's nodes
        self._reach(self.joined)

    def _reach(self, nodes: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Number nodes. Return the numbers, and those of nodes that are new."""
        known = len(self._sums)
        numbers = self._reached.number(nodes)
        new = np.arange(known, len(self._reached))
        self._sums = np.append(self._sums, np.zeros_like(new))
        return numbers, new

    def extend(self, neighbors: Int64Array, amounts: Int64Array | None = None) -> Waiting[None]:
        """Add neighbours of the batch to the border, and amounts to their budgets.

        Args:
            neighbors: [n] int64. They can repeat.
            amounts: [n] int64, not negative. If None, 0.
        """
        numbers, new = self._reach(neighbors)
        if amounts is not None:
            np.add.at(self._sums, numbers, amounts)
        ids = self._reached.ids(len(self._sums) - len(new))
        original = yield from self._graph.original_ids(self._node_type, ids)
        self.ids, self.original = np.append(self.ids, ids), np.append(self.original, original)
        self._numbers = np.append(self._numbers, new)
        self.budgets = self._sums[self._numbers]

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
        left = np.ones(len(self.ids), bool)
        left[least] = False
        self.ids, self.original = self.ids[left], self.original[left]
        self.budgets, self._numbers = self.budgets[left], self._numbers[left]

    def join(self, nodes: Int64Array) -> None:
        """Add nodes to the batch that are not in the border."""
        self._reach(nodes)
        self.members = np.append(self.members, nodes)
        self.joined = np.append(self.joined, nodes)
