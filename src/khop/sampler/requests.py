"""Inputs of the engine, and its requests to other partitions. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, Protocol

import numpy as np

from khop import _native
from khop.codec import INT64, Between, Word
from khop.data.tickets import Ticket
from khop.sampler.methods import NEIGHBOR, MethodSpec
from khop.typing import Int32Array, Int64Array, IntArray

Drawn = tuple[Int32Array, IntArray, "Int64Array | None"]
"""Counts per row, neighbours, and edges if they were asked for."""


class SeedSet(NamedTuple):
    """Seeds of one node type.

    Attributes:
        node_type: index of the node type.
        ids: [n] int64.
        times: [n] int64, with temporal sampling only.
    """

    node_type: int
    ids: Int64Array
    times: Int64Array | None = None


class Exclusion(NamedTuple):
    """Edges to exclude from a batch.

    For each i, every edge of type `relation` between `rows[i]` and `neighbors[i]`.

    Attributes:
        relation: index of the edge type.
        rows: [n] int64, nodes whose neighbours are drawn.
        neighbors: [n] int64.
    """

    relation: int
    rows: Int64Array
    neighbors: Int64Array


class RemoteParts(Protocol):
    """The other partitions, as the engine sees them."""

    def sample(self, part: int, relation: int, rows: RowSet, request: HopRequest) -> Ticket:
        """Request that a part draws neighbours of its nodes."""

    def induce(
        self, part: int, relation: int, rows: RowSet, keys: Int64Array, with_edge: bool
    ) -> Ticket:
        """Request the neighbours of a part's nodes in a batch, by the keys of the batch's nodes."""

    def has_edges(
        self, part: int, relation: int, rows: Int64Array, neighbors: Int64Array
    ) -> Ticket:
        """Request which pairs of a part's nodes and others are joined."""

    def degrees(self, part: int, relation: int, rows: Int64Array) -> Ticket:
        """Request the numbers of neighbours of a part's nodes."""

    def fetch(
        self, part: int, element: str, index: int, ids: Int64Array, names: Sequence[str]
    ) -> Ticket:
        """Request attributes of a part's nodes (element 'node') or edges ('edge')."""


@dataclass(frozen=True, slots=True)
class HopRequest:
    """Parameters of one hop over one edge type: `_native.HopOptions` as it travels, with bounds."""

    fanout: Annotated[int, Between(-1, INT64)]
    replace: bool
    with_edge: bool
    key: Word
    weighted: bool = False
    last: bool = False
    method: MethodSpec = NEIGHBOR

    def options(self) -> _native.HopOptions:
        """Return the options of the kernels."""
        return _native.HopOptions(
            self.fanout,
            self.replace,
            self.with_edge,
            self.key,
            self.weighted,
            self.last,
            **self.method.kernel_options(),
        )


@dataclass(frozen=True, slots=True)
class RowSet:
    """Nodes whose neighbours are drawn, and constraints on these.

    Attributes:
        ids: [n] int64.
        trees: [n] int32, the seeds that they belong to, in disjoint batches only.
        times: [n] int64 times of their seeds, with temporal sampling only.
        excluded: (rows, neighbors), [m] int64 each: edges not to be taken.
    """

    ids: Int64Array
    trees: Int32Array | None = None
    times: Int64Array | None = None
    excluded: tuple[Int64Array, Int64Array] | None = None

    @classmethod
    def around(
        cls,
        members: tuple[Int64Array, Int32Array | None, Int64Array | None],
        relation: int,
        exclude: Sequence[Exclusion],
    ) -> RowSet:
        """Return nodes as rows of an edge type, with the edges that a batch excludes.

        Args:
            members: ids, trees and times, as `_native.Subgraph.frontier` returns them.
            relation: index of the edge type.
            exclude: of the batch, over all edge types.
        """
        pairs = [(e.rows, e.neighbors) for e in exclude if e.relation == relation]
        if not pairs:
            return cls(*members)
        rows = np.concatenate([p[0] for p in pairs])
        return cls(*members, (rows, np.concatenate([p[1] for p in pairs])))

    def share(self, positions: Int64Array, low: int, high: int) -> RowSet:
        """Return the rows at `positions`, which are all rows in low .. high - 1."""
        excluded = None
        if self.excluded is not None:
            rows, neighbors = self.excluded
            inside = (rows >= low) & (rows < high)
            if inside.any():
                excluded = rows[inside], neighbors[inside]
        return RowSet(
            self.ids[positions],
            None if self.trees is None else self.trees[positions],
            None if self.times is None else self.times[positions],
            excluded,
        )

    def draw(
        self, csr: _native.Csr, request: HopRequest, options: _native.HopOptions | None = None
    ) -> Drawn:
        """Draw one hop from rows that `csr` holds. `options` are the request's, if known."""
        if request.last and not csr.has_times:
            request, options = replace(request, last=False), None
        options = request.options() if options is None else options
        return _native.sample_rows(csr, self.ids, options, self.trees, self.times, self.excluded)

    def induce(self, csr: _native.Csr, keys: Int64Array, num_nodes: int, with_edge: bool) -> Drawn:
        """Return the neighbours that are in a batch. `num_nodes` bounds the ids in `keys`."""
        return _native.induce_rows(
            csr,
            self.ids,
            keys,
            num_nodes,
            with_edge,
            self.trees is not None,
            self.trees,
            self.times,
            self.excluded,
        )
