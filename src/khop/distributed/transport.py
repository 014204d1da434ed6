"""A sampler's connections to the servers of other partitions.

Requests do not wait for each other: each gets a ticket, and whoever holds tickets waits for those
it needs. Requests are idempotent, so those in flight are sent again when a lost connection comes
back; one that stays lost fails them with an exception that names partition and address.
"""

from __future__ import annotations

import itertools
import os
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import zmq

from khop.channel.message import pack, unpack
from khop.distributed.wire import PROTOCOL, pack_rows, rebuild_error
from khop.errors import PartitionUnavailableError, ProtocolError
from khop.sampler.requests import HopRequest, RowSet
from khop.trace.requests import Asked, RequestLog
from khop.typing import Array, Int64Array

_HEARTBEAT_MS = 1000
_HEARTBEAT_TIMEOUT_MS = 3000
_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
# As a monitor tells them: the event, and a value that is not needed. zmq.utils.monitor reads the
# same, but imports asyncio, a tenth of the time that a sampler takes to start.
_EVENT = struct.Struct("=Hi")
# How often lost connections and deadlines are looked at while waiting.
_TICK_MS = 250


@dataclass(frozen=True)
class Endpoint:
    """Where a partition is served; `server_key` is its CURVE public key, None without CURVE."""

    address: str
    server_key: str | None = None


@dataclass(frozen=True)
class Credentials:
    """The job's CURVE key pair, Z85 text."""

    public: str
    secret: str = field(repr=False)


class Request:
    """A request on its way: the ticket that the engine waits for."""

    __slots__ = ("_error", "_result", "asked", "deadline", "frames", "part")

    def __init__(self, part: int, frames: list[Any], deadline: float) -> None:
        self.part = part
        self.frames = frames
        self.deadline = deadline
        self.asked: Asked | None = None
        self._result: list[Array] | None = None
        self._error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether it was answered or has failed."""
        return self._result is not None or self._error is not None

    def result(self) -> list[Array]:
        """The reply's arrays; raises what the request failed with."""
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def succeed(self, arrays: list[Array]) -> None:
        """Answers the request."""
        self._result = arrays

    def fail(self, error: Exception) -> None:
        """Fails the request."""
        self._error = error


@dataclass
class _Connection:
    """One partition's server, and the requests that it has not answered."""

    part: int
    endpoint: Endpoint
    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    lost_since: float | None
    pending: dict[int, Request] = field(default_factory=dict)
    was_connected: bool = False


class PartitionClient:
    """Asks the servers of other partitions.

    Args:
        endpoints: where each other partition is served.
        credentials: the job's keys; needed for endpoints with a server key.
        timeout: seconds that a request may take.
        grace: seconds that a connection may stay lost while requests wait for it.

    Attributes:
        bytes_received: bytes of all replies.
        log: keeps requests while a recording is under way; None: none is.
    """

    what = "partition"
    """What is served, for error messages."""

    def __init__(
        self,
        endpoints: Mapping[int, Endpoint],
        credentials: Credentials | None = None,
        timeout: float = 180.0,
        grace: float = 3.0,
    ) -> None:
        self._timeout = timeout
        self._grace = grace
        self._connections: dict[int, _Connection] = {}
        self._ids = itertools.count()
        self.bytes_received = 0
        self.log: RequestLog | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._owner = os.getpid()
        for part, endpoint in endpoints.items():
            self._connections[part] = self._connect(part, endpoint, credentials)
        self._poller = zmq.Poller()
        for socket in self.sockets():
            self._poller.register(socket, zmq.POLLIN)

    def _connect(
        self, part: int, endpoint: Endpoint, credentials: Credentials | None
    ) -> _Connection:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = 0  # bounded by the batches in flight
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        if endpoint.server_key is not None:
            if credentials is None:
                raise ValueError(f"{self.what} {part} is served with CURVE, but no keys are given")
            socket.curve_serverkey = endpoint.server_key.encode()
            socket.curve_publickey = credentials.public.encode()
            socket.curve_secretkey = credentials.secret.encode()
        monitor = socket.get_monitor_socket(_EVENTS)
        socket.connect(endpoint.address)
        return _Connection(part, endpoint, socket, monitor, time.monotonic())

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Sockets that are readable when `pump` has something to do."""
        connections = self._connections.values()
        return [c.socket for c in connections] + [c.monitor for c in connections]

    def sample(self, part: int, relation: int, rows: RowSet, request: HopRequest) -> Request:
        """Asks for neighbours of a part's nodes."""
        header = {"op": "sample", "relation": relation, **asdict(request)}
        return self._send_rows(part, header, rows)

    def induce(
        self, part: int, relation: int, rows: RowSet, keys: Int64Array, with_edge: bool
    ) -> Request:
        """Asks which neighbours of a part's nodes are in a batch, given by its nodes' keys."""
        header = {"op": "induce", "relation": relation, "with_edge": with_edge}
        return self._send_rows(part, header, rows, keys)

    def has_edges(
        self, part: int, relation: int, rows: Int64Array, neighbors: Int64Array
    ) -> Request:
        """Asks whether pairs of a part's nodes and others are joined."""
        header = {"op": "has_edges", "relation": relation}
        return self._send_rows(part, header, RowSet(rows), neighbors)

    def fetch(
        self, part: int, kind: str, index: int, ids: Int64Array, names: Sequence[str]
    ) -> Request:
        """Asks for attributes of a part's nodes or edges."""
        header = {"op": "fetch", "kind": kind, "index": index, "names": list(names)}
        return self._send(part, header, [ids])

    def _send_rows(
        self, part: int, header: dict[str, Any], rows: RowSet, *further: Array
    ) -> Request:
        names, arrays = pack_rows(rows)
        return self._send(part, {**header, "rows": names}, [*arrays, *further])

    def _send(self, part: int, header: dict[str, Any], arrays: list[Array]) -> Request:
        connection = self._connections[part]
        number = next(self._ids)
        timed = {} if self.log is None else {"timed": True}
        common = {"protocol": PROTOCOL, "id": number, "part": part}
        frames = pack({**header, **common, **timed}, arrays)
        request = Request(part, frames, time.monotonic() + self._timeout)
        if self.log is not None:
            request.asked = self.log.ask(part, header["op"], len(arrays[0]))
        connection.pending[number] = request
        connection.socket.send_multipart(frames, copy=False)
        return request

    def wait(self, tickets: Sequence[Request]) -> None:
        """Returns when all tickets are done."""
        while not all(ticket.done for ticket in tickets):
            self._poller.poll(_TICK_MS)
            self.pump()

    def pump(self) -> None:
        """Takes in what has arrived; fails requests whose server is lost or late."""
        for connection in self._connections.values():
            self._receive(connection)
            self._watch(connection)
            self._expire(connection)

    def _receive(self, connection: _Connection) -> None:
        while connection.socket.poll(0):
            frames = connection.socket.recv_multipart(copy=False)
            try:
                header, arrays = unpack([frame.buffer for frame in frames])
            except ProtocolError as error:
                self._fail_all(connection, f"sent a malformed reply: {error}")
                continue
            request = connection.pending.pop(header.get("id", -1), None)
            if request is None:  # answered twice, after a reconnection
                continue
            nbytes = sum(map(len, frames))
            self.bytes_received += nbytes
            if request.asked is not None and self.log is not None:
                self.log.answer(request.asked, header.get("served"), nbytes)
            where = f"the server of {self.what} {connection.part}"
            if "error" in header:
                request.fail(rebuild_error(header["error"], where))
            else:
                request.succeed(arrays)

    def _watch(self, connection: _Connection) -> None:
        while connection.monitor.poll(0):
            event = _EVENT.unpack(connection.monitor.recv_multipart()[0])[0]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                connection.lost_since = None
                if connection.was_connected:
                    for request in connection.pending.values():
                        connection.socket.send_multipart(request.frames, copy=False)
                connection.was_connected = True
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._fail_all(connection, "refused this job's key")
            elif connection.lost_since is None:
                connection.lost_since = time.monotonic()

    def _expire(self, connection: _Connection) -> None:
        if not connection.pending:
            if connection.lost_since is not None:
                connection.lost_since = max(connection.lost_since, time.monotonic() - self._grace)
            return
        now = time.monotonic()
        if connection.lost_since is not None and now - connection.lost_since > self._grace:
            self._fail_all(
                connection,
                f"has been unreachable for {now - connection.lost_since:.1f} seconds: its trainer "
                "or server has ended, or the network is down",
            )
        for number, request in list(connection.pending.items()):
            if now > request.deadline:
                del connection.pending[number]
                request.fail(self._unavailable(connection, f"gave no answer in {self._timeout} s"))

    def _fail_all(self, connection: _Connection, why: str) -> None:
        for request in connection.pending.values():
            request.fail(self._unavailable(connection, why))
        connection.pending.clear()

    def _unavailable(self, connection: _Connection, why: str) -> PartitionUnavailableError:
        return PartitionUnavailableError(
            f"{self.what} {connection.part} at {connection.endpoint.address} {why}"
        )

    def __del__(self) -> None:
        # Sockets that are left open keep ZeroMQ waiting when the process ends.
        if getattr(self, "_owner", None) == os.getpid():
            self.close()

    def close(self) -> None:
        """Ends all connections; requests in flight are dropped."""
        for connection in self._connections.values():
            connection.socket.disable_monitor()
            connection.monitor.close(0)
            connection.socket.close(0)
        self._connections.clear()
        self._context.destroy(0)
