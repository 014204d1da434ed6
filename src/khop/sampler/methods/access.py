"""The graph as programs see it while they draw a batch. Imports no torch."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, Protocol

from khop import _native
from khop.typing import Array, Int32Array, Int64Array

Rows = tuple[Int32Array, Int64Array, "Int64Array | None"]
"""Counts per row, neighbours row by row, and their edges if they were asked for."""

Waiting = Generator[list[Any], None, Any]
"""A generator that yields what it waits for; to be run with `yield from`."""


def together(steps: Iterable[Waiting]) -> Waiting:
    """Run generators side by side, so that their requests are in flight at the same time.

    Args:
        steps: generators that wait, and do not wait for one another.

    Returns:
        What each of them returns, in their order.
    """
    running = dict(enumerate(steps))
    results: list[Any] = [None] * len(running)
    while running:
        waiting: list[Any] = []
        for place, step in list(running.items()):
            try:
                waiting += next(step)
            except StopIteration as stop:
                results[place] = stop.value
                del running[place]
        if waiting:
            yield waiting
    return results


class GraphAccess(Protocol):
    """The graph, whole or a part of it, and the batch that is being drawn.

    Nodes are named by the engine's ids. Draws must not depend on these: a folder renumbers nodes.
    `words` and `neighbors` draw by original ids.

    Attributes:
        batch: index of the batch in its epoch.
        fanouts: fan-out of each hop, for each edge type, as `num_neighbors` gives them.
        seeds: (index of the node type, [n] int64 ids, [n] int64 times or None) of the batch.
        num_nodes: number of nodes of each node type.
        node_types: names of the node types.
        relations: (node type of neighbours, node type whose neighbours are drawn) of each edge
            type, as indices.
        subgraph: the batch: nodes and edges are added here.
        values: arrays of the batch beside its nodes and edges, by name: 'e0.edge_norm' is
            [num_edges] of edge type 0, 'n0.node_norm' [num_nodes] of node type 0.
        place: (key of the epoch, index of the batch), of which `key` makes keys.
        whole_rows: the rows of each edge type, for kernels that read them without waiting. None if
            some are elsewhere, or edges are excluded.
        num_threads: threads that such kernels may use.

    Example:
        >>> def neighbors_of_neighbors(graph: GraphAccess, ids):  # for `ProgramMethod.draw`
        ...     _, found, _ = yield from graph.neighbors(0, ids)
        ...     return (yield from graph.neighbors(0, found))
    """

    batch: int
    fanouts: Sequence[Sequence[int]]
    num_nodes: list[int]
    node_types: Sequence[str]
    relations: list[tuple[int, int]]
    subgraph: _native.Subgraph
    values: dict[str, Array]
    place: tuple[int, int]
    whole_rows: Sequence[_native.Csr] | None
    num_threads: int

    @property
    def seeds(self) -> Sequence[tuple[int, Int64Array, Int64Array | None]]:
        """See above."""

    def key(self, purpose: int, step: int = 0, index: int = 0, batch: int | None = None) -> int:
        """Return a key of random numbers of a batch, a different one for each three numbers.

        Args:
            purpose: below 2^32; what the numbers are for.
            step: below 2^32; hop, step or round.
            index: below 2^32; edge or node type.
            batch: index of the batch. If None, this one; others share their numbers with it.
        """

    def words(self, key: int, node_type: int, ids: Int64Array) -> Waiting:
        """Draw a random word for each of some nodes, by their original ids.

        Args:
            key: from `key`.
            node_type: index of the nodes' type.
            ids: [n] int64.

        Returns:
            [n] uint64.
        """

    def neighbors(
        self,
        relation: int,
        ids: Int64Array,
        fanout: int = -1,
        *,
        key: int = 0,
        replace: bool = False,
        trees: Int32Array | None = None,
        times: Int64Array | None = None,
        with_edge: bool = True,
    ) -> Waiting:
        """Draw neighbours of nodes, or take all.

        Args:
            relation: index of the edge type.
            ids: [n] int64, nodes of the type whose neighbours are drawn.
            fanout: how many for each; -1 takes all.
            key: from `key`; of the draws.
            replace: draw with replacement.
            trees: [n] int32, numbers that tell draws from the same node apart.
            times: [n] int64; only neighbours that exist at a row's time are drawn.
            with_edge: return edges, too.

        Returns:
            `Rows`: in the order of `ids`; excluded edges are not among them.
        """

    def degrees(self, relation: int, ids: Int64Array) -> Waiting:
        """Return the number of neighbours of nodes over an edge type, [n] int64."""

    def degree_sums(self, relation: int) -> Waiting:
        """Return the running sums of all nodes' degrees over an edge type, by original id.

        [num_nodes] int64, of the node type whose neighbours are drawn. They are asked for once, and
        kept by the process.
        """

    def has_edges(self, relation: int, rows: Int64Array, neighbors: Int64Array) -> Waiting:
        """Return which pairs of nodes are joined, [n] bool."""

    def weights(self, relation: int, edges: Int64Array) -> Waiting:
        """Return weights of edges, [n] float64, finite and not negative, as the user gave them.

        None, if the batch's edges of this type are not drawn by weight.

        Args:
            relation: index of the edge type.
            edges: [n] int64, as `neighbors` returns them.
        """

    def column_sums(self, relation: int) -> Waiting:
        """Return running sums of the squared norms of columns, [num_nodes] int64, by original id.

        Columns are those of the adjacency matrix of an edge type over the whole graph, each of
        whose rows is divided by its number of entries: a neighbour's squared norm is the sum of
        1 / degree^2 over its edges, here an integer, scaled. Parallel edges count each. The first
        batch of a process reads all rows for it.
        """

    def original_ids(self, node_type: int, ids: Int64Array) -> Waiting:
        """Return the original ids of nodes, [n] int64."""

    def engine_ids(self, node_type: int, original_ids: Int64Array) -> Int64Array:
        """Return the engine's ids of nodes, given their original ids."""

    def add_hop(self, relation: int, rows: Rows) -> None:
        """Add neighbours of all nodes of the frontier, in its order, over one edge type."""
