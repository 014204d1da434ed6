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
"""Number of neighbours per row, the neighbours row by row, and their edges if requested."""


class SeedSet(NamedTuple):
    """Seeds of one node type, as the sampling engine takes them.

    Attributes:
        node_type: index of the node type.
        ids: [n] int64 node ids.
        times: [n] int64 keys of the seeds' times, with temporal sampling only.
    """

    node_type: int
    ids: Int64Array
    times: Int64Array | None = None


class Exclusion(NamedTuple):
    """Edges to exclude from a batch.

    For each i, all edges of type `relation` between `rows[i]` and `neighbors[i]` are excluded.

    Attributes:
        relation: index of the edge type.
        rows: [n] int64, nodes whose neighbours are drawn.
        neighbors: [n] int64.
    """

    relation: int
    rows: Int64Array
    neighbors: Int64Array


class RemoteParts(Protocol):
    """The engine's access to other partitions. Each method sends a request and does not wait.

    The `Ticket` that it returns is done when the reply has come.
    """

    def sample(self, part: int, relation: int, rows: RowSet, request: HopRequest) -> Ticket:
        """Request that a part draws neighbours of its nodes `rows` over an edge type."""

    def induce(
        self, part: int, relation: int, rows: RowSet, keys: Int64Array, with_edge: bool
    ) -> Ticket:
        """Request the neighbours of a part's nodes that are in a batch.

        `keys` identify the batch's nodes, as `_native.Subgraph.keys` returns them.
        """

    def has_edges(
        self, part: int, relation: int, rows: Int64Array, neighbors: Int64Array
    ) -> Ticket:
        """Request for each i whether an edge joins the part's `rows[i]` and `neighbors[i]`."""

    def degrees(self, part: int, relation: int, rows: Int64Array) -> Ticket:
        """Request the number of neighbours of each of a part's nodes (`rows`)."""

    def fetch(
        self, part: int, element: str, index: int, ids: Int64Array, names: Sequence[str]
    ) -> Ticket:
        """Request rows of attributes (`names`) of a part's nodes or edges (`ids`).

        `element` is 'node' or 'edge', and `index` is the index of the node or edge type.
        """


@dataclass(frozen=True, slots=True)
class HopRequest:
    """Parameters of one hop over one edge type, as another partition receives them.

    The fields' annotations have the bounds that the receiver checks.
    """

    fanout: Annotated[int, Between(-1, INT64)]
    replace: bool
    with_edge: bool
    key: Word
    weighted: bool = False
    last: bool = False
    method: MethodSpec = NEIGHBOR

    def options(self) -> _native.HopOptions:
        """Return the parameters as the object that kernels take."""
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
    """Nodes whose neighbours are drawn (rows), and constraints on the neighbours.

    Attributes:
        ids: [n] int64 node ids.
        trees: [n] int32, index of the seed that each node belongs to, in disjoint batches only.
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
        """Return nodes of a batch as rows of an edge type, with the edges of this type to exclude.

        Args:
            members: ids, trees and times, as `_native.Subgraph.frontier` returns them.
            relation: index of the edge type.
            exclude: edges to exclude from the batch, of all edge types.
        """
        pairs = [(e.rows, e.neighbors) for e in exclude if e.relation == relation]
        if not pairs:
            return cls(*members)
        rows = np.concatenate([p[0] for p in pairs])
        return cls(*members, (rows, np.concatenate([p[1] for p in pairs])))

    def share(self, positions: Int64Array, low: int, high: int) -> RowSet:
        """Return the rows of one part: at `positions`, with ids from `low` to `high` - 1."""
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
        """Draw neighbours of these nodes in one hop. `csr` must have all these nodes.

        `options` is `request.options()`, if the caller has it already.
        """
        if request.last and not csr.has_times:
            request, options = replace(request, last=False), None
        options = request.options() if options is None else options
        return _native.sample_rows(csr, self.ids, options, self.trees, self.times, self.excluded)

    def induce(self, csr: _native.Csr, keys: Int64Array, num_nodes: int, with_edge: bool) -> Drawn:
        """Return those neighbours of these nodes that are in a batch.

        `keys` identify the batch's nodes, as `_native.Subgraph.keys` returns them. The graph `csr`
        has neighbours with ids below `num_nodes`.
        """
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
