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
from threading import RLock
from typing import Any

import numpy as np

from khop.data.tickets import ReadThreads, Ticket
from khop.distributed.dataset import DistDataset
from khop.distributed.membership.barrier import Barrier
from khop.distributed.membership.members import Membership
from khop.distributed.partitions.service import PartitionService
from khop.distributed.tensors.tensor_requests import ReadStep, ShareTensor, TensorSpec, rows_in
from khop.errors import PartitionUnavailableError, ProtocolError, RendezvousError
from khop.storage.part import Part
from khop.typing import Array, Int64Array

_REQUESTS = "khop.distributed.tensors.shard"
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
        rank: rank of this trainer.
        num_trainers: number of trainers.
        meta: metadata of the folder.
        own_parts: partitions whose primary is a server of this trainer.
        num_steps: number of steps that the servers have completed.
        threads: thread that reads rows in this host's memory while the trainer goes on.
    """

    def __init__(self, dataset: DistDataset, timeout: float) -> None:
        self._dataset = dataset
        self.meta = dataset.meta
        context = dataset.context
        self.rank, self.num_trainers = context.rank, context.world_size
        self._service = PartitionService(
            context, dataset.opened, dataset.partition_idx, dataset.parts, [_REQUESTS]
        )
        self._client = self._service.state_client(timeout)
        parts = range(self.meta.num_parts)
        self.own_parts = [p for p in parts if self._service.primary(p) == context.rank]
        self._lock = RLock()
        self._in_flight: deque[Ticket] = deque()
        self.num_steps = 0
        self.threads = ReadThreads()
        self._num_pushes = itertools.count()
        self._num_meetings = itertools.count()
        self._failure: BaseException | None = None
        self._is_closed = False
        self._barrier = _StepBarrier(context.members, context.next_name("store"), self)
        self._barrier.start()
        context.close_before_leaving(self)
        # From then on, a server that is another process than before is noticed, and a server that
        # ends with its trainer sends its reason.
        self.together("begin", None, lambda: self.wait([self.read(p, ReadStep()) for p in parts]))

    # Rows -----------------------------------------------------------------------------------------

    def bounds_of(self, spec: TensorSpec) -> list[int]:
        """Return the first position of each part's rows, and the number of rows."""
        return self.meta.types(spec.element)[spec.type_index].bounds

    def positions(self, spec: TensorSpec, ids: Int64Array) -> Int64Array:
        """Return the positions of rows in the folder's order, by original ids."""
        if spec.element == "node":
            return self._dataset._new_ids_of(ids, self.meta.node_types[spec.type_index].name)
        return self._dataset.reader.positions(spec.type_index, ids, self._dataset.peers)

    def original_ids(self, spec: TensorSpec, part: int, positions: Int64Array) -> Int64Array:
        """Return the original ids of rows of a part, by their positions in the folder's order."""
        name = "id" if spec.element == "node" else "edge_id"
        feature = self.part(part).feature(spec.element, spec.type_index, name)
        return feature.gather(positions - self.bounds_of(spec)[part]).astype(np.int64)

    def part(self, index: int) -> Part:
        """Return a partition that this trainer serves, opened."""
        return Part(self._dataset.opened, index)

    def connect_to_edges(self) -> None:
        """Make the connections that `positions` of edges needs. All trainers call it together."""
        if self.meta.num_parts > 1:
            self._dataset.peers()

    # Requests -------------------------------------------------------------------------------------

    def next_position(self) -> int:
        """Return the position of this trainer's next push."""
        return next(self._num_pushes)

    def write(self, part: int, message: Any, arrays: Sequence[Array] = ()) -> Ticket:
        """Send a write to a part's primary."""
        with self._lock:
            self.check()
            ticket = self._client.write(part, message, arrays)
            while self._in_flight and self._in_flight[0].done:
                self.wait([self._in_flight.popleft()])
            self._in_flight.append(ticket)
            return ticket

    def read(self, part: int, message: Any, arrays: Sequence[Array] = ()) -> Ticket:
        """Send a request for values to a part's primary."""
        with self._lock:
            self.check()
            return self._client.read_state(part, message, arrays)

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
        near = [p for p in range(self.meta.num_parts) if self._service.is_near(p)]
        tickets = [self.read(part, ShareTensor(name)) for part in near]
        self.wait(tickets)
        shared = {}
        for part, ticket in zip(near, tickets, strict=True):
            process, descriptor = map(int, ticket.result()[0])
            low, high = self.bounds_of(spec)[part : part + 2]
            with contextlib.suppress(OSError, ValueError, ProtocolError):
                opened = os.open(f"/proc/{process}/fd/{descriptor}", _READ_WRITE)
                try:
                    if os.fstat(opened).st_uid == os.getuid():
                        shared[part] = rows_in(opened, high - low, spec.rows)
                        shared[part].flags.writeable = False
                finally:
                    os.close(opened)
        return shared

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
        if any(call != calls[self.rank] for call in calls):
            error = RendezvousError(
                f"trainers make different calls of a GraphStore: {dict(enumerate(calls))}"
            )
            self.fail(error)
            raise error
        self.guarded(action)
        self.meet(None)

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

    def check_servers(self) -> None:
        """Raise PartitionUnavailableError if a server has ended with its trainer."""
        with self._lock:
            self._client.pump()
            for part, why in self._client.ended().items():
                rank = self._service.primary(part)
                raise PartitionUnavailableError(
                    f"the server of partition {part}, which trainer {rank} ran, {why}"
                )

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
            self._client.close()
            self.threads.close()
