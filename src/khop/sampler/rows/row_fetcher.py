"""Rows of attributes by new id: from files at hand, from copies of hot rows, and from owners.

The ids of a node or edge type are divided into *slices*, ranges of ids with one owner each: the
parts of a partition folder (`PartRows`), or shares of layer-wise outputs (`ShareRows` in
`khop.distributed.inference.files`). `RowFetcher.fetch` splits ids by slice and sends the requests
to owners. While these are in flight, `write_rows` copies the rows at hand and begins the reads of
other stores. Then it takes each reply and each read. `FetchedRows` is a fetcher of one attribute as
a row store. Used by samplers and trainers. Imports no torch.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from khop import _native
from khop.channel.message import FRAME_BYTES
from khop.channel.pool import BufferPool
from khop.data import RowFormat, RowStore
from khop.data.arrays import storage_dtype
from khop.data.tickets import Ticket, TicketGroup
from khop.data.waiter import waiter
from khop.sampler.replies import check_rows
from khop.sampler.requests import RemoteParts
from khop.storage.folder import AttrMeta, EdgeTypeMeta
from khop.storage.part import HotCopies, Part
from khop.typing import Array, Int64Array, IntArray

# Rows of other owners come in replies of at most this size. Each array fits one frame, which is not
# copied. While one is put in its place, the owner gathers the next, in memory that it has used
# before and that has not left its cache.
_REPLY_BYTES = FRAME_BYTES
_IDS = {"id": AttrMeta.of("int64"), "edge_id": AttrMeta.of("int64")}


class LocalRows(NamedTuple):
    """Rows at hand, of one slice or of copies of others' rows.

    Attributes:
        tables: table of each attribute. None if its values are `rows`.
        rows: [n] int64 rows of the tables.
        places: [n] int64 position of each among the ids. If None, in their order.
        are_copies: whether they are copies.
    """

    tables: Sequence[RowStore | None]
    rows: Int64Array
    places: Int64Array | None
    are_copies: bool = False

    def write(self, outs: Sequence[Array]) -> list[RowRead]:
        """Copy the rows to their positions in an array for each attribute, or begin to read them.

        Returns:
            The reads of attributes that are not at hand.
        """
        reads = []
        for table, out in zip(self.tables, outs, strict=True):
            if table is None:
                np.copyto(out, self.rows)
            elif table.at_hand:
                table.gather(self.rows, out, self.places)
            else:
                reads.append(RowRead(*table.start(self.rows), out, self.places))
        return reads


class RowRead(NamedTuple):
    """Rows of one attribute that a store reads, or has read, into memory of their own.

    Attributes:
        values: [n, *row_shape] the memory.
        ticket: the read. If None, the rows are there.
        out: array that they are copied to.
        places: [n] int64 position of each in it. If None, in their order.
    """

    values: Array
    ticket: Ticket | None
    out: Array
    places: Int64Array | None

    def write(self) -> None:
        """Copy the rows. Raise the error of a read that failed."""
        if self.ticket is not None:
            self.ticket.result()
        _native.gather(self.values, None, self.out, self.places)


class RowRequest:
    """Rows in flight from their owner: the reply is checked when it is taken.

    Args:
        fetcher: the fetcher of the rows.
        index: the slice that they are of.
        count: number of rows.
        ticket: the request.
        places: [n] int64 position of each among the ids of a batch, for `write`.
    """

    __slots__ = ("_count", "_fetcher", "_index", "places", "ticket")

    def __init__(
        self,
        fetcher: RowFetcher,
        index: int,
        count: int,
        ticket: Ticket,
        places: Int64Array | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._index = index
        self._count = count
        self.ticket = ticket
        self.places = places

    def result(self) -> list[Array]:
        """Return the rows of each attribute. ProtocolError if they are not what was asked for."""
        fetcher, arrays = self._fetcher, self.ticket.result()
        owner, below = fetcher.owner(self._index), fetcher.bounds[-1]
        return check_rows(arrays, owner, self._count, fetcher.attributes, below)

    def write(self, outs: Sequence[Array]) -> None:
        """Copy the rows to their positions in an array for each attribute."""
        for values, out in zip(self.result(), outs, strict=True):
            _native.gather(values, None, out, self.places)


class RowFetch(NamedTuple):
    """Rows of some ids: those at hand, and those in flight."""

    ids: Int64Array
    local: list[LocalRows]
    remote: list[RowRequest]

    @property
    def origins(self) -> tuple[int, int, int]:
        """Numbers of rows by origin, in the order of `khop.trace.clock.ROWS`."""
        counts = [0, 0]
        for rows in self.local:
            counts[rows.are_copies] += len(rows.rows)
        return counts[0], counts[1], len(self.ids) - sum(counts)


class RowFetcher(ABC):
    """Fetcher of rows of a node or edge type.

    Args:
        bounds: [num_slices + 1] range bounds of the slices.
        attributes: the attributes to fetch, by name. 'id' and 'edge_id' are original ids.
    """

    # Edges without ids of their own are called by their positions: there is nothing to fetch.
    _are_ids = False

    def __init__(self, bounds: list[int], attributes: Mapping[str, AttrMeta]) -> None:
        self.bounds = bounds
        self.attributes = attributes
        self.row_bytes = max(sum(attr.row_bytes for attr in attributes.values()), 1)
        self._rows_at_once = max(_REPLY_BYTES // self.row_bytes, 1)

    @abstractmethod
    def at_hand(self, index: int) -> Sequence[RowStore | None] | None:
        """Return a slice's store of each attribute if it is on this machine, else None.

        A table is None if its values are the ids: those of a single slice are not renumbered.
        """

    def copies(self) -> HotCopies | None:
        """Return copies of hot rows of slices that are not at hand, if there are any."""
        return None

    @abstractmethod
    def request(self, index: int, ids: Int64Array) -> Ticket:
        """Request rows from the owner of a slice."""

    @abstractmethod
    def owner(self, index: int) -> str:
        """Return the name of a slice's owner, for error messages: 'partition 3'."""

    def empty(self, count: int) -> list[Array]:
        """Return an uninitialised array of `count` rows for each attribute."""
        return [
            np.empty((count, *attr.shape), storage_dtype(attr.dtype))
            for attr in self.attributes.values()
        ]

    def fetch(self, ids: Int64Array) -> RowFetch:
        """Locate rows, and send requests for those that are not at hand.

        Args:
            ids: [n] int64 new ids of nodes or positions of edges.
        """
        if self._are_ids:
            return RowFetch(ids, [LocalRows([None], ids, None)], [])
        # A slice without rows may have no file.
        tables = self.at_hand(0) if len(self.bounds) == 2 and len(ids) else None
        if tables is not None:
            return RowFetch(ids, [LocalRows(tables, ids, None)], [])
        fetch = RowFetch(ids, [], [])
        _, grouped, places, offsets = _native.split_by_owner(ids, self.bounds)
        for index, (begin, end) in enumerate(itertools.pairwise(offsets)):
            if begin == end:
                continue
            wanted, where = grouped[begin:end], places[begin:end]
            tables = self.at_hand(index)
            if tables is not None:
                fetch.local.append(LocalRows(tables, wanted - self.bounds[index], where))
                continue
            copies = self.copies()
            if copies is not None:
                found = copies.places.find(wanted)
                hit = found >= 0
                tables = [copies.features[name] for name in self.attributes]
                fetch.local.append(LocalRows(tables, found[hit], where[hit], True))
                wanted, where = wanted[~hit], where[~hit]
            for first in range(0, len(wanted), self._rows_at_once):
                piece = slice(first, first + self._rows_at_once)
                rows = wanted[piece]
                ticket = self.request(index, rows)
                fetch.remote.append(RowRequest(self, index, len(rows), ticket, where[piece]))
        return fetch


class PartRows(RowFetcher):
    """Fetcher of rows of a partition folder. Each part is a slice.

    Args:
        home: the part whose copies of hot rows are used.
        kind: 'node' or 'edge'.
        type_index: index of the type.
        names: names of the attributes.
        remote: the parts that are not at hand. If None, there are none.
        others: further parts whose files are on this machine, by number.
    """

    def __init__(
        self,
        home: Part,
        kind: str,
        type_index: int,
        names: Sequence[str],
        remote: RemoteParts | None,
        others: Mapping[int, Part] | None = None,
    ) -> None:
        meta = home.meta.types(kind)[type_index]
        known = {**meta.attrs, **_IDS}
        super().__init__(meta.bounds, {name: known[name] for name in names})
        self.kind = kind
        self.type_index = type_index
        self._names = list(self.attributes)
        self._home = home
        self._parts = {**(others or {}), home.part: home}
        self._remote = remote
        self._tables: dict[int, list[RowStore | None]] = {}
        self._are_ids = (
            isinstance(meta, EdgeTypeMeta) and not meta.edge_ids and self._names == ["edge_id"]
        )

    def at_hand(self, index: int) -> Sequence[RowStore | None] | None:
        """Return a part's attributes if its files are on this machine, else None."""
        tables = self._tables.get(index)
        if tables is None and index in self._parts:
            part = self._parts[index]
            tables = [part.feature(self.kind, self.type_index, name) for name in self._names]
            if not part.meta.renumbered and "id" in self._names:
                tables[self._names.index("id")] = None
            self._tables[index] = tables
        return tables

    def copies(self) -> HotCopies | None:
        """Return the home part's copies of other parts' hot nodes, if they have all attributes."""
        copies = self._home.cached(self.type_index) if self.kind == "node" else None
        return copies if copies and copies.features.keys() >= self.attributes.keys() else None

    def request(self, index: int, ids: Int64Array) -> Ticket:
        """Request rows from the server of a part."""
        assert self._remote is not None
        return self._remote.fetch(index, self.kind, self.type_index, ids, self._names)

    def owner(self, index: int) -> str:
        """Return the name of a part."""
        return f"partition {index}"


def write_rows(
    fetches: Sequence[tuple[RowFetch, Sequence[Array]]],
) -> Generator[list[Ticket], None, None]:
    """Write rows: those at hand, then those in flight as they come.

    Args:
        fetches: rows, and an array to fill for each attribute: [n, *row_shape] of its storage
            dtype.

    Raises:
        ProtocolError: an owner sent something else than was asked for.
        Exception: as a row store fails.
    """
    for ticket, write in in_flight(fetches):
        if not ticket.done:
            yield [ticket]
        write()


def in_flight(
    fetches: Sequence[tuple[RowFetch, Sequence[Array]]],
) -> list[tuple[Ticket, Callable[[], None]]]:
    """Write the rows at hand. Return tickets of the others, and what writes the rows of each."""
    reads: list[RowRead] = []
    for fetch, outs in fetches:
        for rows in fetch.local:
            reads += rows.write(outs)
    left: list[tuple[Ticket, Callable[[], None]]] = [
        (request.ticket, partial(request.write, outs))
        for fetch, outs in fetches
        for request in fetch.remote
    ]
    for read in reads:
        if read.ticket is None:
            read.write()
        else:
            left.append((read.ticket, read.write))
    return left


class FetchedRows(RowStore):
    """Rows of one attribute, of all slices. For one thread at a time.

    Args:
        fetcher: fetcher of the rows, of one attribute.
        client: the client of the owners. If None, all rows are at hand.
    """

    def __init__(self, fetcher: RowFetcher, client: Any) -> None:
        (attr,) = fetcher.attributes.values()
        self.num_rows, self.stored = fetcher.bounds[-1], RowFormat(attr.dtype, attr.shape)
        self._fetcher = fetcher
        self._client = client
        self._pool = BufferPool()

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        """Read rows. See `RowStore.read`. Replies of owners are taken by the client's `pump`."""
        left = in_flight([(self._fetcher.fetch(ids), [out])])
        if not left:
            return None
        return TicketGroup([ticket for ticket, _ in left], lambda: [write() for _, write in left])

    def gather(
        self,
        rows: IntArray,
        out: Array | None = None,
        places: Int64Array | None = None,
        num_threads: int = 1,
    ) -> Array:
        """Read rows, and wait for them. See `RowStore.gather`.

        Raises:
            PartitionUnavailableError: a server that has rows is unreachable.
            ProtocolError: a server sent something else than was asked for.
        """
        if places is not None:
            return super().gather(rows, out, places, num_threads)
        if out is None:
            out = self._pool.empty((len(rows), *self.row_shape), storage_dtype(self.dtype))
        ticket = self.read(rows.astype(np.int64, copy=False), out)
        if ticket is not None:
            self._wait(ticket)
            ticket.result()
        return out

    def _wait(self, ticket: Ticket) -> None:
        waiter().wait([ticket], self._client)
