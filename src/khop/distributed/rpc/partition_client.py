"""A sampler's connections to the servers of other partitions.

Requests do not wait for each other: each gets a ticket, and whoever holds tickets waits for those
it needs. A lost server may come back at its address, or `relocate` says where it is now; requests
in flight are then sent again, which is harmless. Whoever makes a client may be told of lost servers
(`on_lost`), and look for them. A request that is not answered in time, and those to a server that
is known to have ended, fail with an exception that names partition, address and time.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import zmq

from khop import log
from khop.channel.message import pack, unpack
from khop.distributed.rpc.endpoint import Credentials, Endpoint
from khop.distributed.rpc.partition_connection import PartitionConnection, Request
from khop.distributed.rpc.protocol import (
    Fetch,
    HasEdges,
    Induce,
    Sample,
    pack_rows,
    rebuild_error,
    request_header,
)
from khop.errors import ProtocolError
from khop.forks import check_process
from khop.sampler.requests import HopRequest, RowSet
from khop.trace.requests import RequestLog
from khop.typing import Array, Int64Array

# How often lost connections and deadlines are looked at while waiting.
_TICK_MS = 250
# A connection that does not stand after so many seconds counts as lost for those who look for it.
_LOST_AFTER = 0.2
_log = log.get(__name__)


class PartitionClient:
    """Asks the servers of other partitions.

    Args:
        endpoints: where each other partition is served.
        credentials: the job's keys; needed for endpoints with a server key.
        timeout: seconds that a request may take.
        on_lost: see below.

    Attributes:
        bytes_received: bytes of all replies.
        on_lost: called with a partition, and when it was lost (`time.monotonic`), again and again
            while requests wait for it; may call `relocate` and `give_up`.
        log: keeps requests while a recording is under way; None: none is.
    """

    what = "partition"
    """What is served, for error messages."""

    def __init__(
        self,
        endpoints: Mapping[int, Endpoint],
        credentials: Credentials | None = None,
        timeout: float = 180.0,
        on_lost: Callable[[int, float], None] | None = None,
    ) -> None:
        self._timeout = timeout
        self._credentials = credentials
        self.on_lost = on_lost
        self._connections: dict[int, PartitionConnection] = {}
        self._ids = itertools.count()
        self.bytes_received = 0
        self.log: RequestLog | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._owner = os.getpid()
        self._poller = zmq.Poller()
        for part, endpoint in endpoints.items():
            self._connections[part] = self._connect(part, endpoint)

    def _connect(self, part: int, endpoint: Endpoint) -> PartitionConnection:
        connection = PartitionConnection(
            self._context, f"{self.what} {part}", endpoint, self._credentials
        )
        for socket in (connection.socket, connection.monitor):
            self._poller.register(socket, zmq.POLLIN)
        return connection

    def relocate(self, part: int, endpoint: Endpoint) -> bool:
        """Goes to another address for a partition; requests in flight are asked there.

        Args:
            part: the partition.
            endpoint: where it is served now. If that is where it was, nothing happens: the
                connection comes back by itself.

        Returns:
            Whether it is another address: then `sockets` are others, too.
        """
        old = self._connections[part]
        if endpoint == old.endpoint:
            return False
        _log.info(
            "partition-moved",
            f"{old.what} is at {endpoint.address} now, not at {old.endpoint.address}",
            address=endpoint.address,
            pending=len(old.pending),
        )
        new = self._connect(part, endpoint)
        new.take_over(old.pending)
        self._connections[part] = new
        for socket in (old.socket, old.monitor):
            self._poller.unregister(socket)
        old.close()
        return True

    def give_up(self, part: int, why: str) -> None:
        """Fails requests to a partition, those to come included, until it is back or elsewhere.

        Args:
            part: the partition.
            why: what is wrong with its server: 'has ended'.
        """
        self._connections[part].give_up(why)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Sockets that are readable when `pump` has something to do."""
        connections = self._connections.values()
        return [c.socket for c in connections] + [c.monitor for c in connections]

    def sample(self, part: int, relation: int, rows: RowSet, request: HopRequest) -> Request:
        """Asks for neighbours of a part's nodes."""
        names, arrays = pack_rows(rows)
        return self._send(part, Sample(relation, names, request), arrays)

    def induce(
        self, part: int, relation: int, rows: RowSet, keys: Int64Array, with_edge: bool
    ) -> Request:
        """Asks which neighbours of a part's nodes are in a batch, given by its nodes' keys."""
        names, arrays = pack_rows(rows)
        return self._send(part, Induce(relation, names, with_edge), [*arrays, keys])

    def has_edges(
        self, part: int, relation: int, rows: Int64Array, neighbors: Int64Array
    ) -> Request:
        """Asks whether pairs of a part's nodes and others are joined."""
        names, arrays = pack_rows(RowSet(rows))
        return self._send(part, HasEdges(relation, names), [*arrays, neighbors])

    def fetch(
        self, part: int, kind: str, index: int, ids: Int64Array, names: Sequence[str]
    ) -> Request:
        """Asks for attributes of a part's nodes or edges."""
        return self._send(part, Fetch(kind, index, list(names)), [ids])  # type: ignore[arg-type]

    def _send(self, part: int, asked: Any, arrays: list[Array]) -> Request:
        check_process(self._owner, "connection to other partitions", "make a loader there")
        number = next(self._ids)
        timed = {} if self.log is None else {"timed": True}
        header = request_header(asked, number, part=part, **timed)
        request = Request(part, pack(header, arrays), self._timeout)
        if self.log is not None:
            request.asked = self.log.ask(part, asked.op, len(arrays[0]))
        self._connections[part].send(number, request)
        return request

    def wait(self, tickets: Sequence[Request]) -> None:
        """Returns when all tickets are done."""
        while not all(ticket.done for ticket in tickets):
            self._poller.poll(_TICK_MS)
            self.pump()

    def pump(self) -> None:
        """Takes in what has arrived; fails requests whose server has ended or is late."""
        for part, connection in list(self._connections.items()):
            self._receive(part, connection)
            connection.watch()
            connection.expire()
            lost = connection.lost_since
            if lost is None or not connection.pending or self.on_lost is None:
                continue
            if time.monotonic() - lost > _LOST_AFTER:
                self.on_lost(part, lost)

    def _receive(self, part: int, connection: PartitionConnection) -> None:
        while connection.socket.poll(0):
            frames = connection.socket.recv_multipart(copy=False)
            try:
                header, arrays = unpack([frame.buffer for frame in frames])
            except ProtocolError as error:
                connection.fail_all(f"sent a malformed reply: {error}")
                continue
            if "goodbye" in header:
                connection.give_up(f"has ended: {str(header['goodbye'])[:1000]}")
                continue
            number = header.get("id")
            request = connection.answered(number) if type(number) is int else None
            if request is None:  # answered twice, after a reconnection
                continue
            nbytes = sum(map(len, frames))
            self.bytes_received += nbytes
            if request.asked is not None and self.log is not None:
                self.log.answer(request.asked, header.get("served"), nbytes)
            if "error" in header:
                where = f"the server of {self.what} {part}"
                request.fail(rebuild_error(header["error"], where))
            else:
                request.succeed(arrays)

    def __del__(self) -> None:
        # Sockets that are left open keep ZeroMQ waiting when the process ends.
        if getattr(self, "_owner", None) == os.getpid():
            self.close()

    def close(self) -> None:
        """Ends all connections; requests in flight are dropped. Not in a fork."""
        if os.getpid() != self._owner:
            return
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._context.destroy(0)
