"""Client of the servers of other partitions, in samplers and trainers. Imports no torch.

Requests are asynchronous: each returns a ticket, and the caller waits for the tickets that it
needs. An unreachable server may return at its address, or `relocate` sets a new one. Requests in
flight are then sent again. A read may be answered twice, but a write is applied once
(`state_requests`). The callback `on_lost` is called for unreachable servers. A request fails if it
gets no reply in time, or if its server has ended. Its exception names partition, address and time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import zmq

from khop import log
from khop.channel.message import pack
from khop.channel.pool import reuse_heaps
from khop.data.tickets import Ticket
from khop.data.waiter import waiter
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.part_requests import PartRequests
from khop.distributed.rpc.pending import PendingRequests, Request
from khop.distributed.rpc.protocol import RequestFields, rebuild_error, request_header
from khop.distributed.rpc.state_requests import StateRequest, StateRequests
from khop.errors import PartitionUnavailableError, ProtocolError
from khop.forks import check_process
from khop.log import printable
from khop.trace.requests import RequestLog
from khop.typing import Array

# A connection that is down for this many seconds is reported to `on_lost`.
_LOST_AFTER = 0.2
_log = log.get(__name__)


class PartitionClient(PartRequests):
    """Client that sends requests to the servers of other partitions.

    Attributes:
        bytes_received: bytes of all replies.
        poller: polls the sockets of all connections, which `pump` and `relocate` change. Callers
            may register further sockets and descriptors to wait for.
        on_lost: called with a partition and the time when its connection was lost
            (`time.monotonic`), repeatedly while requests wait for the partition. It may call
            `relocate` and `give_up`.
        log: log of requests. None unless a recording is under way.
    """

    subject: ClassVar[str] = "partition"
    """Name of the data that a server has, for error messages."""

    def __init__(
        self,
        endpoints: Mapping[int, Endpoint],
        credentials: KeyPair | None = None,
        timeout: float = 180.0,
        on_lost: Callable[[int, float], None] | None = None,
    ) -> None:
        reuse_heaps()
        self._timeout = timeout
        self._credentials = credentials
        self.on_lost = on_lost
        self._connections: dict[int, Connection] = {}
        self._pending: PendingRequests[Request] = PendingRequests()
        self._states: dict[int, StateRequests] = {}
        self.bytes_received = 0
        self.log: RequestLog | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._owner = os.getpid()
        self.poller: zmq.Poller = zmq.Poller()
        self._registered: dict[int, list[zmq.Socket[bytes]]] = {}
        for part, endpoint in endpoints.items():
            if endpoint.server_key is not None and credentials is None:
                raise ValueError(
                    f"{self.subject} {part} is served with CURVE, but no keys are given"
                )
            self._connections[part] = Connection(self._context, credentials, endpoint)
            self._register(part)

    def _register(self, part: int) -> None:
        new = self._connections[part].sockets
        for socket in self._registered.get(part, ()):
            self.poller.unregister(socket)
        for socket in new:
            self.poller.register(socket, zmq.POLLIN)
        self._registered[part] = new

    def relocate(self, part: int, endpoint: Endpoint) -> bool:
        """Set the endpoint of a partition's server. Requests in flight are sent to it.

        Returns:
            True if the endpoint changed. If not, nothing is done: `pump` reconnects by itself.
        """
        connection = self._connections[part]
        if endpoint == connection.endpoint:
            return False
        _log.info(
            "partition-moved",
            f"{self.subject} {part} is at {endpoint.address} now, not at {connection.address}",
            address=endpoint.address,
            pending=len(self._pending.of(part)),
        )
        connection.relocate(endpoint)
        self._register(part)
        return True

    @property
    def is_connected(self) -> bool:
        """True while all connections are up. `pump` makes lost connections again after a pause."""
        return all(connection.is_up for connection in self._connections.values())

    def ended(self) -> dict[int, str]:
        """Return {partition: reason} of the servers that have ended and will not return."""
        return {p: c.final for p, c in self._connections.items() if c.final is not None}

    def lost(self) -> dict[int, float]:
        """Return {partition: time of the loss} of connections that are down (`time.monotonic`).

        Connections that have never been up are left out.
        """
        lost = {p: c.lost_since for p, c in self._connections.items() if c.has_been_up}
        return {part: since for part, since in lost.items() if since is not None}

    def give_up(self, part: int, why: str) -> None:
        """Fail all requests to a partition until its server is back. `why` is the reason."""
        self._connections[part].give_up(why)
        self._fail_all(part, why)

    def _fail_all(self, part: int, why: str) -> None:
        def explain(_: Request, waited: float) -> PartitionUnavailableError:
            return self._unavailable(part, f"{why} ({waited:.1f} s after it was asked)")

        self._pending.fail_all(part, explain)

    def _unavailable(self, part: int, why: str) -> PartitionUnavailableError:
        return PartitionUnavailableError(f"{self._name_of(part)} {why}")

    def _name_of(self, part: int) -> str:
        return f"{self.subject} {part} at {self._connections[part].address}"

    def read(self, part: int, message: RequestFields, arrays: Sequence[Array] = ()) -> Request:
        """Request a value that depends on no state, by a request of class `read`.

        Raises:
            RuntimeError: the connections have been closed.
        """
        if part not in self._connections:
            raise RuntimeError(f"{self.subject} {part}: the connections have been closed")
        return self._send(part, message, list(arrays))

    def write(self, part: int, message: RequestFields, arrays: Sequence[Array] = ()) -> Request:
        """Request a change of a part's state. It is applied once, after this client's earlier ones.

        The ticket raises StateLostError if the server has lost its state. It raises
        PartitionUnavailableError if there is no reply in time: then it is not known whether the
        write was applied.

        Args:
            part: the part. This client must be connected to the server that has its state.
            message: a request of class `write`, see `RequestType`.
            arrays: its arrays, not changed before the ticket is done.
        """
        return self._send_to_state(part, message, arrays, is_write=True)

    def read_state(
        self, part: int, message: RequestFields, arrays: Sequence[Array] = ()
    ) -> Request:
        """Request a value that depends on a part's state. Arguments and errors: see `write`."""
        return self._send_to_state(part, message, arrays, is_write=False)

    def accept_state_loss(self, part: int) -> None:
        """Continue with the state that the part's server has now. Call it after StateLostError."""
        self._state(part).accept_loss()

    def _state(self, part: int) -> StateRequests:
        if part not in self._states:
            self._states[part] = StateRequests(
                part,
                self._pending,
                self._connections[part],
                lambda: self._name_of(part),
                self._timeout,
            )
        return self._states[part]

    def _send_to_state(
        self, part: int, message: RequestFields, arrays: Sequence[Array], is_write: bool
    ) -> Request:
        check_process(self._owner, "connection to other partitions", "make a loader there")
        request_id = self._pending.next_number()
        request = StateRequest(part, request_id, message, list(arrays), self._timeout, is_write)
        final = self._connections[part].final
        if final is not None:
            request.fail(self._unavailable(part, final))
        else:
            self._state(part).add(request)
        return request

    def _send(self, part: int, message: RequestFields, arrays: list[Array]) -> Request:
        check_process(self._owner, "connection to other partitions", "make a loader there")
        request_id = self._pending.next_number()
        timed = {} if self.log is None else {"timed": True}
        header = request_header(message, request_id, part=part, **timed)
        request = Request(part, pack(header, arrays), self._timeout)
        if self.log is not None:
            request.log_entry = self.log.log_request(part, message.op, len(arrays[0]))
        connection = self._connections[part]
        if connection.final is not None:
            request.fail(self._unavailable(part, connection.final))
            return request
        self._pending.add(request_id, request)
        connection.send(request.frames)
        return request

    def wait(self, tickets: Sequence[Ticket]) -> None:
        """Wait until all tickets are done: requests to partitions, and reads of stores."""
        waiter().wait(tickets, self)

    def pump(self) -> None:
        """Process replies and connection events. Fail requests that are late or cannot succeed."""
        for part, connection in list(self._connections.items()):
            self._pump(part, connection)
            try:
                for header, arrays, nbytes in connection.receive():
                    self._complete(part, header, arrays, nbytes)
            except ProtocolError as error:
                self._fail_all(part, f"cannot be used: {error}")
                connection.refuse(f"it cannot be used: {error}")
            if connection.final is not None:
                self._fail_all(part, connection.final)
            if connection.sockets is not self._registered[part]:
                self._register(part)
            if part in self._states:
                self._states[part].advance()
            lost = connection.lost_since
            if lost is None or self.on_lost is None or not self._pending.has(part):
                continue
            if time.monotonic() - lost > _LOST_AFTER:
                self.on_lost(part, lost)
        self._pending.expire(self._late)

    def _pump(self, part: int, connection: Connection) -> None:
        """Process a connection's events. If it is up again, send its requests in flight again."""
        before = connection.lost_since
        if connection.pump():
            if connection.has_returned and before is not None:
                lost = time.monotonic() - before
                self._log_event(part, "partition-returned", f"connected again after {lost:.1f} s")
            if part in self._states:
                self._states[part].send_again()
            for request in self._pending.of(part):
                if not isinstance(request, StateRequest):
                    connection.send(request.frames)
        elif before is None and connection.lost_since is not None:
            self._log_event(part, "partition-lost", "connection lost")

    def _log_event(self, part: int, event: str, text: str) -> None:
        """Log a connection event, as a warning if requests are in flight, else as information."""
        address, pending = self._connections[part].address, len(self._pending.of(part))
        write = _log.warning if pending else _log.info
        write(event, f"{self._name_of(part)}: {text}", address=address, pending=pending)

    def _complete(
        self, part: int, header: dict[str, Any], arrays: list[Array], nbytes: int
    ) -> None:
        if "goodbye" in header:
            self.give_up(part, f"has ended: {printable(str(header['goodbye'])[:1000])}")
            return
        request = self._pending.answered(part, header.get("id"))
        if part in self._states and not self._states[part].check_reply(request, header):
            return
        if request is None:  # answered twice, after a reconnection
            return
        self.bytes_received += nbytes
        if request.log_entry is not None and self.log is not None:
            self.log.log_reply(request.log_entry, header.get("served"), nbytes)
        if "error" in header:
            where = f"the server of {self.subject} {part}"
            request.fail(rebuild_error(header["error"], where))
        else:
            request.succeed(arrays)

    def _late(self, request: Request, waited: float) -> Exception:
        part = request.server
        assert part is not None
        connection = self._connections[part]
        limit = f"{request.deadline - request.begun:g} s that a request may take (timeout)"
        if connection.lost_since is None:
            why = (
                f"is connected, but gave no answer in {waited:.1f} s, more than the {limit}: it is "
                "stuck, or has too much to do"
            )
        else:
            lost = time.monotonic() - connection.lost_since
            trouble = connection.refused or "its server has ended, or the network is down"
            why = (
                f"has been unreachable for {lost:.1f} s, and a request has waited {waited:.1f} s, "
                f"more than the {limit}: {trouble}"
            )
        if isinstance(request, StateRequest) and request.is_write:
            why += ". Whether the write was applied is not known"
        return self._unavailable(part, why)

    def start_again(self) -> None:
        """Make all connections again, and drop the requests in flight. Do nothing in a fork.

        Call this after Ctrl-C, or an error in a signal handler, has interrupted another method. A
        message may then have been read or sent in part.
        """
        if os.getpid() != self._owner:
            return
        self._pending = PendingRequests()
        for state in self._states.values():
            state.begin(self._pending)
        for part, connection in self._connections.items():
            connection.refuse("a call was interrupted")
            self._register(part)

    def __del__(self) -> None:
        # If sockets are left open, ZeroMQ blocks when the process ends.
        if getattr(self, "_owner", None) == os.getpid():
            self.close()

    def close(self) -> None:
        """End all connections, and drop requests in flight. Do nothing in a fork."""
        if os.getpid() != self._owner:
            return
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._context.destroy(0)
