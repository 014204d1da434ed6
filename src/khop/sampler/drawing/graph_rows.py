"""Rows of a graph, whole or a part of it: drawn here where they are local, else by their owners.

All methods are generators: they yield the requests that they wait for. Trainers and sampler
processes use them, by `khop.sampler.drawing.engine`. Imports no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np

from khop import _native
from khop.data.tickets import Ticket
from khop.sampler.drawing.disk_rows import DiskRows
from khop.sampler.drawing.view import GraphView
from khop.sampler.methods.access import Waiting, together
from khop.sampler.methods.entries import ranges
from khop.sampler.replies import check_degrees, check_drawn, check_found
from khop.sampler.requests import Drawn, HopRequest, RemoteParts, RowSet
from khop.typing import Array, BoolArray, Int32Array, Int64Array

_Values = TypeVar("_Values", bound=Array)

Replies: TypeAlias = tuple[Int32Array, list[Drawn]]
"""The owner of each row, and the answer of each owner for its rows."""

_ROWS_AT_ONCE, _ENTRIES_AT_ONCE = 1 << 16, 1 << 20  # of sums over all rows
_CHUNK = 1 << 20  # nodes of a request for degrees


class GraphRows:
    """Rows of a graph: the neighbours of each node, local or requested from owners.

    Args:
        view: the graph.
        remote: the other partitions. Required unless all rows are local.

    Raises:
        ValueError: a part without access to the others.
    """

    def __init__(self, view: GraphView, remote: RemoteParts | None) -> None:
        if remote is None and not view.is_local:
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
    ) -> Waiting[Replies]:
        """Draw neighbours of rows over edge type `relation`. `options` are `request.options()`."""
        view, remote = self.view, self.remote
        return self._ask(
            relation,
            rows,
            partial(RowSet.draw, request=request, options=options),
            partial(DiskRows.draw, request=request, options=options),
            None if remote is None else partial(remote.sample, request=request),
            request.with_edge,
            request.fanout == 0,
            view.num_nodes[view.relations[relation][0]],
        )

    def induce(
        self, relation: int, rows: RowSet, keys: Int64Array, with_edge: bool
    ) -> Waiting[Replies]:
        """Find the neighbours of rows that are in a batch. `keys` identify the batch's nodes."""
        view, remote = self.view, self.remote
        num_nodes = view.num_nodes[view.relations[relation][0]]
        return self._ask(
            relation,
            rows,
            partial(RowSet.induce, keys=keys, num_nodes=num_nodes, with_edge=with_edge),
            partial(DiskRows.induce, keys=keys, num_nodes=num_nodes, with_edge=with_edge),
            None if remote is None else partial(remote.induce, keys=keys, with_edge=with_edge),
            with_edge,
            False,
            len(keys),
        )

    def _ask(
        self,
        relation: int,
        rows: RowSet,
        here: Callable[[RowSet, _native.Csr], Drawn],
        on_disk: Callable[[DiskRows, RowSet], Waiting[Drawn]],
        elsewhere: Callable[[int, int, RowSet], Ticket] | None,
        with_edge: bool,
        nothing: bool,
        below: int,
    ) -> Waiting[Replies]:
        """Split rows among their owners, and return the owner of each and each owner's answer.

        Args:
            relation: index of the edge type.
            rows: the rows.
            here: draws from rows of a local part.
            on_disk: draws from rows of a local part that are read past the page cache.
            elsewhere: requests from an owner: (part, edge type, rows). If None, all rows are local.
            with_edge: answers have edges.
            nothing: no neighbours are drawn, so that all answers are empty.
            below: bound of neighbours in the answers of other partitions.
        """
        view = self.view
        bounds = view.bounds[view.relations[relation][1]]
        owners, _, positions, offsets = _native.split_by_owner(rows.ids, bounds)
        shares = {
            part: rows.share(positions[a:b], bounds[part], bounds[part + 1])
            for part, (a, b) in enumerate(itertools.pairwise(offsets))
            if a < b
        }
        local = {} if nothing else {part: view.rows_of(part, relation) for part in shares}
        # All requests are sent before anything is drawn here.
        tickets = {
            part: elsewhere(part, relation, shares[part])
            for part, csr in local.items()
            if csr is None and elsewhere is not None
        }
        replies, reading = {}, {}
        for part, csr in local.items():
            disk_rows = view.disk_rows_of(part, relation)
            if disk_rows is not None:
                reading[part] = on_disk(disk_rows, shares[part])
            elif csr is not None:
                replies[part] = here(shares[part], csr)
        answers = yield from together([*reading.values(), _replied(list(tickets.values()))])
        replies |= zip(reading, filter(None, answers), strict=True)
        for part, ticket in tickets.items():
            edges = view.edge_bounds[relation][part : part + 2]
            num_rows = len(shares[part].ids)
            replies[part] = check_drawn(ticket.result(), part, num_rows, with_edge, below, edges)
        for part in range(len(offsets) - 1):
            if part not in replies:
                num_rows = len(shares[part].ids) if part in shares else 0
                no_edges = np.empty(0, np.int64) if with_edge else None
                replies[part] = np.zeros(num_rows, np.int32), np.empty(0, np.int32), no_edges
        return owners, [replies[part] for part in range(len(offsets) - 1)]

    def has_edges(
        self, relation: int, ids: Int64Array, neighbors: Int64Array
    ) -> Waiting[BoolArray]:
        """Check which edges exist.

        Args:
            relation: index of the edge type.
            ids: [n] int64, nodes whose neighbours are drawn.
            neighbors: [n] int64.

        Returns:
            [n] bool.
        """
        return self._each(
            relation,
            ids,
            np.empty(len(ids), np.bool_),
            lambda csr, at: _native.has_edges(csr, ids[at], neighbors[at]),
            lambda rows, at: rows.has_edges(ids[at], neighbors[at]),
            lambda remote, part, at: remote.has_edges(part, relation, ids[at], neighbors[at]),
            check_found,
        )

    def degrees(self, relation: int, ids: Int64Array) -> Waiting[Int64Array]:
        """Return the number of neighbours of `ids` over edge type `relation`, [n] int64."""
        bounds = self.view.edge_bounds[relation]
        return self._each(
            relation,
            ids,
            np.empty(len(ids), np.int64),
            lambda csr, at: _native.degrees(csr, ids[at]),
            None,
            lambda remote, part, at: remote.degrees(part, relation, ids[at]),
            lambda arrays, part, count: check_degrees(
                arrays, part, count, bounds[part + 1] - bounds[part]
            ),
        )

    def column_sums(self, relation: int) -> Waiting[Int64Array]:
        """Return running sums, [num_nodes] int64, of squared norms of columns (neighbours).

        All rows are read once, in pieces. Batches of a process share the sums. A batch that needs
        them while another computes them waits.
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

    def _add_up_columns(self, relation: int) -> Waiting[None]:
        source, destination = self.view.relations[relation]
        # Scaled so that no sum leaves 63 bits. An edge of a row of any length counts.
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

    def degree_sums(self, relation: int) -> Waiting[Int64Array]:
        """Return running sums of all nodes' degrees, [num_nodes] int64 by original id."""
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
        ids: Int64Array,
        values: _Values,
        here: Callable[[_native.Csr, Int64Array], Array],
        on_disk: Callable[[DiskRows, Int64Array], Waiting[_Values]] | None,
        elsewhere: Callable[[RemoteParts, int, Int64Array], Ticket],
        check: Callable[[list[Array], int, int], Array],
    ) -> Waiting[_Values]:
        """Ask owners for one value per node, and return all values.

        Args:
            relation: index of the edge type.
            ids: [n] nodes whose neighbours are drawn.
            values: [n] array to fill.
            here: function from rows of a local part and positions in `ids` to values.
            on_disk: the same for rows that are read past the page cache. If None, row pointers are
                enough, which are mapped.
            elsewhere: requests values from an owner: (partitions, part, positions in `ids`).
            check: checks a reply: (arrays, part, number of values).
        """
        view = self.view
        bounds = view.bounds[view.relations[relation][1]]
        _, _, positions, offsets = _native.split_by_owner(ids, bounds)
        pending: list[tuple[int, Int64Array, Ticket]] = []
        local: list[tuple[_native.Csr, Int64Array]] = []
        reading: list[tuple[DiskRows, Int64Array]] = []
        for part, (a, b) in enumerate(itertools.pairwise(offsets)):
            if a == b:
                continue
            csr, at = view.rows_of(part, relation), positions[a:b]
            disk_rows = view.disk_rows_of(part, relation)
            if disk_rows is not None and on_disk is not None:
                reading.append((disk_rows, at))
                continue
            if csr is not None:
                local.append((csr, at))
                continue
            assert self.remote is not None  # checked when the rows were made
            pending.append((part, at, elsewhere(self.remote, part, at)))
        for disk_rows, at in reading:
            assert on_disk is not None
            values[at] = yield from on_disk(disk_rows, at)
        for csr, at in local:
            values[at] = here(csr, at)
        if pending:
            yield [ticket for _, _, ticket in pending]
        for part, at, ticket in pending:
            values[at] = check(ticket.result(), part, len(at))
        return values


def _replied(tickets: list[Ticket]) -> Waiting[None]:
    if tickets:
        yield tickets


def in_order(replies: Replies) -> Drawn:
    """Return the answers of all owners as one, row by row."""
    owners, answers = replies
    with_rows = [answer for answer in answers if len(answer[0])]
    if len(with_rows) <= 1:
        return with_rows[0] if with_rows else answers[0]
    order = np.argsort(owners, kind="stable")  # rows, owner by owner, as the answers have them
    grouped = np.concatenate([counts for counts, _, _ in answers])
    counts = np.empty_like(grouped)
    counts[order] = grouped
    begins = np.empty(len(grouped), np.int64)  # of each row's neighbours in the answers
    begins[order] = np.cumsum(grouped, dtype=np.int64) - grouped
    entries = ranges(begins, counts)
    neighbors = np.concatenate([ids for _, ids, _ in answers])[entries]
    if any(edges is None for _, _, edges in answers):
        return counts, neighbors, None
    edges = np.concatenate([edges for _, _, edges in answers if edges is not None])[entries]
    return counts, neighbors, edges
