"""The graph server: its sockets, its loop, and who answers what.

One thread, the loop, owns the sockets, the sessions with their sampler processes, and on server 0
the directory: it answers what changes them, sends chunks of batches in turns, and never does
anything that takes long. What concerns the graph alone (requests of other servers' samplers, ids,
splits) is answered by threads of their own, so that it does not wait for streams. A third thread
(`DirectoryClient`) tells the directory every second that this server lives, and hears from it where
the others are.

Nothing that is done for one peer, session or sampler can leave the loop: what fails unexpectedly is
logged with its origin and fails that item alone (`_guarded`). Requests wait in a queue for each
user, and users take turns (`source.Turns`).
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
from khop.distributed.remote import messages
from khop.distributed.remote.addresses import endpoint_of
from khop.distributed.remote.messages import Table
from khop.distributed.remote.server.counters import ServerCounters
from khop.distributed.remote.server.directory import Directory
from khop.distributed.remote.server.graph_handler import peek_op
from khop.distributed.remote.server.identity import Source, Turns, source_of
from khop.distributed.remote.server.local_clients import LocalSamplerService
from khop.distributed.remote.server.session import Session
from khop.distributed.remote.server.session_sampler import SessionSampler
from khop.distributed.remote.server.session_table import Asker, SessionTable
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.limits import RateLimiter
from khop.distributed.rpc.partition_handler import pack_or_refuse, refusal
from khop.distributed.rpc.partition_server import PartitionServer
from khop.distributed.rpc.protocol import check_empty, describe_error, read_request
from khop.errors import ProtocolError
from khop.typing import Array

_log = log.get(__name__)

_TICK_MS = 250
# Messages that are read, and that are answered here, before others get a turn.
_READ_AT_ONCE, _ANSWERED_AT_ONCE = 64, 16
# Seconds that server 0 stays for others to hear that all clients have gone.
_FAREWELL = 5.0
# Unexpected failures that are logged at once, and a second; whoever causes more fills no disk.
_LOGGED_BURST, _LOGGED_RATE = 50, 1.0

_QUIET = (messages.Batch, messages.Cancel, messages.Acknowledge)
"""Requests whose only reply is an error."""

_TOO_MANY = "too many requests of yours wait here: wait for answers before you ask again"

_Told = tuple[Any, Sequence[Array]]
"""Fields and arrays of a reply."""

_Answer = Callable[[Any, list[Array], Asker], "_Told | None"]


class _Peer:
    """Who has sent a message: where its replies go."""

    __slots__ = ("_send", "number", "source")

    def __init__(self, source: Source, number: Any, send: Callable[..., None]) -> None:
        self.source = source
        self.number = number
        self._send = send

    def send(self, header: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Sends a message; what is for somebody who has gone is dropped.

        What is more than a client accepts becomes an error.
        """
        place, name = self.source.connection
        self._send(place, name, pack_or_refuse(header, arrays))


class GraphServer(PartitionServer):
    """Serves a graph, and makes batches for clients.

    Args:
        handler: answers what concerns the graph; see `answers.ServerHandler`.
        sessions: of clients.
        hosting: samplers in the memory of clients of this machine.
        parts: partitions that it serves.
        endpoints: {partition: where it is served}, kept up to date here.
        counters: counts.
        directory: of server 0; None: this is another.
        server_key: of servers' sockets that other machines can reach; None: no CURVE.
        rank: of this server.
        sockets: for `PartitionServer`: ipc_path, tcp_host, tcp_port, curve, num_threads (at least
            two, so that the loop never answers itself).
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
            messages.Statistics: self._statistics,
            messages.Ping: self._ping,
            messages.Lookup: self._lookup,
            messages.RegisterServer: self._register_server,
            messages.RegisterClient: self._register_client,
            messages.Goodbye: self._goodbye,
            messages.Publish: self._publish,
            messages.WaitFor: self._wait_for,
            **sessions.answers,
        }
        self._answers = {kind.op: (kind, answer) for kind, answer in answers.items()}

    # What other threads call --------------------------------------------------------------------

    def take_table(self, table: Table) -> None:
        """The directory has said what is known."""
        self._tables.append(table)
        os.eventfd_write(self._wake, 1)

    def take_refusal(self, error: Exception) -> None:
        """The directory refuses this server: it ends."""
        self.refused = error
        os.eventfd_write(self._wake, 1)

    # The loop -----------------------------------------------------------------------------------

    def serve(self, line: ControlLine) -> None:
        """Answers until the control line closes, all clients have gone, or the directory refuses.

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
        """What fails in it fails alone: the loop serves others, too."""
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
    ) -> dict[Any, tuple[Session, SessionSampler]]:
        """Polls the lines of the samplers that there are now, and clients of this machine."""
        lines: dict[Any, tuple[Session, SessionSampler]] = {}
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
        """Reads what has arrived at a socket, a few messages at a time, for their users' turns."""
        place = self._fronts.index(front)
        for _ in range(_READ_AT_ONCE):
            try:
                peer, *frames = front.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            # A message without frames is nobody's request.
            source = source_of(place, peer, frames[0] if frames else peer, self._curve)
            request = [frame.buffer for frame in frames]
            # Other servers' samplers are many, and this user's own processes are trusted.
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
        """Sends frames to a peer; dropped if it has gone, or does not read."""
        self._backlog.send(self._fronts[place], peer, frames)

    def _pass_on(self) -> None:
        """Gives requests to the threads, no more than they can work at soon."""
        assert self._back is not None
        while self._parked and self._at_work < self._max_at_work:
            entry = self._parked.take()
            assert entry is not None
            self._at_work += 1
            self._back.send_multipart(entry, copy=False)

    def _hand_back(self) -> None:
        """Sends what a thread has answered."""
        assert self._back is not None
        self._at_work -= 1
        index, peer, *reply = self._back.recv_multipart(copy=False)
        try:
            self._send(index.bytes[0], peer.bytes, reply)
        finally:
            self._pass_on()

    def _answer_some(self) -> None:
        """Answers requests here and now, a few of each user in turn."""
        for _ in range(_ANSWERED_AT_ONCE):
            entry = self._own.take()
            if entry is None:
                return
            source, frames = entry
            with self._guarded(f"a request of {source.user}"):
                self._answer(source, frames)

    def _answer(self, source: Source, frames: list[Any]) -> None:
        """Answers a request, unless its answer comes later."""
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

    def _lookup(self, request: messages.Lookup, arrays: list[Array], asker: Asker) -> _Told:
        check_empty(arrays)
        return _told(self._the_directory().lookup())

    def _register_server(
        self, request: messages.RegisterServer, arrays: list[Array], asker: Asker
    ) -> _Told:
        check_empty(arrays)
        return _told(self._the_directory().register_server(request, asker.source))

    def _register_client(
        self, request: messages.RegisterClient, arrays: list[Array], asker: Asker
    ) -> _Told:
        check_empty(arrays)
        return _told(self._the_directory().register_client(request, asker.source))

    def _goodbye(self, request: messages.Goodbye, arrays: list[Array], asker: Asker) -> _Told:
        check_empty(arrays)
        self._the_directory().goodbye(request, asker.source)
        return messages.Done(), ()

    def _publish(self, request: messages.Publish, arrays: list[Array], asker: Asker) -> _Told:
        self._the_directory().publish(request, messages.text_bytes(arrays))
        return messages.Done(), ()

    def _wait_for(self, request: messages.WaitFor, arrays: list[Array], asker: Asker) -> None:
        check_empty(arrays)
        number = asker.number

        def send(published: messages.Published, values: Sequence[Array]) -> None:
            asker.send({"id": number, **codec.to_json(published)}, values)

        self._the_directory().wait_for(request, asker.source, send)

    def _follow_table(self, table: Table) -> None:
        """Notes where partitions are served, and who has gone."""
        for rank, client in table.clients.items():
            if client.gone:
                self.gone[rank] = client.incarnation
            else:
                self.gone.pop(rank, None)
        if table.finished:
            self._say_farewell(table)
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

    def _say_farewell(self, table: Table) -> None:
        """All clients have gone. Server 0 stays until the others have heard it."""
        now = time.monotonic()
        if self._finished_at is None:
            self._finished_at = now
            _log.info("clients-gone", "all clients have gone: ending")
        is_last = self._directory is None or len(table.servers) <= 1
        self.finished = is_last or now - self._finished_at > _FAREWELL

    # This server -------------------------------------------------------------------------------

    def _statistics(self, request: messages.Statistics, arrays: list[Array], asker: Asker) -> _Told:
        check_empty(arrays)
        return messages.Done(), [messages.text_array(self._counters.snapshot())]

    def _ping(self, request: messages.Ping, arrays: list[Array], asker: Asker) -> _Told:
        check_empty(arrays)
        return messages.Pong(self._rank), ()

    def close(self) -> None:
        """Ends the sessions and closes the sockets."""
        self._local_samplers.close()
        self._sessions.close()
        super().close()
        os.close(self._wake)


def _told(table: Table) -> _Told:
    # As an array: a table of thousands is longer than a header may be.
    return messages.Done(), [messages.text_array(codec.to_json(table))]


def _has_ended(line: ControlLine) -> bool:
    """Reads what the other end of the line says; whether it has closed it."""
    with contextlib.suppress(EOFError):
        while line.receive() is not None:
            pass
        return False
    return True
