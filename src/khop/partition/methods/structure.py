"""Base of partitioners that cut few edges, by passes over the nodes of the joined graph.

The joined graph has the nodes of all types, and the edges of all types in both directions.
`Constraints` are quantities that parts share evenly, such as nodes or edges.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from khop import _native
from khop.data.arrays import narrowest_int
from khop.partition.base import MethodPartitioner
from khop.partition.out_of_core.resources import Resources
from khop.partition.source import GraphSource, feature_bytes
from khop.partition.writing.undirected import NodeNumbering, Undirected, split_by_type, undirected
from khop.typing import Array, EdgeDir, Int32Array, Int64Array, IntArray, NodeType

SCORES = ("ldg", "fennel")
"""Scores of a node in a part: linear deterministic greedy, and Fennel."""

BALANCE = ("nodes", "edges", "train", "bytes")
"""Names of constraints. Any other name is a node attribute."""

_MOST_WEIGHT = 2**31 - 1
# Memory of an edge: neighbour and weight in both directions, and pieces while they are split.
_EDGE_BYTES = 24


class StructuralPartitioner(MethodPartitioner):
    """Base of partitioners that assign all nodes at once, by the graph's structure.

    Attributes:
        balance: names of the constraints, quantities that parts share evenly.
        slack: share by which a part may exceed the mean of each constraint.

    Example:
        >>> issubclass(StreamPartitioner, StructuralPartitioner)
        True
    """

    balance: tuple[str, ...]
    slack: float
    node_bytes = 32
    """Bytes of a node during the cut: two row pointers, its index, a weight, two labels."""

    def _configure(self, balance: Sequence[str] = ("nodes",), slack: float = 0.03) -> None:
        """Check and keep the options. `Constraints.of` explains the names in `balance`."""
        if not 0 <= slack <= 1:
            raise ValueError(f"slack must be between 0 and 1 (got {slack})")
        self.balance, self.slack = tuple(balance), float(slack)
        self.constraints = Constraints.of(self.source, self.balance, self.edge_dir)
        self._labels: dict[NodeType, IntArray] | None = None

    @abc.abstractmethod
    def cut(self, graph: Undirected) -> IntArray:
        """Return the part of each node: [num_nodes] integers in [0, num_parts).

        `graph` has the nodes of all types, type after type, and all edges in both directions.

        :meta private:
        """

    def stream(
        self, graph: Undirected, labels: Int32Array, scores: Sequence[str], start: int
    ) -> float:
        """Improve a cut in place, in passes that move each node to the part that suits it best.

        Args:
            graph: the undirected graph of all node types.
            labels: [num_nodes] int32 part of each node, `num_parts` for nodes without a part. It is
                changed.
            scores: for each pass one of `SCORES`, or 'cut', which counts neighbours alone.
            start: index of the order in which nodes are visited.

        Returns:
            Largest ratio of a part's load to its capacity in any quantity of `balance`, at least
            1.0.

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
        """Return [num_nodes] part of each node of a type. The first call cuts the whole graph."""
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
        """Make the undirected graph of all node types, and free it when the context ends.

        It is in files if memory is too small. With `clusters`, its nodes are clusters of nodes.

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
        """Estimate the bytes of memory of the cut. Edges that are in files are not counted."""
        edges = 0 if self._is_large() else self._in_memory()
        return self.source.num_nodes * self.node_bytes + edges

    def scratch_bytes(self) -> int:
        """Return the bytes of files that the cut writes: both directions of all edges."""
        if not self._is_large():
            return 0
        column = narrowest_int(self.source.num_nodes).itemsize
        return 2 * self.source.num_edges * (column + 4)

    def _is_large(self) -> bool:
        """Return True if the edges take more than half of the memory that the user allows."""
        memory = self.effort.memory
        return memory is not None and self._in_memory() > memory // 2

    def _in_memory(self) -> int:
        """Return the bytes of memory that the undirected graph takes if it is not in files."""
        return self.source.num_edges * _EDGE_BYTES

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "balance": list(self.balance), "slack": self.slack}


class Constraints(NamedTuple):
    """Quantities that parts share evenly, such as nodes or edges, as weights of nodes.

    Nodes of all types are numbered together, type after type.

    Attributes:
        names: description of each quantity, such as "nodes of type 'paper'".
        weights: [num_constraints, num_nodes] int32 amount of each quantity in each node, at least
            0.
    """

    names: list[str]
    weights: Int32Array

    @classmethod
    def of(cls, source: GraphSource, balance: Sequence[str], edge_dir: EdgeDir) -> Constraints:
        """Return the quantities to balance that a user named in `balance`.

        They are 'nodes' (of each type), 'edges' (in the direction `edge_dir`), 'train' (nodes of
        `train_mask`), 'bytes' (of attributes), or node attributes of integers or booleans.

        Raises:
            ValueError: `balance` is empty or has a name twice, an attribute is unknown, or its
                values are no weights.
        """
        if isinstance(balance, str) or not balance or len(set(balance)) < len(list(balance)):
            raise ValueError(
                f"balance must list distinct names of {', '.join(BALANCE)} or of node attributes "
                f"(got {balance!r})"
            )
        named = [constraint for name in balance for constraint in _weights(source, name, edge_dir)]
        used = [(name, weights) for name, weights in named if weights.any()] or _nodes(source)
        return cls([name for name, _ in used], np.stack([_scaled(weights) for _, weights in used]))

    def capacities(self, num_parts: int, slack: float) -> Int64Array:
        """Return the largest load that each part may have: [num_constraints, num_parts] int64.

        This is the mean load times 1 + `slack`, or the largest weight of a node if that is more.
        """
        totals = self.weights.sum(axis=1, dtype=np.int64)
        largest = self.weights.max(axis=1, initial=0)
        even = np.ceil((1 + slack) * totals / num_parts).astype(np.int64)
        return np.repeat(np.maximum(even, largest)[:, None], num_parts, axis=1)

    def loads(self, labels: Int32Array, num_parts: int) -> Int64Array:
        """Return each part's sum of weights, [num_constraints, num_parts] int64.

        `labels` has the part of each node, or `num_parts` for nodes without a part.
        """
        rows = [np.bincount(labels, of_each, num_parts + 1)[:num_parts] for of_each in self.weights]
        return np.stack(rows).astype(np.int64)

    def most_uneven(self) -> Int64Array:
        """Return [num_nodes] int64 weights, all >= 1: the quantity that is hardest to balance.

        METIS balances this quantity alone. Its weights vary most about their mean. Quantities that
        vary less come out nearly even.
        """
        deviations = self.weights.std(axis=1) / np.maximum(self.weights.mean(axis=1), 1e-9)
        weights: Int64Array = self.weights[int(np.argmax(deviations))].astype(np.int64)
        return np.maximum(weights, 1)


def _weights(source: GraphSource, name: str, edge_dir: EdgeDir) -> list[tuple[str, Int64Array]]:
    if name == "nodes":
        return _nodes(source)
    if name == "edges":
        return [("edges", _joined(source, _degrees(source, edge_dir)))]
    if name == "bytes":
        rows = {t: np.full(n.count, feature_bytes(n.attrs)) for t, n in source.nodes.items()}
        for t, degrees in _degrees(source, edge_dir, in_bytes=True).items():
            rows[t] = rows[t] + degrees
        return [("bytes", _joined(source, rows))]
    attribute = "train_mask" if name == "train" else name
    values = {t: n.attrs[attribute] for t, n in source.nodes.items() if attribute in n.attrs}
    if not values:
        known = sorted({a for node in source.nodes.values() for a in node.attrs})
        raise ValueError(
            f"balance names '{name}', but no node type has an attribute '{attribute}': there are "
            f"{known}"
        )
    for node_type, feature in values.items():
        if feature.floating or feature.row_shape != () or feature.array.dtype.kind not in "biu":
            raise ValueError(
                f"balance names '{name}', but '{attribute}' of node type '{node_type}' is "
                f"{feature.dtype} of shape {[feature.num_rows, *feature.row_shape]}: one boolean "
                "or integer per node can be balanced"
            )
        if len(feature.array) and int(feature.array.min()) < 0:
            raise ValueError(f"balance names '{name}', which holds values below 0")
    rows = {t: np.asarray(feature.array).astype(np.int64) for t, feature in values.items()}
    return [(name, _joined(source, rows))]


def _nodes(source: GraphSource) -> list[tuple[str, Int64Array]]:
    named = source.heterogeneous
    return [
        (f"nodes of type '{t}'" if named else "nodes", _joined(source, {t: np.ones(n.count, int)}))
        for t, n in source.nodes.items()
    ]


def _degrees(
    source: GraphSource, edge_dir: EdgeDir, in_bytes: bool = False
) -> dict[NodeType, Int64Array]:
    """Return {node type: [num_nodes] number of edges that are stored with each node}.

    `edge_dir` 'in' counts in-edges, and 'out' out-edges. With `in_bytes`, edges count by the bytes
    of their attributes and ids.
    """
    degrees = {t: np.zeros(node.count, np.int64) for t, node in source.nodes.items()}
    for (src, _, dst), edge in source.edges.items():
        node_type, ends = (dst, edge.dst) if edge_dir == "in" else (src, edge.src)
        count = np.bincount(ends, minlength=source.nodes[node_type].count)
        width = 12 + feature_bytes(edge.attrs) if in_bytes else 1
        degrees[node_type] += count * width
    return degrees


def _joined(source: GraphSource, values: dict[NodeType, Array]) -> Int64Array:
    """Join {node type: [num_nodes] values} in the order of types, with 0 for missing types."""
    return np.concatenate(
        [values.get(t, np.zeros(node.count, np.int64)) for t, node in source.nodes.items()]
    )


def _scaled(weights: Int64Array) -> Int32Array:
    """Return non-negative weights as int32. If one is too large, all are divided and rounded up."""
    largest = int(weights.max(initial=0))
    divisor = -(-largest // _MOST_WEIGHT) if largest > _MOST_WEIGHT else 1
    scaled: Int32Array = (-(-weights // divisor)).astype(np.int32)
    return scaled
