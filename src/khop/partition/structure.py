"""Base of partitioners that cut few edges: one graph of all types, and passes over its nodes.

Node types are joined to one graph, in which an edge counts in both directions, whatever its type.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from khop import _native
from khop.partition.base import PartitionerBase
from khop.partition.constraints import Constraints
from khop.partition.undirected import Undirected, split_by_type
from khop.typing import Int32Array, IntArray, NodeType

SCORES = ("ldg", "fennel")
"""Scores of a node in a part: linear deterministic greedy, and Fennel."""

# An edge while the undirected graph is made: both directions of 8-byte ids, rows, weights.
_EDGE_BYTES = 64


class StructuralPartitioner(PartitionerBase):
    """Base of partitioners that assign all nodes at once, by the graph's structure.

    Attributes:
        balance: names of what parts get even shares of.
        slack: how much more than the mean of each a part may hold.
    """

    balance: tuple[str, ...]
    slack: float

    def _configure(self, balance: Sequence[str] = ("nodes",), slack: float = 0.03) -> None:
        """Take the options that all such partitioners have.

        Args:
            balance: what parts get even shares of; see `Constraints.of`.
            slack: how much more than the mean a part may hold, 0 to 1.

        Raises:
            ValueError: unknown names, or a slack out of range.
        """
        if not 0 <= slack <= 1:
            raise ValueError(f"slack must be between 0 and 1 (got {slack})")
        self.balance, self.slack = tuple(balance), float(slack)
        self.constraints = Constraints.of(self.source, self.balance, self.edge_dir)
        self._labels: dict[NodeType, IntArray] | None = None

    @abc.abstractmethod
    def cut(self, graph: Undirected) -> IntArray:
        """Return the part of each node of the joined graph."""

    def stream(
        self, graph: Undirected, labels: Int32Array, scores: Sequence[str], start: int
    ) -> float:
        """Improve labels in place, in passes over the nodes.

        Args:
            graph: the joined graph.
            labels: [num_nodes] int32 part of each node, or `num_parts` for none yet.
            scores: for each pass one of `SCORES`, or 'cut': neighbours alone.
            start: number of the order in which nodes are visited.

        Returns:
            Of the part that is furthest over its share, how much it holds, in shares; 1.0 if none.
        """
        capacities = self.constraints.capacities(self.num_parts, self.slack)
        loads = self.constraints.loads(labels, self.num_parts)
        order = _native.permutation(graph.num_nodes, _native.run_key(self.seed, start, 0))
        native = graph.native()
        for i, score in enumerate(scores):
            moved = native.assign_pass(
                order, self.constraints.weights, capacities, loads, labels, score
            )
            self.progress(f"cut, order {start + 1}", i + 1, len(scores))
            if moved == 0 and len(set(scores[i:])) == 1:
                break
        return float(np.maximum(loads / np.maximum(capacities, 1), 1).max())

    def assign_nodes(self, node_type: NodeType) -> IntArray:
        """Return the part of each node of a type; the first call cuts the graph."""
        if self._labels is None:
            if self.num_parts == 1:
                labels: IntArray = np.zeros(self.constraints.weights.shape[1], np.int32)
            else:
                labels = self.cut(Undirected.of(self.source))
            self._labels = split_by_type(self.source, labels)
        return self._labels[node_type]

    def identity(self) -> dict[str, Any]:
        """Return all that the assignment depends on, beside the graph."""
        return self.describe()

    def assignment_bytes(self) -> int:
        """Return about how much memory the cut takes: the undirected graph, and what makes it."""
        edges = sum(edge.num_edges for edge in self.source.edges.values())
        return edges * _EDGE_BYTES

    def describe(self) -> dict[str, Any]:
        """Return method and arguments, as recorded in meta.json."""
        return {**super().describe(), "balance": list(self.balance), "slack": self.slack}
