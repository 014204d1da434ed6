"""Requests to graph servers and their directory. Imports no torch.

Clients, graph servers and `khop top` use it. A `DirectoryClient` runs a thread, which owns the
sockets, registers this process with the directory every second, follows servers to new addresses,
and repeats requests that were lost with a connection. Requests are idempotent, so repeating is
harmless.

Messages of servers are checked before they are used; a malformed one ends its connection, never the
thread. If the thread ends all the same, all requests in flight fail at once with its reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import zmq

from khop import log
from khop.channel.message import pack
from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.directory_messages import (
    Goodbye,
    Lookup,
    Publish,
    Published,
    RegisterClient,
    RegisterServer,
    Table,
    WaitFor,
)
from khop.distributed.remote.encoding import read_reply, read_table, text_array, text_bytes
from khop.distributed.remote.message_fields import new_secret
from khop.distributed.rpc import pending
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.protocol import Request, rebuild_error, request_header
from khop.errors import PartitionUnavailableError, ProtocolError, RendezvousError
from khop.forks import check_process
from khop.typing import Array

_log = log.get(__name__)

_BEAT = 1.0
_CONTENDING_BEAT = 0.25
_TICK_MS = 250
_REGISTRATIONS = (RegisterServer, RegisterClient, Lookup)


class Reply(NamedTuple):
    """Reply of a server.

    Attributes:
        fields: an instance of the request's `reply`.
        arrays: the arrays that it carries.
    """

    fields: Any
    arrays: list[Array]


class _PendingRequest(pending.Request):
    """A request in flight, whose reply another thread waits for."""

    __slots__ = ("arrays", "future", "request")

    def __init__(
        self, rank: int | None, request: Request, arrays: Sequence[Array], timeout: float
    ) -> None:
        super().__init__(rank, [], timeout)
        self.request = request
        self.arrays = arrays
        self.future: Future[Reply] = Future()

    @property
    def done(self) -> bool:
        """True if the request has a reply, has failed or was cancelled."""
        return self.future.done()

    def fail(self, error: Exception) -> None:
        """Complete the request with an error."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def pack(self, number: int) -> None:
        """Make its message, with its number."""
        self.frames = pack(request_header(self.request, number), self.arrays)


class DirectoryClient:
    """Connections to graph servers and their directory.

    Args:
        servers: address of the servers, and keys.
        registration: called every second with this process's secret; returns the registration to
            send. If None, this process does not register and only looks up (`khop top`).
        timeout: seconds that a request may take by default.
        on_table: called in this object's thread with each table of the directory.
        on_refused: called with the error if the directory refuses the registration.

    Attributes:
        secret: authenticates this process to the directory; see `message_fields.incarnation_of`.
    """

    def __init__(
        self,
        servers: Servers,
        registration: Callable[[str], RegisterServer | RegisterClient] | None = None,
        timeout: float = 60.0,
        on_table: Callable[[Table], None] | None = None,
        on_refused: Callable[[Exception], None] | None = None,
    ) -> None:
        self._servers = servers
        self.master = servers.master
        self._registration = registration
        self.timeout = timeout
        self._on_table = on_table
        self._on_refused = on_refused
        self.secret = new_secret()
        self._table: Table | None = None
        self._known = threading.Condition()
        self._refused: Exception | None = None
        self._published: dict[str, Array] = {}
        # The reason for which the thread has ended, if it has: it would not send further requests.
        self._ended: Exception | None = None
        self._submitting = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._links: dict[int | None, Connection] = {}
        self._pending: pending.PendingRequests[_PendingRequest] = pending.PendingRequests()
        self._submitted: deque[_PendingRequest] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        self._owner = os.getpid()
        self._beat_at = 0.0
        self._beating: Future[Reply] | None = None
        self._thread = threading.Thread(target=self._run, name="khop-remote", daemon=True)
        self._thread.start()

    # Called by other threads --------------------------------------------------------------------

    def submit(
        self,
        rank: int | None,
        request: Request,
        arrays: Sequence[Array] = (),
        timeout: float | None = None,
    ) -> Future[Reply]:
        """Send a request to a server.

        Args:
            rank: rank of the server. If None, the directory.
            request: one of the `..._messages` modules beside this one.
            arrays: arrays that it carries.
            timeout: seconds that it may take. If None, those of this object.

        Returns:
            A future of the reply. It raises the server's error, ProtocolError if the reply is
            malformed, or PartitionUnavailableError that names server, address and elapsed time.

        Raises:
            RuntimeError: this client has been closed or has failed, or this process is a fork.
            ProtocolError: the request is larger than servers accept.
        """
        check_process(self._owner, "connection to graph servers", "call init_client() there")
        seconds = self.timeout if timeout is None else timeout
        asked = _PendingRequest(rank, request, list(arrays), seconds)
        asked.pack(2**53)  # a request that cannot be packed fails here, not in the thread
        with self._submitting:
            if self._closing or self._ended is not None:
                raise self._why_ended()
            self._submitted.append(asked)
        self._notify()
        return asked.future

    def request(
        self,
        rank: int | None,
        request: Request,
        arrays: Sequence[Array] = (),
        timeout: float | None = None,
    ) -> Reply:
        """Send a request to a server and return its reply; arguments and errors as of `submit`."""
        return self.submit(rank, request, arrays, timeout).result()

    def _notify(self) -> None:
        with contextlib.suppress(OSError):  # closed meanwhile
            os.eventfd_write(self._wake, 1)

    def _why_ended(self) -> RuntimeError:
        said = "the connection to the graph servers has been closed"
        return RuntimeError(said if self._closing else f"{said}: {self._ended!r}")

    @property
    def table(self) -> Table | None:
        """Last table of the directory; None before the first."""
        return self._table

    def wait_for_table(
        self, accept: Callable[[Table], bool], what: str, timeout: float | None = None
    ) -> Table:
        """Wait for a table of the directory that is accepted, and return it.

        Args:
            accept: predicate on a table.
            what: name of the condition, for the error message.
            timeout: seconds to wait. If None, those of this object.

        Raises:
            RendezvousError: the directory refuses this process, or time is over.
        """
        seconds = self.timeout if timeout is None else timeout
        with self._known:
            self._known.wait_for(
                lambda: (
                    self._refused is not None
                    or self._ended is not None
                    or (self._table is not None and accept(self._table))
                ),
                seconds,
            )
            if self._refused is not None:
                raise self._refused
            if self._table is not None and accept(self._table):
                return self._table
            if self._ended is not None:
                raise self._why_ended()
        master = self._links.get(None)
        state = (
            "" if self._table is not None or master is None else f"; the directory {master.state()}"
        )
        raise RendezvousError(
            f"waited {seconds:.0f} s for {what} at the graph servers' directory, "
            f"tcp://{self._servers.master}{state}"
        )

    def wait_for_servers(self, timeout: float | None = None) -> Table:
        """Wait until all servers have registered, and check that they serve all partitions.

        Raises:
            RendezvousError: a server has not registered in time, or a partition is not served.
        """
        table = self.wait_for_table(
            lambda table: len(table.servers) >= table.num_servers,
            "all graph servers to register",
            timeout,
        )
        served = {part for entry in table.servers.values() for part in entry.parts}
        missing = sorted(set(range(table.num_parts)) - served)
        if missing:
            raise RendezvousError(
                f"the folder has {table.num_parts} partitions, but the {table.num_servers} "
                f"graph server(s) serve only {sorted(served)}: nobody serves {missing}. Start more "
                "servers, or have them serve several (--part, once for each)"
            )
        return table

    def publish(self, name: str, value: Any) -> None:
        """Publish a value of this client; sent again to a directory that was restarted."""
        self._published[name] = text_array(value)
        self.request(None, self._publication(name), [self._published[name]])

    def _publication(self, name: str) -> Publish:
        own = self._identity()
        assert own is not None, "only what has registered publishes"
        return Publish(own.rank, self.secret, name)

    def wait_for(self, name: str, ranks: Sequence[int], wait: float) -> dict[int, Any]:
        """Return clients' values by rank, as soon as all are published or after `wait` seconds.

        Of many long values, only those that fit one reply: request the missing ones again.

        Raises:
            ProtocolError: the reply is malformed.
        """
        own = self._identity()
        rank = 0 if own is None else own.rank
        request = WaitFor(rank, self.secret, name, list(ranks), wait)
        reply = self.request(None, request, timeout=self.timeout + wait)
        where, text = self.name_of(None), text_bytes(reply.arrays)
        published: Published = reply.fields
        begins = [0, *published.ends[:-1]]
        found = {}
        try:
            for rank, begin, end in zip(published.ranks, begins, published.ends, strict=True):
                if rank not in request.ranks or not begin <= end <= len(text):
                    raise ValueError(f"a value of client {rank} from {begin} to {end}")
                found[rank] = json.loads(text[begin:end])
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"{where} sent no values of clients: {error}") from None
        return found

    def close(self, goodbye: bool = True) -> None:
        """Unregister from the directory if it answers within a second, and end the thread.

        Args:
            goodbye: whether to unregister.
        """
        if self._closing or os.getpid() != self._owner:
            return
        own = self._identity()
        if goodbye and own is not None and self._refused is None and self._ended is None:
            # Before `_closing` is set. From here on, the thread does not register this process.
            self._registration = None
            parting = Goodbye(own.role, own.rank, self.secret)
            with contextlib.suppress(Exception):
                self.submit(None, parting, timeout=1.0).result(1.5)
        self._closing = True
        self._notify()
        self._thread.join()
        os.close(self._wake)

    # The thread ---------------------------------------------------------------------------------

    def _identity(self) -> RegisterServer | RegisterClient | None:
        return None if self._registration is None else self._registration(self.secret)

    def _run(self) -> None:
        ended: Exception = RuntimeError("it was closed")
        try:
            self._links[None] = self._new_link(self._servers.directory)
            while not self._closing:
                self._sleep()
                self._take_submitted()
                self._beat()
                for rank, link in list(self._links.items()):
                    self._attend(rank, link)
                self._pending.expire(self._unavailable)
        except BaseException as error:
            ended = error if isinstance(error, Exception) else RuntimeError(repr(error))
            _log.error(
                "client-failed", f"asking graph servers has failed: {error!r}", exc_info=error
            )
        finally:
            self._end(ended)

    def _attend(self, rank: int | None, link: Connection) -> None:
        """Process a connection's events and messages. An error ends the connection."""
        try:
            if link.pump():
                self._ask_again(rank)
            for header, arrays, _ in link.receive():
                self._answer(rank, header, arrays)
        except Exception as error:
            link.refuse(f"it cannot be used: {error}")
            _log.warning("server-refused", f"{self.name_of(rank)}: {error!r}")

    def name_of(self, rank: int | None) -> str:
        """Return name and address of a server, for messages. If None, those of the directory."""
        link = self._links.get(rank)
        where = "" if link is None else f" at {link.address}"
        return ("the directory" if rank is None else f"graph server {rank}") + where

    def _new_link(self, endpoint: Endpoint | None) -> Connection:
        return Connection(self._context, self._servers.credentials, endpoint)

    def _sleep(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        for link in self._links.values():
            for socket in link.sockets():
                poller.register(socket, zmq.POLLIN)
        poller.poll(_TICK_MS)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _take_submitted(self) -> None:
        while self._submitted:
            self._ask(self._submitted.popleft())

    def _ask(self, asked: _PendingRequest) -> None:
        number = self._pending.next_number()
        rank = asked.server
        try:
            asked.pack(number)
            link = self._links.get(rank)
            if link is None:
                link = self._links[rank] = self._new_link(None)
                self._locate(rank)
            link.send(asked.frames)
        except Exception as error:  # it cannot be packed or sent
            asked.fail(error)
            return
        self._pending.add(number, asked)

    def _ask_again(self, rank: int | None) -> None:
        """Send again the requests that were lost with a connection; registration first.

        A directory that was restarted refuses other requests of processes that have not registered.
        """
        mine = self._pending.of(rank)
        if rank is None and self._beating is None and self._registration is not None:
            self._register()
        mine.sort(key=lambda asked: not isinstance(asked.request, _REGISTRATIONS))
        for asked in mine:
            self._links[rank].send(asked.frames)

    def _locate(self, rank: int | None) -> None:
        """Connect to a server at its address in the directory; refuse an invalid address."""
        entry = None if self._table is None or rank is None else self._table.servers.get(rank)
        if entry is not None:
            link = self._links[rank]
            try:
                link.relocate(self._servers.endpoint(entry))
            except Exception as error:
                link.refuse(f"the directory says it is at {entry.addresses}: {error}")

    def _answer(self, rank: int | None, header: dict[str, Any], arrays: list[Array]) -> None:
        asked = self._pending.answered(rank, header.get("id"))
        if asked is None:  # answered twice, after a reconnection
            return
        where = self.name_of(rank)
        if "error" in header:
            asked.fail(rebuild_error(header["error"], where))
            return
        try:
            reply = Reply(read_reply(asked.request, header, where), arrays)
        except ProtocolError as error:
            asked.fail(error)
            return
        if asked.future.set_running_or_notify_cancel():
            asked.future.set_result(reply)

    def _unavailable(self, asked: _PendingRequest, waited: float) -> PartitionUnavailableError:
        rank = asked.server
        link = self._links[rank]
        who = "the graph servers' directory" if rank is None else f"graph server {rank}"
        return PartitionUnavailableError(
            f"{who} at {link.address} did not answer '{asked.request.op}' in {waited:.1f} s: it "
            f"{link.state()}"
        )

    # Registering --------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Send a heartbeat to the directory when one is due, and process its last reply."""
        if self._beating is not None and self._beating.done():
            beating, self._beating = self._beating, None
            self._take_table(beating)
        now = time.monotonic()
        if self._beating is None and now >= self._beat_at and not self._closing:
            self._register()

    def _register(self) -> None:
        """Send this process's registration, or a lookup if it has none."""
        self._beat_at = time.monotonic() + _BEAT
        asked = _PendingRequest(None, self._identity() or Lookup(), (), _BEAT * 5)
        self._beating = asked.future
        self._ask(asked)

    def _take_table(self, beating: Future[Reply]) -> None:
        error = beating.exception()
        if isinstance(error, PartitionUnavailableError):
            return  # it may come back
        if error is not None:
            with self._known:
                self._refused = error if isinstance(error, Exception) else RuntimeError(str(error))
                self._known.notify_all()
            if self._on_refused is not None:
                self._on_refused(self._refused)
            return
        try:
            table = read_table(beating.result().arrays, self.name_of(None))
        except ProtocolError as malformed:
            self._links[None].refuse(str(malformed))
            return
        if table.contending:  # another process has this rank, and may be dead
            self._beat_at = time.monotonic() + _CONTENDING_BEAT
            return
        is_new = self._table is None or table.directory != self._table.directory
        with self._known:
            self._refused = None
            self._table = table
            self._known.notify_all()
        for rank in self._links:
            if rank is not None:
                self._locate(rank)
        if is_new and self._registration is not None:  # it has lost the published values
            for name, value in list(self._published.items()):
                self._ask(_PendingRequest(None, self._publication(name), [value], self.timeout))
        if self._on_table is not None:
            self._on_table(table)

    def _end(self, why: Exception) -> None:
        """Fail the requests in flight, and all later ones."""
        with self._submitting:
            self._ended = why
            waiting = [*self._pending.drain(), *self._submitted]
        for asked in waiting:
            asked.fail(self._why_ended())
        with self._known:
            self._known.notify_all()
        if self._on_refused is not None and not self._closing:
            self._on_refused(self._why_ended())  # a server that needs the directory ends, too
        for link in self._links.values():
            link.close()
        self._context.destroy(0)
