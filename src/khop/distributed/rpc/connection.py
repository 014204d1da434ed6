"""A connection to one server of any kind, made again whenever it is lost. Imports no torch.

Samplers, trainers, receivers and graph servers use it. What carries messages is a `Channel`, of
ZeroMQ or of a transport of the user's own. Requests in flight are lost with a connection: the
caller sends them again when `pump` reports that it is up (`pending` keeps them). Messages are
dropped while it is down, so none is delivered late, to a server that was restarted meanwhile.

The next connection is made after a pause, which doubles while connections bring no message. A
handshake that fails counts as such a connection: ZeroMQ itself never tries again after some.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import zmq

from khop.channel.message import unpack
from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.transport import LOST, REFUSED_KEY, UP, Channel, transport_of
from khop.distributed.rpc.zmq_channel import ZmqChannel
from khop.errors import ProtocolError
from khop.typing import Array

# Pause, in seconds, before a connection that brought nothing is made again; doubles each time.
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
        context: context of ZeroMQ's sockets.
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
        sockets: what to poll before `pump` and `receive`; another list for each connection.
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
        self._channel: Channel | None = None
        self.sockets: list[Any] = []
        self.endpoint: Endpoint | None = None
        self.lost_since: float | None = clock()
        self.last_message_at = 0.0
        self.refused: str | None = None
        self.final: str | None = None
        self.has_returned = False
        self._has_been_up = False
        self._unread: deque[list[Any]] = deque()
        self._pause = _MIN_PAUSE
        self._connect_at = 0.0
        self._up_since = 0.0
        self._is_broken = False
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

    def pump(self) -> bool:
        """Process connection events, and reconnect; return whether the connection just came up."""
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
            came_up = self._take_event(event) or came_up
            if self._channel is not channel:
                break
        return came_up and self.lost_since is None

    def _take_event(self, event: str) -> bool:
        """Process an event of the channel; return whether the connection is up by it."""
        if event == UP:
            self.lost_since = self.refused = self.final = None
            self.last_message_at = self._up_since = self._clock()
            self.has_returned, self._has_been_up = self._has_been_up, True
            return True
        if event == LOST:
            if self.is_up:  # else the handshake has failed, which is reported by itself
                self._keep_unread()
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

    def _keep_unread(self) -> None:
        """Keep messages that arrived before the connection was lost: a server's goodbye."""
        with contextlib.suppress(OSError):
            while self._channel is not None and (frames := self._channel.receive()) is not None:
                self._unread.append(frames)

    def _connect(self, endpoint: Endpoint) -> None:
        self._unread.clear()  # what is left of the last connection is not mixed with the next
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
        """Close the connection; `pump` makes the next."""
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

    def send(self, frames: Sequence[Any]) -> None:
        """Send a message; dropped while the connection is down."""
        if self._channel is not None and self.lost_since is None:
            try:
                self._channel.send(frames)
            except OSError:  # who polls its descriptor must not find it closed: `pump` ends it
                self._is_broken = True

    def receive(self) -> Iterator[tuple[dict[str, Any], list[Array], int]]:
        """Yield messages that have arrived, at most 256: header, arrays, number of bytes.

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
        """End the connection."""
        self._drop()
        self._unread.clear()
        self.endpoint = None
