"""Rows of attributes by new id: from local files, from copies of hot rows, and from owners.

The ids of a node or edge type are divided into *slices*, ranges of ids with one owner each: the
parts of a partition folder (`PartRows`), or nodes whose layer-wise outputs one trainer computed
(`ShareRows` in `khop.distributed.inference.files`). `RowFetcher.locate` splits ids by slice, and
`request` sends the requests to owners. `khop.sampler.rows.row_fetch` has the result, and writes it.
`khop.sampler.rows.row_cache` requests only rows that no earlier batch has left in memory.
`FetchedRows` is a row store that fetches one attribute. Runs in samplers and trainers. Imports no
torch.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from khop import _native
from khop.channel.message import FRAME_BYTES
from khop.channel.pool import BufferPool
from khop.data import ConsecutiveIds, RowFormat, RowStore
from khop.data.arrays import storage_dtype
from khop.data.joined import JoinedFeature
from khop.data.tickets import Ticket, TicketGroup
from khop.data.waiter import Sockets, waiter
from khop.sampler.requests import RemoteParts
from khop.sampler.rows.row_fetch import (
    KeptRows,
    LocalRows,
    MissingRows,
    RowFetch,
    RowRequest,
    in_flight,
)
from khop.storage.folder import AttrMeta, EdgeTypeMeta
from khop.storage.named_stores import StoreKey
from khop.storage.part import HotCopies, Part
from khop.trace.clock import CACHED
from khop.typing import Array, Int64Array, IntArray

# Rows of other owners come in replies of at most this size. While one reply is copied to its
# positions, the owner gathers the next. A batch with 67 MB of them takes 0.85 of the processor time
# that it takes with replies of one frame.
_REPLY_BYTES = 8 * FRAME_BYTES
OpenRows: TypeAlias = Callable[[Part, str, int, str], RowStore]
"""Function that opens the rows of an attribute: part, 'node' or 'edge', type, name."""

_IDS = {"id": AttrMeta.of("int64"), "edge_id": AttrMeta.of("int64")}


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
        """Return a store of each attribute that has the rows of all slices.

        None if some rows are on other machines. A store is None if its values are the ids.
        """
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
        """Request the missing rows of a batch from their owners. A second call requests anew."""
        fetch.remote = []
        for index, ids, positions in fetch.missing:
            for piece in self.pieces(len(ids)):
                fetch.remote.append(self.requested(index, ids[piece], positions[piece]))

    def requested(
        self,
        index: int,
        ids: Int64Array,
        positions: Int64Array | None = None,
        kept: KeptRows | None = None,
    ) -> RowRequest:
        """Request rows from the owner of a slice, for at most one reply. See `RowRequest`."""
        ticket = self.request(index, ids)
        owner, below = self.owner(index), self.bounds[-1]
        return RowRequest(self.attributes, owner, below, len(ids), ticket, positions, kept)


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
        opened: opens the rows of an attribute, also of a pack.
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
        opened: OpenRows = Part.feature,
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
        self._opened = opened
        self._tables: dict[int, list[RowStore | None]] = {}
        self._whole: list[RowStore | None] | None = None
        self.joins_parts = len(self._parts) == len(meta.bounds) - 1
        self._are_ids = (
            isinstance(meta, EdgeTypeMeta) and not meta.edge_ids and self._names == ["edge_id"]
        )

    @property
    def num_elsewhere(self) -> int:
        """Number of rows in parts that are not read here."""
        bounds = self.bounds
        return bounds[-1] - sum(bounds[part + 1] - bounds[part] for part in self._parts)

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
        rows = self._opened(part, self.unit, self.type_index, name)
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
