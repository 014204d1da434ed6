"""Rows of attributes by new id: from files at hand, from copies of hot rows, and from owners.

The ids of a node or edge type are divided into *slices*, ranges of ids with one owner each: the
parts of a partition folder (`PartRows`), or shares of layer-wise outputs (`ShareRows` in
`khop.distributed.inference.files`). `RowFetcher.fetch` splits ids by slice and sends the requests
to owners. `write_rows` copies the rows at hand while these are in flight, then checks each reply
and copies it. Used by samplers and trainers. Imports no torch.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from khop import _native
from khop.channel.message import FRAME_BYTES
from khop.data import Feature
from khop.data.arrays import storage_dtype
from khop.sampler.replies import check_rows
from khop.sampler.requests import RemoteParts, Ticket
from khop.storage.folder import AttrMeta, EdgeTypeMeta
from khop.storage.part import CachedRows, Part
from khop.typing import Array, Int64Array

# Rows of other owners come in replies of at most this size. Each array fits one frame, which is not
# copied. While one is put in its place, the owner gathers the next, in memory that it has used
# before and that has not left its cache.
_REPLY_BYTES = FRAME_BYTES
_IDS = {"id": AttrMeta.of("int64"), "edge_id": AttrMeta.of("int64")}


class LocalRows(NamedTuple):
    """Rows at hand, of one slice or of copies of others' rows.

    Attributes:
        tables: table of each attribute; None if its values are `rows`.
        rows: [n] int64 rows of the tables.
        places: [n] int64 position of each among the ids. If None, in their order.
        are_copies: whether they are copies.
    """

    tables: Sequence[Feature | None]
    rows: Int64Array
    places: Int64Array | None
    are_copies: bool = False

    def write(self, outs: Sequence[Array]) -> None:
        """Copy the rows to their positions in an array for each attribute."""
        for table, out in zip(self.tables, outs, strict=True):
            if table is None:
                np.copyto(out, self.rows)
            else:
                table.gather(self.rows, out, self.places)


class RowRequest:
    """Rows in flight: a ticket whose reply is checked when it is taken.

    Args:
        fetcher: the fetcher of the rows.
        index: the slice that they are of.
        ids: [n] int64 new ids.
        places: [n] int64 position of each among the ids of a batch, for `write`.
    """

    __slots__ = ("_count", "_fetcher", "_index", "_ticket", "places")

    def __init__(
        self, fetcher: RowFetcher, index: int, ids: Int64Array, places: Int64Array | None = None
    ) -> None:
        self._fetcher = fetcher
        self._index = index
        self._count = len(ids)
        self._ticket = fetcher.request(index, ids)
        self.places = places

    @property
    def done(self) -> bool:
        """True if `result` can be called."""
        return self._ticket.done

    def result(self) -> list[Array]:
        """Return the rows of each attribute; ProtocolError if they are not what was asked for."""
        fetcher, arrays = self._fetcher, self._ticket.result()
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
        attributes: the attributes to fetch, by name; 'id' and 'edge_id' are original ids.
    """

    def __init__(self, bounds: list[int], attributes: Mapping[str, AttrMeta]) -> None:
        self.bounds = bounds
        self.attributes = attributes
        self.row_bytes = max(sum(attr.row_bytes for attr in attributes.values()), 1)
        self._rows_at_once = max(_REPLY_BYTES // self.row_bytes, 1)

    @abstractmethod
    def at_hand(self, index: int) -> Sequence[Feature | None] | None:
        """Return a slice's table of each attribute if its files are on this machine, else None.

        A table is None if its values are the ids: those of a single slice are not renumbered.
        """

    def copies(self) -> CachedRows | None:
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
                fetch.remote.append(RowRequest(self, index, wanted[piece], where[piece]))
        return fetch


class PartRows(RowFetcher):
    """Fetcher of rows of a partition folder; each part is a slice.

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
        self._tables: dict[int, list[Feature | None]] = {}
        # Edges without ids of their own are called by their positions: there is nothing to fetch.
        self._are_ids = (
            isinstance(meta, EdgeTypeMeta) and not meta.edge_ids and self._names == ["edge_id"]
        )

    def fetch(self, ids: Int64Array) -> RowFetch:
        """Locate rows, and send requests for those that are not at hand."""
        return (
            RowFetch(ids, [LocalRows([None], ids, None)], [])
            if self._are_ids
            else super().fetch(ids)
        )

    def at_hand(self, index: int) -> Sequence[Feature | None] | None:
        """Return a part's attributes if its files are on this machine, else None."""
        tables = self._tables.get(index)
        if tables is None and index in self._parts:
            part = self._parts[index]
            tables = [part.feature(self.kind, self.type_index, name) for name in self._names]
            if not part.meta.renumbered and "id" in self._names:
                tables[self._names.index("id")] = None
            self._tables[index] = tables
        return tables

    def copies(self) -> CachedRows | None:
        """Return the home part's copies of other parts' hot nodes, if there are any."""
        return self._home.cached(self.type_index) if self.kind == "node" else None

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
    """Write rows: those at hand, then those in flight as their replies come.

    Args:
        fetches: rows, and an array to fill for each attribute: [n, *row_shape] of its storage
            dtype.

    Raises:
        ProtocolError: an owner sent something else than was asked for.
    """
    for fetch, outs in fetches:
        for rows in fetch.local:
            rows.write(outs)
    for fetch, outs in fetches:
        for request in fetch.remote:
            if not request.done:
                yield [request]
            request.write(outs)
