"""Requests in flight on connections to several servers, with deadlines. Imports no torch.

A request is a ticket that its caller waits for. If its connection is lost, it stays in the table,
and is sent again over the next one. Requests are idempotent, or numbered and applied once.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from khop.trace.requests import Asked
from khop.typing import Array

Clock = Callable[[], float]
"""Function that returns the time in seconds, like `time.monotonic`."""


class Request:
    """A request in flight: a ticket (`khop.data.tickets`) that the sender waits for.

    Attributes:
        server: partition or rank of the server. None means the directory.
        deadline: time at which the request fails if it has no reply.
        done: True if the request has a reply or has failed.
        log_entry: its entry in a log of requests.
    """

    __slots__ = ("_error", "_result", "begun", "deadline", "done", "frames", "log_entry", "server")

    def __init__(
        self, server: int | None, frames: list[Any], timeout: float, clock: Clock = time.monotonic
    ) -> None:
        self.server = server
        self.frames = frames
        self.begun = clock()
        self.deadline = self.begun + timeout
        self.log_entry: Asked | None = None
        self._result: list[Array] | None = None
        self._error: Exception | None = None
        self.done = False

    def result(self) -> list[Array]:
        """Return the reply's arrays, or raise the error with which the request failed."""
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def succeed(self, arrays: list[Array]) -> None:
        self._result, self.done = arrays, True

    def fail(self, error: Exception) -> None:
        self._error, self.done = error, True


R = TypeVar("R", bound=Request)


class PendingRequests(Generic[R]):
    """Table of the requests in flight to all servers. For one thread."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.next_number: Callable[[], int] = itertools.count(1).__next__
        """Return a number that no other request has."""
        self._requests: dict[int, R] = {}

    def add(self, request_id: int, request: R) -> None:
        self._requests[request_id] = request

    def of(self, server: int | None) -> list[R]:
        """Return the requests to one server, in the order in which they were added."""
        return [r for r in self._requests.values() if r.server == server]

    def has(self, server: int | None) -> bool:
        """Return True if a request to this server is in flight."""
        return any(r.server == server for r in self._requests.values())

    def answered(self, server: int | None, request_id: object) -> R | None:
        """Remove and return the request to `server` that a reply with this id belongs to.

        None if this request already had a reply, or was sent to another server.
        """
        if type(request_id) is not int:
            return None
        request = self._requests.get(request_id)
        if request is None or request.server != server:
            return None
        return self._requests.pop(request_id)

    def expire(self, explain: Callable[[R, float], Exception]) -> None:
        """Fail the requests past their deadline, and forget requests that are done.

        `explain` returns the error for a request, given the seconds that it has waited.
        """
        now = self._clock()
        for request_id, request in list(self._requests.items()):
            if request.done:  # cancelled
                del self._requests[request_id]
            elif now > request.deadline:
                del self._requests[request_id]
                request.fail(explain(request, now - request.begun))

    def fail_all(self, server: int | None, explain: Callable[[R, float], Exception]) -> None:
        """Fail all requests to a server. For `explain`, see `expire`."""
        now = self._clock()
        for request_id, request in list(self._requests.items()):
            if request.server == server:
                del self._requests[request_id]
                request.fail(explain(request, now - request.begun))

    def drain(self) -> list[R]:
        """Remove all requests, and return them."""
        requests = list(self._requests.values())
        self._requests.clear()
        return requests
