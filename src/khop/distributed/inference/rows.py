"""Reader of rows of nodes by new id, from files on this machine or from servers.

The ids of a node type are divided into slices, ranges of ids whose rows are in one file: the parts
of a partition folder, or the shares that trainers have computed. Runs in trainers. Imports no
torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from khop import _native
from khop.channel.pool import BufferPool
from khop.data import Feature
from khop.data.arrays import storage_dtype
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.rpc.pending import Request
from khop.storage.part import Part
from khop.typing import Array, Int64Array


class Slices(Protocol):
    """Interface to the rows of one node type, by slice."""

    @property
    def bounds(self) -> list[int]:
        """[num_slices + 1] range bounds of the slices."""

    @property
    def dtype(self) -> str:
        """Name of the rows' dtype."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""

    def at_hand(self, index: int) -> Feature | None:
        """Return the rows of a slice if their file is on this machine, else None."""

    def copies(self, ids: Int64Array) -> tuple[Feature, Int64Array] | None:
        """Return a table with copies of remote rows, and each id's row in it or -1; else None."""

    def ask(self, index: int, ids: Int64Array) -> Request:
        """Request rows of a slice that is not on this machine."""

    @property
    def client(self) -> PartitionClient | None:
        """Client of the requests; None if all slices are on this machine."""


class RowReader:
    """Reader of rows of one node type. For one thread at a time.

    Args:
        slices: slices of the rows.
    """

    def __init__(self, slices: Slices) -> None:
        self.slices = slices
        self._pool = BufferPool()

    def read(self, ids: Int64Array, out: Array | None = None) -> Array:
        """Read rows.

        Args:
            ids: [n] int64 new ids.
            out: [n, *row_shape] array to fill. If None, reused memory.

        Raises:
            PartitionUnavailableError: a server that has rows is unreachable.
        """
        slices = self.slices
        if out is None:
            shape = (len(ids), *slices.row_shape)
            out = self._pool.empty(shape, storage_dtype(slices.dtype))
        bounds = slices.bounds
        _, grouped, places, offsets = _native.split_by_owner(ids, bounds)
        pending: list[tuple[Request, Int64Array]] = []
        here: list[tuple[Feature, Int64Array, Int64Array]] = []
        for index in range(len(bounds) - 1):
            share = slice(offsets[index], offsets[index + 1])
            wanted, where = grouped[share], places[share]
            if len(wanted) == 0:
                continue
            table = slices.at_hand(index)
            if table is not None:
                here.append((table, wanted - bounds[index], where))
                continue
            copies = slices.copies(wanted)
            if copies is not None:
                table, rows = copies
                is_there = rows >= 0
                here.append((table, rows[is_there], where[is_there]))
                wanted, where = wanted[~is_there], where[~is_there]
            if len(wanted):
                pending.append((slices.ask(index, wanted), where))
        for table, rows, where in here:
            table.gather(rows, out, where)
        self._take_in(pending, out)
        return out

    def _take_in(self, pending: Sequence[tuple[Request, Int64Array]], out: Array) -> None:
        if not pending:
            return
        assert self.slices.client is not None
        self.slices.client.wait([request for request, _ in pending])
        for request, where in pending:
            (values,) = request.result()
            values = values.astype(out.dtype, copy=False)  # ids are sent as int64
            _native.gather(values, None, out, where)


class AttributeSlices:
    """Slices of a node attribute of a partition folder; each part is a slice.

    Parts whose files are on this machine are read there, rows of others are requested.

    Args:
        parts: the parts on this machine, by number.
        home: the part whose copies of hot rows are used.
        node_type: index of the node type.
        name: name of the attribute; 'id' for original ids.
        client: the servers of the other parts. If None, there are none.
    """

    def __init__(
        self,
        parts: dict[int, Part],
        home: int,
        node_type: int,
        name: str,
        client: PartitionClient | None,
    ) -> None:
        self._parts = parts
        self._home = parts[home]
        self._node_type = node_type
        self._name = name
        self.client = client
        self.bounds = self._home.meta.node_types[node_type].bounds
        own = self._home.node_feature(node_type, name)
        self.dtype = own.dtype
        self.row_shape = own.row_shape

    def at_hand(self, index: int) -> Feature | None:
        """Return the rows of a part if its files are on this machine, else None."""
        part = self._parts.get(index)
        return None if part is None else part.node_feature(self._node_type, self._name)

    def copies(self, ids: Int64Array) -> tuple[Feature, Int64Array] | None:
        """Return the home part's copies of hot rows, and each id's row in them or -1."""
        cached = self._home.cached(self._node_type)
        if cached is None:
            return None
        return cached.features[self._name], cached.places.find(ids)

    def ask(self, index: int, ids: Int64Array) -> Request:
        """Request rows from the server of a part."""
        assert self.client is not None
        return self.client.fetch(index, "node", self._node_type, ids, [self._name])
