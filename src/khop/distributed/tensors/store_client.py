"""Connection of a trainer to the servers of a graph store, and the steps of all trainers.

The tensors and the store of a trainer share one `StoreClient`. Runs in trainers.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Any, TypeVar

from khop.channel.arena import map_memory
from khop.data.tickets import ReadThreads, Ticket
from khop.distributed.membership.barrier import Barrier
from khop.distributed.membership.members import Membership
from khop.distributed.tensors.staging import StagingArea
from khop.distributed.tensors.store_access import StoreAccess, StoredPart
from khop.distributed.tensors.tensor_requests import (
    MakeStagingArea,
    ReadStep,
    SetVersion,
    ShareTensor,
    TensorSpec,
    rows_in,
)
from khop.errors import PartitionUnavailableError, ProtocolError, RendezvousError
from khop.typing import Array, Int64Array

_Mapped = TypeVar("_Mapped")
_READ_WRITE = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK


class _StepBarrier(Barrier):
    """Barrier of a store's steps, which also notices that the server of a partition has ended."""

    def __init__(self, members: Membership, name: str, client: StoreClient) -> None:
        super().__init__(members, name)
        self._client = weakref.ref(client)

    def check(self) -> None:
        super().check()
        client = self._client()
        if client is not None:
            client.check_servers()


class StoreClient:
    """Connection of a trainer to the primaries of all partitions. All trainers make it together.

    After an error, the trainers cannot know which pushes have been applied. So the error ends the
    client, and the next call of each other trainer raises RendezvousError.

    Attributes:
        access: this trainer's access to graph, servers and other trainers.
        rank: rank of this trainer in the store.
        num_trainers: number of trainers.
        meta: metadata of the folder.
        own_parts: partitions for which this trainer ends steps, and computes.
        num_steps: number of steps that the servers have completed.
        threads: thread that reads rows in this host's memory while the trainer goes on.
    """

    def __init__(self, access: StoreAccess, timeout: float) -> None:
        self.access = access
        self.meta = access.graph.meta
        self.rank, self.num_trainers = access.rank, access.num_trainers
        self.own_parts = access.own_parts
        self._client = access.client(timeout)
        self._lock = RLock()
        self._in_flight: deque[Ticket] = deque()
        self._areas: dict[int, StagingArea | None] = {}
        self.num_steps = 0
        self.threads = ReadThreads()
        self._num_pushes = itertools.count()
        self._num_meetings = itertools.count()
        self._failure: BaseException | None = None
        self._is_closed = False
        self._barrier = _StepBarrier(access.members, access.name, self)
        self._barrier.start()
        access.graph.context.close_before_leaving(self)
        try:
            self.together("begin", None, lambda: access.begin(self._client))
            # From then on, a server that is another process than before is noticed, and a server
            # that ends with its trainer sends its reason.
            self.wait([self.read(part, ReadStep()) for part in range(self.meta.num_parts)])
        except BaseException:
            self.close()
            raise

    # Rows -----------------------------------------------------------------------------------------

    def bounds_of(self, spec: TensorSpec) -> list[int]:
        """Return the first position of each part's rows, and the number of rows."""
        return self.meta.types(spec.element)[spec.type_index].bounds

    def positions(self, spec: TensorSpec, ids: Int64Array) -> Int64Array:
        """Return the positions of rows in the folder's order, by original ids."""
        with self._lock:
            self.check()
            try:
                return self.access.positions(self._client, spec, ids)
            except PartitionUnavailableError as error:
                self.fail(error)
                raise

    def original_ids(self, spec: TensorSpec, part: int, positions: Int64Array) -> Int64Array:
        """Return the original ids of rows of a part, by their positions in the folder's order."""
        return self.access.original_ids(self._client, spec, part, positions)

    def part(self, index: int) -> StoredPart:
        """Return a partition of this trainer, opened."""
        return self.access.part(self._client, index)

    def connect_to_edges(self) -> None:
        """Make the connections that `positions` of edges needs. All trainers call it together."""
        self.access.connect_to_edges()

    # Requests -------------------------------------------------------------------------------------

    def next_position(self) -> int:
        """Return the position of this trainer's next push."""
        return next(self._num_pushes)

    def write(self, part: int, message: Any, arrays: Sequence[Array] = ()) -> Ticket:
        """Send a write to a part's primary."""
        with self._lock:
            self.check()
            ticket = self._client.write(part, self._signed(message), arrays)
            while self._in_flight and self._in_flight[0].done:
                self.wait([self._in_flight.popleft()])
            self._in_flight.append(ticket)
            return ticket

    def read(self, part: int, message: Any, arrays: Sequence[Array] = ()) -> Ticket:
        """Send a request for values to a part's primary."""
        with self._lock:
            self.check()
            return self._client.read_state(part, self._signed(message), arrays)

    def _signed(self, message: Any) -> Any:
        """Return a request with this trainer as its sender, where servers have several stores."""
        sender = self.access.sender
        return message if sender is None else replace(message, sender=sender)

    def wait(self, tickets: Sequence[Ticket]) -> None:
        """Wait for requests. Raises the error of the first one that failed."""
        with self._lock:
            self.check()
            try:
                self._client.wait(tickets)
                for ticket in tickets:
                    ticket.result()
            except Exception as error:
                self.fail(error)
                raise

    def shared_rows(self, name: str, spec: TensorSpec) -> dict[int, Array]:
        """Return the rows of a tensor that are in memory of this host, by partition.

        Rows of servers that this process may not read from, such as in another container, are
        left out: these are requested.
        """
        near = [p for p in range(self.meta.num_parts) if self.access.is_near(p)]
        if self.access.sender is None:  # graph servers have no staging areas
            self._make_areas([part for part in near if part not in self._areas])
        tickets = [self.read(part, ShareTensor(name)) for part in near]
        self.wait(tickets)
        shared = {}
        for part, ticket in zip(near, tickets, strict=True):
            low, high = self.bounds_of(spec)[part : part + 2]
            process, descriptor = map(int, ticket.result()[0])
            rows = _mapped(process, descriptor, partial(rows_in, count=high - low, rows=spec.rows))
            if rows is not None:
                rows.flags.writeable = False
                shared[part] = rows
        return shared

    @property
    def staging_areas(self) -> dict[int, StagingArea]:
        """Memory of servers of this host for values of pushes, by partition."""
        return {part: area for part, area in self._areas.items() if area is not None}

    def _make_areas(self, parts: Sequence[int]) -> None:
        tickets = [self.read(part, MakeStagingArea()) for part in parts]
        self.wait(tickets)
        for part, ticket in zip(parts, tickets, strict=True):
            process, descriptor, index = map(int, ticket.result()[0])
            memory = _mapped(process, descriptor, map_memory)
            self._areas[part] = None if memory is None else StagingArea(memory, index)

    def end_step(self) -> None:
        """Count a step that has ended. Values of its pushes are not needed any more."""
        self.num_steps += 1
        for area in self._areas.values():
            if area is not None:
                area.end_step()

    def write_to_own_parts(self, message: Any) -> None:
        """Send a write to each primary that this trainer runs, and wait for all."""
        self.wait([self.write(part, message) for part in self.own_parts])

    def settle_later(self, tickets: Sequence[Ticket]) -> None:
        """Have the next `settle` wait for reads, too."""
        with self._lock:
            self._in_flight.extend(tickets)

    def settle(self) -> None:
        """Wait until the servers have accepted all writes, and reads in flight are done."""
        with self._lock:
            tickets, self._in_flight = list(self._in_flight), deque()
        self.wait(tickets)

    # Steps of all trainers ------------------------------------------------------------------------

    def together(self, name: str, arguments: object, action: Callable[[], None]) -> None:
        """Run an action between two meetings of all trainers.

        The first shows that all make the same call, and have sent what they sent before. After the
        second, the action of all trainers is done.
        """
        calls = self.meet([name, arguments])
        self._check_same(calls, calls)
        self.guarded(action)
        self.meet(None)

    def set_version(self, version: int) -> None:
        """Have servers count versions from another number. All trainers call it together."""
        action = partial(self.write_to_own_parts, SetVersion(version))
        self.together("version", version, action)

    def any_trainer(self, flag: bool) -> bool:
        """Return True if `flag` is True at any trainer. All trainers call it together."""
        calls = self.meet(["any", flag])
        self._check_same(calls, [call and call[0] for call in calls])
        return any(call[1] for call in calls)

    def _check_same(self, calls: Sequence[object], compared: Sequence[object]) -> None:
        if any(call != compared[self.rank] for call in compared):
            error = RendezvousError(
                "trainers make different calls of a GraphStore: "
                f"{dict(zip(self.access.members.ranks, calls, strict=True))}"
            )
            self.fail(error)
            raise error

    def guarded(self, action: Callable[[], None]) -> None:
        """Run this trainer's part of a call of all trainers. An error ends the client."""
        try:
            action()
        except BaseException as error:
            self.fail(error)
            raise

    def meet(self, value: object) -> list[Any]:
        """Wait for all trainers, and return a value of each, anything that JSON can hold."""
        self.check()
        try:
            return self._barrier.all_gather(str(next(self._num_meetings)), value)
        except BaseException as error:
            self.fail(error)
            raise

    def check_others(self) -> None:
        """Raise an error if another trainer or a server has failed, or the client."""
        self.check()
        self._barrier.check()

    def check_servers(self) -> None:
        """Raise PartitionUnavailableError if a server has ended with its trainer."""
        with self._lock:
            self._client.pump()
            self.access.check(self._client)
            for part, why in self._client.ended().items():
                raise PartitionUnavailableError(f"{self.access.server_of(part)} {why}")

    def check(self) -> None:
        """Raise an error if the client has failed or is closed."""
        if self._failure is not None:
            raise RendezvousError(f"the store cannot be used any more: {self._failure}")
        if self._is_closed:
            raise RuntimeError("the store has been closed: make a new one")

    def fail(self, error: BaseException) -> None:
        """End the client. The next call of each other trainer raises."""
        if self._failure is None:
            self._failure = error
            self._barrier.close(error)

    def close(self) -> None:
        """End the connections. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._barrier.close(self._failure)
            self.access.close(self._client)
            self._client.close()
            self.threads.close()
            self._areas.clear()


def _mapped(process: int, descriptor: int, map_it: Callable[[int], _Mapped]) -> _Mapped | None:
    """Map memory of a server on this host by `map_it`, from its descriptor there.

    None if this process may not, such as from another container.
    """
    with contextlib.suppress(OSError, ValueError, ProtocolError):
        opened = os.open(f"/proc/{process}/fd/{descriptor}", _READ_WRITE)
        try:
            if os.fstat(opened).st_uid == os.getuid():
                return map_it(opened)
        finally:
            os.close(opened)
    return None
