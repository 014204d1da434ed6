"""Sockets of a server. Imports no torch.

Partition servers, output servers and graph servers have them; each has a loop of its own that reads
the sockets. Sockets: `ipc://` in a folder that only the owner can enter, for processes of this
machine; `tcp://`, with CURVE if there are keys, for those of other machines. Beside them partition
servers have the acceptor of a user's own transport.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from khop.distributed.processes.socket_files import own_path
from khop.distributed.rpc.channel_front import ChannelFront
from khop.distributed.rpc.connections import Connections
from khop.distributed.rpc.key_gate import KeyGate
from khop.distributed.rpc.limits import DEFAULT, ENVELOPE_BYTES, Limits, RateLimiter, SendBacklog
from khop.distributed.rpc.listener import Listener
from khop.distributed.rpc.transport import Transport

# Greetings that are left out in one call, so that who sends nothing else cannot hold a loop.
_SKIPPED_AT_ONCE = 64


class ServerSockets:
    """Bound sockets of a server, and the bounds of each peer's requests.

    Args:
        ipc_path: path of the socket for this machine. If None, there is no such socket.
        tcp_host: address to listen at for other machines. If None, there is no such socket.
        curve: {'public', 'secret', 'clients': [..]} keys in Z85 text: its own pair, and the public
            keys that it admits. If None, CURVE is not used (insecure).
        tcp_port: the TCP port. If None or 0, any free port.
        limits: bounds for each peer.
        transport: a transport of the user's own, for clients that have it, too. If None, there is
            none.

    Attributes:
        context: ZeroMQ's context of all sockets.
        fronts: the bound sockets, and the transport's acceptor, to receive requests from.
        addresses: their addresses, by 'ipc', 'tcp' and 'own'.
        backlog: bytes that each peer has not read.
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
        curve: Mapping[str, Any] | None,
        tcp_port: int | None = None,
        limits: Limits = DEFAULT,
        transport: Transport | None = None,
    ) -> None:
        self.curve = curve
        self.limits = limits
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.fronts: list[Any] = []
        self.addresses: dict[str, str] = {}
        self.backlog = SendBacklog()
        self._rates = RateLimiter(limits.rate, limits.burst)
        self._listener: Listener | None = None
        self._tcp: int | None = None
        if ipc_path is not None:
            self._bind_ipc(ipc_path)
        if tcp_host is not None:
            try:
                self._bind_tcp(tcp_host, tcp_port or 0)
            except zmq.ZMQError:
                self.close()
                raise
        if transport is not None:
            self._listen(transport, ipc_path, tcp_host)

    @property
    def server_key(self) -> str | None:
        """Public key of the TCP socket; None if CURVE is not used."""
        return None if self.curve is None else str(self.curve["public"])

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
        if self.curve is not None:
            self._secure(front, self.curve)
        self.addresses["tcp"] = self._listener.bind(front)

    def _listen(self, transport: Transport, path: str | None, host: str | None) -> None:
        try:
            own = None if path is None else own_path(path)
            if own is not None:
                Path(own).unlink(missing_ok=True)  # of a server that was killed
            acceptor = transport.listen(own, host)
        except BaseException:
            self.close()
            raise
        if acceptor is not None:
            self.fronts.append(ChannelFront(acceptor, self.limits.connections))
            self.addresses["own"] = acceptor.address

    def _router(self) -> zmq.Socket[bytes]:
        # libzmq names peers by numbers from rand() on, which it seeds by time and process id; a
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

    def _secure(self, socket: zmq.Socket[bytes], curve: Mapping[str, Any]) -> None:
        # Servers use the same pair to connect to each other.
        self.connections.set_keys(curve["public"], curve["clients"])
        KeyGate(self.context, self.connections.admit)
        socket.curve_server = True
        socket.curve_publickey = curve["public"].encode()
        socket.curve_secretkey = curve["secret"].encode()

    def admit(self, clients: Sequence[str]) -> None:
        """Admit these clients' public keys, and no others; connections of others end.

        Any thread may call it.
        """
        assert self.curve is not None
        self.curve = {**self.curve, "clients": list(clients)}
        self.connections.set_keys(self.curve["public"], clients)

    def receive(self, front: int) -> list[zmq.Frame] | None:
        """Return the next message at a socket: the peer's name, and frames; None if there is none.

        Greetings, which clients send when they are connected, are left out; None after many.

        Args:
            front: index of the socket.
        """
        if isinstance(self.fronts[front], ChannelFront):
            received = self.fronts[front].receive()
            return None if received is None else [zmq.Frame(buffer) for buffer in received]
        for _ in range(_SKIPPED_AT_ONCE):
            try:
                message: list[zmq.Frame] = self.fronts[front].recv_multipart(
                    zmq.NOBLOCK, copy=False
                )
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
        """Send frames to a peer; dropped if it has disconnected, or does not read.

        Args:
            front: index of the socket to which the peer is connected.
            peer: ZeroMQ's name of the peer there.
            frames: objects with the buffer protocol, not copied if large.
        """
        if isinstance(self.fronts[front], ChannelFront):
            self.fronts[front].send(peer, [_buffer(frame) for frame in frames])
        else:
            self.backlog.send(self.fronts[front], peer, frames)

    def send_now(self, front: int, peer: bytes, frames: Sequence[Any]) -> None:
        """Send frames to a peer if there is room for them, though it may not have read others."""
        if isinstance(self.fronts[front], ChannelFront):
            self.fronts[front].send(peer, frames)
            return
        with contextlib.suppress(zmq.ZMQError):
            self.fronts[front].send_multipart([peer, *frames], zmq.DONTWAIT)

    def why_not(
        self, peer: bytes, user: bytes | None = None, is_limited: bool = True
    ) -> str | None:
        """Return the reason to refuse a request; None if it is admitted.

        Args:
            peer: its connection.
            user: user for whom the rate is counted. If None, it is counted for the connection.
            is_limited: True if the rate of requests is limited.
        """
        if is_limited and not self._rates.admit(user or peer):
            return (
                f"a peer asks for more than {self.limits.rate:.0f} answers a second: it must wait "
                "for answers before it asks again"
            )
        unread = self.backlog.of(peer)
        if unread > self.limits.unread_bytes:
            return f"a peer has not read {unread} bytes of replies: it must read before it asks"
        return None

    def close(self, linger_ms: int = 0) -> None:
        """Close the sockets; harmless if called again.

        Args:
            linger_ms: milliseconds that messages which are being sent may still take.
        """
        if self.context.closed:
            return
        for front in self.fronts:
            front.close(linger_ms)
        self.context.term()
        if self._listener is not None:
            self._listener.close()


def _buffer(frame: Any) -> Any:
    return frame.buffer if isinstance(frame, zmq.Frame) else frame
