"""Requests to graph servers: connections, a thread that owns them, and requests in flight.

Base of `DirectoryClient`. Requests are idempotent: if their connection is lost, they are sent again
over the next one. Messages of servers are checked before they are used. A malformed message ends
its connection, never the thread. If another error ends the thread, all requests in flight fail with
that error. Clients, graph servers and `khop top` run it. Imports no torch.
"""

from __future__ import annotations

import abc
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

import zmq

from khop import log
from khop.channel.message import pack
from khop.distributed.remote.addresses import Servers, relocate
from khop.distributed.remote.messages import (
    GraphServerRequest,
    Lookup,
    RegisterClient,
    RegisterServer,
    Table,
    read_reply,
)
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.pending import PendingRequests, Request as Ticket
from khop.distributed.rpc.protocol import rebuild_error, request_header
from khop.errors import PartitionUnavailableError, ProtocolError
from khop.forks import check_process
from khop.typing import Array

_log = log.get(__name__)

_TICK_MS = 250
# A directory that was restarted refuses other requests of processes that have not registered.
_FIRST = (RegisterServer, RegisterClient, Lookup)


class Reply(NamedTuple):
    """Reply of a graph server to a request: fields and arrays.

    Attributes:
        fields: an instance of the request's `reply`.
    """

    fields: object
    arrays: list[Array]


class PendingRequest(Ticket):
    """A request with `arrays` to server `rank`, which another thread waits for.

    If `rank` is None, to the directory. `future` gets the reply, or an error after `timeout`
    seconds.
    """

    __slots__ = ("arrays", "future", "request")

    def __init__(
        self, rank: int | None, request: GraphServerRequest, arrays: Sequence[Array], timeout: float
    ) -> None:
        super().__init__(rank, [], timeout)
        self.request = request
        self.arrays = arrays
        self.future: Future[Reply] = Future()
        self.future.add_done_callback(self._end)  # also if it was cancelled

    def _end(self, _: Future[Reply]) -> None:
        self.done = True

    def fail(self, error: Exception) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def pack(self, request_id: int) -> None:
        self.frames = pack(request_header(self.request, request_id), self.arrays)


class ServerClient(abc.ABC):
    """Connections to graph servers, by rank, and to their directory.

    The thread is not running yet: a subclass starts it at the end of its own `__init__`.

    Args:
        servers: address of the servers, and keys.
        timeout: seconds in which a request needs a reply, unless the request has its own timeout.
    """

    def __init__(self, servers: Servers, timeout: float) -> None:
        self.servers = servers
        self.master = servers.master
        self.timeout = timeout
        # The reason for which the thread has ended, if it has: it would not send further requests.
        self._ended: Exception | None = None
        self._submitting = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connections: dict[int | None, Connection] = {}
        self._table: Table | None = None
        self._pending: PendingRequests[PendingRequest] = PendingRequests()
        self._submitted: deque[PendingRequest] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="khop-remote", daemon=True)

    # Called by other threads --------------------------------------------------------------------

    def submit(
        self,
        rank: int | None,
        request: GraphServerRequest,
        arrays: Sequence[Array] = (),
        timeout: float | None = None,
    ) -> Future[Reply]:
        """Send a request to a server.

        Args:
            rank: rank of the server. If None, the directory.
            request: the request.
            arrays: arrays that it carries.
            timeout: seconds in which the reply must arrive. If None, `self.timeout`.

        Returns:
            A future of the reply. It raises the server's error, or ProtocolError if the reply is
            malformed, or PartitionUnavailableError with server, address and time if there is none.

        Raises:
            RuntimeError: this client has been closed or has failed, or this process is a fork.
            ProtocolError: the request is larger than servers accept.
        """
        check_process(self._owner, "connection to graph servers", "call init_client() there")
        seconds = self.timeout if timeout is None else timeout
        pending = PendingRequest(rank, request, list(arrays), seconds)
        pending.pack(2**53)  # a request that cannot be packed fails here, not in the thread
        with self._submitting:
            if self._closing or self._ended is not None:
                raise self._why_ended()
            self._submitted.append(pending)
        self._notify()
        return pending.future

    def request(
        self,
        rank: int | None,
        request: GraphServerRequest,
        arrays: Sequence[Array] = (),
        timeout: float | None = None,
        lost: float | None = None,
    ) -> Reply:
        """Send a request with `arrays` to server `rank`. Wait for its reply, and return it.

        If `rank` is None, to the directory. `timeout` is in seconds. If None, `self.timeout`. A
        connection that stays lost for `lost` seconds is an error, too, unless `lost` is None.
        Errors are as for `submit` and its future.
        """
        return self.wait_for_reply(self.submit(rank, request, arrays, timeout), rank, lost)

    def wait_for_reply(
        self, future: Future[Reply], rank: int | None, lost: float | None = None
    ) -> Reply:
        """Wait for the reply of server `rank` to a request, and return it. `lost`: see `request`.

        `future` comes from `submit`.
        """
        while lost is not None and not wait([future], _TICK_MS / 1000).done:
            connection = self._connections.get(rank)
            since = None if connection is None else connection.lost_since
            if connection is None or since is None or not connection.last_message_at:
                continue  # it is up, or has never been up
            if time.monotonic() - since > lost and future.cancel():
                raise PartitionUnavailableError(f"{self.name_of(rank)} {connection.state()}")
        return future.result()

    def _notify(self) -> None:
        with contextlib.suppress(OSError):  # closed meanwhile
            os.eventfd_write(self._wake, 1)

    def _why_ended(self) -> RuntimeError:
        text = "the connection to the graph servers has been closed"
        return RuntimeError(text if self._closing else f"{text}: {self._ended!r}")

    def _stop(self) -> None:
        """End the thread. It fails the requests in flight at its end."""
        self._closing = True
        self._notify()
        self._thread.join()
        os.close(self._wake)

    # The thread ---------------------------------------------------------------------------------

    @abc.abstractmethod
    def _beat(self) -> None:
        """Register with the directory if it is time to. Called every 0.25 s."""

    @abc.abstractmethod
    def _on_directory_back(self) -> None:
        """Register with the directory again, after the connection to it was lost."""

    @abc.abstractmethod
    def _on_end(self) -> None:
        """Wake other threads that wait for this object's thread, which ends."""

    def _run(self) -> None:
        ended: Exception = RuntimeError("it was closed")
        try:
            self._connections[None] = self._new_connection(self.servers.directory)
            while not self._closing:
                self._sleep()
                while self._submitted:
                    self._send(self._submitted.popleft())
                self._beat()
                for rank, connection in list(self._connections.items()):
                    self._on_ready(rank, connection)
                self._pending.expire(self._unavailable)
        except BaseException as error:
            ended = error if isinstance(error, Exception) else RuntimeError(repr(error))
            text = f"the client of graph servers has failed: {error!r}"
            _log.error("client-failed", text, exc_info=error)
        finally:
            self._end(ended)

    def _on_ready(self, rank: int | None, connection: Connection) -> None:
        """Process events and messages of the connection to server `rank` (None: the directory).

        An error ends the connection.
        """
        try:
            if connection.pump():
                self._send_again(rank)
            for header, arrays, _ in connection.receive():
                self._on_reply(rank, header, arrays)
        except Exception as error:
            connection.refuse(f"it cannot be used: {error}")
            _log.warning("server-refused", f"{self.name_of(rank)}: {error!r}")

    def name_of(self, rank: int | None) -> str:
        """Return the name and address of server `rank` for messages. None is the directory."""
        connection = self._connections.get(rank)
        where = "" if connection is None else f" at {connection.address}"
        return ("the directory" if rank is None else f"graph server {rank}") + where

    def _new_connection(self, endpoint: Endpoint | None) -> Connection:
        return Connection(self._context, self.servers.credentials, endpoint)

    def _sleep(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        for connection in self._connections.values():
            for socket in connection.sockets:
                poller.register(socket, zmq.POLLIN)
        poller.poll(_TICK_MS)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _send(self, pending: PendingRequest) -> None:
        request_id = self._pending.next_number()
        rank = pending.server
        try:
            pending.pack(request_id)
            connection = self._connections.get(rank)
            if connection is None:
                connection = self._connections[rank] = self._new_connection(None)
                self._relocate(rank)
            connection.send(pending.frames)
        except Exception as error:  # it cannot be packed or sent
            pending.fail(error)
            return
        self._pending.add(request_id, pending)

    def _relocate(self, rank: int | None) -> None:
        """Connect to server `rank` at its current address in the directory."""
        if self._table is not None and rank is not None:
            entry = self._table.servers.get(rank)
            relocate(self._connections[rank], entry, self.servers.server_key)

    def _send_again(self, rank: int | None) -> None:
        """Send again, over a new connection, the requests that were lost with the last one."""
        lost = self._pending.of(rank)
        if rank is None:
            self._on_directory_back()
        lost.sort(key=lambda pending: not isinstance(pending.request, _FIRST))
        for pending in lost:
            self._connections[rank].send(pending.frames)

    def _on_reply(self, rank: int | None, header: dict[str, Any], arrays: list[Array]) -> None:
        pending = self._pending.answered(rank, header.get("id"))
        if pending is None:  # answered twice, after a reconnection
            return
        where = self.name_of(rank)
        if "error" in header:
            pending.fail(rebuild_error(header["error"], where))
            return
        try:
            reply = Reply(read_reply(pending.request, header, where), arrays)
        except ProtocolError as error:
            pending.fail(error)
            return
        if pending.future.set_running_or_notify_cancel():
            pending.future.set_result(reply)

    def _unavailable(self, pending: PendingRequest, waited: float) -> PartitionUnavailableError:
        rank = pending.server
        connection = self._connections[rank]
        who = "the graph servers' directory" if rank is None else f"graph server {rank}"
        return PartitionUnavailableError(
            f"{who} at {connection.address} did not answer '{pending.request.op}' in {waited:.1f} "
            f"s: it {connection.state()}"
        )

    def _end(self, why: Exception) -> None:
        """Close the connections, and fail all requests, also future ones, for the reason `why`."""
        with self._submitting:
            self._ended = why
            waiting = [*self._pending.drain(), *self._submitted]
        for pending in waiting:
            pending.fail(self._why_ended())
        self._on_end()
        for connection in self._connections.values():
            connection.close()
        self._context.destroy(0)
