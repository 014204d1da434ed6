"""Client of the servers of other partitions, in samplers and trainers. Imports no torch.

Requests are asynchronous: each returns a ticket, and the caller waits for the tickets that it
needs. An unreachable server may return at its address, or `relocate` sets a new one. Requests in
flight are then sent again: they are idempotent. The callback `on_lost` reports unreachable servers.
A request without a reply in time, and requests to a server that has ended, fail with an exception
that names partition, address and time.
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

# Interval at which lost connections and deadlines are checked while waiting.
_TICK_MS = 250
# A connection that is down for this many seconds is reported to `on_lost`.
_LOST_AFTER = 0.2
_log = log.get(__name__)


class PartitionClient:
    """Client that sends requests to the servers of other partitions.

    Args:
        endpoints: endpoint of each other partition's server.
        credentials: the job's keys; needed for endpoints with a server key.
        timeout: seconds that a request may take.
        on_lost: see below.

    Attributes:
        bytes_received: bytes of all replies.
        on_lost: called with a partition and the time when its connection was lost
            (`time.monotonic`), repeatedly while requests wait for it; may call `relocate` and
            `give_up`.
        log: log of requests while a recording is under way, else None.
    """

    what = "partition"
    """Kind of data that the servers have, for error messages."""

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
        """Set the endpoint of a partition's server, and send requests in flight there.

        Args:
            part: the partition.
            endpoint: the new endpoint. If it is the same as before, nothing happens: the connection
                returns by itself.

        Returns:
            True if the endpoint changed. The sockets of `sockets` have then changed, too.
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
        """Fail requests to a partition, later ones included, until its server is back or relocated.

        Args:
            part: the partition.
            why: state of its server: 'has ended'.
        """
        self._connections[part].give_up(why)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Return the sockets to poll before `pump`."""
        connections = self._connections.values()
        return [c.socket for c in connections] + [c.monitor for c in connections]

    def sample(self, part: int, relation: int, rows: RowSet, request: HopRequest) -> Request:
        """Request neighbours of a part's nodes."""
        names, arrays = pack_rows(rows)
        return self._send(part, Sample(relation, names, request), arrays)

    def induce(
        self, part: int, relation: int, rows: RowSet, keys: Int64Array, with_edge: bool
    ) -> Request:
        """Request the neighbours of a part's nodes that are in a batch, given its nodes' keys."""
        names, arrays = pack_rows(rows)
        return self._send(part, Induce(relation, names, with_edge), [*arrays, keys])

    def has_edges(
        self, part: int, relation: int, rows: Int64Array, neighbors: Int64Array
    ) -> Request:
        """Request whether edges join pairs of a part's nodes and other nodes."""
        names, arrays = pack_rows(RowSet(rows))
        return self._send(part, HasEdges(relation, names), [*arrays, neighbors])

    def fetch(
        self, part: int, kind: str, index: int, ids: Int64Array, names: Sequence[str]
    ) -> Request:
        """Request attributes of a part's nodes or edges."""
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
        """Wait until all tickets are done."""
        while not all(ticket.done for ticket in tickets):
            self._poller.poll(_TICK_MS)
            self.pump()

    def pump(self) -> None:
        """Process replies and connection events; fail requests that are late or cannot succeed."""
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
        # If sockets are left open, ZeroMQ blocks when the process ends.
        if getattr(self, "_owner", None) == os.getpid():
            self.close()

    def close(self) -> None:
        """End all connections; requests in flight are dropped. Does nothing in a fork."""
        if os.getpid() != self._owner:
            return
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._context.destroy(0)
