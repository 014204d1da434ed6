"""The graph as programs see it while they draw batches. Imports no torch."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from khop import _native
from khop.data.tickets import Ticket
from khop.typing import Array, BoolArray, Float64Array, Int32Array, Int64Array, UInt64Array

_T = TypeVar("_T")

Rows: TypeAlias = tuple[Int32Array, Int64Array, "Int64Array | None"]
"""Number of neighbours per row, the neighbours row by row, and their edges if requested."""

Waiting: TypeAlias = Generator[list[Ticket], None, _T]
"""Generator that yields the tickets that it waits for, and returns a value: `yield from` it."""


def together(steps: Iterable[Waiting[_T]]) -> Waiting[list[_T]]:
    """Run generators side by side, so that their requests are in flight at the same time.

    Args:
        steps: generators that do not wait for one another.

    Returns:
        The value of each generator, in their order.
    """
    running = dict(enumerate(steps))
    results: dict[int, _T] = {}
    count = len(running)
    while running:
        waiting: list[Ticket] = []
        for index, step in list(running.items()):
            try:
                waiting += next(step)
            except StopIteration as stop:
                results[index] = stop.value
                del running[index]
        if waiting:
            yield waiting
    return [results[index] for index in range(count)]


class GraphAccess(Protocol):
    """The graph, whole or a part of it, and the batch that is being drawn.

    Nodes have the engine's ids, which in a partition folder differ from the original ids. So draws
    must not depend on these ids: `words` and `neighbors` draw by original ids.

    Attributes:
        batch: index of the batch in its epoch.
        fanouts: for each edge type, the fan-out of each hop, as `num_neighbors` has them.
        seeds: (index of the node type, [n] int64 ids, [n] int64 times or None) of the batch.
        num_nodes: number of nodes of each node type.
        node_types: names of the node types.
        relations: (node type of neighbours, node type whose neighbours are drawn) of each edge
            type, as indices.
        subgraph: the batch: nodes and edges are added here.
        values: arrays of the batch beside its nodes and edges, by name: 'e0.edge_norm' is
            [num_edges] of edge type 0, 'n0.node_norm' [num_nodes] of node type 0.
        batch_key: (key of the epoch, index of the batch), from which `key` derives keys.
        whole_rows: the rows of each edge type, for kernels that read them without waiting. None if
            some rows are not local, or edges are excluded.
        num_threads: threads that these kernels can use.

    Example:
        >>> def neighbors_of_neighbors(graph: GraphAccess, ids):  # for `ProgramMethod.draw`
        ...     _, first, _ = yield from graph.neighbors(0, ids)
        ...     return (yield from graph.neighbors(0, first))
    """

    batch: int
    fanouts: Sequence[Sequence[int]]
    num_nodes: list[int]
    node_types: Sequence[str]
    relations: list[tuple[int, int]]
    subgraph: _native.Subgraph
    values: dict[str, Array]
    batch_key: tuple[int, int]
    whole_rows: Sequence[_native.Csr] | None
    num_threads: int

    @property
    def seeds(self) -> Sequence[tuple[int, Int64Array, Int64Array | None]]:
        """Seeds of the batch: (index of the node type, ids, times or None) of each type."""

    def key(self, purpose: int, step: int = 0, index: int = 0, batch: int | None = None) -> int:
        """Return a key of random numbers. It differs for each batch, purpose, step and index.

        Args:
            purpose: use of the random numbers, below 2^32.
            step: hop, step or round, below 2^32.
            index: edge type or node type, below 2^32.
            batch: index of the batch whose random numbers are used. If None, this batch.
        """

    def words(self, key: int, node_type: int, ids: Int64Array) -> Waiting[UInt64Array]:
        """Draw a random 64-bit number (word) for each node, by its original id.

        Args:
            key: key of the random numbers, from `key`.
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
    ) -> Waiting[Rows]:
        """Draw neighbours of nodes, or take all.

        Args:
            relation: index of the edge type.
            ids: [n] int64, nodes of the type whose neighbours are drawn.
            fanout: neighbours per node. -1 takes all.
            key: key of the draws, from `key`.
            replace: draw with replacement.
            trees: [n] int32, numbers that distinguish draws from the same node.
            times: [n] int64. Only neighbours that exist at a row's time are drawn.
            with_edge: return edges, too.

        Returns:
            `Rows` in the order of `ids`, without excluded edges.
        """

    def degrees(self, relation: int, ids: Int64Array) -> Waiting[Int64Array]:
        """Return the number of neighbours of nodes over an edge type, [n] int64."""

    def degree_sums(self, relation: int) -> Waiting[Int64Array]:
        """Return the running sums of all nodes' degrees over an edge type, by original id.

        [num_nodes] int64, of the node type whose neighbours are drawn. The process asks for degrees
        once and keeps the sums.
        """

    def has_edges(
        self, relation: int, ids: Int64Array, neighbors: Int64Array
    ) -> Waiting[BoolArray]:
        """Return for each i whether an edge joins `ids[i]` and `neighbors[i]`, [n] bool."""

    def weights(self, relation: int, edges: Int64Array | None) -> Waiting[Float64Array | None]:
        """Return weights of edges, [n] float64, finite and not negative, as the user gave them.

        If edges of this type are not drawn by weight, return None.

        Args:
            relation: index of the edge type.
            edges: [n] int64, as `neighbors` returns them.
        """

    def column_sums(self, relation: int) -> Waiting[Int64Array]:
        """Return running sums of the squared norms of columns, [num_nodes] int64, by original id.

        The matrix is the adjacency matrix of an edge type over the whole graph, with each row
        divided by its number of entries. So a neighbour's squared norm is the sum of 1 / degree^2
        over its edges, here a scaled integer. Each parallel edge counts. The first batch of a
        process reads all rows.
        """

    def original_ids(self, node_type: int, ids: Int64Array) -> Waiting[Int64Array]:
        """Convert node ids of the graph as the program sees it to original ids, [n] int64."""

    def engine_ids(self, node_type: int, original_ids: Int64Array) -> Int64Array:
        """Convert original node ids to the ids of the graph as the program sees it, [n] int64."""

    def add_hop(self, relation: int, rows: Rows) -> None:
        """Add the neighbours of all frontier nodes, in the frontier's order, over an edge type."""


def add_all_seeds(graph: GraphAccess) -> None:
    """Add the seeds of all node types to the batch that a program draws."""
    for node_type, ids, times in graph.seeds:
        graph.subgraph.add_seeds(node_type, ids, times)
