"""TCP sockets beneath ZeroMQ's: the listening one, and state of the accepted ones.

Partition servers and graph servers run it. Imports no torch.

A connection takes a descriptor, and memory up to the size of a frame, before it is authenticated.
ZeroMQ does not bound the number of connections: it accepts until descriptors run out, and then
retries without a pause. It cannot stop accepting either: if a socket is unbound, all of its
connections end. So the server makes the listening socket itself (`ZMQ_USE_FD`). While there are too
many connections, a socket filter in the kernel drops attempts to connect. Connected peers are
served meanwhile, and TCP retries the others. `connections` bounds two numbers: all connections, and
those not authenticated. The second bounds strangers, as a slow handshake ends its connection.

ZeroMQ owns the accepted sockets. At any time it may close a descriptor, whose number another file
then gets. So a value that is read here may be of another file. To end a connection, its descriptor
is copied, and the copy's peer is compared first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import zmq

Peer: TypeAlias = "tuple[object, ...] | None"
"""Address and port of a connection's peer. None if the connection has ended."""

# <asm/socket.h>, <linux/filter.h>: a program of one instruction, `return 0`: drop.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_INSTRUCTION, _PROGRAM = struct.Struct("HBBI"), struct.Struct("@HP")
_RETURN = 0x06
# <linux/tcp.h>: offset of `tcpi_bytes_received` in `struct tcp_info`, since Linux 4.1.
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128
_RESET_WHEN_CLOSED = struct.pack("=ii", 1, 0)
# Bytes that ZeroMQ adds to a short and to a long frame, and CURVE to a frame.
_SHORT, _LONG, _LONG_FROM, _CURVE = 2, 9, 256, 33
# Names that ZeroMQ itself gives to peers: a zero byte and a number.
_NAME_BYTES = 5


def raise_descriptor_limit() -> None:
    """Raise the limit of descriptors to the hard limit, for this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # more than the kernel's limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Listener:
    """A listening TCP socket at an address, or at '*': all addresses of this machine.

    Raises:
        zmq.ZMQError: the address cannot be bound.
    """

    def __init__(self, host: str, port: int, backlog: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.is_paused = False
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("" if host == "*" else host, port))
            self._socket.listen(backlog)
        except OSError as error:
            self._socket.close()
            raise zmq.ZMQError(error.errno if (error.errno or 0) > 0 else zmq.EINVAL) from None

    def bind(self, front: zmq.Socket[bytes]) -> str:
        """Let a ZeroMQ socket accept connections here, and return its address."""
        front.setsockopt(zmq.USE_FD, os.dup(self._socket.fileno()))  # closed by ZeroMQ
        front.bind("tcp://127.0.0.1:*")  # ignored
        return front.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def pause(self) -> None:
        """Drop attempts to connect until `resume` is called. OSError if the system cannot."""
        code = ctypes.create_string_buffer(_INSTRUCTION.pack(_RETURN, 0, 0, 0))
        program = _PROGRAM.pack(1, ctypes.addressof(code))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        self.is_paused = True

    def resume(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        self.is_paused = False

    def close(self) -> None:
        """Close the socket. Listening ends once ZeroMQ has closed its own descriptor, too."""
        self._socket.close()


def wire_bytes(sizes: Iterable[int], has_curve: bool) -> int:
    """Return the bytes of a message on the wire, from the sizes of its frames."""
    overhead = _CURVE if has_curve else 0
    sealed = [size + overhead for size in sizes]
    return sum(size + (_LONG if size >= _LONG_FROM else _SHORT) for size in sealed)


def is_unnamed(name: bytes) -> bool:
    """Return True if a peer has chosen no name, so that ZeroMQ has named it."""
    return len(name) == _NAME_BYTES and name[0] == 0


def peer_of(descriptor: int) -> Peer:
    """Return address and port of the peer of a connection (`descriptor`). None if it has ended."""
    try:
        with _borrowed(descriptor) as connection:
            peer: tuple[object, ...] = connection.getpeername()
            return peer
    except OSError:
        return None


def bytes_received(descriptor: int) -> int | None:
    """Return the number of bytes that a connection has received.

    None if the connection has ended, or if the system does not count bytes.
    """
    try:
        with _borrowed(descriptor) as connection:
            size = _RECEIVED_AT + _RECEIVED.size
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    except OSError:
        return None
    return None if len(info) < size else int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0])


def end_connection(descriptor: int, peer: Peer) -> bool:
    """End the connection to a peer. Return False if the descriptor is of another one by now.

    ZeroMQ then finds the connection closed and closes its descriptor. This resets the connection. A
    peer that keeps sending would otherwise wait for a minute.
    """
    try:
        own = os.dup(descriptor)
    except OSError:
        return False
    try:
        if peer is None or peer_of(own) != peer:
            return False
        with contextlib.suppress(OSError), _borrowed(own) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_WHEN_CLOSED)
            connection.shutdown(socket.SHUT_RDWR)
        return True
    finally:
        os.close(own)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Yield a socket object over a copy of a descriptor, which itself stays open."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    try:
        yield connection
    finally:
        connection.detach()
