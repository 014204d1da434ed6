"""A connection to one server of any kind, made again whenever it is lost. Imports no torch.

Samplers, trainers, receivers and graph servers use it. A `Channel` carries the messages: ZeroMQ's,
or one of a user's own transport. Requests in flight are lost with a connection. The caller keeps
them (`pending`) and sends them again when `pump` reports that the next connection is up. Messages
are dropped while no connection is up, so that a restarted server gets no old messages.

The next connection is made after a pause, which doubles while connections bring no message. This
module also retries after a failed handshake, since ZeroMQ itself does not after some of them.
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
from khop.distributed.rpc.transport import (
    LOST,
    REFUSED,
    REFUSED_KEY,
    UP,
    Buffer,
    Channel,
    transport_of,
)
from khop.errors import ProtocolError
from khop.typing import Array

# Pause, in seconds, before the next connection after one that brought nothing. Doubles each time.
_MIN_PAUSE = 0.05
_MAX_PAUSE = 2.0
# Longest pause where nothing listens, which is known at once: the server is being started.
_RETRY_PAUSE = 0.25
_LINGER_SECONDS = 0.5
# Messages received in one call, so that other connections are read, too.
_MOST_AT_ONCE = 256


class Connection:
    """A connection to one server, for one thread.

    Args:
        context: ZeroMQ's context.
        credentials: CURVE key pair of this process. If None, CURVE is not used.
        clock: returns the time in seconds.

    Attributes:
        endpoint: address and key of the server. None until `relocate` sets it.
        lost_since: when the connection was lost (`time.monotonic`), or when this object was made.
            None while the connection is up.
        last_message_at: when the last message of the server arrived, or the connection was made
            (`time.monotonic`).
        refused: reason why the server or `refuse` rejected the last connection. None if unknown.
        final: reason why requests cannot succeed until a connection is up again: a refused key, or
            the text of `give_up`. It follows the server's name in messages. None if there is none.
        sockets: sockets to poll before `pump` and `receive`. A new connection makes a new list.
        has_returned: True from the second successful connection at this endpoint on.
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
        self._channel: Channel | None = None
        self.sockets: list[Any] = []
        self.endpoint: Endpoint | None = None
        self.lost_since: float | None = clock()
        self.last_message_at = 0.0
        self.refused: str | None = None
        self.final: str | None = None
        self.has_returned = False
        self._has_been_up = False
        self._unread: deque[Sequence[Buffer]] = deque()
        self._pause = _MIN_PAUSE
        self._connect_at = 0.0
        self._up_since = 0.0
        self._is_broken = False
        if endpoint is not None:
            self.relocate(endpoint)

    @property
    def is_up(self) -> bool:
        """True while messages can be sent: the connection is established."""
        return self.lost_since is None

    @property
    def has_been_up(self) -> bool:
        """True from the first successful connection at this endpoint on."""
        return self._has_been_up

    @property
    def address(self) -> str:
        """Address of the server, for messages."""
        return "an unknown address" if self.endpoint is None else self.endpoint.address

    def relocate(self, endpoint: Endpoint) -> None:
        """Set the server's endpoint. If it has changed, connect to the new one.

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

    def pump(self) -> bool:
        """Process events, reconnect if needed. Return whether a connection has just come up."""
        if self._is_broken:
            self._drop()
        if self._channel is None and self.endpoint is not None:
            if self._clock() < self._connect_at:
                return False
            self._connect(self.endpoint)
        channel, came_up = self._channel, False
        if channel is None:
            return False
        for event in channel.events():
            came_up = self._on_event(event) or came_up
            if self._channel is not channel:
                break
        return came_up and self.lost_since is None

    def _on_event(self, event: str) -> bool:
        """Process an event of the channel (the transport's connection). True if it is now up."""
        if event == UP:
            self.lost_since = self.refused = self.final = None
            self.last_message_at = self._up_since = self._clock()
            self.has_returned, self._has_been_up = self._has_been_up, True
            return True
        if event == LOST:
            channel = self._channel
            if self.is_up and channel is not None:  # else its handshake has failed: another event
                with contextlib.suppress(OSError):  # keep what has arrived: a server's goodbye
                    while (frames := channel.receive()) is not None:
                        self._unread.append(frames)
                self._drop()
            return False
        if event == REFUSED_KEY:
            self.refused = "it refuses this process's key"
            self.final = "refused this process's key"
        else:
            self.refused = (
                "it speaks with other keys, or with none, takes no more connections, or is no "
                "server of khop"
            )
        self._drop()
        return False

    def _connect(self, endpoint: Endpoint) -> None:
        self._unread.clear()  # messages of the last connection are not mixed with the next one's
        transport = transport_of(endpoint.address)
        try:
            if transport is None:
                self._channel = ZmqChannel(self._context, self._credentials, endpoint)
            else:
                self._channel = transport.connect(endpoint.address)
            self.sockets = self._channel.sockets()
        except OSError as error:  # of a transport: ZeroMQ connects later
            self.refused = f"it cannot be reached ({error})"
            self._pause = min(self._pause, _RETRY_PAUSE)
            self._drop()

    def _drop(self) -> None:
        """Close the connection, which `pump` makes again after a pause."""
        now = self._clock()
        served = self.last_message_at > self._up_since or now - self._up_since > _MAX_PAUSE
        if self.is_up and served:
            self._pause = _MIN_PAUSE
        self._connect_at = now + self._pause
        self._pause = min(2 * self._pause, _MAX_PAUSE)
        if self.lost_since is None:
            self.lost_since = now
        if self._channel is not None:
            self._channel.close()
        self._channel, self.sockets, self._is_broken = None, [], False

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a message (`frames`). It is dropped while the connection is down."""
        if self._channel is not None and self.lost_since is None:
            try:
                self._channel.send(frames)
            except OSError:  # whoever polls its descriptor must find it open: `pump` ends it
                self._is_broken = True

    def receive(self) -> Iterator[tuple[dict[str, Any], list[Array], int]]:
        """Yield header, arrays and number of bytes of messages that have arrived, at most 256.

        Raises:
            ProtocolError: a message is malformed. The caller should `refuse` the connection.
        """
        for _ in range(_MOST_AT_ONCE):
            if self._unread:
                frames = self._unread.popleft()
            elif self._channel is None:
                return
            else:
                try:
                    received = self._channel.receive()
                except OSError:
                    self._drop()
                    return
                if received is None:
                    return
                frames = received
                self.last_message_at = self._clock()
            try:
                header, arrays = unpack(frames)
            except ProtocolError as error:
                raise ProtocolError(f"it sent a malformed message: {error}") from None
            yield header, arrays, sum(map(len, frames))

    def refuse(self, why: str, pause: float = 0.0) -> None:
        """End the connection, because its server does something wrong (`why`).

        `pump` makes the next one after at least `pause` seconds.
        """
        self._drop()
        self._unread.clear()
        self._connect_at = max(self._connect_at, self._clock() + pause)
        self.refused = why

    def give_up(self, why: str) -> None:
        """Record that the server will not reply any more: `why` is a text such as 'has ended'."""
        self.final = why

    def finish(self) -> None:
        """Let sent messages leave for up to 0.5 s after the connection is closed."""
        if self._channel is not None:
            self._channel.finish(_LINGER_SECONDS)

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
        self._drop()
        self._unread.clear()
        self.endpoint = None


_MEANINGS = {
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): UP,
    int(zmq.EVENT_DISCONNECTED): LOST,
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): REFUSED_KEY,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): REFUSED,
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): REFUSED,
}
# Format of a monitor's events. zmq.utils.monitor reads the same, but imports asyncio.
_EVENT = struct.Struct("=Hi")
# Times in milliseconds. A handshake has a limit for a server that stops, or is cut off, during one.
_OPTIONS = (
    (zmq.MAXMSGSIZE, ENVELOPE_BYTES),
    (zmq.HEARTBEAT_IVL, 1000),
    (zmq.HEARTBEAT_TIMEOUT, 3000),
    (zmq.CONNECT_TIMEOUT, 1000),
    (zmq.HANDSHAKE_IVL, 3000),
    (zmq.RECONNECT_IVL, 50),
    (zmq.RECONNECT_IVL_MAX, 500),
)


class ZmqChannel(Channel):
    """A ZeroMQ socket to one server: 'ipc://', or 'tcp://' with or without CURVE.

    Its monitor reports when the connection is up and when it is lost. Heartbeats detect connections
    whose peer has vanished. Each connection has a socket of its own: a socket that connects again
    would deliver old messages to a restarted server. It uses CURVE if `endpoint` has the server's
    key, and `credentials`, this process's key pair, is not None.

    Raises:
        zmq.ZMQError: an invalid address.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        credentials: KeyPair | None,
        endpoint: Endpoint,
    ) -> None:
        self._linger_ms = 0
        socket = self._socket = context.socket(zmq.DEALER)
        try:
            socket.linger = 0
            socket.sndhwm = socket.rcvhwm = 0  # bounded by the requests in flight
            for option, value in _OPTIONS:
                socket.setsockopt(option, value)
            if endpoint.server_key is not None and credentials is not None:
                socket.curve_serverkey = endpoint.server_key.encode()
                socket.curve_publickey = credentials.public.encode()
                socket.curve_secretkey = credentials.secret.encode()
            self._monitor = socket.get_monitor_socket(sum(_MEANINGS))
            socket.connect(endpoint.address)
            if endpoint.address.startswith("tcp:"):
                # A greeting: servers end connections that bring no message. ZeroMQ sends it after
                # the handshake, also while `events` is not called. Without NOBLOCK, it would wait
                # for ever where the server has already refused the connection.
                with contextlib.suppress(zmq.Again):
                    socket.send(b"", zmq.NOBLOCK)
        except BaseException:  # an invalid address
            socket.disable_monitor()
            socket.close(0)
            raise

    def fileno(self) -> int:
        """Return ZeroMQ's descriptor of the socket. Do not poll it: poll `sockets`."""
        return int(self._socket.fileno())

    def sockets(self) -> list[Any]:
        return [self._socket, self._monitor]

    def events(self) -> Iterator[str]:
        while True:
            try:
                event = _EVENT.unpack(self._monitor.recv_multipart(zmq.NOBLOCK)[0])[0]
            except zmq.Again:
                return
            yield _MEANINGS[event]

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a message (`frames`). It is dropped while ZeroMQ is not connected."""
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def receive(self) -> list[Buffer] | None:
        try:
            return [f.buffer for f in self._socket.recv_multipart(zmq.NOBLOCK, copy=False)]
        except zmq.Again:
            return None

    def finish(self, seconds: float) -> None:
        """Let ZeroMQ's threads send remaining messages for up to `seconds` after `close`."""
        self._socket.linger = self._linger_ms = int(1000 * seconds)

    def close(self) -> None:
        """Close the sockets. A second call does nothing."""
        if not self._socket.closed:  # at the interpreter's end ZeroMQ may have closed it before
            self._socket.disable_monitor()
        self._socket.close(self._linger_ms)
        self._monitor.close(0)
