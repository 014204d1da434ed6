"""The graph server: its sockets, its event loop, and the dispatch of requests.

One thread, the loop, owns the sockets, the sessions with their sampler processes, and on server 0
the directory. It answers requests that concern these, sends chunks of batches of all sessions in
turn, and never does anything that takes long. Requests about the graph alone (of other servers'
samplers, for ids or splits) are answered by other threads, so that they do not wait for batches.
One more thread (`DirectoryClient`) registers this server with the directory every second, and gets
the other servers' addresses.

An error in the work for one peer, session or sampler does not end the loop: it is logged with its
origin and fails that item alone (`_guarded`). Requests are queued by user, and the queues are
served round-robin (`identity.Turns`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import zmq

from khop import codec, log
from khop.channel.control import ControlLine
from khop.channel.message import unpack
from khop.distributed.remote.addresses import endpoint_of
from khop.distributed.remote.directory_messages import (
    Done,
    Goodbye,
    Lookup,
    Publish,
    Published,
    RegisterClient,
    RegisterServer,
    Table,
    WaitFor,
)
from khop.distributed.remote.encoding import text_array, text_bytes
from khop.distributed.remote.graph_messages import Ping, Pong, Statistics
from khop.distributed.remote.server.counters import ServerCounters
from khop.distributed.remote.server.directory import Directory
from khop.distributed.remote.server.graph_handler import peek_op
from khop.distributed.remote.server.identity import Source, Turns, source_of
from khop.distributed.remote.server.local_clients import LocalSamplerService
from khop.distributed.remote.server.session import Session
from khop.distributed.remote.server.session_table import Asker, SessionTable
from khop.distributed.remote.session_messages import Acknowledge, Batch, Cancel
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.limits import RateLimiter
from khop.distributed.rpc.partition_handler import pack_or_refuse, refusal
from khop.distributed.rpc.partition_server import PartitionServer
from khop.distributed.rpc.protocol import check_empty, describe_error, read_request
from khop.distributed.sampling.process_handle import SamplerProcess
from khop.errors import ProtocolError
from khop.typing import Array

_log = log.get(__name__)

_TICK_MS = 250
# Messages read from a socket, and requests answered, before other work of the loop.
_READ_AT_ONCE, _ANSWERED_AT_ONCE = 64, 16
# Maximum seconds that server 0 stays after all clients are gone, for other servers to leave.
_FAREWELL = 5.0
# Unexpected failures that are logged at once, and per second, so that they cannot fill a disk.
_LOGGED_BURST, _LOGGED_RATE = 50, 1.0

_QUIET = (Batch, Cancel, Acknowledge)
"""Requests whose only reply is an error."""

_TOO_MANY = "too many requests of yours wait here: wait for answers before you ask again"

_Reply = tuple[Any, Sequence[Array]]
"""Fields and arrays of a reply."""

_Answer = Callable[[Any, list[Array], Asker], "_Reply | None"]


class _Peer:
    """Sender of a request, which gets the replies."""

    __slots__ = ("_send", "number", "source")

    def __init__(self, source: Source, number: Any, send: Callable[..., None]) -> None:
        self.source = source
        self.number = number
        self._send = send

    def send(self, header: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Send a message; dropped if the peer has disconnected.

        A message larger than clients accept becomes an error.
        """
        place, name = self.source.connection
        self._send(place, name, pack_or_refuse(header, arrays))


class GraphServer(PartitionServer):
    """Server of a graph, and of batches for clients.

    Args:
        handler: answers requests about the graph; see `graph_handler.ServerHandler`.
        sessions: sessions of clients.
        local_samplers: samplers for clients of this machine.
        parts: partitions that it serves.
        endpoints: {partition: endpoint of its server}, updated here.
        counters: counters of the server.
        directory: the directory, on server 0. None on others.
        server_key: key of servers' TCP sockets. If None, CURVE is not used.
        rank: rank of this server.
        sockets: for `PartitionServer`: ipc_path, tcp_host, tcp_port, curve, num_threads (at least
            two, so that the loop never calls `handler`).
    """

    def __init__(
        self,
        handler: Any,
        sessions: SessionTable,
        local_samplers: LocalSamplerService,
        parts: Sequence[int],
        endpoints: dict[int, Endpoint],
        counters: ServerCounters,
        directory: Directory | None,
        server_key: str | None,
        rank: int,
        **sockets: Any,
    ) -> None:
        super().__init__(handler, **sockets)
        self._sessions = sessions
        self._parts = parts
        self._endpoints = endpoints
        self._counters = counters
        self._directory = directory
        self._server_key = server_key
        self._rank = rank
        self._tables: deque[Table] = deque()
        self._curve: Mapping[str, Any] | None = sockets.get("curve")
        waiting = self._limits.waiting, self._limits.waiting_bytes
        self._own: Turns[tuple[Source, list[Any]]] = Turns(*waiting)
        self._parked: Turns[list[Any]] = Turns(*waiting)
        self._logged = RateLimiter(_LOGGED_RATE, _LOGGED_BURST)
        self._finished_at: float | None = None
        self._local_samplers = local_samplers
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.refused: Exception | None = None
        self.finished = False
        self.gone: dict[int, str] = {}
        answers: dict[Any, _Answer] = {
            Statistics: self._statistics,
            Ping: self._ping,
            Lookup: self._lookup,
            RegisterServer: self._register_server,
            RegisterClient: self._register_client,
            Goodbye: self._goodbye,
            Publish: self._publish,
            WaitFor: self._wait_for,
            **sessions.answers,
        }
        self._answers = {kind.op: (kind, answer) for kind, answer in answers.items()}

    # Called by other threads --------------------------------------------------------------------

    def take_table(self, table: Table) -> None:
        """Take over a new table of the directory."""
        self._tables.append(table)
        os.eventfd_write(self._wake, 1)

    def take_refusal(self, error: Exception) -> None:
        """End this server, which the directory refuses."""
        self.refused = error
        os.eventfd_write(self._wake, 1)

    # The loop -----------------------------------------------------------------------------------

    def serve(self, line: ControlLine) -> None:
        """Serve until the control line closes, all clients are gone, or the directory refuses.

        Raises:
            RendezvousError: the directory refuses this server.
        """
        poller, polled = zmq.Poller(), dict[Any, int]()
        for source in (self._back, line.fileno(), self._wake, *self._fronts):
            poller.register(source, zmq.POLLIN)
        tick_at = 0.0
        while not self.finished:
            lines = self._follow_lines(poller, polled)
            has_work = self._own or self._sessions.has_turns
            for ready, _ in poller.poll(0 if has_work else _TICK_MS):
                if ready == line.fileno():
                    if _has_ended(line):
                        return
                elif ready in lines:
                    self._sessions.listen(*lines[ready])
                else:
                    self._attend(ready)
            if self.refused is not None:
                raise self.refused
            while self._tables:
                with self._guarded("the directory's table"):
                    self._follow_table(self._tables.popleft())
            self._answer_some()
            self._sessions.stream()
            if time.monotonic() >= tick_at:
                self._tick()
                tick_at = time.monotonic() + _TICK_MS / 1000

    def _attend(self, ready: Any) -> None:
        if ready == self._wake:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        elif ready is self._back:
            with self._guarded("a reply"):
                self._hand_back()
        elif isinstance(ready, int):
            with self._guarded("a client of this machine"):
                self._local_samplers.look_at(ready)
        else:
            with self._guarded("what has arrived"):
                self._take(ready)

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Log and count errors in the block, so that the loop continues."""
        try:
            yield
        except Exception as error:
            self._note_unexpected(what, error)

    def _note_unexpected(self, what: str, error: Exception) -> None:
        self._counters.refused("unexpected")
        if self._logged.admit(b""):
            _log.error("unexpected", f"{what} failed: {error!r}", exc_info=error)

    def _follow_lines(
        self, poller: zmq.Poller, polled: dict[Any, int]
    ) -> dict[Any, tuple[Session, SamplerProcess]]:
        """Poll the lines of the current samplers, and clients of this machine; return the lines."""
        lines: dict[Any, tuple[Session, SamplerProcess]] = {}
        wanted: dict[Any, int] = dict.fromkeys(self._local_samplers.descriptors(), zmq.POLLIN)
        for session, sampler in self._sessions.samplers():
            line = sampler.process.line
            lines[line.fileno()] = session, sampler
            wanted[line.fileno()] = zmq.POLLIN | (zmq.POLLOUT if line.has_unsent else 0)
        for descriptor in polled.keys() - wanted.keys():
            poller.unregister(descriptor)
            del polled[descriptor]
        for descriptor, flags in wanted.items():
            if polled.get(descriptor) != flags:
                poller.register(descriptor, flags)
                polled[descriptor] = flags
        return lines

    def _take(self, front: zmq.Socket[bytes]) -> None:
        """Queue messages that have arrived at a socket for their users, a few at a time."""
        place = self._fronts.index(front)
        for _ in range(_READ_AT_ONCE):
            try:
                peer, *frames = front.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            # A message without frames has no request.
            source = source_of(place, peer, frames[0] if frames else peer, self._curve)
            request = [frame.buffer for frame in frames]
            # Samplers of other servers are many, and processes of this user are trusted.
            is_bounded = not (source.is_server and source.is_proven)
            why = self._why_not(peer.bytes, source.user.encode(), is_bounded)
            if why is None:
                nbytes = sum(map(len, request))
                if (peek_op(request[0]) if request else "") in self._answers:
                    has_room = self._own.put(source.user, (source, request), nbytes, is_bounded)
                else:
                    entry = [bytes([place]), peer, *frames]
                    has_room = self._parked.put(source.user, entry, nbytes, is_bounded)
                why = None if has_room else _TOO_MANY
            if why is not None:
                self._counters.refused("too much at a time")
                _log.debug("request-refused", f"{source.user}: {why}")
                self._send(place, peer.bytes, refusal(request, ProtocolError(why)))
        self._pass_on()

    def _send(self, place: int, peer: bytes, frames: Sequence[Any]) -> None:
        """Send frames to a peer; dropped if it has disconnected, or does not read."""
        self._backlog.send(self._fronts[place], peer, frames)

    def _pass_on(self) -> None:
        """Pass queued requests to the threads, at most two for each thread at a time."""
        assert self._back is not None
        while self._parked and self._at_work < self._max_at_work:
            entry = self._parked.take()
            assert entry is not None
            self._at_work += 1
            self._back.send_multipart(entry, copy=False)

    def _hand_back(self) -> None:
        """Send the reply of a thread."""
        assert self._back is not None
        self._at_work -= 1
        index, peer, *reply = self._back.recv_multipart(copy=False)
        try:
            self._send(index.bytes[0], peer.bytes, reply)
        finally:
            self._pass_on()

    def _answer_some(self) -> None:
        """Answer a few queued requests, of all users in turn."""
        for _ in range(_ANSWERED_AT_ONCE):
            entry = self._own.take()
            if entry is None:
                return
            source, frames = entry
            with self._guarded(f"a request of {source.user}"):
                self._answer(source, frames)

    def _answer(self, source: Source, frames: list[Any]) -> None:
        """Answer a request, or leave it to its handler to answer later."""
        began, header = time.monotonic(), dict[str, Any]()
        asker, is_refused = _Peer(source, None, self._send), False
        kind: Any = None
        try:
            header, arrays = unpack(frames)
            number = header.get("id")
            asker.number = number if type(number) is int else None
            found = self._answers.get(str(header.get("op")))
            if found is None:
                raise ProtocolError(f"no such request '{str(header.get('op'))[:100]}'")
            kind, answer = found
            reply = answer(read_request(kind, header), arrays, asker)
            if reply is not None and kind not in _QUIET:
                fields, further = reply
                asker.send({"id": asker.number, **codec.to_json(fields)}, further)
        except Exception as error:
            is_refused = True
            _log.debug("request-refused", f"{source.user}: {header.get('op')}: {error}")
            session = str(header.get("session"))[:256]
            asker.send({"id": asker.number, "error": describe_error(error), "session": session})
        if kind is not None:
            seconds, nbytes = time.monotonic() - began, sum(map(len, frames))
            self._counters.count_request(kind.op, seconds, nbytes, 0, is_refused)

    def _tick(self) -> None:
        with self._guarded("samplers of this machine"):
            self._local_samplers.flush()
        if self._directory is not None:
            with self._guarded("the directory"):
                self._directory.tick()
        self._sessions.tick()

    # Servers and clients ------------------------------------------------------------------------

    def _the_directory(self) -> Directory:
        if self._directory is None:
            raise ProtocolError("this is not server 0, which has the directory")
        return self._directory

    def _lookup(self, request: Lookup, arrays: list[Array], asker: Asker) -> _Reply:
        check_empty(arrays)
        return _table_reply(self._the_directory().lookup())

    def _register_server(
        self, request: RegisterServer, arrays: list[Array], asker: Asker
    ) -> _Reply:
        check_empty(arrays)
        return _table_reply(self._the_directory().register_server(request, asker.source))

    def _register_client(
        self, request: RegisterClient, arrays: list[Array], asker: Asker
    ) -> _Reply:
        check_empty(arrays)
        return _table_reply(self._the_directory().register_client(request, asker.source))

    def _goodbye(self, request: Goodbye, arrays: list[Array], asker: Asker) -> _Reply:
        check_empty(arrays)
        self._the_directory().goodbye(request, asker.source)
        return Done(), ()

    def _publish(self, request: Publish, arrays: list[Array], asker: Asker) -> _Reply:
        self._the_directory().publish(request, text_bytes(arrays))
        return Done(), ()

    def _wait_for(self, request: WaitFor, arrays: list[Array], asker: Asker) -> None:
        check_empty(arrays)
        number = asker.number

        def send(published: Published, values: Sequence[Array]) -> None:
            asker.send({"id": number, **codec.to_json(published)}, values)

        self._the_directory().wait_for(request, asker.source, send)

    def _follow_table(self, table: Table) -> None:
        """Update endpoints of partitions and the clients that are gone; start waiting samplers."""
        for rank, client in table.clients.items():
            if client.gone:
                self.gone[rank] = client.incarnation
            else:
                self.gone.pop(rank, None)
        if table.finished:
            self._end_with_clients(table)
        for entry in table.servers.values():
            for part in entry.parts:
                if part not in self._parts:
                    self._note_endpoint(part, endpoint_of(entry, self._server_key))
        self._sessions.start()
        self._local_samplers.start_pending()

    def _note_endpoint(self, part: int, endpoint: Endpoint) -> None:
        if self._endpoints.get(part) == endpoint:
            return
        self._endpoints[part] = endpoint
        self._sessions.relocate(part, endpoint)
        self._local_samplers.relocate(part, endpoint)

    def _end_with_clients(self, table: Table) -> None:
        """End, as all clients are gone. Server 0 waits until the other servers have left."""
        now = time.monotonic()
        if self._finished_at is None:
            self._finished_at = now
            _log.info("clients-gone", "all clients have gone: ending")
        is_last = self._directory is None or len(table.servers) <= 1
        self.finished = is_last or now - self._finished_at > _FAREWELL

    # This server -------------------------------------------------------------------------------

    def _statistics(self, request: Statistics, arrays: list[Array], asker: Asker) -> _Reply:
        check_empty(arrays)
        return Done(), [text_array(self._counters.snapshot())]

    def _ping(self, request: Ping, arrays: list[Array], asker: Asker) -> _Reply:
        check_empty(arrays)
        return Pong(self._rank), ()

    def close(self) -> None:
        """End the sessions and close the sockets."""
        self._local_samplers.close()
        self._sessions.close()
        super().close()
        os.close(self._wake)


def _table_reply(table: Table) -> _Reply:
    # As an array: a table with thousands of clients is longer than a header may be.
    return Done(), [text_array(codec.to_json(table))]


def _has_ended(line: ControlLine) -> bool:
    """Discard messages on a line; return whether its other end has closed it."""
    with contextlib.suppress(EOFError):
        while line.receive() is not None:
            pass
        return False
    return True
