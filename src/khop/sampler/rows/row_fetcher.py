"""Rows of attributes by new id: from local files, from copies of hot rows, and from owners.

The ids of a node or edge type are divided into *slices*, ranges of ids with one owner each: the
parts of a partition folder (`PartRows`), or nodes whose layer-wise outputs one trainer computed
(`ShareRows` in `khop.distributed.inference.files`). `RowFetcher.locate` splits ids by slice, and
`request` sends the requests to owners. While these are in flight, `write_rows` copies the local
rows and begins the reads of other stores. Then it writes each reply and each read.
`khop.sampler.rows.row_cache` requests only rows that no earlier batch has left in memory.
`FetchedRows` is a row store that fetches one attribute. Runs in samplers and trainers. Imports no
torch.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from khop import _native
from khop.channel.message import FRAME_BYTES
from khop.channel.pool import BufferPool
from khop.data import ConsecutiveIds, RowFormat, RowStore
from khop.data.arrays import storage_dtype
from khop.data.joined import JoinedFeature
from khop.data.tickets import Ticket, TicketGroup
from khop.data.waiter import Sockets, waiter
from khop.sampler.methods.access import Waiting
from khop.sampler.replies import check_rows
from khop.sampler.requests import RemoteParts
from khop.storage.folder import AttrMeta, EdgeTypeMeta
from khop.storage.named_stores import StoreKey
from khop.storage.part import HotCopies, Part
from khop.trace.clock import CACHED, LOCAL, REMOTE, ROWS
from khop.typing import Array, Int64Array, IntArray

# Rows of other owners come in replies of at most this size. Each array fits one frame, which is not
# copied. While one reply is copied to its positions, the owner gathers the next, in memory that it
# has used before and that has not left its cache.
_REPLY_BYTES = FRAME_BYTES
_IDS = {"id": AttrMeta.of("int64"), "edge_id": AttrMeta.of("int64")}

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

    def write(self, outs: Sequence[Array]) -> None:
        """Copy the rows at hand to their positions in each attribute's array."""
        for table, out in zip(self.tables, outs, strict=True):
            if table is None:
                np.copyto(out, self.rows)
            elif table.at_hand:
                table.gather(self.rows, out, self.positions)

    def start_reads(self) -> list[_Read]:
        """Begin to read the rows that are not at hand, each attribute into memory of its own."""
        return [
            _Read(index, *table.start(self.rows), self.positions)
            for index, table in enumerate(self.tables)
            if table is not None and not table.at_hand
        ]


class _Read(NamedTuple):
    """Read of the rows of attribute number `column`. If `ticket` is None, it is done."""

    column: int
    values: Array
    ticket: Ticket | None
    positions: Int64Array | None

    def write(self, outs: Sequence[Array]) -> None:
        """Copy the rows to their positions. Raise the error of a read that failed."""
        if self.ticket is not None:
            self.ticket.result()
        _native.gather(self.values, None, outs[self.column], self.positions)


class KeptRows(NamedTuple):
    """Rows of a reply that stay in memory, for later batches.

    Attributes:
        tables: [capacity, *row_shape] array of each attribute, as the owner stores it.
        rows: [n] int64 rows of the reply.
        slots: [n] int64 row of the tables for each.
    """

    tables: Sequence[Array]
    rows: Int64Array
    slots: Int64Array


class RowRequest(NamedTuple):
    """Attribute rows that were requested from another process. `result` checks the reply.

    Attributes:
        fetcher: the fetcher of the rows.
        slice_index: the slice of the rows.
        num_rows: number of rows.
        ticket: the request.
        positions: [n] int64 position of each among the ids of a batch, for `write`.
        kept: the rows that stay in memory.
    """

    fetcher: RowFetcher
    slice_index: int
    num_rows: int
    ticket: Ticket
    positions: Int64Array | None = None
    kept: KeptRows | None = None

    def result(self) -> list[Array]:
        """Return the rows of each attribute. Raise ProtocolError for a malformed reply."""
        attributes = self.fetcher.attributes.values()
        return [attr.decode(rows) for attr, rows in zip(attributes, self._received(), strict=True)]

    def _received(self) -> list[Array]:
        """Return the rows as their owner stores them."""
        fetcher, arrays = self.fetcher, self.ticket.result()
        owner, below = fetcher.owner(self.slice_index), fetcher.bounds[-1]
        return check_rows(arrays, owner, self.num_rows, fetcher.attributes, below)

    def write(self, outs: Sequence[Array]) -> None:
        """Copy the rows to their positions in an array for each attribute, and widen them."""
        attributes = self.fetcher.attributes.values()
        for index, (attr, values) in enumerate(zip(attributes, self._received(), strict=True)):
            attr.scatter(values, outs[index], self.positions)
            if self.kept is not None:
                tables, rows, slots = self.kept
                _native.gather(values, rows, tables[index], slots)


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


class RowFetcher(ABC):
    """Reader of attribute rows of a node or edge type, wherever they are.

    Ids are divided into slices, ranges with one owner each: this process or another one.

    Args:
        bounds: [num_slices + 1] range bounds of the slices.
        attributes: the attributes to fetch, by name. 'id' and 'edge_id' are original ids.
    """

    # Edges without ids of their own have their positions as ids: there is nothing to fetch.
    _are_ids = False

    def __init__(self, bounds: list[int], attributes: Mapping[str, AttrMeta]) -> None:
        self.bounds = bounds
        self.attributes = attributes
        self.row_bytes = max(sum(attr.row_bytes for attr in attributes.values()), 1)
        self._rows_at_once = max(_REPLY_BYTES // self.row_bytes, 1)

    @abstractmethod
    def local_tables(self, index: int) -> Sequence[RowStore | None] | None:
        """Return a slice's store of each attribute if it is on this machine, else None.

        A store is None if its values are the ids, as in a single slice, which is not renumbered.
        """

    def whole_tables(self) -> Sequence[RowStore | None] | None:
        """Return the store of each attribute with the rows of all slices, if there is one."""
        return self.local_tables(0) if len(self.bounds) == 2 else None

    def copies(self) -> HotCopies | None:
        """Return local copies of other slices' hot rows, if there are any."""
        return None

    @abstractmethod
    def request(self, index: int, ids: Int64Array) -> Ticket:
        """Request rows, by their ids, from the owner of the slice with this index."""

    @abstractmethod
    def owner(self, index: int) -> str:
        """Return the name of a slice's owner, for error messages: 'partition 3'."""

    def empty(self, count: int) -> list[Array]:
        """Return an uninitialised array of `count` rows for each attribute."""
        return [
            np.empty((count, *attr.shape), storage_dtype(attr.dtype))
            for attr in self.attributes.values()
        ]

    def locate(self, ids: Int64Array) -> RowFetch:
        """Locate rows: which are on this machine, and which are not.

        Args:
            ids: [n] int64 new ids of nodes or positions of edges.
        """
        if self._are_ids:
            return RowFetch(ids, [LocalRows([None], ids, None)])
        # A slice without rows may have no file.
        tables = self.whole_tables() if len(ids) else None
        if tables is not None:
            return RowFetch(ids, [LocalRows(tables, ids, None)])
        fetch = RowFetch(ids)
        for grouped, positions, index in self.by_slice(ids):
            missing, at = grouped, positions
            tables = self.local_tables(index)
            if tables is not None:
                fetch.local.append(LocalRows(tables, missing - self.bounds[index], at))
                continue
            copies = self.copies()
            if copies is not None:
                rows = copies.positions.find(missing)
                hit = rows >= 0
                tables = [copies.features[name] for name in self.attributes]
                fetch.local.append(LocalRows(tables, rows[hit], at[hit], CACHED))
                missing, at = missing[~hit], at[~hit]
            fetch.missing.append(MissingRows(index, missing, at))
        return fetch

    def by_slice(self, ids: Int64Array) -> Iterator[tuple[Int64Array, Int64Array, int]]:
        """Split ids by slice. Yield the ids of each slice, their positions, and its index."""
        _, grouped, positions, offsets = _native.split_by_owner(ids, self.bounds)
        for index, (begin, end) in enumerate(itertools.pairwise(offsets)):
            if begin < end:
                yield grouped[begin:end], positions[begin:end], index

    def pieces(self, count: int) -> Iterator[slice]:
        """Yield slices of `count` rows, each for one reply."""
        for first in range(0, count, self._rows_at_once):
            yield slice(first, first + self._rows_at_once)

    def fetch(self, ids: Int64Array) -> RowFetch:
        """Locate rows, and request rows that are not local from their owners.

        Args:
            ids: [n] int64 new ids of nodes or positions of edges.
        """
        fetch = self.locate(ids)
        self.request_missing(fetch)
        return fetch

    def request_missing(self, fetch: RowFetch) -> None:
        """Request the missing rows of a batch from their owners."""
        for index, ids, positions in fetch.missing:
            for piece in self.pieces(len(ids)):
                ticket = self.request(index, ids[piece])
                request = RowRequest(self, index, len(ids[piece]), ticket, positions[piece])
                fetch.remote.append(request)


class PartRows(RowFetcher):
    """Fetcher of rows of a partition folder, whose parts are the slices.

    Attributes:
        joins_parts: read rows of all parts in one pass if all are here.

    Args:
        home: the part whose copies of hot rows are used.
        unit: 'node' or 'edge'.
        type_index: index of the type.
        names: names of the attributes.
        remote: access to the owners of other parts. If None, all parts are here.
        others: further parts whose files are read here, by number. If None, `home.others`. But rows
            of a user's store are requested then: each owner has a store with its own rows.
        as_stored: fetch encoded rows as they are stored.
    """

    def __init__(
        self,
        home: Part,
        unit: str,
        type_index: int,
        names: Sequence[str],
        remote: RemoteParts | None,
        others: Mapping[int, Part] | None = None,
        as_stored: bool = False,
    ) -> None:
        meta = home.meta.types(unit)[type_index]
        known = {**meta.attrs, **_IDS}
        fetched = {name: known[name].as_stored if as_stored else known[name] for name in names}
        super().__init__(meta.bounds, fetched)
        self.as_stored = as_stored
        self.unit = unit
        self.type_index = type_index
        self._names = list(self.attributes)
        self._home = home
        if others is None:
            stored = any(StoreKey(unit, meta.name, name) in home.folder.stores for name in names)
            others = {} if stored else home.others
        self._parts = {**others, home.part: home}
        self._remote = remote
        self._tables: dict[int, list[RowStore | None]] = {}
        self._whole: list[RowStore | None] | None = None
        self.joins_parts = len(self._parts) == len(meta.bounds) - 1
        self._are_ids = (
            isinstance(meta, EdgeTypeMeta) and not meta.edge_ids and self._names == ["edge_id"]
        )

    def local_tables(self, index: int) -> Sequence[RowStore | None] | None:
        tables = self._tables.get(index)
        if tables is None and index in self._parts:
            part = self._parts[index]
            tables = [self.open(part, name) for name in self._names]
            if not part.meta.renumbered and "id" in self._names:
                tables[self._names.index("id")] = None
            self._tables[index] = tables
        return tables

    def open(self, part: Part, name: str) -> RowStore:
        """Return the rows of an attribute in a part."""
        rows = part.feature(self.unit, self.type_index, name)
        return rows.as_stored if self.as_stored else rows

    def whole_tables(self) -> Sequence[RowStore | None] | None:
        if not self.joins_parts:
            return None
        if self._whole is None:
            of_parts = [self.local_tables(part) or () for part in sorted(self._parts)]
            self._whole = [_joined(pieces) for pieces in zip(*of_parts, strict=True)]
        return self._whole

    def copies(self) -> HotCopies | None:
        """Return the home part's copies of other parts' hot nodes, if they have all attributes."""
        copies = self._home.cached(self.type_index) if self.unit == "node" else None
        if copies is None or not copies.features.keys() >= self.attributes.keys():
            return None
        if self.as_stored:
            features = {name: rows.as_stored for name, rows in copies.features.items()}
            return copies._replace(features=features)
        return copies

    def request(self, index: int, ids: Int64Array) -> Ticket:
        assert self._remote is not None
        return self._remote.fetch(index, self.unit, self.type_index, ids, self._names)

    def owner(self, index: int) -> str:
        return f"partition {index}"


def _joined(pieces: Sequence[RowStore | None]) -> RowStore | None:
    """Return stores of all parts as one. Positions of edges that are their ids need no store."""
    stores = [piece for piece in pieces if piece is not None]
    if len(pieces) == 1 or not stores or all(isinstance(s, ConsecutiveIds) for s in stores):
        return pieces[0] if len(pieces) == 1 else None
    return JoinedFeature(stores)


def write_rows(fetches: Sequence[tuple[RowFetch, Sequence[Array]]]) -> Waiting[None]:
    """Write the local rows, then the others, each time after a wait for the reply or read.

    Args:
        fetches: rows, and an array to fill for each attribute: [n, *row_shape] of its storage
            dtype.

    Raises:
        ProtocolError: an owner sent a malformed reply.
        Exception: the error of a row store.
    """
    for ticket, write in in_flight(fetches):
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
        for rows in fetch.local:
            rows.write(outs)
        requests += [(r.ticket, partial(r.write, outs)) for r in fetch.remote]
        if fetch.remote and fetch.repeats is not None:
            requests.append((fetch.remote[-1].ticket, partial(fetch.copy_repeats, outs)))
    return requests + reads


class FetchedRows(RowStore):
    """Row store of one attribute over all slices. For one thread at a time.

    Args:
        fetcher: fetcher of the rows, of one attribute.
        client: the client of the owners. If None, all rows are local.
    """

    def __init__(self, fetcher: RowFetcher, client: Sockets | None) -> None:
        (attr,) = fetcher.attributes.values()
        self.num_rows, self.stored = fetcher.bounds[-1], RowFormat(attr.dtype, attr.shape)
        self._fetcher = fetcher
        self._client = client
        self._pool = BufferPool()

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        """Begin to read rows into `out`. The client's `pump` takes owners' replies."""
        pending = in_flight([(self._fetcher.fetch(ids), [out])])
        if not pending:
            return None
        return TicketGroup(
            [ticket for ticket, _ in pending], lambda: [write() for _, write in pending]
        )

    def start(self, rows: IntArray) -> tuple[Array, Ticket | None]:
        """Begin to read rows into pooled memory. See `RowStore.start`."""
        out = self._pool.empty((len(rows), *self.row_shape), storage_dtype(self.dtype))
        return out, self.read(rows.astype(np.int64, copy=False), out)

    def fill(self, ids: Int64Array, out: Array) -> None:
        """Read rows into an array, and wait for them.

        Raises:
            PartitionUnavailableError: a server that has rows is unreachable.
            ProtocolError: a server sent a malformed reply.
        """
        ticket = self.read(ids, out)
        if ticket is not None:
            self._wait(ticket)
            ticket.result()

    def _wait(self, ticket: Ticket) -> None:
        waiter().wait([ticket], self._client)
