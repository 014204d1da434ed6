"""A connection to one server of any kind, made again whenever it is lost. Imports no torch.

Samplers, trainers, receivers and graph servers use it. A monitor reports when the connection is up
and when it is lost, and heartbeats detect half-open ones. Requests in flight are lost with a
connection: the caller sends them again when `pump` reports that it is up (`pending` keeps them).
Messages are dropped while it is down, so none is delivered late, to a server that was restarted
meanwhile: ZeroMQ would queue them, so each connection has a socket of its own.

The next connection is made after a pause, which doubles while connections bring no message. A
handshake that fails counts as such a connection: ZeroMQ itself never tries again after some.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import zmq

from khop.channel.message import unpack
from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.limits import ENVELOPE_BYTES
from khop.errors import ProtocolError
from khop.typing import Array

_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
# Format of a monitor's events; zmq.utils.monitor reads the same, but imports asyncio.
_EVENT = struct.Struct("=Hi")
_HEARTBEAT_MS = 1000
_HEARTBEAT_TIMEOUT_MS = 3000
_CONNECT_TIMEOUT_MS = 1000
# Limit of a handshake, for a server that is stopped or cut off in the middle of one.
_HANDSHAKE_MS = 3000
_RECONNECT_MS = 50, 500
# Pause, in seconds, before a connection that brought nothing is made again; doubles each time.
_MIN_PAUSE = 0.05
_MAX_PAUSE = 2.0
_LINGER_MS = 500
# Messages received in one call, so that other connections are read, too.
_MOST_AT_ONCE = 256


class Connection:
    """A connection to one server, for one thread.

    Args:
        context: context of the sockets.
        credentials: keys of this process; needed for endpoints with a server key.
        endpoint: address and key of the server. If None, it is not known yet: see `relocate`.
        clock: source of time, in seconds, for tests.

    Attributes:
        endpoint: as above.
        lost_since: when the connection was lost (`time.monotonic`), or when this object was made.
            None while the connection is up.
        last_message_at: when the last message of the server arrived, or the connection was made
            (`time.monotonic`).
        refused: reason for which the server, or `refuse`, rejected the connection, if known.
        final: reason for which requests cannot succeed until the connection is up again, in words
            that follow the server's name: it refused the key, or see `give_up`. None if none.
        has_returned: True once a connection is up that is not the first at this endpoint.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        credentials: KeyPair | None = None,
        endpoint: Endpoint | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._context = context
        self._credentials = credentials
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self.endpoint: Endpoint | None = None
        self.lost_since: float | None = clock()
        self.last_message_at = 0.0
        self.refused: str | None = None
        self.final: str | None = None
        self.has_returned = False
        self._has_been_up = False
        self._unread: deque[list[zmq.Frame]] = deque()
        self._pause = _MIN_PAUSE
        self._connect_at = 0.0
        self._up_since = 0.0
        self._lingers = False
        if endpoint is not None:
            self.relocate(endpoint)

    @property
    def is_up(self) -> bool:
        """True while the connection is up."""
        return self.lost_since is None

    @property
    def address(self) -> str:
        """Address of the server, for messages."""
        return "an unknown address" if self.endpoint is None else self.endpoint.address

    def relocate(self, endpoint: Endpoint) -> None:
        """Set the server's endpoint, and connect to it if it is another one.

        Raises:
            ValueError: the endpoint has a server key, and this process has no keys.
        """
        if endpoint == self.endpoint:
            return
        if endpoint.server_key is not None and self._credentials is None:
            raise ValueError(
                f"the server at {endpoint.address} is served with CURVE, but this process has no "
                "keys: pass the key file (key_file=, --key-file)"
            )
        self._drop()
        self.endpoint = endpoint
        self.refused = self.final = None
        self.has_returned = self._has_been_up = False
        self._pause = _MIN_PAUSE
        # Not pump(): its caller must get the report that the connection is up.
        self._connect(endpoint)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Return the sockets to poll before `pump` and `receive`. They change with connections."""
        return [s for s in (self._socket, self._monitor) if s is not None]

    def pump(self) -> bool:
        """Process connection events, and reconnect; return whether the connection just came up."""
        if self._socket is None and self.endpoint is not None:
            if self._clock() < self._connect_at:
                return False
            self._connect(self.endpoint)
        came_up = False
        while self._monitor is not None and self._monitor.poll(0):
            event = _EVENT.unpack(self._monitor.recv_multipart()[0])[0]
            came_up = self._take_event(event) or came_up
        return came_up and self.lost_since is None

    def _take_event(self, event: int) -> bool:
        """Process an event of the monitor; return whether the connection is up by it."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.lost_since = self.refused = self.final = None
            self.last_message_at = self._up_since = self._clock()
            self.has_returned, self._has_been_up = self._has_been_up, True
            return True
        if event == zmq.EVENT_DISCONNECTED:
            if self.is_up:  # else the handshake has failed, which is reported by itself
                self._keep_unread()
                self._drop()
            return False
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.refused = "it refuses this process's key"
            self.final = "refused this process's key"
        else:
            self.refused = (
                "it speaks with other keys, or with none, takes no more connections, or is no "
                "server of khop"
            )
        self._drop()
        return False

    def _keep_unread(self) -> None:
        """Keep messages that arrived before the connection was lost: a server's goodbye."""
        while self._socket is not None and self._socket.poll(0):
            self._unread.append(self._socket.recv_multipart(copy=False))

    def _connect(self, endpoint: Endpoint) -> None:
        self._unread.clear()  # what is left of the last connection is not mixed with the next
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.linger = 0
            socket.sndhwm = socket.rcvhwm = 0  # bounded by the requests in flight
            for option, value in (
                (zmq.MAXMSGSIZE, ENVELOPE_BYTES),
                (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS),
                (zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS),
                (zmq.CONNECT_TIMEOUT, _CONNECT_TIMEOUT_MS),
                (zmq.HANDSHAKE_IVL, _HANDSHAKE_MS),
                (zmq.RECONNECT_IVL, _RECONNECT_MS[0]),
                (zmq.RECONNECT_IVL_MAX, _RECONNECT_MS[1]),
            ):
                socket.setsockopt(option, value)
            if endpoint.server_key is not None and self._credentials is not None:
                socket.curve_serverkey = endpoint.server_key.encode()
                socket.curve_publickey = self._credentials.public.encode()
                socket.curve_secretkey = self._credentials.secret.encode()
            self._monitor = socket.get_monitor_socket(_EVENTS)
            socket.connect(endpoint.address)
            if endpoint.address.startswith("tcp:"):
                # A greeting: servers end connections that bring no message. ZeroMQ sends it when
                # the handshake is done, also where nobody calls `pump` for long. Where the server
                # has refused the connection already, ZeroMQ would wait for another for ever.
                with contextlib.suppress(zmq.Again):
                    socket.send(b"", zmq.NOBLOCK)
        except BaseException:  # an invalid address
            socket.disable_monitor()
            socket.close(0)
            raise
        self._socket = socket

    def _drop(self) -> None:
        """Close the connection; `pump` makes the next."""
        now = self._clock()
        served = self.last_message_at > self._up_since or now - self._up_since > _MAX_PAUSE
        if self.is_up and served:
            self._pause = _MIN_PAUSE
        self._connect_at = now + self._pause
        self._pause = min(2 * self._pause, _MAX_PAUSE)
        if self.lost_since is None:
            self.lost_since = now
        if self._socket is not None:
            if not self._socket.closed:  # at the interpreter's end ZeroMQ may have closed it before
                self._socket.disable_monitor()
            self._socket.close(None if self._lingers else 0)
        if self._monitor is not None:
            self._monitor.close(0)
        self._socket = self._monitor = None

    def send(self, frames: Sequence[Any]) -> None:
        """Send a message; dropped while the connection is down."""
        if self._socket is not None and self.lost_since is None:
            # Refused when ZeroMQ made it again: `pump` has yet to hear of that.
            with contextlib.suppress(zmq.Again):
                self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def receive(self) -> Iterator[tuple[dict[str, Any], list[Array], int]]:
        """Yield messages that have arrived, at most 256: header, arrays, number of bytes.

        Raises:
            ProtocolError: a message is malformed. The caller should `refuse` the connection.
        """
        for _ in range(_MOST_AT_ONCE):
            if self._unread:
                frames = self._unread.popleft()
            elif self._socket is not None and self._socket.poll(0):
                frames = self._socket.recv_multipart(copy=False)
                self.last_message_at = self._clock()
            else:
                return
            try:
                header, arrays = unpack([frame.buffer for frame in frames])
            except ProtocolError as error:
                raise ProtocolError(f"it sent a malformed message: {error}") from None
            yield header, arrays, sum(map(len, frames))

    def refuse(self, why: str, pause: float = 0.0) -> None:
        """End a connection over which invalid messages came; `pump` makes the next.

        Args:
            why: the reason, in words that follow the server's name.
            pause: minimum seconds before the next connection.
        """
        self._drop()
        self._unread.clear()
        self._connect_at = max(self._connect_at, self._clock() + pause)
        self.refused = why

    def give_up(self, why: str) -> None:
        """Set the final state of the server: 'has ended'."""
        self.final = why

    def finish(self) -> None:
        """Let messages that were sent leave after the connection is closed, for up to 0.5 s."""
        if self._socket is not None:
            self._socket.linger = _LINGER_MS
            self._lingers = True

    def state(self) -> str:
        """Return the state of the connection, in words that follow the server's name."""
        if self.endpoint is None:
            return "has not registered with the directory"
        if self.lost_since is None:
            silent = self._clock() - self.last_message_at
            return f"is connected, but was last heard of {silent:.1f} s ago"
        lost = f"has been unreachable for {self._clock() - self.lost_since:.1f} s"
        return lost if self.refused is None else f"{lost}: {self.refused}"

    def close(self) -> None:
        """End the connection."""
        self._drop()
        self._unread.clear()
        self.endpoint = None
