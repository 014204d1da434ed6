"""Senders of messages, and the keys that a server admits. Imports no torch.

Graph servers run it, and partition servers with keys or with requests that write. Work is counted
and queued by user, not by connection. So a user with more connections gets no more of a server.

ZeroMQ asks once per handshake whether a key is admitted, over a socket inside the process:
see https://rfc.zeromq.org/spec/27. pyzmq has a thread for this, too, but imports asyncio for it,
which takes a fifth of a server's start.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import zmq
from zmq.utils import z85

from khop.loopback import is_loopback

ADMITTED, LATER, REFUSED = b"200", b"300", b"400"
"""Decisions about a key. After LATER the connection ends, and the peer may try again."""

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
# version, request id, domain, address, routing id, mechanism, key
_FRAMES = 7


class CurveKeys(TypedDict):
    """Keys of a server's socket, Z85 text: its pair, and the clients' public keys to admit."""

    public: str
    secret: str
    clients: list[str]


@dataclass(frozen=True)
class Source:
    """Sender of a message to a server: its connection, its user and its rights.

    Attributes:
        connection: index of the socket, and ZeroMQ's name of the peer there.
        user: name of the sender, by which work is counted. If each client has its own key, the
            public key. Otherwise key (if any) and address, where all loopback addresses are one.
            For a local socket, user and process of this machine.
        is_server: whether it may act as a graph server. True with the servers' key, for processes
            of this user on this machine, and for any process where there are no keys.
        is_proven: whether a key or the operating system proves `is_server`.
        has_own_key: whether `user` is a key that no other client has.
        key: public key of the connection. If None, it has none.
        descriptor: file descriptor of the connection, and the inode of its socket. None if unknown.
    """

    connection: tuple[int, bytes]
    user: str
    is_server: bool = False
    is_proven: bool = False
    has_own_key: bool = False
    key: str | None = None
    descriptor: tuple[int, int] | None = None

    @property
    def has_disconnected(self) -> bool:
        """True if the connection has been closed."""
        return has_ended(self.descriptor)


NOBODY = Source((-1, b""), "")
"""Placeholder where the sender of a request does not matter."""


def source_of(front: int, peer: zmq.Frame, frame: zmq.Frame, curve: CurveKeys | None) -> Source:
    """Return the sender of a message, from any of its frames.

    Args:
        front: index of the socket at which it arrived.
        peer: ZeroMQ's name of the peer.
        frame: a frame of the message. libzmq attaches the connection's properties to each frame.
        curve: keys of the socket. If None, it is local or has no keys.
    """
    connection = front, peer.bytes
    address = str(property_of(frame, "Peer-Address"))
    if is_loopback(address):
        address = "loopback"  # a process of this machine has all 16 million of them
    key = property_of(frame, "User-Id") if curve is not None else None
    if key is None or curve is None:
        # 'localhost:user:group:process' for local sockets. Only this user can enter their folder.
        is_local = address.startswith("localhost:")
        return Source(connection, address, is_server=True, is_proven=is_local)
    if key == curve["public"]:
        return Source(connection, f"server {address}", is_server=True, is_proven=True, key=key)
    if len(curve["clients"]) > 1:
        return Source(connection, key, has_own_key=True, key=key)
    return Source(connection, f"{key} {address}", key=key)


def property_of(frame: zmq.Frame, name: str) -> str | None:
    """Return a property, by ZeroMQ's name, of the connection that a frame came over.

    None if it is not known.
    """
    try:
        return str(frame.get(name))
    except (zmq.ZMQError, ValueError):
        return None


def descriptor_of(frame: zmq.Frame) -> tuple[int, int] | None:
    """Return the descriptor of a frame's connection, and the inode of its socket. None if unknown.

    Another connection may get the same descriptor later, but not the same inode.
    """
    try:
        descriptor = int(frame.get(zmq.SRCFD))
    except (ValueError, zmq.ZMQError):
        return None
    return descriptor, _inode(descriptor)


def has_ended(connection: tuple[int, int] | None) -> bool:
    """Return True if a connection (see `descriptor_of`) has been closed. False if it is unknown."""
    if connection is None:
        return False
    descriptor, inode = connection
    return inode == -1 or _inode(descriptor) != inode


def _inode(descriptor: int) -> int:
    """Return the inode of a descriptor's file. -1 if it is closed."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return -1


class KeyGate:
    """Thread that answers ZeroMQ's question whether a peer's CURVE key is admitted.

    It calls `decide` with the key, Z85 text, which returns `ADMITTED`, `LATER` or `REFUSED`. It
    ends with the ZeroMQ context.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], decide: Callable[[str], bytes]
    ) -> None:
        self._decide = decide
        self._socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ADDRESS)
        threading.Thread(target=self._run, name="khop-keys", daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
        except zmq.ContextTerminated:
            pass
        finally:
            self._socket.close(0)

    def _answer(self, request: list[bytes]) -> list[bytes]:
        request_id = request[1] if len(request) > 1 else b""
        if len(request) != _FRAMES or request[0] != _VERSION or request[5] != b"CURVE":
            return [_VERSION, request_id, REFUSED, b"", b"", b""]
        key = z85.encode(request[6]).decode()
        # ZeroMQ attaches the key to messages of the connection, as `User-Id`.
        return [_VERSION, request_id, self._decide(key), b"", key.encode(), b""]
