"""The sampling engine: one for graphs in memory, mapped partitions and remote rows.

`Engine.sample` is a generator. It yields the requests to other partitions that it has to wait for
and is resumed when they are answered, so that one process keeps several batches in flight. If all
rows are local it never yields. The draws depend on the key of the run, the index of the batch and
the graph alone. Trainers and sampler processes use it. Imports no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from khop import _native
from khop.sampler.replies import check_drawn, check_found
from khop.sampler.requests import (
    Drawn,
    Exclusion,
    HopRequest,
    RemoteParts,
    RowSet,
    SeedSet,
    Ticket,
)
from khop.sampler.spec import SamplingSpec
from khop.sampler.view import GraphView
from khop.typing import BoolArray, Int32Array, Int64Array


class Engine:
    """Sampler of the subgraphs of batches.

    Args:
        view: the graph.
        spec: how neighbours are drawn.
        remote: the other partitions; required unless all rows are local.
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
        self._is_whole = view.is_whole
        # An edge type each, then a hop each; without keys, which batches have.
        self._requests = [spec.hop_requests(relation) for relation in range(len(spec.fanouts))]
        self.hops = [[request.options() for request in hops] for hops in self._requests]

    def release(self, subgraph: _native.Subgraph) -> None:
        """Take a subgraph's buffers back, to be reused."""
        self._idle.append(subgraph)

    def sample_local(
        self,
        seeds: Sequence[SeedSet],
        run_key: int,
        batch: int,
        exclude: Sequence[Exclusion] = (),
    ) -> _native.Subgraph:
        """Draw a batch as `sample`, of a graph whose rows are all local."""
        view, spec = self.view, self.spec
        subgraph = self._begin(seeds, exclude)
        subgraph.sample(view.csrs, self.hops, run_key, batch)
        if spec.subgraph_type == "bidirectional":
            subgraph.add_reverses(spec.reversals, spec.keep_edge)
        elif spec.subgraph_type == "induced":
            subgraph.induce(view.csrs)
        return subgraph

    def sample(
        self,
        seeds: Sequence[SeedSet],
        run_key: int,
        batch: int,
        exclude: Sequence[Exclusion] = (),
    ) -> Generator[list[Ticket], None, _native.Subgraph]:
        """Draw a batch.

        Args:
            seeds: the seeds; in a disjoint batch each is the root of a separate tree, and trees are
                numbered over all sets.
            run_key: key of the epoch, from `_native.run_key`.
            batch: index of the batch in its epoch.
            exclude: edges that must not be in it.

        Returns:
            The subgraph; give it back with `release`.

        Raises:
            IndexError: a seed does not exist.
        """
        if self._is_whole:
            return self.sample_local(seeds, run_key, batch, exclude)
        view, spec = self.view, self.spec
        subgraph = self._begin(seeds, exclude)
        for hop in range(spec.num_hops):
            for relation, (source, _) in enumerate(view.relations):
                keyed = self.hops[relation][hop].at(run_key, batch, hop, relation, source)
                request = replace(self._requests[relation][hop], key=keyed.key)
                yield from self._hop_over_parts(subgraph, relation, request, exclude)
            subgraph.end_hop()
        if spec.subgraph_type == "bidirectional":
            subgraph.add_reverses(spec.reversals, spec.keep_edge)
        elif spec.subgraph_type == "induced":
            for relation in range(len(view.relations)):
                yield from self._induce_over_parts(subgraph, relation, exclude)
        return subgraph

    def _begin(self, seeds: Sequence[SeedSet], exclude: Sequence[Exclusion]) -> _native.Subgraph:
        try:  # two threads may see the same idle one
            subgraph = self._idle.pop()
        except IndexError:
            subgraph = self._new_subgraph()
        subgraph.begin()
        for node_type, ids, times in seeds:
            subgraph.add_seeds(node_type, ids, times)
        for relation, rows, neighbors in exclude:
            subgraph.exclude(relation, rows, neighbors)
        return subgraph

    def _new_subgraph(self) -> _native.Subgraph:
        view, spec = self.view, self.spec
        return _native.Subgraph(view.num_nodes, view.relations, spec.with_edge, spec.disjoint)

    def _hop_over_parts(
        self,
        subgraph: _native.Subgraph,
        relation: int,
        request: HopRequest,
        exclude: Sequence[Exclusion],
    ) -> Generator[list[Ticket], None, None]:
        assert self._remote is not None
        remote, csr = self._remote, self.view.csrs[relation]
        rows = _rows_of(subgraph.frontier(self.view.relations[relation][1]), relation, exclude)
        owners, replies = yield from self._ask_owners(
            relation,
            rows,
            lambda own: own.draw(csr, request),
            lambda part, share: remote.sample(part, relation, share, request),
            request.with_edge,
            request.fanout == 0,
            self.view.num_nodes[self.view.relations[relation][0]],
        )
        subgraph.merge(relation, owners, replies)

    def _induce_over_parts(
        self, subgraph: _native.Subgraph, relation: int, exclude: Sequence[Exclusion]
    ) -> Generator[list[Ticket], None, None]:
        assert self._remote is not None
        remote, csr, with_edge = self._remote, self.view.csrs[relation], self.spec.with_edge
        source, destination = self.view.relations[relation]
        rows = _rows_of(subgraph.members(destination), relation, exclude)
        keys, num_nodes = subgraph.keys(source), self.view.num_nodes[source]
        owners, replies = yield from self._ask_owners(
            relation,
            rows,
            lambda own: own.induce(csr, keys, num_nodes, with_edge),
            lambda part, share: remote.induce(part, relation, share, keys, with_edge),
            with_edge,
            False,
            len(keys),
        )
        subgraph.merge_induced(relation, owners, replies)

    def _ask_owners(
        self,
        relation: int,
        rows: RowSet,
        at_home: Callable[[RowSet], Drawn],
        elsewhere: Callable[[int, RowSet], Ticket],
        with_edge: bool,
        nothing: bool,
        below: int,
    ) -> Generator[list[Ticket], None, tuple[Int32Array, list[Drawn]]]:
        """Split rows among their owners; return the owner of each and each owner's answer.

        Neighbours in the answers of other partitions must be below `below`.
        """
        view = self.view
        bounds = view.bounds[view.relations[relation][1]]
        owners, _, places, offsets = _native.split_by_owner(rows.ids, bounds)
        shares = {
            part: rows.share(places[a:b], bounds[part], bounds[part + 1])
            for part, (a, b) in enumerate(itertools.pairwise(offsets))
            if a < b
        }
        # All requests are sent before anything is drawn here.
        tickets = {
            part: elsewhere(part, share)
            for part, share in shares.items()
            if part != view.part and not nothing
        }
        replies = [
            _empty_reply(len(shares[p].ids) if p in shares else 0, with_edge)
            for p in range(len(offsets) - 1)
        ]
        if view.part in shares and not nothing:
            replies[view.part] = at_home(shares[view.part])
        if tickets:
            yield list(tickets.values())
        for part, ticket in tickets.items():
            edges = view.edge_bounds[relation][part : part + 2]
            num_rows = len(shares[part].ids)
            replies[part] = check_drawn(ticket.result(), part, num_rows, with_edge, below, edges)
        return owners, replies

    def has_edges(
        self, relation: int, rows: Int64Array, neighbors: Int64Array
    ) -> Generator[list[Ticket], None, BoolArray]:
        """Check which edges exist in the whole graph.

        Args:
            relation: index of the edge type.
            rows: [n] int64, nodes whose neighbours are drawn.
            neighbors: [n] int64.

        Returns:
            [n] bool.
        """
        view = self.view
        bounds = view.bounds[view.relations[relation][1]]
        _, _, places, offsets = _native.split_by_owner(rows, bounds)
        found = np.empty(len(rows), np.bool_)
        pending: list[tuple[int, Int64Array, Ticket]] = []
        for part, (a, b) in enumerate(itertools.pairwise(offsets)):
            where = places[a:b]
            if part == view.part:
                csr = view.csrs[relation]
                found[where] = _native.has_edges(csr, rows[where], neighbors[where])
            elif a < b:
                assert self._remote is not None
                ticket = self._remote.has_edges(part, relation, rows[where], neighbors[where])
                pending.append((part, where, ticket))
        if pending:
            yield [ticket for _, _, ticket in pending]
        for part, where, ticket in pending:
            found[where] = check_found(ticket.result(), part, len(where))
        return found


def _rows_of(
    members: tuple[Int64Array, Int32Array | None, Int64Array | None],
    relation: int,
    exclude: Sequence[Exclusion],
) -> RowSet:
    pairs = [(e.rows, e.neighbors) for e in exclude if e.relation == relation]
    if not pairs:
        return RowSet(*members)
    rows = np.concatenate([p[0] for p in pairs])
    return RowSet(*members, (rows, np.concatenate([p[1] for p in pairs])))


def _empty_reply(num_rows: int, with_edge: bool) -> Drawn:
    edges = np.empty(0, np.int64) if with_edge else None
    return np.zeros(num_rows, np.int32), np.empty(0, np.int32), edges


def finish(steps: Generator[list[Ticket], None, Any]) -> Any:
    """Run a generator that has nothing to wait for, and return its result."""
    try:
        next(steps)
    except StopIteration as stop:
        return stop.value
    raise RuntimeError("a batch of a whole graph waits for another partition")
