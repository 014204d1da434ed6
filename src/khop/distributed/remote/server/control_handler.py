"""Answers to requests about a graph server's own state: directory, sessions, statistics.

The loop of the graph server runs it, in its thread. Requests are queued by user; the user who has
used least of the loop's time is next (`rpc.fair_queue`). No request takes long: what it may carry
is bounded by its class (`carries`), fields by its schema. A reply goes to the connection that sent
the request, at once or, where a request waits for other clients, later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from khop import codec, log
from khop.channel.message import unpack
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
from khop.distributed.remote.server.requester import Requester
from khop.distributed.remote.server.session_table import Answer, SessionTable
from khop.distributed.remote.session_messages import Acknowledge, Batch, Cancel
from khop.distributed.rpc.fair_queue import FairQueue
from khop.distributed.rpc.frame_handler import id_of
from khop.distributed.rpc.identity import Source
from khop.distributed.rpc.limits import DEFAULT, ErrorLog, Limits, check_unread
from khop.distributed.rpc.protocol import (
    check_carried,
    check_empty,
    describe_error,
    peek_op,
    read_request,
)
from khop.errors import ProtocolError
from khop.typing import Array

_log = log.get(__name__)

# Seconds of processor time for which requests are answered before other work of the loop.
_ANSWER_SECONDS = 0.005
# Most arrays that a request carries.
_MAX_ARRAYS = 2

_QUIET = (Batch, Cancel, Acknowledge)
"""Requests whose only reply is an error."""

_Reply = tuple[Any, Sequence[Array]]
"""Fields and arrays of a reply."""


class _Waiting(NamedTuple):
    """A queued request: sender, frames, and when it arrived (`time.monotonic`)."""

    source: Source
    frames: list[Any]
    arrived_at: float


class ControlHandler:
    """Queues of requests about a server's state, and the answers to them.

    Args:
        sessions: sessions of clients.
        directory: the directory, on server 0. None on others.
        counters: counters of the server.
        rank: rank of the server.
        send: sends frames to a peer: index of its socket, its name there, frames.
        limits: `waiting` and `waiting_bytes` bound the queue of each user, `unread_bytes` what a
            peer has not read.
        unread: returns how many bytes a peer has not read.
    """

    def __init__(
        self,
        sessions: SessionTable,
        directory: Directory | None,
        counters: ServerCounters,
        rank: int,
        send: Callable[[int, bytes, Sequence[Any]], None],
        limits: Limits = DEFAULT,
        unread: Callable[[bytes], int] = lambda peer: 0,
    ) -> None:
        self._limits = limits
        self._unread = unread
        self._directory = directory
        self._counters = counters
        self._errors = ErrorLog(lambda: counters.refused("unexpected"))
        self._rank = rank
        self._send = send
        self._queue: FairQueue[_Waiting] = FairQueue(limits.waiting, limits.waiting_bytes)
        answers: dict[Any, Answer] = {
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

    @property
    def has_requests(self) -> bool:
        """True if a request is queued, or one for values can be answered."""
        return bool(self._queue) or (self._directory is not None and self._directory.has_answers)

    def handles(self, op: str) -> bool:
        """Return whether requests of this name are answered here."""
        return op in self._answers

    def put(self, source: Source, frames: list[Any], nbytes: int, is_bounded: bool = True) -> bool:
        """Queue a request for its user; return whether there was room.

        Args:
            source: its sender.
            frames: its frames.
            nbytes: their size.
            is_bounded: whether the bounds apply.
        """
        waiting = _Waiting(source, frames, time.monotonic())
        return self._queue.put(source.user, waiting, nbytes, source.connection, is_bounded)

    def waiting_since(self, user: str) -> float | None:
        """Return when a user's oldest queued request arrived; None if none is queued."""
        return min((w.arrived_at for w in self._queue.first_of(user)), default=None)

    def answer_some(self) -> None:
        """Answer queued requests for a few milliseconds, of all users in turn."""
        if self._directory is not None:
            with self._errors.guarded("requests for values"):
                self._directory.answer_some()
        end = time.thread_time() + _ANSWER_SECONDS
        while (turn := self._queue.take()) is not None:
            began, source = time.thread_time(), turn.entry.source
            with self._errors.guarded(f"a request of {source.user}"):
                self._answer(source, turn.entry.frames)
            now = time.thread_time()
            self._queue.charge(turn, now - began)
            if now >= end:
                return

    def _answer(self, source: Source, frames: list[Any]) -> None:
        """Answer a request, or leave it to its handler to answer later."""
        began, header = time.monotonic(), dict[str, Any]()
        requester, is_refused = Requester(source, None, self._send), False
        request_class: Any = None
        try:
            # Requests that wait were admitted when their sender had read more.
            check_unread(self._unread(source.connection[1]), self._limits.unread_bytes)
            op = peek_op(frames[0]) if frames else ""
            kind, _ = self._answers.get(op, (None, None))
            most = 0 if kind is None else kind.carries
            check_carried(frames, "" if kind is None else op, most, _MAX_ARRAYS)
            header, arrays = unpack(frames)
            request_id = header.get("id")
            requester.request_id = request_id if type(request_id) is int else None
            found = self._answers.get(str(header.get("op")))
            if found is None:
                raise ProtocolError(f"no such request '{str(header.get('op'))[:100]}'")
            request_class, answer = found
            reply = answer(read_request(request_class, header), arrays, requester)
            if reply is not None and request_class not in _QUIET:
                fields, further = reply
                requester.send({"id": requester.request_id, **codec.to_json(fields)}, further)
        except Exception as error:
            is_refused = True
            if requester.request_id is None:  # it was refused unread
                requester.request_id = id_of(frames)
            _log.debug("request-refused", f"{source.user}: {header.get('op')}: {error}")
            session = str(header.get("session"))[:256]
            described = describe_error(error)
            requester.send({"id": requester.request_id, "error": described, "session": session})
        if request_class is not None:
            seconds, nbytes = time.monotonic() - began, sum(map(len, frames))
            self._counters.count_request(request_class.op, seconds, nbytes, 0, is_refused)

    # This server --------------------------------------------------------------------------------

    def _statistics(self, request: Statistics, arrays: list[Array], requester: Requester) -> _Reply:
        check_empty(arrays)
        return Done(), [text_array(self._counters.snapshot())]

    def _ping(self, request: Ping, arrays: list[Array], requester: Requester) -> _Reply:
        check_empty(arrays)
        return Pong(self._rank), ()

    # The directory ------------------------------------------------------------------------------

    def _the_directory(self) -> Directory:
        if self._directory is None:
            raise ProtocolError("this is not server 0, which has the directory")
        return self._directory

    def _lookup(self, request: Lookup, arrays: list[Array], requester: Requester) -> _Reply:
        check_empty(arrays)
        return _table_reply(self._the_directory().lookup())

    def _register_server(
        self, request: RegisterServer, arrays: list[Array], requester: Requester
    ) -> _Reply:
        check_empty(arrays)
        return _table_reply(self._the_directory().register_server(request, requester.source))

    def _register_client(
        self, request: RegisterClient, arrays: list[Array], requester: Requester
    ) -> _Reply:
        check_empty(arrays)
        return _table_reply(self._the_directory().register_client(request, requester.source))

    def _goodbye(self, request: Goodbye, arrays: list[Array], requester: Requester) -> _Reply:
        check_empty(arrays)
        self._the_directory().goodbye(request, requester.source)
        return Done(), ()

    def _publish(self, request: Publish, arrays: list[Array], requester: Requester) -> _Reply:
        self._the_directory().publish(request, text_bytes(arrays))
        return Done(), ()

    def _wait_for(self, request: WaitFor, arrays: list[Array], requester: Requester) -> None:
        check_empty(arrays)

        def send(published: Published, values: Sequence[Array]) -> None:
            requester.send({"id": requester.request_id, **codec.to_json(published)}, values)

        self._the_directory().wait_for(request, requester.source, send)


def _table_reply(table: Table) -> _Reply:
    # As an array: a table with thousands of clients is longer than a header may be.
    return Done(), [text_array(codec.to_json(table))]
