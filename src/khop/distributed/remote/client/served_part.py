"""A partition of graph servers, read by requests as a trainer reads its own. Runs in trainers.

Propagation reads whole rows in their order, some at a time. So neighbours are requested when their
slice is read, and only the row pointers are kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from khop.data import RowStore
from khop.data.arrays import storage_dtype
from khop.data.tickets import Ticket
from khop.distributed.rpc.partition_client import PartitionClient
from khop.errors import ProtocolError
from khop.sampler.replies import check_degrees, check_drawn, check_rows
from khop.sampler.requests import HopRequest, RowSet
from khop.storage.folder import AttrMeta, FolderMeta
from khop.typing import Array, Int64Array

_ROWS_AT_ONCE = 1 << 17
_BYTES_AT_ONCE = 8 << 20
_ALL = HopRequest(fanout=-1, replace=False, with_edge=False, key=0)


class ServedPart:
    """Structure and edge attributes of a partition, requested from its server.

    Args:
        meta: metadata of the folder.
        index: index of the partition.
        client: connections to the servers.
    """

    def __init__(self, meta: FolderMeta, index: int, client: PartitionClient) -> None:
        self.meta = meta
        self._index = index
        self._client = client

    def rows(self, index: int) -> tuple[Int64Array, ServedNeighbors]:
        """Return an edge type's row pointers, [num_rows + 1], and its neighbours."""
        bounds = self.meta.row_type(self.meta.edge_types[index]).bounds
        first, last = bounds[self._index : self._index + 2]
        indptr = np.zeros(last - first + 1, np.int64)
        most = self.meta.edge_types[index].count
        for begin, end in _pieces(first, last, _ROWS_AT_ONCE):
            ticket = self._client.degrees(self._index, index, np.arange(begin, end))
            self._client.wait([ticket])
            degrees = check_degrees(ticket.result(), self._index, end - begin, most)
            indptr[begin - first + 1 : end - first + 1] = degrees
        np.cumsum(indptr, out=indptr)
        return indptr, ServedNeighbors(self.meta, self._index, self._client, index, indptr)

    def edge_feature(self, index: int, name: str) -> RowStore:
        """Return the rows of an edge attribute, in the order of the partition."""
        attr = self.meta.edge_types[index].attrs[name]
        return attr.delivering(ServedRows(self.meta, self._index, self._client, index, name))


class ServedNeighbors:
    """Neighbours of all rows of a partition, in order. A slice of whole rows is requested.

    Args:
        meta, part, client: see `ServedPart`.
        edge_type: index of the edge type.
        indptr: [num_rows + 1] row pointers.
    """

    def __init__(
        self,
        meta: FolderMeta,
        part: int,
        client: PartitionClient,
        edge_type: int,
        indptr: Int64Array,
    ) -> None:
        described = meta.edge_types[edge_type]
        self._first_row = meta.row_type(described).bounds[part]
        self._edges = described.bounds[part : part + 2]
        self._below = meta.neighbor_type(described).count
        self._part, self._client, self._edge_type = part, client, edge_type
        self._indptr = indptr

    def __getitem__(self, entries: slice) -> Array:
        """Return the neighbours of the rows with these entries, [m] new ids."""
        # Rows without neighbours before the first entry are left out: they can be many.
        first = np.searchsorted(self._indptr, entries.start, side="right") - 1
        last = np.searchsorted(self._indptr, entries.stop)
        rows = np.arange(first, last) + self._first_row
        ticket = self._client.sample(self._part, self._edge_type, RowSet(rows), _ALL)
        self._client.wait([ticket])
        counts, neighbors, _ = check_drawn(
            ticket.result(), self._part, len(rows), False, self._below, self._edges
        )
        if not np.array_equal(counts, np.diff(self._indptr[first : last + 1])):
            raise ProtocolError(f"partition {self._part} sent rows of other lengths than before")
        return neighbors


class ServedRows(RowStore):
    """Stored rows of an edge attribute of a partition, requested from its server."""

    def __init__(
        self, meta: FolderMeta, part: int, client: PartitionClient, edge_type: int, name: str
    ) -> None:
        described = meta.edge_types[edge_type]
        self._first, last = described.bounds[part : part + 2]
        self.num_rows, self.stored = last - self._first, described.attrs[name].stored
        self._source = client, meta, part, "edge", edge_type, name

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        """Read rows, and wait for them."""
        out[:] = fetched_rows(*self._source, ids + self._first)
        return None


def fetched_rows(
    client: PartitionClient,
    meta: FolderMeta,
    part: int,
    element: str,
    index: int,
    name: str,
    positions: Int64Array,
) -> Array:
    """Request stored rows of a partition.

    Args:
        client: connections to the servers.
        meta: metadata of the folder.
        part: the partition.
        element: 'node' or 'edge'.
        index: index of the type.
        name: name of the attribute. 'id' and 'edge_id' are original ids.
        positions: [n] int64 positions of the rows in the folder.

    Returns:
        [n, *shape] rows as they are stored.
    """
    described = meta.types(element)[index]
    attr = described.attrs.get(name, AttrMeta.of("int64"))
    out = np.empty((len(positions), *attr.stored.shape), storage_dtype(attr.stored.dtype))
    at_once = max(1, _BYTES_AT_ONCE // max(attr.stored.nbytes, 8))
    for begin, end in _pieces(0, len(positions), at_once):
        ticket = client.fetch(part, element, index, positions[begin:end], [name])
        client.wait([ticket])
        sent = ticket.result()
        sender, bound = f"partition {part}", described.count
        (stored,) = check_rows(sent, sender, end - begin, {name: attr}, bound)
        np.concatenate(stored, out=out[begin:end])
    return out


def _pieces(first: int, last: int, at_once: int) -> Iterable[tuple[int, int]]:
    """Return the bounds of pieces of a range, as pairs."""
    return itertools.pairwise([*range(first, last, at_once), last])
