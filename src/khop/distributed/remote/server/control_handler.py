"""Answers to requests about a graph server's own state: directory, sessions, statistics.

The loop of the graph server runs it, in its thread. Requests are queued by user. The user who has
used the least of the loop's time is next (`rpc.fair_queue`). No request takes long, since its class
bounds its arrays (`carries`) and its fields (their types). A reply goes to the connection that sent
the request, at once, or later if the request waits for other clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from khop import codec, log
from khop.channel.message import unpack
from khop.distributed.remote.messages import (
    Done,
    Goodbye,
    GraphServerRequest,
    Lookup,
    Ping,
    Pong,
    Publish,
    RegisterClient,
    RegisterServer,
    Statistics,
    Table,
    WaitFor,
    json_array,
    text_bytes,
)
from khop.distributed.remote.server.counters import ServerCounters
from khop.distributed.remote.server.directory import Directory
from khop.distributed.remote.server.session_table import Answer, Requester, SendFrames, SessionTable
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


class _Waiting(NamedTuple):
    """A queued request with its sender. `arrived_at` is a time of `time.monotonic`."""

    source: Source
    frames: list[Any]
    arrived_at: float


class ControlHandler:
    """Queues of requests about a graph server's state (directory, sessions), and the answers.

    Args:
        sessions: sessions of the server.
        directory: the directory, on server 0. None on others.
        counters: counters of the server, for the request `Statistics`.
        rank: rank of the server.
        send: sends frames to a peer.
        limits: `waiting` and `waiting_bytes` bound the queue of each user. `unread_bytes` bounds
            the bytes that a peer has not read.
        unread: returns how many bytes a peer has not read.
    """

    def __init__(
        self,
        sessions: SessionTable,
        directory: Directory | None,
        counters: ServerCounters,
        rank: int,
        send: SendFrames,
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
        of_directory = Lookup, RegisterServer, RegisterClient, Goodbye, Publish, WaitFor
        answers: dict[Any, Answer] = {
            Statistics: self._statistics,
            Ping: self._ping,
            **dict.fromkeys(of_directory, self._ask_directory),
            **sessions.answers,
        }
        self._answers: dict[str, tuple[type[GraphServerRequest], Answer]] = {
            request_class.op: (request_class, answer) for request_class, answer in answers.items()
        }

    @property
    def has_requests(self) -> bool:
        """True if a request is queued, or a request that waited for values can be answered."""
        has_answers = self._directory is not None and self._directory.values.has_answers
        return bool(self._queue) or has_answers

    def handles(self, op: str) -> bool:
        """Return True if requests of the name `op` are answered here."""
        return op in self._answers

    def put(self, source: Source, frames: list[Any], nbytes: int, is_bounded: bool = True) -> bool:
        """Queue a request (`frames`, of `nbytes` bytes) of `source`.

        Return False if its queue is full. If not `is_bounded`, the queue counts as never full.
        """
        waiting = _Waiting(source, frames, time.monotonic())
        return self._queue.put(source.user, waiting, nbytes, source.connection, is_bounded)

    def waiting_since(self, user: str) -> float | None:
        """Return the arrival time of a user's oldest queued request. None if none is queued."""
        return min((w.arrived_at for w in self._queue.first_of(user)), default=None)

    def process_queued(self) -> None:
        """Answer queued requests for a few milliseconds, of all users in turn."""
        if self._directory is not None:
            with self._errors.guarded("requests for values"):
                self._directory.values.answer_ready()
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
        """Call the function that answers a request. Reply with an error if it raises one."""
        began, header = time.monotonic(), dict[str, Any]()
        requester, is_refused = Requester(source, None, self._send), False
        request_class: type[GraphServerRequest] | None = None
        try:
            # Its sender may have stopped reading since the request was queued.
            check_unread(self._unread(source.connection[1]), self._limits.unread_bytes)
            op = peek_op(frames[0]) if frames else ""
            peeked = self._answers.get(op)
            most = 0 if peeked is None else peeked[0].carries
            check_carried(frames, "" if peeked is None else op, most, _MAX_ARRAYS)
            header, arrays = unpack(frames)
            request_id = header.get("id")
            requester.request_id = request_id if type(request_id) is int else None
            entry = self._answers.get(str(header.get("op")))
            if entry is None:
                raise ProtocolError(f"no such request '{str(header.get('op'))[:100]}'")
            request_class, answer = entry
            request = read_request(request_class, header)
            if not request_class.carries:
                check_empty(arrays)
            answer(request, arrays, requester)
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

    def _statistics(self, request: Statistics, arrays: list[Array], requester: Requester) -> None:
        requester.reply(Done(), [json_array(self._counters.snapshot())])

    def _ping(self, request: Ping, arrays: list[Array], requester: Requester) -> None:
        requester.reply(Pong(self._rank))

    def _ask_directory(
        self, request: GraphServerRequest, arrays: list[Array], requester: Requester
    ) -> None:
        directory, source = self._directory, requester.source
        if directory is None:
            raise ProtocolError("this is not server 0, which has the directory")
        tables: list[Table] = []
        match request:
            case Lookup():
                tables = [directory.lookup()]
            case RegisterServer():
                tables = [directory.register_server(request, source)]
            case RegisterClient():
                tables = [directory.register_client(request, source)]
            case Goodbye():
                directory.goodbye(request, source)
            case Publish():
                directory.values.publish(request, text_bytes(arrays))
            case WaitFor():
                directory.values.wait_for(request, source, requester.reply)
                return
        # As an array: a table with thousands of clients is longer than a header can be.
        requester.reply(Done(), [json_array(codec.to_json(table)) for table in tables])
