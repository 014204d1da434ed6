"""The sampling engine: one for graphs in memory, mapped partitions and remote rows.

`Engine.sample` is a generator. It yields the requests to other partitions that it has to wait for
and is resumed when they are answered, so that one process keeps several batches in flight; where
all rows are at hand it never yields. What it draws depends on the key of the run, the index of the
batch and the graph alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from typing import Any, Protocol

import numpy as np

from khop import _native
from khop.data import Graph
from khop.partition.part import Part
from khop.sampler.spec import SamplingSpec
from khop.typing import Array, Int32Array, Int64Array, IntArray

Drawn = tuple[Int32Array, IntArray, "Int64Array | None"]


class Ticket(Protocol):
    """A request on its way."""

    @property
    def done(self) -> bool:
        """Whether `result` can be called."""

    def result(self) -> list[Array]:
        """The reply's arrays; raises if the request failed."""


class RemoteParts(Protocol):
    """The other partitions, as the engine sees them."""

    def sample(self, part: int, relation: int, ids: Int64Array, spec: HopRequest) -> Ticket:
        """Asks a part to draw neighbours of its nodes `ids`."""

    def fetch(
        self, part: int, kind: str, index: int, ids: Int64Array, names: Sequence[str]
    ) -> Ticket:
        """Asks a part for attributes of its nodes (kind 'node') or edges ('edge')."""


class HopRequest:
    """How one hop over one edge type is drawn."""

    __slots__ = ("fanout", "key", "replace", "with_edge")

    def __init__(self, fanout: int, replace: bool, with_edge: bool, key: int) -> None:
        self.fanout = fanout
        self.replace = replace
        self.with_edge = with_edge
        self.key = key


class GraphView:
    """What the engine needs of a graph: rows at hand, and who owns the others.

    Attributes:
        num_nodes: number of nodes of each node type.
        relations: (node type of neighbours, node type whose neighbours are drawn), an edge type
            each.
        csrs: rows at hand, an edge type each.
        bounds: range bounds of the parts, a node type each.
        part: the part whose rows are at hand.
    """

    def __init__(
        self,
        num_nodes: list[int],
        relations: list[tuple[int, int]],
        csrs: list[_native.Csr],
        bounds: list[list[int]],
        part: int,
    ) -> None:
        self.num_nodes = num_nodes
        self.relations = relations
        self.csrs = csrs
        self.bounds = bounds
        self.part = part

    @property
    def is_whole(self) -> bool:
        """Whether all rows are at hand."""
        return all(len(bounds) == 2 for bounds in self.bounds)

    @classmethod
    def of_graph(cls, graph: Graph) -> GraphView:
        """A graph in memory."""
        place = {t: i for i, t in enumerate(graph.node_types)}
        counts = list(graph.num_nodes.values())
        return cls(
            counts,
            [
                (place[graph.neighbor_type(t)], place[graph.frontier_type(t)])
                for t in graph.edge_types
            ],
            [topology.csr() for topology in graph.topologies.values()],
            [[0, count] for count in counts],
            0,
        )

    @classmethod
    def of_part(cls, part: Part) -> GraphView:
        """A partition."""
        return cls(
            [t.count for t in part.meta.node_types],
            part.relations,
            part.csrs,
            [t.bounds for t in part.meta.node_types],
            part.part,
        )


class Engine:
    """Draws the subgraphs of batches.

    Args:
        view: the graph.
        spec: how neighbours are drawn.
        remote: the other partitions; needed unless all rows are at hand.
    """

    def __init__(
        self, view: GraphView, spec: SamplingSpec, remote: RemoteParts | None = None
    ) -> None:
        if remote is None and not view.is_whole:
            raise ValueError("a partition's engine needs access to the other partitions")
        self.view = view
        self.spec = spec
        self._remote = remote
        self._idle: list[_native.Subgraph] = []

    def release(self, subgraph: _native.Subgraph) -> None:
        """Gives a subgraph's buffers back, to be reused."""
        self._idle.append(subgraph)

    def sample_local(
        self, seeds: Sequence[tuple[int, Int64Array]], run_key: int, batch: int
    ) -> _native.Subgraph:
        """As `sample`, for graphs all of whose rows are at hand."""
        subgraph: _native.Subgraph = finish(self.sample(seeds, run_key, batch))
        return subgraph

    def sample(
        self,
        seeds: Sequence[tuple[int, Int64Array]],
        run_key: int,
        batch: int,
        exclude: Sequence[tuple[int, Int64Array, Int64Array]] = (),
    ) -> Generator[list[Ticket], None, _native.Subgraph]:
        """Draws a batch.

        Args:
            seeds: (node type, ids) pairs.
            run_key: key of the epoch, from `_native.run_key`.
            batch: index of the batch in its epoch.
            exclude: edges that shall not be drawn: (edge type, nodes whose neighbours are drawn,
                the neighbour of each).

        Returns:
            The subgraph; to be handed back with `release`.

        Raises:
            IndexError: a seed does not exist.
        """
        if exclude:
            raise NotImplementedError("leaving edges out of the neighbourhood is still to come")
        view, spec = self.view, self.spec
        try:  # two threads may see the same idle one
            subgraph = self._idle.pop()
        except IndexError:
            subgraph = _native.Subgraph(view.num_nodes, view.relations, spec.with_edge)
        subgraph.begin()
        for node_type, ids in seeds:
            subgraph.add_seeds(node_type, ids)
        for hop in range(spec.num_hops):
            for relation, fanouts in enumerate(spec.fanouts[: len(view.relations)]):
                key = _native.step_key(run_key, batch, hop, relation)
                if self._remote is None:
                    subgraph.hop(relation, view.csrs[relation], fanouts[hop], spec.replace, key)
                else:
                    request = HopRequest(fanouts[hop], spec.replace, spec.with_edge, key)
                    yield from self._hop_over_parts(subgraph, relation, request)
            subgraph.end_hop()
        return subgraph

    def _hop_over_parts(
        self, subgraph: _native.Subgraph, relation: int, request: HopRequest
    ) -> Generator[list[Ticket], None, None]:
        assert self._remote is not None
        view = self.view
        frontier_type = view.relations[relation][1]
        frontier = subgraph.frontier(frontier_type)
        owners, ids, _, offsets = _native.split_by_owner(frontier, view.bounds[frontier_type])
        nothing = request.fanout == 0
        shares = [ids[a:b] for a, b in itertools.pairwise(offsets)]
        # All requests go out before anything is drawn here.
        tickets = {
            part: self._remote.sample(part, relation, share, request)
            for part, share in enumerate(shares)
            if part != view.part and len(share) and not nothing
        }
        replies: list[Drawn] = []
        for part, share in enumerate(shares):
            if part == view.part and not nothing:
                replies.append(
                    _native.sample_rows(
                        view.csrs[relation],
                        share,
                        request.fanout,
                        request.replace,
                        request.key,
                        request.with_edge,
                    )
                )
            else:
                replies.append(_empty_reply(len(share), request.with_edge))
        if tickets:
            yield list(tickets.values())
        for part, ticket in tickets.items():
            replies[part] = _drawn(ticket.result(), request.with_edge)
        subgraph.merge(relation, owners, replies)


def _empty_reply(num_rows: int, with_edge: bool) -> Drawn:
    edges = np.empty(0, np.int64) if with_edge else None
    return np.zeros(num_rows, np.int32), np.empty(0, np.int32), edges


def _drawn(arrays: list[Array], with_edge: bool) -> Drawn:
    counts, neighbors = arrays[0], arrays[1]
    return counts, neighbors, arrays[2] if with_edge else None


def finish(steps: Generator[list[Ticket], None, Any]) -> Any:
    """Runs a generator that has nothing to wait for."""
    try:
        next(steps)
    except StopIteration as stop:
        return stop.value
    raise RuntimeError("a batch of a whole graph waits for another partition")
