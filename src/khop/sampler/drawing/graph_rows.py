"""Rows of a graph, whole or a part of it: asked of their owners, drawn here where they are here.

All methods are generators: they yield the requests that they wait for. Trainers and sampler
processes use them, by `khop.sampler.drawing.engine`. Imports no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np

from khop import _native
from khop.data.tickets import Ticket
from khop.sampler.drawing.view import GraphView
from khop.sampler.replies import check_degrees, check_drawn, check_found
from khop.sampler.requests import Drawn, HopRequest, RemoteParts, RowSet
from khop.typing import Array, BoolArray, Int32Array, Int64Array

Replies = tuple[Int32Array, list[Drawn]]
"""The owner of each row, and each owner's answer for its rows."""

_ROWS_AT_ONCE, _ENTRIES_AT_ONCE = 1 << 16, 1 << 20  # of sums over all rows
_CHUNK = 1 << 20  # nodes of a request for degrees


class GraphRows:
    """Rows of a graph.

    Args:
        view: the graph.
        remote: the other partitions; required unless all rows are local.

    Raises:
        ValueError: a part without access to the others.
    """

    def __init__(self, view: GraphView, remote: RemoteParts | None) -> None:
        if remote is None and not view.is_whole:
            raise ValueError("a partition's engine needs access to the other partitions")
        self.view = view
        self.remote = remote
        self._columns: dict[int, Int64Array] = {}
        self._columns_under_way: dict[int, list[Ticket]] = {}
        self._degree_sums: dict[int, Int64Array] = {}

    def draw(
        self,
        relation: int,
        rows: RowSet,
        request: HopRequest,
        options: _native.HopOptions | None = None,
    ) -> Generator[list[Ticket], None, Replies]:
        """Draw neighbours of rows over an edge type; `options` are the request's, if known."""
        view, remote = self.view, self.remote
        return self._ask(
            relation,
            rows,
            partial(RowSet.draw, csr=view.csrs[relation], request=request, options=options),
            None if remote is None else partial(remote.sample, request=request),
            request.with_edge,
            request.fanout == 0,
            view.num_nodes[view.relations[relation][0]],
        )

    def induce(
        self, relation: int, rows: RowSet, keys: Int64Array, with_edge: bool
    ) -> Generator[list[Ticket], None, Replies]:
        """Find the neighbours of rows that are in a batch, given by the keys of its nodes."""
        view, remote, csr = self.view, self.remote, self.view.csrs[relation]
        num_nodes = view.num_nodes[view.relations[relation][0]]
        return self._ask(
            relation,
            rows,
            lambda own: own.induce(csr, keys, num_nodes, with_edge),
            None if remote is None else partial(remote.induce, keys=keys, with_edge=with_edge),
            with_edge,
            False,
            len(keys),
        )

    def _ask(
        self,
        relation: int,
        rows: RowSet,
        at_home: Callable[[RowSet], Drawn],
        elsewhere: Callable[[int, int, RowSet], Ticket] | None,
        with_edge: bool,
        nothing: bool,
        below: int,
    ) -> Generator[list[Ticket], None, Replies]:
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
            part: elsewhere(part, relation, share)
            for part, share in shares.items()
            if elsewhere is not None and part != view.part and not nothing
        }
        replies = {}
        if view.part in shares and not nothing:
            replies[view.part] = at_home(shares[view.part])
        if tickets:
            yield list(tickets.values())
        for part, ticket in tickets.items():
            edges = view.edge_bounds[relation][part : part + 2]
            num_rows = len(shares[part].ids)
            replies[part] = check_drawn(ticket.result(), part, num_rows, with_edge, below, edges)
        for part in range(len(offsets) - 1):
            if part not in replies:
                num_rows = len(shares[part].ids) if part in shares else 0
                replies[part] = _empty_reply(num_rows, with_edge)
        return owners, [replies[part] for part in range(len(offsets) - 1)]

    def has_edges(
        self, relation: int, rows: Int64Array, neighbors: Int64Array
    ) -> Generator[list[Ticket], None, BoolArray]:
        """Check which edges exist.

        Args:
            relation: index of the edge type.
            rows: [n] int64, nodes whose neighbours are drawn.
            neighbors: [n] int64.

        Returns:
            [n] bool.
        """
        csr = self.view.csrs[relation]
        found: BoolArray = yield from self._each(
            relation,
            rows,
            np.bool_,
            lambda where: _native.has_edges(csr, rows[where], neighbors[where]),
            lambda part, where: _known(self.remote).has_edges(
                part, relation, rows[where], neighbors[where]
            ),
            check_found,
        )
        return found

    def degrees(self, relation: int, rows: Int64Array) -> Generator[list[Ticket], None, Int64Array]:
        """Return the number of neighbours of each node, [n] int64."""
        bounds = self.view.edge_bounds[relation]
        degrees: Int64Array = yield from self._each(
            relation,
            rows,
            np.int64,
            lambda where: _native.degrees(self.view.csrs[relation], rows[where]),
            lambda part, where: _known(self.remote).degrees(part, relation, rows[where]),
            lambda arrays, part, count: check_degrees(
                arrays, part, count, bounds[part + 1] - bounds[part]
            ),
        )
        return degrees

    def column_sums(self, relation: int) -> Generator[list[Ticket], None, Int64Array]:
        """Return running sums of the squared norms of columns; see `GraphAccess`.

        All rows are read once, in pieces; batches of a process share the sums, and those that come
        while they are computed wait for them.
        """
        while relation not in self._columns:
            if relation in self._columns_under_way:
                yield self._columns_under_way[relation]
                continue
            for tickets in self._add_up_columns(relation):
                self._columns_under_way[relation] = tickets
                try:
                    yield tickets
                finally:  # an abandoned batch leaves the sums to another
                    del self._columns_under_way[relation]
        return self._columns[relation]

    def _add_up_columns(self, relation: int) -> Generator[list[Ticket], None, None]:
        source, destination = self.view.relations[relation]
        # Scaled so that no sum leaves 63 bits; an edge of a row of any length counts.
        scale = 1 << min(40, 62 - self.view.edge_bounds[relation][-1].bit_length())
        masses = np.zeros(self.view.num_nodes[source], np.int64)
        whole = HopRequest(-1, False, False, 0)
        for first in range(0, self.view.num_nodes[destination], _ROWS_AT_ONCE):
            ids = np.arange(
                first, min(first + _ROWS_AT_ONCE, self.view.num_nodes[destination]), dtype=np.int64
            )
            degrees = yield from self.degrees(relation, ids)
            piece = np.cumsum(degrees) // _ENTRIES_AT_ONCE
            for some in np.split(ids, np.flatnonzero(np.diff(piece)) + 1):
                replies = yield from self.draw(relation, RowSet(some), whole)
                counts, neighbors, _ = in_order(replies)
                squares = np.square(counts.astype(np.int64))
                each = np.maximum(scale // np.maximum(squares, 1), 1)
                np.add.at(masses, neighbors, np.repeat(each, counts))
        own = self.view.own_ids(source, np.arange(len(masses), dtype=np.int64))
        self._columns[relation] = np.cumsum(masses[own])

    def degree_sums(self, relation: int) -> Generator[list[Ticket], None, Int64Array]:
        """Return running sums of all nodes' degrees, by original id; see `GraphAccess`."""
        if relation not in self._degree_sums:
            node_type = self.view.relations[relation][1]
            count = self.view.num_nodes[node_type]
            degrees = np.empty(count, np.int64)
            for first in range(0, count, _CHUNK):
                ids = np.arange(first, min(first + _CHUNK, count))
                own = self.view.own_ids(node_type, ids)
                degrees[first : first + len(ids)] = yield from self.degrees(relation, own)
            # Batches that are drawn at the same time get equal arrays.
            self._degree_sums[relation] = np.cumsum(degrees)
        return self._degree_sums[relation]

    def _each(
        self,
        relation: int,
        rows: Int64Array,
        dtype: Any,
        at_home: Callable[[Int64Array], Array],
        elsewhere: Callable[[int, Int64Array], Ticket],
        check: Callable[[list[Array], int, int], Array],
    ) -> Generator[list[Ticket], None, Array]:
        """Ask owners for one value of each row; functions take the rows' places."""
        view = self.view
        bounds = view.bounds[view.relations[relation][1]]
        _, _, places, offsets = _native.split_by_owner(rows, bounds)
        values = np.empty(len(rows), dtype)
        pending: list[tuple[int, Int64Array, Ticket]] = []
        for part, (a, b) in enumerate(itertools.pairwise(offsets)):
            if a < b and part != view.part:
                pending.append((part, places[a:b], elsewhere(part, places[a:b])))
        own = places[offsets[view.part] : offsets[view.part + 1]]
        if len(own):
            values[own] = at_home(own)
        if pending:
            yield [ticket for _, _, ticket in pending]
        for part, where, ticket in pending:
            values[where] = check(ticket.result(), part, len(where))
        return values


def in_order(replies: Replies) -> Drawn:
    """Return the answers of all owners as one, row by row."""
    owners, answers = replies
    given = [answer for answer in answers if len(answer[0])]
    if len(given) <= 1:
        return given[0] if given else answers[0]
    order = np.argsort(owners, kind="stable")  # rows, owner by owner, as the answers have them
    grouped = np.concatenate([counts for counts, _, _ in answers])
    counts = np.empty_like(grouped)
    counts[order] = grouped
    begins = np.empty(len(grouped), np.int64)  # of each row's neighbours in the answers
    begins[order] = np.cumsum(grouped, dtype=np.int64) - grouped
    ends = np.cumsum(counts, dtype=np.int64)
    places = np.arange(int(ends[-1])) + np.repeat(begins - (ends - counts), counts)
    neighbors = np.concatenate([found for _, found, _ in answers])[places]
    if any(edges is None for _, _, edges in answers):
        return counts, neighbors, None
    edges = np.concatenate([edges for _, _, edges in answers if edges is not None])[places]
    return counts, neighbors, edges


def _known(remote: RemoteParts | None) -> RemoteParts:
    assert remote is not None  # checked by `GraphRows`
    return remote


def _empty_reply(num_rows: int, with_edge: bool) -> Drawn:
    edges = np.empty(0, np.int64) if with_edge else None
    return np.zeros(num_rows, np.int32), np.empty(0, np.int32), edges
