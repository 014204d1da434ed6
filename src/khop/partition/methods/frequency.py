"""Partitioning by hotness: the probability that batches of a part's trainers touch a node.

Nodes are placed so that most of the rows that a part's batches touch are local. Each part then
keeps copies of the hottest nodes of other parts. The method is FrequencyPartitioner of
GraphLearn-for-PyTorch. The hotness is from Data Tiering (arXiv 2111.05894).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from khop.data.arrays import checksum, to_array
from khop.data.hot_rows import parse_bytes
from khop.partition.base import MethodPartitioner
from khop.partition.source import feature_bytes
from khop.partition.writing.numbering import Numbering
from khop.typing import NODE, ArrayLike, EdgeType, Float64Array, Int64Array, IntArray, NodeType

_Bound = TypeVar("_Bound", int, float)


class FrequencyPartitioner(MethodPartitioner):
    """Partitioner by access probability, with parts of equal size.

    The gain of a node is its probability in its best part, minus its probability in the
    second-best. Nodes are assigned by descending gain. Each goes to the part that touches the node
    most and is not full. Part sizes differ by at most one.

    Args:
        output_dir, num_parts, num_nodes, edge_index: see `PartitionerBase`.
        probs: for each part, [num_nodes] or {node type: [num_nodes]} probabilities that a batch of
            the part's trainers touches a node. `NeighborSampler.sample_prob` computes them.
        cache_memory_budget: bytes (or '512MB') of copies that a part may keep, of all node types.
            Rows of the highest probability per byte are copied. Or {node type: bytes}, a budget for
            each type. If None, there is no bound.
        cache_ratio: share of the nodes of each type that a part may keep copies of, or {node type:
            share}, 0 for types without an entry. Nodes that batches never touch are not copied. If
            both options are None, there are no copies.
        **options: see `PartitionerBase`.

    Raises:
        TypeError, ValueError: `probs` has negative or infinite values, or not one for each part and
            node, or a share is outside [0, 1].

    Example:
        >>> probs = [[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]  # of two trainers
        >>> partitioner = FrequencyPartitioner(path / "parts", 2, 6, data.edge_index, probs)
        >>> partitioner.partition().num_parts
        2
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        num_parts: int,
        num_nodes: int | Mapping[NodeType, int],
        edge_index: ArrayLike | Mapping[EdgeType, ArrayLike],
        probs: Sequence[ArrayLike | Mapping[NodeType, ArrayLike]],
        **options: Any,
    ) -> None:
        super().__init__(output_dir, num_parts, num_nodes, edge_index, probs=probs, **options)

    def _configure(
        self,
        probs: Sequence[ArrayLike | Mapping[NodeType, ArrayLike]] | None = None,
        cache_memory_budget: int | str | Mapping[NodeType, int | str] | None = None,
        cache_ratio: float | Mapping[NodeType, float] | None = None,
    ) -> None:
        if probs is None or len(probs) != self.num_parts:
            raise ValueError(
                f"probs must hold the probabilities of each of the {self.num_parts} parts "
                f"(got {'none' if probs is None else len(probs)})"
            )
        self.cache_ratio = self._by_type(cache_ratio, _checked_ratio, "cache_ratio")
        self.cache_bytes = self._by_type(cache_memory_budget, parse_bytes, "cache_memory_budget")
        self.probs = {t: self._probs_of(t, probs) for t in self.source.nodes}
        self._cached: dict[int, dict[NodeType, Int64Array]] = {}

    def _by_type(
        self, value: object, check: Callable[[Any], _Bound], option: str
    ) -> _Bound | dict[NodeType, _Bound] | None:
        if not isinstance(value, Mapping):
            return None if value is None else check(value)
        unknown = [t for t in value if t not in self.source.nodes]
        if unknown:
            raise ValueError(
                f"{option} names node types {unknown}, but there are {list(self.source.nodes)}"
            )
        return {node_type: check(of_type) for node_type, of_type in value.items()}

    def _probs_of(
        self, node_type: NodeType, probs: Sequence[ArrayLike | Mapping[NodeType, ArrayLike]]
    ) -> Float64Array:
        count = self.source.nodes[node_type].count
        rows = np.zeros((self.num_parts, count))
        for part, of_part in enumerate(probs):
            of_type = of_part.get(node_type) if isinstance(of_part, Mapping) else of_part
            if of_type is None:  # never touched
                continue
            if node_type != NODE and not isinstance(of_part, Mapping):
                raise TypeError("probs of a heterogeneous graph must be {node type: probabilities}")
            values, _ = to_array(of_type, "probs")
            if values.shape != (count,):
                raise ValueError(
                    f"probs of part {part} has shape {values.shape} for {count} nodes of type "
                    f"'{node_type}'"
                )
            if not np.all(np.isfinite(values)) or np.any(values < 0):
                raise ValueError(f"probs of part {part} holds negative or non-finite values")
            rows[part] = values
        return rows

    def assign_nodes(self, node_type: NodeType) -> IntArray:
        """Return the part of each node: [num_nodes] integers.

        The gain of a node is its probability in its best part, minus the one in its second-best
        part. Nodes of larger gain are assigned first, ties by id.
        """
        probs = self.probs[node_type]
        return assign_balanced(probs, even_sizes(probs.shape[1], self.num_parts))

    def cached_nodes(self, node_type: NodeType, part: int, owners: IntArray) -> Int64Array:
        """Return original ids of other parts' nodes that a part copies, hottest first."""
        if part not in self._cached:
            known = {t: numbering.owners for t, numbering in self.numbering.items()}
            self._cached[part] = self._choose(part, {**known, node_type: owners})
        return self._cached[part][node_type]

    def _choose(self, part: int, owners: Mapping[NodeType, IntArray]) -> dict[NodeType, Int64Array]:
        """Return, for each node type, original ids of other parts' nodes to copy, hottest first.

        `owners` has the part of each node.
        """
        chosen, heat = {}, {}
        for node_type, of_type in owners.items():
            remote = np.where(of_type == part, 0.0, self.probs[node_type][part])
            hottest = np.argsort(-remote, kind="stable")[: self._most_rows(node_type)]
            chosen[node_type] = hottest[remote[hottest] > 0].astype(np.int64)
            heat[node_type] = remote[chosen[node_type]]
        if self.cache_bytes is None or isinstance(self.cache_bytes, Mapping):
            return chosen
        rows = self._within(self.cache_bytes, heat)
        return {node_type: ids[: rows[node_type]] for node_type, ids in chosen.items()}

    def _within(self, budget: int, heat: Mapping[NodeType, Float64Array]) -> dict[NodeType, int]:
        """Return how many rows of each type to copy, if `budget` bytes are shared by all types.

        `heat` has, for each type, the probabilities of the nodes that may be copied, descending.
        """
        sizes = np.array([self._row_bytes(node_type) for node_type in heat])
        types = np.repeat(np.arange(len(heat)), [len(of_type) for of_type in heat.values()])
        order = np.argsort(-np.concatenate(list(heat.values())) / sizes[types], kind="stable")
        taken = order[np.cumsum(sizes[types[order]]) <= budget]
        # Rows of a type are in order of heat, so the first ones are taken.
        rows = np.bincount(types[taken], minlength=len(heat))
        return dict(zip(heat, rows.tolist(), strict=True))

    def _most_rows(self, node_type: NodeType) -> int:
        """Return the most rows of a type that may be copied if this type alone uses the budget."""
        if self.cache_ratio is None and self.cache_bytes is None:
            return 0
        rows = self.source.nodes[node_type].count
        if self.cache_ratio is not None:
            rows = int(_of_type(self.cache_ratio, node_type) * rows)
        if self.cache_bytes is not None:
            budget = _of_type(self.cache_bytes, node_type)
            rows = min(rows, int(budget // self._row_bytes(node_type)))
        return rows

    def _row_bytes(self, node_type: NodeType) -> int:
        return feature_bytes(self.source.nodes[node_type].attrs) + 2 * 8  # and the ids

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "probs": {t: checksum(p) for t, p in self.probs.items()}}

    def assignment_bytes(self) -> int:
        """Estimate the bytes of memory of the probabilities and of sorting by them."""
        return self.source.num_nodes * self.num_parts * 8 * 3

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "cache_ratio": self.cache_ratio,
            "cache_memory_budget": self.cache_bytes,
        }

    def summarize(self, numbering: Mapping[NodeType, Numbering]) -> dict[str, Any]:
        """Return entries of meta.json's summary: `expected_shares` and `cache_curve`.

        The first are each part's shares of local, cached and remote rows in its requests. The
        second are each part's shares of remote rows by the number of cached rows.

        :meta private:
        """
        shares, curve = [], []
        for part in range(self.num_parts):
            here = {t: numbering[t].owners == part for t in self.probs}
            local = sum(float(probs[part][here[t]].sum()) for t, probs in self.probs.items())
            away = np.concatenate([probs[part][~here[t]] for t, probs in self.probs.items()])
            heat = np.sort(away)[::-1]
            total = (local + heat.sum()) or 1.0
            cached = sum(
                probs[part][self._cached[part][node_type]].sum()
                for node_type, probs in self.probs.items()
            )
            shares.append(
                {
                    "local": float(local / total),
                    "cached": float(cached / total),
                    "remote": max(0.0, float(1 - (local + cached) / total)),
                }
            )
            missed = np.concatenate([[1.0], 1 - np.cumsum(heat) / (heat.sum() or 1.0)])
            curve.append(missed * (heat.sum() / total))
        # 0 and about forty numbers of rows, evenly spaced on a log scale.
        steps = np.geomspace(1, max(1, max(map(len, curve)) - 1), 40)
        rows = [0, *np.unique(steps.astype(np.int64)).tolist()]
        remote = [[max(0.0, float(c[min(n, len(c) - 1)])) for n in rows] for c in curve]
        return {"expected_shares": shares, "cache_curve": {"rows": rows, "remote": remote}}


def _checked_ratio(ratio: float) -> float:
    if not 0 <= ratio <= 1:
        raise ValueError(f"cache_ratio must be between 0 and 1 (got {ratio})")
    return ratio


def _of_type(bound: _Bound | Mapping[NodeType, _Bound], node_type: NodeType) -> _Bound | int:
    return bound.get(node_type, 0) if isinstance(bound, Mapping) else bound


def even_sizes(count: int, num_parts: int) -> Int64Array:
    """Return [num_parts] int64 sizes that differ by at most one and sum up to `count`."""
    sizes = np.full(num_parts, count // num_parts, np.int64)
    sizes[: count % num_parts] += 1
    return sizes


def assign_balanced(scores: Float64Array, free: Int64Array) -> IntArray:
    """Assign items to parts by score, within the capacity of each part.

    Each item prefers the part of its highest score among the parts that are not full. Its loss is
    this score minus the score of its second-best part. Items are assigned by descending loss until
    a part is full. Then the items left choose again. Ties go to the first item and part.

    Args:
        scores: [num_parts, num_items] gain of each item in each part.
        free: [num_parts] capacity of each part, in items. The sum is at least `num_items`.

    Returns:
        [num_items] int32, the part of each item.

    Raises:
        ValueError: the parts cannot hold all items.
    """
    count = scores.shape[1]
    if int(free.sum()) < count:
        raise ValueError(f"there is room for {int(free.sum())} of {count} items")
    owners = np.full(count, -1, np.int32)
    left = np.arange(count)
    open_parts = np.flatnonzero(free)
    while len(left):
        gains = scores[open_parts][:, left]
        best = open_parts[np.argmax(gains, axis=0)]
        order = np.argsort(-_loss_of_second(gains), kind="stable")
        taken, free = _admit(best[order], free)
        owners[left[order[:taken]]] = best[order[:taken]]
        keep = np.sort(order[taken:])
        indifferent = len(keep) and not np.any(gains[:, keep] != gains[:1, keep])
        left, open_parts = left[keep], np.flatnonzero(free)
        if indifferent:  # spares a round for every part that fills up
            owners[left] = np.repeat(np.arange(len(free)), free)[: len(left)]
            break
    return owners


def _loss_of_second(gains: Float64Array) -> Float64Array:
    second = max(0, len(gains) - 2)
    top = np.partition(gains, second, axis=0)
    loss: Float64Array = top[-1] - (top[second] if len(gains) > 1 else 0.0)
    return loss


def _admit(wishes: IntArray, free: Int64Array) -> tuple[int, Int64Array]:
    """Admit items in order to the parts that they prefer (`wishes`), until one has no room.

    `free` [num_parts] is the capacity that is left. Returns the number of admitted items, and what
    is free then.
    """
    first_refused = len(wishes)
    for part in np.flatnonzero(np.bincount(wishes, minlength=len(free)) > free):
        positions = np.flatnonzero(wishes == part)
        first_refused = min(first_refused, int(positions[free[part]]))
    admitted = np.bincount(wishes[:first_refused], minlength=len(free))
    return first_refused, free - admitted
