"""Sockets of a server. Imports no torch.

Partition servers, output servers and graph servers have these sockets. Each reads them in its loop.

    ipc://   processes of this machine. In a folder that only the owner can enter
    tcp://   processes of other machines. With CURVE if there are keys
    own      clients with a user's own transport. At partition servers alone
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import select
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq

from khop import log
from khop.distributed.processes.socket_files import own_path
from khop.distributed.rpc.connections import Connections
from khop.distributed.rpc.identity import CurveKeys, KeyGate
from khop.distributed.rpc.limits import (
    DEFAULT,
    ENVELOPE_BYTES,
    Limits,
    RateLimiter,
    SendBacklog,
    unread_error,
)
from khop.distributed.rpc.tcp_sockets import Listener
from khop.distributed.rpc.transport import Acceptor, Buffer, Channel, Transport

# Greetings skipped in one call, and events of a transport that one call looks at, so that a peer
# which sends nothing else, or connects without end, cannot hold a loop.
_SKIPPED_AT_ONCE = _EVENTS_AT_ONCE = 64
_log = log.get(__name__)


class ServerSockets:
    """Bound sockets of a server, and the bounds of each peer's requests.

    Args:
        ipc_path: path of the socket for this machine. If None, there is no such socket.
        tcp_host: address to listen at for other machines. If None, there is no such socket.
        curve: the server's key pair, and the public keys to admit. If None, CURVE is not used.
        tcp_port: the TCP port. If None or 0, any free port.
        limits: bounds for each peer.
        transport: a user's own transport. If None, there is none.

    Attributes:
        context: ZeroMQ's context of all sockets.
        fronts: sources of requests: the bound sockets, and the transport's acceptor.
        addresses: their addresses, by 'ipc', 'tcp' and 'own'.
        backlog: count of the bytes that each peer has not read.
        connections: the connections over TCP, and their bounds.

    Raises:
        zmq.ZMQError: an address cannot be bound.
        OSError: the transport cannot listen.
    """

    connections: Connections

    def __init__(
        self,
        ipc_path: str | None,
        tcp_host: str | None,
        curve: CurveKeys | None,
        tcp_port: int | None = None,
        limits: Limits = DEFAULT,
        transport: Transport | None = None,
    ) -> None:
        self.curve = curve
        self.limits = limits
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.fronts: list[zmq.Socket[bytes] | ChannelFront] = []
        self.addresses: dict[str, str] = {}
        self.backlog = SendBacklog()
        self._rates = RateLimiter(limits.rate, limits.burst)
        self._listener: Listener | None = None
        self._tcp: int | None = None
        try:
            if ipc_path is not None:
                self._bind_ipc(ipc_path)
            if tcp_host is not None:
                self._bind_tcp(tcp_host, tcp_port or 0)
            if transport is not None:
                self._listen(transport, ipc_path, tcp_host)
        except BaseException:
            self.close()
            raise

    @property
    def server_key(self) -> str | None:
        """Public key of the TCP socket. None if CURVE is not used."""
        return None if self.curve is None else self.curve["public"]

    def _bind_ipc(self, path: str) -> None:
        front = self._router()
        # Only the owner can enter the folder. If it is opened to others, ZeroMQ still admits
        # only this user and root, where the system has SO_PEERCRED (so on Linux).
        with contextlib.suppress(zmq.ZMQError):
            for user in {os.geteuid(), 0}:
                front.setsockopt(zmq.IPC_FILTER_UID, user)
        front.bind(f"ipc://{path}")
        self.addresses["ipc"] = f"ipc://{path}"

    def _bind_tcp(self, host: str, port: int) -> None:
        front = self._router()
        self._tcp = len(self.fronts) - 1
        self._listener = Listener(host, port, self.limits.backlog)
        self.connections = Connections(self.context, front, self._listener, self.limits)
        if self.curve is not None:  # servers use the same pair to connect to each other
            self.connections.set_keys(self.curve["public"], self.curve["clients"])
            KeyGate(self.context, self.connections.admit)
            front.curve_server = True
            front.curve_publickey = self.curve["public"].encode()
            front.curve_secretkey = self.curve["secret"].encode()
        self.addresses["tcp"] = self._listener.bind(front)

    def _listen(self, transport: Transport, path: str | None, host: str | None) -> None:
        own = None if path is None else own_path(path)
        if own is not None:
            Path(own).unlink(missing_ok=True)  # of a server that was killed
        acceptor = transport.listen(own, host)
        if acceptor is not None:
            self.fronts.append(ChannelFront(acceptor, self.limits.connections))
            self.addresses["own"] = acceptor.address

    def _router(self) -> zmq.Socket[bytes]:
        # libzmq names peers by numbers from rand() on, which it seeds by time and process id. A
        # peer that knows the next one could end this process (see `Connections.note_message`).
        ctypes.CDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), "little")))
        socket = self.context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.sndhwm = self.limits.unread
        # Not bounded: a peer that disconnects while its queue is full ends the whole process at the
        # next heartbeat (libzmq 4.3.5: "Assertion failed: !_io_error", stream_engine_base.cpp).
        socket.rcvhwm = 0
        socket.setsockopt(zmq.MAXMSGSIZE, ENVELOPE_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, self.limits.handshake_ms)
        socket.setsockopt(zmq.BACKLOG, self.limits.backlog)  # of the one at `ipc://`
        socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3000)
        self.fronts.append(socket)
        return socket

    def admit(self, clients: Sequence[str]) -> None:
        """Admit only clients with these public keys, and end other connections. Any thread."""
        assert self.curve is not None
        self.curve = {**self.curve, "clients": list(clients)}
        self.connections.set_keys(self.curve["public"], clients)

    def receive(self, front: int) -> list[zmq.Frame] | None:
        """Return the next message at a socket: the peer's name, then the frames.

        None if there is no message, or if 64 empty messages were skipped: clients send one as a
        greeting when they connect.
        """
        source = self.fronts[front]
        if isinstance(source, ChannelFront):
            received = source.receive()
            return None if received is None else [zmq.Frame(buffer) for buffer in received]
        for _ in range(_SKIPPED_AT_ONCE):
            try:
                message: list[zmq.Frame] = source.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            name, *frames = message
            is_client = (
                not frames
                or front != self._tcp
                or self.connections.note_message(name.bytes, frames)
            )
            is_greeting = len(frames) == 1 and not len(frames[0])
            if is_client and not is_greeting:
                return message
        return None

    def send(self, front: int, peer: bytes, frames: Sequence[Any]) -> None:
        """Send frames to a peer. They are dropped if the peer has disconnected or does not read."""
        target = self.fronts[front]
        if isinstance(target, ChannelFront):
            target.send(peer, [f.buffer if isinstance(f, zmq.Frame) else f for f in frames])
        else:
            self.backlog.send(target, peer, frames)

    def send_now(self, front: int, peer: bytes, frames: Sequence[Any]) -> None:
        """Send frames to a peer if its queue has space, without regard to its unread bytes."""
        target = self.fronts[front]
        if isinstance(target, ChannelFront):
            target.send(peer, frames)
            return
        with contextlib.suppress(zmq.ZMQError):
            target.send_multipart([peer, *frames], zmq.DONTWAIT)

    def why_not(
        self, peer: bytes, user: bytes | None = None, is_limited: bool = True
    ) -> str | None:
        """Return the reason to refuse a request. None if it is admitted.

        If `is_limited`, the rate of requests is bounded: by user, or by connection (`peer`) if
        `user` is None. Bytes that the peer has not read are always bounded.
        """
        if is_limited and not self._rates.admit(user or peer):
            return (
                f"a peer asks for more than {self.limits.rate:.0f} answers a second: it must wait "
                "for answers before it asks again"
            )
        return unread_error(self.backlog.of(peer), self.limits.unread_bytes)

    def close(self, linger_ms: int = 0) -> None:
        """Close the sockets. Messages that were sent have `linger_ms` milliseconds to leave."""
        if self.context.closed:
            return
        for front in self.fronts:
            front.close(linger_ms)
        self.context.term()
        if self._listener is not None:
            self._listener.close()


class ChannelFront:
    """Connections of a transport's acceptor, read by a server's loop as if they were one socket.

    At most `most` connections are open, and further ones are closed. A failure ends one of them.
    """

    def __init__(self, acceptor: Acceptor, most: int) -> None:
        self._acceptor = acceptor
        self._most = most
        self._names: dict[int, bytes] = {}
        self._channels: dict[bytes, Channel] = {}
        self._count = itertools.count()
        self._epoll = select.epoll()
        self._epoll.register(acceptor.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `receive` should be called."""
        return self._epoll.fileno()

    def receive(self) -> list[Buffer] | None:
        """Return the next message, the name of its peer first. None if there is none."""
        for descriptor, _ in self._epoll.poll(0, _EVENTS_AT_ONCE):
            name = self._names.get(descriptor)
            if name is None:
                self._accept()
                continue
            try:
                frames = self._channels[name].receive()
            except Exception as error:  # of any type: the transport raises it
                self._end(name, error)
                continue
            if frames is not None:
                return [name, *frames]
        return None

    def _accept(self) -> None:
        try:
            channel = self._acceptor.accept()
        except OSError:
            return
        if len(self._channels) >= self._most:
            channel.close()
            return
        name = b"own-%d" % next(self._count)
        self._names[channel.fileno()], self._channels[name] = name, channel
        self._epoll.register(channel.fileno(), select.EPOLLIN)

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Send a message to a peer. It is dropped if the connection has ended."""
        channel = self._channels.get(peer)
        if channel is None:
            return
        try:
            channel.send(frames)
        except Exception as error:
            self._end(peer, error)

    def _end(self, name: bytes, error: Exception) -> None:
        channel = self._channels.pop(name)
        _log.debug("channel-ended", f"a client's connection has ended: {error!r}")
        self._names.pop(channel.fileno(), None)
        with contextlib.suppress(OSError):
            self._epoll.unregister(channel.fileno())
        channel.close()

    def close(self, _linger_ms: int = 0) -> None:
        for channel in self._channels.values():
            channel.close()
        self._acceptor.close()
        self._epoll.close()
