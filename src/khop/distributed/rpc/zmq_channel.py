"""A connection to a server over ZeroMQ: 'tcp://', with CURVE if the server has a key, or 'ipc://'.

A monitor reports when the connection is up and when it is lost, and heartbeats detect half-open
ones. ZeroMQ would queue messages while the connection is down, and deliver them to a server that
was restarted meanwhile, so each connection has a socket of its own. Imports no torch.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import zmq

from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.limits import ENVELOPE_BYTES
from khop.distributed.rpc.transport import LOST, REFUSED, REFUSED_KEY, UP, Channel

_MEANINGS = {
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): UP,
    int(zmq.EVENT_DISCONNECTED): LOST,
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): REFUSED_KEY,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): REFUSED,
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): REFUSED,
}
# Format of a monitor's events; zmq.utils.monitor reads the same, but imports asyncio.
_EVENT = struct.Struct("=Hi")
_HEARTBEAT_MS = 1000
_HEARTBEAT_TIMEOUT_MS = 3000
_CONNECT_TIMEOUT_MS = 1000
# Limit of a handshake, for a server that is stopped or cut off in the middle of one.
_HANDSHAKE_MS = 3000
_RECONNECT_MS = 50, 500


class ZmqChannel(Channel):
    """A socket to one server, and its monitor.

    Args:
        context: context of the sockets.
        credentials: keys of this process; needed for endpoints with a server key.
        endpoint: address and key of the server.

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
            if endpoint.server_key is not None and credentials is not None:
                socket.curve_serverkey = endpoint.server_key.encode()
                socket.curve_publickey = credentials.public.encode()
                socket.curve_secretkey = credentials.secret.encode()
            self._monitor = socket.get_monitor_socket(sum(_MEANINGS))
            socket.connect(endpoint.address)
            if endpoint.address.startswith("tcp:"):
                # A greeting: servers end connections that bring no message. ZeroMQ sends it when
                # the handshake is done, also where nobody calls `events` for long. Where the server
                # has refused the connection already, ZeroMQ would wait for another for ever.
                with contextlib.suppress(zmq.Again):
                    socket.send(b"", zmq.NOBLOCK)
        except BaseException:  # an invalid address
            socket.disable_monitor()
            socket.close(0)
            raise

    def fileno(self) -> int:
        """Return ZeroMQ's descriptor of the socket; `sockets` is what to poll."""
        return int(self._socket.fileno())

    def sockets(self) -> list[Any]:
        """Return the socket and its monitor."""
        return [self._socket, self._monitor]

    def events(self) -> Iterator[str]:
        """Yield what the monitor reports."""
        while True:
            try:
                event = _EVENT.unpack(self._monitor.recv_multipart(zmq.NOBLOCK)[0])[0]
            except zmq.Again:
                return
            yield _MEANINGS[event]

    def send(self, frames: Sequence[Any]) -> None:
        """Send a message; dropped while ZeroMQ makes the connection again."""
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def receive(self) -> list[Any] | None:
        """Return the frames of the next message; None if there is none."""
        try:
            return [f.buffer for f in self._socket.recv_multipart(zmq.NOBLOCK, copy=False)]
        except zmq.Again:
            return None

    def finish(self, seconds: float) -> None:
        """See `Channel`; ZeroMQ's own threads send."""
        self._socket.linger = self._linger_ms = int(1000 * seconds)

    def close(self) -> None:
        """Close the sockets; harmless if called again."""
        if not self._socket.closed:  # at the interpreter's end ZeroMQ may have closed it before
            self._socket.disable_monitor()
        self._socket.close(self._linger_ms)
        self._monitor.close(0)
