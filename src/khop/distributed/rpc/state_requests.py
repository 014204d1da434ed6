"""Requests of one client to the state of one part: their order, and loss of the state.

`PartitionClient` has one such object for each part whose state it uses. Imports no torch.

A client first sends `Enroll`. The reply has the incarnation of the server, and each later request
repeats it. At most `MOST_IN_FLIGHT` requests are in flight, and later ones wait here. A write gets
its number when it is sent for the first time. After a reconnection all requests in flight are sent
again in order. If the server's incarnation has changed, it was started again and has lost its
state. All requests then fail with StateLostError until `accept_loss` is called.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from khop import codec
from khop.channel.message import pack
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.pending import PendingRequests, Request
from khop.distributed.rpc.protocol import (
    MOST_IN_FLIGHT,
    Enroll,
    RequestFields,
    StateEnvelope,
    rebuild_error,
    request_header,
)
from khop.errors import StateLostError
from khop.log import printable
from khop.typing import Array

_MAX_INCARNATION = 16


class StateRequest(Request):
    """A request that uses the state of a part: the ticket that its sender waits for.

    Attributes:
        sequence: number of the write. 0 before it is sent for the first time.
        is_sent: whether the request has been sent over the current connection.
        earlier: a write that must be settled before this one is sent again. None if there is none.
    """

    __slots__ = ("_arrays", "_message", "earlier", "is_sent", "is_write", "request_id", "sequence")

    def __init__(
        self,
        part: int,
        request_id: int,
        message: RequestFields,
        arrays: list[Array],
        timeout: float,
        is_write: bool,
    ) -> None:
        super().__init__(part, [], timeout)
        self.request_id = request_id
        self.is_write = is_write
        self.sequence = 0
        self.is_sent = False
        self.earlier: StateRequest | None = None
        self._message = message
        self._arrays = arrays
        self.pack(StateEnvelope(""))  # a request that cannot be packed fails here

    def pack(self, envelope: StateEnvelope) -> None:
        """Make the request's message, with the write's number (`envelope`) in its header."""
        state = codec.to_json(envelope)
        header = request_header(self._message, self.request_id, part=self.server, state=state)
        self.frames = pack(header, self._arrays)


class StateRequests:
    """Requests of one client that use the state of one part, in order. For one thread.

    `name` returns the part's name for errors. `timeout` is in seconds per request.
    """

    def __init__(
        self,
        part: int,
        pending: PendingRequests[Request],
        connection: Connection,
        name: Callable[[], str],
        timeout: float,
    ) -> None:
        self._part = part
        self._connection = connection
        self._name = name
        self._timeout = timeout
        self._incarnation: str | None = None
        self._lost: str | None = None
        self.begin(pending)

    def begin(self, pending: PendingRequests[Request]) -> None:
        """Start as a new client: without requests, and with an id that the server does not know."""
        self._pending = pending
        self._client = os.urandom(16).hex()
        self._is_enrolled = False
        self._enrolling: Request | None = None
        self._last = 0
        self._waiting: deque[StateRequest] = deque()
        self._in_flight: list[StateRequest] = []  # in order

    def add(self, request: StateRequest) -> None:
        """Add a request, and send it as soon as possible."""
        if self._lost is not None:
            request.fail(StateLostError(self._lost))
            return
        self._pending.add(request.request_id, request)
        self._waiting.append(request)
        self.advance()

    def advance(self) -> None:
        """Send waiting requests, as many as may be in flight. Enrol first if this is not done."""
        while self._waiting and self._waiting[0].done:
            self._waiting.popleft()
        self._in_flight = [request for request in self._in_flight if not request.done]
        if not self._is_enrolled:
            if self._waiting and (self._enrolling is None or self._enrolling.done):
                request_id = self._pending.next_number()
                header = request_header(Enroll(self._client), request_id, part=self._part)
                self._enrolling = Request(self._part, pack(header, []), self._timeout)
                self._pending.add(request_id, self._enrolling)
                self._connection.send(self._enrolling.frames)
            return
        for request in self._in_flight:
            if not request.is_sent:
                if request.earlier is not None and not request.earlier.done:
                    return
                self._send(request)
        while self._waiting and len(self._in_flight) < MOST_IN_FLIGHT:
            request = self._waiting.popleft()
            if request.done:
                continue
            if request.is_write:
                self._last += 1
                request.sequence = self._last
            self._in_flight.append(request)
            self._send(request)

    def send_again(self) -> None:
        """Send all requests in flight again, in order, over a new connection."""
        for request in self._in_flight:
            request.is_sent, request.earlier = False, None
        self.advance()

    def check_reply(self, request: Request | None, header: dict[str, Any]) -> bool:
        """Check a server's reply, with its `header`. Return True if it completes its request.

        `request` is None if it already had a reply.
        """
        incarnation, error = header.get("incarnation"), header.get("error")
        is_own = isinstance(request, StateRequest) or (
            request is not None and request is self._enrolling
        )
        is_known = isinstance(incarnation, str) and 0 < len(incarnation) <= _MAX_INCARNATION
        if self._incarnation is not None and is_known and incarnation != self._incarnation:
            self._lose("its server has been started again, without what was written")
        elif is_own and isinstance(error, dict) and error.get("type") == "StateLostError":
            self._lose(printable(str(error.get("message"))[:1000]))
        elif is_own and error is None and not is_known:
            self._lose("its server does not say which incarnation it has")
        if request is self._enrolling is not None:
            self._enrolling = None
            if error is not None:
                self._fail_all(rebuild_error(error, f"the server of {self._name()}"))
            elif self._lost is None:
                self._incarnation, self._is_enrolled = incarnation, True
                self.advance()
            return False
        if not isinstance(request, StateRequest):
            return True
        if request.done:  # by `_lose`
            return False
        if header.get("again") is True:  # the server has not applied it: it lacks an earlier one
            self._pending.add(request.request_id, request)
            request.is_sent = False
            earlier = [r for r in self._in_flight if r.is_write and r.sequence < request.sequence]
            request.earlier = earlier[-1] if earlier else None
            self.advance()
            return False
        return True

    def accept_loss(self) -> None:
        """Continue with the state that the server has now. Does nothing if none was lost."""
        if self._lost is not None:
            self._lost = self._incarnation = None
            self.begin(self._pending)

    def _send(self, request: StateRequest) -> None:
        assert self._incarnation is not None
        envelope = StateEnvelope(self._incarnation)
        if request.is_write:
            unsettled = [r.sequence for r in self._in_flight if r.is_write and not r.done]
            previous = max((n for n in unsettled if n < request.sequence), default=0)
            envelope = StateEnvelope(
                self._incarnation, self._client, request.sequence, min(unsettled), previous
            )
        request.pack(envelope)
        request.is_sent = True
        self._connection.send(request.frames)

    def _lose(self, why: str) -> None:
        if self._lost is None:
            self._lost = (
                f"the state of {self._name()} is lost: {why}. Whether writes in flight were "
                "applied before is not known. Restore the state, or begin anew, after "
                f"accept_state_loss({self._part})"
            )
            self._fail_all(StateLostError(self._lost))

    def _fail_all(self, error: Exception) -> None:
        requests = [*self._in_flight, *self._waiting]
        self._in_flight, self._waiting = [], deque()
        for request in requests:
            if not request.done:
                request.fail(error)
