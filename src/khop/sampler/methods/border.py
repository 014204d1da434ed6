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
    """

    def __init__(self, graph: GraphAccess, node_type: int, seeds: Int64Array) -> None:
        self._graph = graph
        self._node_type = node_type
        self.members = seeds
        self.joined = distinct(seeds)
        # Nodes of the batch and of the border are numbered in the order of arrival.
        self._reached = _native.NodeNumbers(graph.num_nodes[node_type])
        self._original = self._sums = np.empty(0, np.int64)  # of all of them
        self._border = np.empty(0, np.int64)  # numbers of the border's nodes
        self._reach(self.joined)

    def __len__(self) -> int:
        """Return the number k of nodes of the border."""
        return len(self._border)

    @property
    def original(self) -> Int64Array:
        """[k] int64 original ids of the border's nodes."""
        return self._original[self._border]

    @property
    def budgets(self) -> Int64Array:
        """[k] int64, sums of the amounts that `extend` added."""
        return self._sums[self._border]

    def _reach(self, nodes: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Number nodes. Return their numbers, and the numbers of new nodes."""
        numbers = self._reached.number(nodes)
        new = np.arange(len(self._sums), len(self._reached))
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
        ids = self._reached.ids(len(self._original))
        original = yield from self._graph.original_ids(self._node_type, ids)
        self._original = np.append(self._original, original)
        self._border = np.append(self._border, new)

    def take(self, ranks: Array, count: int) -> None:
        """Move the nodes of least rank into the batch, in this order, then by original id.

        Args:
            ranks: [k] rank of each node of the border.
            count: most nodes that move.
        """
        least = np.arange(len(self))
        if 0 < count < len(least):
            least = np.flatnonzero(ranks <= np.partition(ranks, count - 1)[count - 1])
        original = self._original[self._border[least]]
        least = least[np.lexsort((original, ranks[least]))][:count]
        self.join(self._reached.ids()[self._border[least]])
        self._border = np.delete(self._border, least)

    def join(self, nodes: Int64Array) -> None:
        """Add nodes to the batch, which are not in the border from now on."""
        self._reach(nodes)
        self.members = np.append(self.members, nodes)
        self.joined = np.append(self.joined, nodes)
