"""Reader of a part's nodes with all their neighbours, one hop, batch by batch.

A part holds the edges of all its nodes, so nothing is drawn and no request is sent. A batch is a
range of nodes of each type with their edges. Ranges are read in their order on disk. Runs in
trainers. Imports no torch.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from khop import _native
from khop.storage.part import Part
from khop.typing import Array, Int64Array, IntArray

Range = tuple[int, int]
"""First and one-past-last id."""


@dataclass(frozen=True)
class Neighborhood:
    """Batch of layer-wise inference: nodes and all their neighbours. `FullNeighbors` reads it.

    Attributes:
        seeds: range of new ids of the batch's own nodes, for each node type.
        nodes: [n] int64 new ids for each node type, with own nodes first and in order.
        edge_index: [2, num_edges] int64 positions of neighbour and own node in `nodes`, for each
            edge type.
        edge_attrs: {attribute: rows} of these edges, for each edge type.
    """

    seeds: list[Range]
    nodes: list[Int64Array]
    edge_index: list[Int64Array]
    edge_attrs: list[dict[str, Array]]


class FullNeighbors:
    """Reader of a part's nodes with all their neighbours. For one thread at a time.

    `edge_attrs` are names of the attributes to read, for each edge type.
    """

    def __init__(self, part: Part, edge_attrs: Sequence[Sequence[str]]) -> None:
        self._part = part
        self._edge_attrs = edge_attrs
        meta = part.meta
        self._bounds = [t.bounds for t in meta.node_types]
        self._first = [bounds[part.part] for bounds in self._bounds]
        self._subgraph = _native.Subgraph(
            [t.count for t in meta.node_types], part.relations, any(edge_attrs)
        )
        # For each node type, the row offsets (indptr) of its relations.
        self._row_starts: list[list[IntArray]] = [[] for _ in meta.node_types]
        for index, (_, frontier) in enumerate(part.relations):
            self._row_starts[frontier].append(part.indptr(index))

    def share(self, index: int, of: int) -> list[Range]:
        """Return share `index` of `of` shares of the part's nodes, with similar numbers of edges.

        Returns:
            Range of new ids for each node type. All shares together are the part.
        """
        ranges = []
        for node_type, bounds in enumerate(self._bounds):
            first = self._first[node_type]
            count = bounds[self._part.part + 1] - first
            ends = [self._cut(node_type, count, i, of) for i in (index, index + 1)]
            ranges.append((first + ends[0], first + ends[1]))
        return ranges

    def _cut(self, node_type: int, count: int, index: int, of: int) -> int:
        """Return the first row of share `index` of `of` even shares of a type's `count` nodes."""

        # Each row counts itself besides its edges, so that the work grows with every row.
        def work(row: int) -> int:
            return row + self._edges_before(node_type, row)

        return bisect.bisect_left(range(count), work(count) * index // of, key=work)

    def _edges_before(self, node_type: int, row: int) -> int:
        return sum(int(starts[row]) - int(starts[0]) for starts in self._row_starts[node_type])

    def batches(
        self, ranges: Sequence[Range], batch_size: int, max_edges: int
    ) -> Iterator[list[Range]]:
        """Divide nodes into batches with all node types in even proportion.

        `ranges` has a range of new ids for each node type. A batch has at most `batch_size` nodes,
        and at most `max_edges` edges or one node.
        """
        count = sum(high - low for low, high in ranges)
        num_pieces = -(-count // batch_size)
        for i in range(num_pieces):
            firsts, lasts = (
                [low + (high - low) * n // num_pieces for low, high in ranges] for n in (i, i + 1)
            )
            yield from self._pieces(list(zip(firsts, lasts, strict=True)), batch_size, max_edges)

    def _pieces(
        self, ranges: list[Range], batch_size: int, max_edges: int
    ) -> Iterator[list[Range]]:
        """Halve ranges of nodes until each half fits the limits `batch_size` and `max_edges`."""
        counts = [high - low for low, high in ranges]
        if sum(counts) == 0:
            return
        if sum(counts) == 1 or (sum(counts) <= batch_size and self._num_edges(ranges) <= max_edges):
            yield ranges
        elif max(counts) > 1:
            middles = [low + (high - low) // 2 for low, high in ranges]
            lower = [(low, m) for (low, _), m in zip(ranges, middles, strict=True)]
            upper = [(m, high) for (_, high), m in zip(ranges, middles, strict=True)]
            yield from self._pieces(lower, batch_size, max_edges)
            yield from self._pieces(upper, batch_size, max_edges)
        else:  # no range can be halved: one batch per node type
            for i, (low, high) in enumerate(ranges):
                alone = [(low, high) if j == i else (a, a) for j, (a, _) in enumerate(ranges)]
                yield from self._pieces(alone, batch_size, max_edges)

    def _num_edges(self, ranges: Sequence[Range]) -> int:
        total = 0
        for node_type, (low, high) in enumerate(ranges):
            first = self._first[node_type]
            total += self._edges_before(node_type, high - first)
            total -= self._edges_before(node_type, low - first)
        return total

    def read(self, ranges: list[Range]) -> Neighborhood:
        """Read a batch: nodes in a range of new ids for each node type, with all neighbours."""
        subgraph = self._subgraph
        subgraph.begin()
        for node_type, (low, high) in enumerate(ranges):
            subgraph.add_seeds(node_type, np.arange(low, high, dtype=np.int64))
        for relation, csr in enumerate(self._part.csrs):
            subgraph.hop(relation, csr, _native.HopOptions(-1))  # all: nothing is drawn
        subgraph.end_hop()
        nodes = []
        for node_type in range(len(ranges)):
            ids = np.empty(subgraph.num_nodes(node_type), np.int64)
            subgraph.write_nodes(node_type, ids)
            nodes.append(ids)
        edge_index = []
        for relation in range(len(self._part.csrs)):
            ends = np.empty((2, subgraph.num_edges(relation)), np.int64)
            subgraph.write_edge_index(relation, ends[0], ends[1])
            edge_index.append(ends)
        attrs = [self._read_edge_attrs(i, names) for i, names in enumerate(self._edge_attrs)]
        return Neighborhood(ranges, nodes, edge_index, attrs)

    def _read_edge_attrs(self, relation: int, names: Sequence[str]) -> dict[str, Array]:
        if not names:
            return {}
        edges = np.empty(self._subgraph.num_edges(relation), np.int64)
        self._subgraph.write_edges(relation, edges)
        edges -= self._part.meta.edge_types[relation].bounds[self._part.part]
        return {name: self._part.edge_feature(relation, name).gather(edges) for name in names}
