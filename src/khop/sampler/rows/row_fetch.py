"""Rows of one batch in one table: where they are, requests in flight, and how they are written.

`khop.sampler.rows.row_fetcher` and `khop.sampler.rows.row_cache` make these objects. `write_rows`
copies local rows and begins the reads of other stores. Then it writes each reply and each read.
Runs in samplers and trainers. Imports no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from khop import _native
from khop.data import Feature, RowStore
from khop.data.row_store import Writer
from khop.data.tickets import Ticket
from khop.sampler.methods.access import Waiting
from khop.sampler.replies import check_rows
from khop.sampler.rows.ordered_pass import OrderedPass, Source, is_orderable
from khop.storage.folder import AttrMeta
from khop.trace.clock import LOCAL, REMOTE, ROWS
from khop.typing import Array, Int64Array

Pending: TypeAlias = tuple[Ticket, Callable[[], None]]
"""Rows in flight: their ticket, and a function that copies them once the ticket is done."""


class LocalRows(NamedTuple):
    """Rows in local stores: rows of one slice, or copies of other slices' rows.

    Attributes:
        tables: store of each attribute, or None for an attribute whose values are `rows`.
        rows: [n] int64 rows of the tables.
        positions: [n] int64 position of each row among the fetched ids. If None, rows are in order.
        origin: index of their origin in `khop.trace.clock.ROWS`.
    """

    tables: Sequence[RowStore | None]
    rows: Int64Array
    positions: Int64Array | None
    origin: int = LOCAL

    def gather(self, index: int) -> Array:
        """Return the rows of the attribute with this index."""
        table = self.tables[index]
        return self.rows if table is None else table.gather(self.rows)

    def write(self, outs: Sequence[Array], without: Sequence[int] = ()) -> None:
        """Copy the rows at hand to their positions in each attribute's array.

        Attributes with the indices `without` are left out.
        """
        for index, (table, out) in enumerate(zip(self.tables, outs, strict=True)):
            if index in without:
                continue
            if table is None:
                np.copyto(out, self.rows)
            elif table.at_hand:
                table.gather(self.rows, out, self.positions)

    def start_reads(self) -> list[_Read]:
        """Begin to read the rows that are not at hand, each attribute into memory of its own."""
        return [
            _Read(index, *table.start_written(self.rows), self.positions)
            for index, table in enumerate(self.tables)
            if table is not None and not table.at_hand
        ]


class _Read(NamedTuple):
    """Read of the rows of attribute number `column`. If `ticket` is None, it is done."""

    column: int
    writer: Writer
    ticket: Ticket | None
    positions: Int64Array | None

    def write(self, outs: Sequence[Array]) -> None:
        """Copy the rows to their positions. Raise the error of a read that failed."""
        if self.ticket is not None:
            self.ticket.result()
        self.writer(outs[self.column], self.positions)


class KeptRows(NamedTuple):
    """Rows of a reply that stay in memory, for later batches.

    Attributes:
        tables: [capacity, *row_shape] array of each attribute, as the owner stores it.
        rows: [n] int64 rows of the reply, ascending.
        slots: [n] int64 row of the tables for each.
    """

    tables: Sequence[Array]
    rows: Int64Array
    slots: Int64Array

    def store(self, index: int, arrays: Sequence[Array]) -> None:
        """Store the rows of the attribute with this index. `arrays` are the reply's rows of it."""
        begin = 0
        for values in arrays:
            first, last = np.searchsorted(self.rows, (begin, begin + len(values)))
            if first < last:
                rows = self.rows[first:last] - begin
                _native.gather(values, rows, self.tables[index], self.slots[first:last])
            begin += len(values)


class RowRequest(NamedTuple):
    """Attribute rows that were requested from another process. `result` checks the reply.

    Attributes:
        attributes: the attributes, by name.
        owner: name of the owner, for error messages.
        below: bound of original ids in replies.
        num_rows: number of rows.
        ticket: the request.
        positions: [n] int64 position of each among the ids of a batch, for `write`.
        kept: the rows that stay in memory.
    """

    attributes: Mapping[str, AttrMeta]
    owner: str
    below: int
    num_rows: int
    ticket: Ticket
    positions: Int64Array | None = None
    kept: KeptRows | None = None

    def result(self) -> list[Array]:
        """Return the rows of each attribute. Raise ProtocolError for a malformed reply."""
        attributes = self.attributes.values()
        return [
            attr.decode(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))
            for attr, arrays in zip(attributes, self._received(), strict=True)
        ]

    def _received(self) -> list[list[Array]]:
        """Return the rows as their owner stores them: the arrays of each attribute."""
        arrays = self.ticket.result()
        return check_rows(arrays, self.owner, self.num_rows, self.attributes, self.below)

    def write(self, outs: Sequence[Array], without: Sequence[int] = ()) -> list[list[Array]]:
        """Copy the rows to their positions in an array for each attribute, and widen them.

        Attributes with the indices `without` are left out.

        Returns:
            The arrays of each attribute, as received.
        """
        assert self.positions is not None
        received = self._received()
        for index, (name, arrays) in enumerate(zip(self.attributes, received, strict=True)):
            begin = 0
            for values in arrays if index not in without else ():
                at = self.positions[begin : begin + len(values)]
                self.attributes[name].scatter(values, outs[index], at)
                begin += len(values)
        return received

    def keep(self, received: Sequence[Sequence[Array]]) -> None:
        """Store the rows that stay in memory. `received` is the result of `write`."""
        if self.kept is not None:
            for index, arrays in enumerate(received):
                self.kept.store(index, arrays)


class MissingRows(NamedTuple):
    """Rows of one slice that are on another machine.

    Attributes:
        slice_index: the slice.
        ids: [n] int64 new ids.
        positions: [n] int64 position of each among the ids of a batch.
    """

    slice_index: int
    ids: Int64Array
    positions: Int64Array


@dataclass
class RowFetch:
    """Rows of a batch in one table.

    Attributes:
        ids: [n] int64 new ids.
        local: rows that are on this machine.
        missing: rows that are not.
        remote: requests for missing rows, once they are sent.
        repeats: [r] int64 positions that have the same rows as other positions.
        originals: [r] int64 the other positions.
        plan: number of the batch in the plan of a cache, and positions of the planned ids. If None,
            there is no plan.
        planned_misses: [m] int64 ids of the rows that were requested by the plan. If None, none
            were requested yet.
    """

    ids: Int64Array
    local: list[LocalRows] = field(default_factory=list)
    missing: list[MissingRows] = field(default_factory=list)
    remote: list[RowRequest] = field(default_factory=list)
    repeats: Int64Array | None = None
    originals: Int64Array | None = None
    plan: tuple[int, Int64Array] | None = None
    planned_misses: Int64Array | None = None
    _reads: list[_Read] | None = None

    @property
    def origins(self) -> list[int]:
        """Numbers of rows by origin, in the order of `khop.trace.clock.ROWS`."""
        counts = [0] * len(ROWS)
        for rows in self.local:
            counts[rows.origin] += len(rows.rows)
        counts[REMOTE] = len(self.ids) - sum(counts)
        return counts

    def expect(self) -> None:
        """Announce the rows to stores that are not at hand."""
        for rows in self.local:
            for table in rows.tables:
                if table is not None and not table.at_hand:
                    table.expect(rows.rows)

    def start_reads(self) -> list[_Read]:
        """Begin to read rows of stores that are not at hand, once. Return these reads."""
        if self._reads is None:
            self._reads = [read for rows in self.local for read in rows.start_reads()]
        return self._reads

    def copy_repeats(self, outs: Sequence[Array]) -> None:
        """Copy rows that were requested once to their other positions."""
        for out in outs:
            _native.gather(out, self.originals, out, self.repeats)


def write_rows(fetches: Sequence[tuple[RowFetch, Sequence[Array]]]) -> Waiting[None]:
    """Write the local rows, then the others, each time after a wait for the reply or read.

    Args:
        fetches: rows, and an array to fill for each attribute: [n, *row_shape] of its storage
            dtype.

    Raises:
        ProtocolError: an owner sent a malformed reply.
        Exception: the error of a row store.
    """
    pending = deque(in_flight(fetches))
    while pending:  # memory of a reply is used again once it is written
        ticket, write = pending.popleft()
        if not ticket.done:
            yield [ticket]
        write()


def in_flight(fetches: Sequence[tuple[RowFetch, Sequence[Array]]]) -> list[Pending]:
    """Write the local rows that can be read at once, and return the others, in flight."""
    requests: list[Pending] = []
    reads: list[Pending] = []
    for fetch, outs in fetches:
        for read in fetch.start_reads():
            if read.ticket is None:
                read.write(outs)
            else:
                reads.append((read.ticket, partial(read.write, outs)))
        writes = _writes(fetch, outs)
        if writes and fetch.repeats is not None:
            writes.append((writes[-1][0], partial(fetch.copy_repeats, outs)))
        requests += writes
    return requests + reads


def _writes(fetch: RowFetch, outs: Sequence[Array]) -> list[Pending]:
    """Write the local rows of a batch in one table, and return its replies, in flight."""
    requests, fetch.remote = fetch.remote, []
    columns = _orderable(fetch, requests, outs)
    for rows in fetch.local:
        rows.write(outs, without=columns)
    if columns:
        return _InOrder(fetch, outs, columns).writes(requests)
    return [(r.ticket, partial(_write_reply, r, outs)) for r in requests]


def _write_reply(request: RowRequest, outs: Sequence[Array]) -> None:
    request.keep(request.write(outs))


def _orderable(fetch: RowFetch, requests: Sequence[RowRequest], outs: Sequence[Array]) -> list[int]:
    """Return the indices of the attributes that one pass over the batch can write."""
    if len(fetch.local) + len(requests) < 2 or fetch.repeats is not None:
        return []
    encoded = [attr.codec is not None for r in requests[:1] for attr in r.attributes.values()]
    return [
        index
        for index, out in enumerate(outs)
        if is_orderable(out, [rows.tables[index] for rows in fetch.local])
        and not (encoded and encoded[index])
    ]


class _InOrder:
    """Writer of the attributes with the indices `columns` in one pass over the batch."""

    def __init__(self, fetch: RowFetch, outs: Sequence[Array], columns: Sequence[int]) -> None:
        self._outs, self._columns = outs, columns
        local: list[Source] = []
        for rows in fetch.local:
            assert rows.positions is not None  # else it is the only source
            stores = [rows.tables[index] for index in columns]
            arrays = [store.array for store in stores if isinstance(store, Feature)]
            local.append((arrays, rows.rows, rows.positions))
        self._pass = OrderedPass([outs[index] for index in columns], local)
        # Local rows are read until the pass ends: only then may rows of replies take their memory.
        self._to_keep: list[tuple[RowRequest, list[list[Array]]]] = []

    def writes(self, requests: Sequence[RowRequest]) -> list[Pending]:
        """Write the first local rows, and return the replies, in flight, in their order."""
        in_order = sorted(requests, key=_first_position)
        # With the first k replies, all rows before the first one of the next reply are here.
        ends = [*map(_first_position, in_order), len(self._outs[0])]
        self._pass.write(ends[0])
        return [
            (request.ticket, partial(self._write, request, end))
            for request, end in zip(in_order, ends[1:], strict=True)
        ]

    def _write(self, request: RowRequest, end: int) -> None:
        assert request.positions is not None
        received = request.write(self._outs, without=self._columns)
        self._pass.take([received[index] for index in self._columns], request.positions)
        self._pass.write(end)
        if request.kept is not None:
            self._to_keep.append((request, received))
        if end == len(self._outs[0]):
            for kept, arrays in self._to_keep:
                kept.keep(arrays)


def _first_position(request: RowRequest) -> int:
    assert request.positions is not None
    return int(request.positions[0])
