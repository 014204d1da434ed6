"""Rows of a table in the memory of all GPUs of a machine, each of which belongs to one trainer.

Each trainer copies its part to its GPU and opens the parts of the others, whose memory its kernels
then read. `Peers`, which the job implements, passes the handles, keeps memory as long as a GPU
reads it, and notices trainers that have ended. Runs in trainers. Imports no torch.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np

from khop import _native
from khop.data.row_division import Division
from khop.errors import RendezvousError
from khop.typing import Array, Int64Array

_CHUNK_BYTES = 64 << 20


class Meeting(Protocol):
    """Steps that all trainers of a job take together. An error in one of them ends all others'.

    Attributes:
        rank: position of this trainer among the machine's trainers.
        size: number of trainers of its machine.
    """

    rank: int
    size: int

    def gather(self, step: str, value: object) -> list[Any]:
        """Return the values of the machine's trainers for a step, anything that JSON holds."""


class Peers(Protocol):
    """Trainers of a job whose GPUs share tables."""

    def next_name(self) -> str:
        """Return a new name for tables. All trainers ask for names in the same order."""

    def meet(self, name: str) -> AbstractContextManager[Meeting]:
        """Return the steps by which all trainers make the table `name`."""

    def keep(self, name: str, memory: _native.DeviceMemory) -> None:
        """Keep memory of this trainer until all others have closed it."""

    def closed(self, name: str) -> None:
        """Publish that this trainer has closed the memory of others. Does not wait."""

    def check(self) -> None:
        """Raise RendezvousError if a trainer of this machine has ended, or this one has left."""

    def close_before_leaving(self, close: Callable[[], object]) -> None:
        """Call `close` when this trainer leaves the job."""


class NodeGroup:
    """The GPUs of a machine's trainers, one each, which hold a table together.

    Pass it as `group` of a `DeviceFeature`. All trainers of the job make the table together.

    Args:
        name: name of the table, unique in the job. If None, a new name: all trainers then make
            these objects in the same order.
        group_id: number of the group. Trainers of one machine with other numbers, as of GPUs
            without a path between them, hold the table on their own.

    Raises:
        RuntimeError: this process has joined no job, has left it, or is a fork of a trainer.

    Example:
        >>> context = init_worker_group()
        >>> table = DeviceFeature(Feature(np.zeros((8, 2))), device, group=NodeGroup())
        >>> table.shards.sharded
        8
    """

    def __init__(self, name: str | None = None, group_id: int = 0) -> None:
        self.peers = joined_peers()
        self.name = self.peers.next_name() if name is None else name
        self.group_id = group_id


class SharedRows(NamedTuple):
    """Rows in device memory, as one trainer sees them.

    Attributes:
        hot: the rows. None if there are none.
        division: their division among the machine's GPUs.
    """

    hot: _native.HotRows | None
    division: Division


class _Parts(list[_native.DeviceMemory]):
    """Parts of a table. Unlike other lists it can be referred to weakly."""


def share_rows(
    group: NodeGroup,
    array: Array,
    dtype: str,
    device: _native.Device,
    divide: Callable[[int], Division],
) -> SharedRows:
    """Put a table's rows into the memory of a machine's GPUs. All trainers call it together.

    Args:
        group: name of the table.
        array: [num_rows, ...] the table, the same in all trainers.
        dtype: name of its dtype, for messages.
        device: this trainer's GPU.
        divide: chooses the division among a number of GPUs. Called in the first trainer of each
            machine only, as trainers may know other hotness.

    Raises:
        ValueError: the tables differ.
        RuntimeError: a GPU has too little memory, or cannot read another's. Names the CUDA call.
        RendezvousError: another trainer has failed, has ended, or does not come.
    """
    peers, name = group.peers, group.name
    num_rows, row_bytes = len(array), array.dtype.itemsize * math.prod(array.shape[1:])
    table: list[Any] = [num_rows, row_bytes, dtype]
    with peers.meet(name) as machine:
        tables = machine.gather("table", [group.group_id, table])
        meeting = _MeetingOfGroup(machine, [other == group.group_id for other, _ in tables])
        for rank, (other, theirs) in enumerate(tables):
            if other == group.group_id and theirs != table:
                raise ValueError(
                    f"the GPUs of a machine share {name} of {_sizes(*table)}, but trainer {rank} "
                    f"of the machine has {_sizes(*theirs)}: all need the same table"
                )
        division = _agree(meeting, device, divide)
        if division.rows is not None and len(division.rows) == 0:
            return SharedRows(None, division)
        rows = division.part(meeting.rank, num_rows)
        own = _native.DeviceMemory.allocate_shared(device, len(rows) * row_bytes)
        # Also if a later step fails: others may have opened it by then.
        peers.keep(name, own)
        _fill(own, array, rows, row_bytes)
        device.synchronize()
        handles = meeting.gather("part", [own.handle.hex(), own.nbytes])
        parts: list[_native.DeviceMemory] = []
        opened = _Parts()
        close = weakref.finalize(opened, _close, parts, peers, name)
        close.atexit = False
        try:
            for rank, (handle, nbytes) in enumerate(handles):
                parts.append(own if rank == meeting.rank else _open(device, handle, nbytes, rank))
            opened.extend(parts)
            meeting.gather("opened", True)
            hot = _native.HotRows.of_parts(
                device, opened, meeting.rank, array, division.rows, division.replicated
            )
        except BaseException:
            opened.clear()
            close()
            raise
        opened.clear()
        peers.close_before_leaving(close)
    return SharedRows(hot, division)


class _MeetingOfGroup:
    """Steps of those trainers of a machine that are in a group."""

    def __init__(self, machine: Meeting, is_member: list[bool]) -> None:
        self._machine = machine
        self._ranks = [rank for rank, is_in in enumerate(is_member) if is_in]
        self.rank = self._ranks.index(machine.rank)
        self.size = len(self._ranks)

    def gather(self, step: str, value: object) -> list[Any]:
        values = self._machine.gather(step, value)
        return [values[rank] for rank in self._ranks]


def _agree(meeting: Meeting, device: _native.Device, divide: Callable[[int], Division]) -> Division:
    """Return the division that the machine's first trainer has chosen.

    Ids of rows are many: they go through the memory of its GPU.
    """
    rows: Int64Array | None
    chosen, ids = None, None
    if meeting.rank == 0:
        rows, _, replicated, expected = divide(meeting.size)
        chosen = [None if rows is None else len(rows), replicated, expected, ""]
        if rows is not None and len(rows):
            ids = _native.DeviceMemory.allocate_shared(device, rows.nbytes)
            ids.upload(0, rows)
            device.synchronize()
            chosen[3] = ids.handle.hex()
    count, replicated, expected, handle = meeting.gather("division", chosen)[0]
    if meeting.rank > 0:
        rows = None if count is None else np.empty(count, np.int64)
        if rows is not None and count:
            _open(device, handle, rows.nbytes, 0).download(0, rows)
    meeting.gather("divided", True)  # until then the first one keeps the ids
    return Division(rows, meeting.size, replicated, tuple(expected))


def _fill(memory: _native.DeviceMemory, array: Array, rows: Int64Array, row_bytes: int) -> None:
    """Copy rows of a table to a part of it."""
    if row_bytes == 0:
        return
    chunk = max(1, _CHUNK_BYTES // row_bytes)
    for first in range(0, len(rows), chunk):
        some = array[rows[first : first + chunk]]
        memory.upload(first * row_bytes, np.ascontiguousarray(some))


def _open(device: _native.Device, handle: str, nbytes: int, rank: int) -> _native.DeviceMemory:
    try:
        return _native.DeviceMemory.open(device, bytes.fromhex(handle), nbytes)
    except RuntimeError as error:
        raise RuntimeError(
            f"device '{device.name}' cannot read the memory of trainer {rank} of this machine "
            f"({error}). Both GPUs need NVLink or PCIe between them that allows it, no MIG, and "
            "processes that see each other (docker: --ipc=host --pid=host)"
        ) from None


def _close(parts: list[_native.DeviceMemory], peers: Peers, name: str) -> None:
    """Close the parts of others, after the GPU's work, and let their trainers know."""
    parts.clear()
    peers.closed(name)


def _sizes(num_rows: int, row_bytes: int, dtype: str) -> str:
    return f"{num_rows} rows of {row_bytes} bytes ({dtype})"


# Set by the job that this process has joined.
_joined: Peers | None = None


def set_peers(peers: Peers | None) -> None:
    """Set the trainers of this process's job. None: it has left the job."""
    global _joined  # noqa: PLW0603
    _joined = peers


def joined_peers() -> Peers:
    """Return the trainers of this process's job.

    Raises:
        RuntimeError: this process has joined no job, has left it, or is a fork of a trainer.
    """
    try:
        if _joined is not None:
            _joined.check()
            return _joined
    except RendezvousError as error:
        raise RuntimeError(f"the GPUs of a machine cannot share tables: {error}") from None
    raise RuntimeError(
        "the GPUs of a machine share tables between the trainers of a job, which this process has "
        "not joined: call khop.distributed.init_worker_group() first"
    )
