"""Base of partitioners that cut few edges: one graph of all types, and passes over its nodes.

Node types are joined to one graph, in which an edge counts in both directions, whatever its type.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from khop import _native
from khop.data.arrays import narrowest_int
from khop.partition.base import PartitionerBase
from khop.partition.methods.constraints import Constraints
from khop.partition.out_of_core.resources import Resources
from khop.partition.writing.undirected import (
    NodeNumbering,
    Undirected,
    split_by_type,
    undirected,
)
from khop.typing import Int32Array, IntArray, NodeType

SCORES = ("ldg", "fennel")
"""Scores of a node in a part: linear deterministic greedy, and Fennel."""

# Memory of an edge: neighbour and weight in both directions, and pieces while they are split.
_EDGE_BYTES = 24


class StructuralPartitioner(PartitionerBase):
    """Base of partitioners that assign all nodes at once, by the graph's structure.

    Attributes:
        balance: names of the constraints, of which parts get even shares.
        slack: how much more than the mean of each constraint a part may hold.

    Example:
        >>> issubclass(StreamPartitioner, StructuralPartitioner)
        True
    """

    balance: tuple[str, ...]
    slack: float
    node_bytes = 32
    """Memory of a node during the cut: two row pointers, its number, a weight, two labels."""

    def _configure(self, balance: Sequence[str] = ("nodes",), slack: float = 0.03) -> None:
        """Take the options of all such partitioners, with constraints as in `Constraints.of`."""
        if not 0 <= slack <= 1:
            raise ValueError(f"slack must be between 0 and 1 (got {slack})")
        self.balance, self.slack = tuple(balance), float(slack)
        self.constraints = Constraints.of(self.source, self.balance, self.edge_dir)
        self._labels: dict[NodeType, IntArray] | None = None

    @abc.abstractmethod
    def cut(self, graph: Undirected) -> IntArray:
        """Return the part of each node of the joined graph.

        :meta private:
        """

    def stream(
        self, graph: Undirected, labels: Int32Array, scores: Sequence[str], start: int
    ) -> float:
        """Improve labels in place, in passes over the nodes.

        Args:
            graph: the joined graph.
            labels: [num_nodes] int32 part of each node, or `num_parts` for none yet.
            scores: for each pass one of `SCORES`, or 'cut': neighbours alone.
            start: index of the order in which nodes are visited.

        Returns:
            Load of the most overloaded part over its capacity, at least 1.0.

        :meta private:
        """
        capacities = self.constraints.capacities(self.num_parts, self.slack)
        loads = self.constraints.loads(labels, self.num_parts)
        weights, num_edges = self.constraints.weights, graph.num_edges
        for i, score in enumerate(scores):
            turn = _native.AssignPass(weights, capacities, loads, labels, score, num_edges)
            moved = sum(
                turn.visit(rows, order) for rows, order in graph.visits(self.seed, start, 0)
            )
            self.progress(f"cut, order {start + 1}", i + 1, len(scores))
            if moved == 0 and len(set(scores[i:])) == 1:
                break
        return float(np.maximum(loads / np.maximum(capacities, 1), 1).max())

    def assign_nodes(self, node_type: NodeType) -> IntArray:
        """Return the part of each node of a type, after the first call has cut the graph."""
        if self._labels is None:
            if self.num_parts == 1:
                labels: IntArray = np.zeros(self.constraints.weights.shape[1], np.int32)
            else:
                with self.undirected() as graph:
                    labels = self.cut(graph)
            self._labels = split_by_type(self.source, labels)
        return self._labels[node_type]

    @contextlib.contextmanager
    def undirected(self, clusters: NodeNumbering | None = None) -> Iterator[Undirected]:
        """Make the joined graph, or the graph of clusters, in files if memory is too small.

        :meta private:
        """
        resources, workspace = Resources(None, self.effort.jobs), None
        if self._is_large():
            assert self.effort.memory is not None
            resources = Resources(self.effort.memory - self.assignment_bytes(), self.effort.jobs)
            workspace = self.workspace
        graph = undirected(self.source, resources, workspace, clusters, self.progress)
        try:
            yield graph
        finally:
            graph.discard()

    def identity(self) -> dict[str, Any]:
        return self.describe()

    def assignment_bytes(self) -> int:
        """Estimate the memory of the cut, with edges unless they are in files."""
        return self._node_count() * self.node_bytes + (0 if self._is_large() else self._in_memory())

    def scratch_bytes(self) -> int:
        """Return the bytes of files that the cut writes: both directions of all edges."""
        if not self._is_large():
            return 0
        column = narrowest_int(self._node_count()).itemsize
        return 2 * self._edge_count() * (column + 4)

    def _is_large(self) -> bool:
        """Return True if the edges take more than half of the memory that may be used."""
        memory = self.effort.memory
        return memory is not None and self._in_memory() > memory // 2

    def _in_memory(self) -> int:
        """Return the bytes of the edges in memory."""
        return self._edge_count() * _EDGE_BYTES

    def _node_count(self) -> int:
        return sum(node.count for node in self.source.nodes.values())

    def _edge_count(self) -> int:
        return sum(edge.num_edges for edge in self.source.edges.values())

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "balance": list(self.balance), "slack": self.slack}
