"""A connection to the server of one partition, and its requests in flight. Imports no torch.

Samplers and trainers use it through `PartitionClient`. ZeroMQ reconnects by itself; a monitor
reports when the connection is up and when it is lost, and heartbeats detect half-open ones.
Requests in flight when it is lost are sent again when it is up: they are idempotent. If a server
returns, replies to nothing and is lost again, the pauses before requests are sent again grow.

Errors distinguish a server that is connected from one that is unreachable. A final state (the
server announced its end, refused the key, or `give_up`) fails requests at once.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from typing import Any

import zmq

from khop import log
from khop.distributed.rpc.endpoint import Credentials, Endpoint
from khop.distributed.rpc.limits import ENVELOPE_BYTES
from khop.errors import PartitionUnavailableError
from khop.trace.requests import Asked
from khop.typing import Array

_HEARTBEAT_MS = 1000
_HEARTBEAT_TIMEOUT_MS = 3000
_CONNECT_TIMEOUT_MS = 1000
# Limit of a handshake, for a server that is stopped or cut off in the middle of one.
_HANDSHAKE_MS = 3000
_RECONNECT_MS = 50, 500
_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
# Format of a monitor's events: the event, and a value that is not used. zmq.utils.monitor reads the
# same, but imports asyncio, a tenth of the time that a sampler takes to start.
_EVENT = struct.Struct("=Hi")
# Pauses before requests are sent again after the second, third, ... return without a reply.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 4.0
_log = log.get(__name__)


class Request:
    """A request in flight: the ticket that the engine waits for."""

    __slots__ = ("_error", "_result", "asked", "begun", "deadline", "frames", "part")

    def __init__(self, part: int, frames: list[Any], timeout: float) -> None:
        self.part = part
        self.frames = frames
        self.begun = time.monotonic()
        self.deadline = self.begun + timeout
        self.asked: Asked | None = None
        self._result: list[Array] | None = None
        self._error: Exception | None = None

    @property
    def done(self) -> bool:
        """True if the request has a reply or has failed."""
        return self._result is not None or self._error is not None

    def result(self) -> list[Array]:
        """Return the reply's arrays; raises the error with which the request failed."""
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def succeed(self, arrays: list[Array]) -> None:
        """Complete the request with the arrays of its reply."""
        self._result = arrays

    def fail(self, error: Exception) -> None:
        """Complete the request with an error."""
        self._error = error


class PartitionConnection:
    """A client's connection to one partition's server.

    Args:
        context: makes sockets.
        what: name of the data that is served, for error messages: 'partition 3'.
        endpoint: the server's endpoint.
        credentials: the job's keys; needed for an endpoint with a server key.

    Attributes:
        what: as above.
        endpoint: as above.
        socket: carries requests and replies.
        monitor: reports connection events.
        lost_since: when the connection was lost (`time.monotonic`), or when this object was made.
            None while the connection is up.
        pending: requests in flight, by number.

    Raises:
        ValueError: the endpoint has a server key, and there are no credentials.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        what: str,
        endpoint: Endpoint,
        credentials: Credentials | None,
    ) -> None:
        self.what = what
        self.endpoint = endpoint
        self.pending: dict[int, Request] = {}
        self.lost_since: float | None = time.monotonic()
        self._trouble = "its server has ended, or the network is down"
        self._final: str | None = None
        self._has_stood = False
        self._fruitless_returns = 0
        self._resend_at: float | None = None
        if endpoint.server_key is not None and credentials is None:
            raise ValueError(f"{what} is served with CURVE, but no keys are given")
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndhwm = self.socket.rcvhwm = 0  # bounded by the batches in flight
        for option, value in (
            (zmq.MAXMSGSIZE, ENVELOPE_BYTES),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS),
            (zmq.CONNECT_TIMEOUT, _CONNECT_TIMEOUT_MS),
            (zmq.HANDSHAKE_IVL, _HANDSHAKE_MS),
            (zmq.RECONNECT_IVL, _RECONNECT_MS[0]),
            (zmq.RECONNECT_IVL_MAX, _RECONNECT_MS[1]),
        ):
            self.socket.setsockopt(option, value)
        if endpoint.server_key is not None and credentials is not None:
            self.socket.curve_serverkey = endpoint.server_key.encode()
            self.socket.curve_publickey = credentials.public.encode()
            self.socket.curve_secretkey = credentials.secret.encode()
        self.monitor = self.socket.get_monitor_socket(_EVENTS)
        self.socket.connect(endpoint.address)

    def send(self, number: int, request: Request) -> None:
        """Send a request, or keep it until the connection is up again."""
        if self._final is not None:
            request.fail(self._unavailable(self._final))
            return
        self.pending[number] = request
        # ZeroMQ queues messages until the first connection is up. A message that it got after a
        # connection was lost would be sent twice.
        if not self._has_stood or (self.lost_since is None and self._resend_at is None):
            self.socket.send_multipart(request.frames, copy=False)

    def take_over(self, pending: Mapping[int, Request]) -> None:
        """Send the requests in flight of another connection."""
        for number, request in pending.items():
            self.send(number, request)

    def answered(self, number: int) -> Request | None:
        """Return and remove the request of a reply; None if it had a reply before."""
        self._fruitless_returns = 0
        return self.pending.pop(number, None)

    def watch(self) -> None:
        """Process connection events."""
        while self.monitor.poll(0):
            event = _EVENT.unpack(self.monitor.recv_multipart()[0])[0]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._stands()
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.give_up("refused this job's key")
            else:
                if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                    self._trouble = "what listens there does not speak as khop's servers do"
                self._resend_at = None
                if self.lost_since is None:
                    self.lost_since = time.monotonic()
                    self._say("partition-lost", "connection lost")

    def _say(self, event: str, what: str) -> None:
        """Log a connection event: as a warning if requests are in flight, else as information."""
        say = _log.warning if self.pending else _log.info
        text = f"{self.what} at {self.endpoint.address}: {what}"
        say(event, text, address=self.endpoint.address, pending=len(self.pending))

    def _stands(self) -> None:
        if self._has_stood and self.lost_since is not None:
            lost = time.monotonic() - self.lost_since
            self._say("partition-returned", f"connected again after {lost:.1f} s")
        self.lost_since = self._final = None
        self._trouble = "its server has ended, or the network is down"
        pause = 0.0
        if self._fruitless_returns > 1:
            pause = min(_FIRST_PAUSE * 2 ** (self._fruitless_returns - 2), _LONGEST_PAUSE)
        if self.pending:
            self._fruitless_returns += 1
        if self._has_stood:
            self._resend_at = time.monotonic() + pause
            self._send_again()
        self._has_stood = True

    def _send_again(self) -> None:
        """Send requests in flight again, if they wait for that and their pause is over."""
        if self._resend_at is None or time.monotonic() < self._resend_at:
            return
        self._resend_at = None
        for request in self.pending.values():
            self.socket.send_multipart(request.frames, copy=False)

    def expire(self) -> None:
        """Fail requests past their deadline; send others again when their pause is over."""
        self._send_again()
        now = time.monotonic()
        late = [number for number, r in self.pending.items() if now > r.deadline]
        for number in late:
            request = self.pending.pop(number)
            request.fail(self._unavailable(self._why_late(request, now)))

    def _why_late(self, request: Request, now: float) -> str:
        limit = f"{request.deadline - request.begun:g} s that a request may take (rpc_timeout)"
        if self.lost_since is None:
            return (
                f"is connected, but gave no answer in {now - request.begun:.1f} s, more than the "
                f"{limit}: it is stuck, or has too much to do"
            )
        return (
            f"has been unreachable for {now - self.lost_since:.1f} s, and a request has waited "
            f"{now - request.begun:.1f} s, more than the {limit}: {self._trouble}"
        )

    def give_up(self, why: str) -> None:
        """Fail requests in flight and later ones, until the connection is up again.

        Args:
            why: state of the server: 'refused this job's key'.
        """
        self._final = why
        self.fail_all(why)

    def fail_all(self, why: str) -> None:
        """Fail all requests in flight."""
        for request in self.pending.values():
            request.fail(self._unavailable(why, time.monotonic() - request.begun))
        self.pending.clear()

    def _unavailable(self, why: str, waited: float | None = None) -> PartitionUnavailableError:
        waiting = "" if waited is None else f" ({waited:.1f} s after it was asked)"
        return PartitionUnavailableError(f"{self.what} at {self.endpoint.address} {why}{waiting}")

    def close(self) -> None:
        """End the connection."""
        if not self.socket.closed:  # at the interpreter's end ZeroMQ may have closed it before
            self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)
