"""Rows of nodes by new id, wherever they lie: in files at hand or with other trainers.

The ids of a node type are divided into slices, ranges of ids whose rows lie in one file: the parts
of a partition folder, or what each trainer has computed. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from khop import _native
from khop.channel.pool import BufferPool
from khop.data import Feature
from khop.data.arrays import storage_dtype
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.rpc.partition_connection import Request
from khop.storage.part import Part
from khop.typing import Array, Int64Array


class Slices(Protocol):
    """Where the rows of one node type lie."""

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
        """The rows of a slice, if their file is on this machine."""

    def copies(self, ids: Int64Array) -> tuple[Feature, Int64Array] | None:
        """Copies of rows that are not at hand: a table, and each id's row in it or -1."""

    def ask(self, index: int, ids: Int64Array) -> Request:
        """Asks for rows that are not at hand."""

    @property
    def client(self) -> PartitionClient | None:
        """Whom `ask` asks."""


class RowReader:
    """Reads rows of one node type. Not to be used by two threads at once.

    Args:
        slices: where they lie.
    """

    def __init__(self, slices: Slices) -> None:
        self.slices = slices
        self._pool = BufferPool()

    def read(self, ids: Int64Array, out: Array | None = None) -> Array:
        """Reads rows.

        Args:
            ids: [n] new ids.
            out: [n, *row_shape] to be filled; default: reused memory.

        Raises:
            PartitionUnavailableError: those who have the rows cannot be reached.
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
            values = values.astype(out.dtype, copy=False)  # ids travel in 64 bits
            _native.gather(values, None, out, where)


class AttributeSlices:
    """A node attribute of a partition folder; slices are its parts.

    Parts whose files are on this machine are read there, others are asked for.

    Args:
        parts: the parts at hand, by number.
        home: the part whose copies of hot rows are used.
        node_type: index of the node type.
        name: of the attribute; 'id' are original ids.
        client: the servers of the other parts, if there are any.
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
        """See `Slices`."""
        part = self._parts.get(index)
        return None if part is None else part.node_feature(self._node_type, self._name)

    def copies(self, ids: Int64Array) -> tuple[Feature, Int64Array] | None:
        """See `Slices`."""
        cached = self._home.cached(self._node_type)
        if cached is None:
            return None
        return cached.features[self._name], cached.places.find(ids)

    def ask(self, index: int, ids: Int64Array) -> Request:
        """See `Slices`."""
        assert self.client is not None
        return self.client.fetch(index, "node", self._node_type, ids, [self._name])
