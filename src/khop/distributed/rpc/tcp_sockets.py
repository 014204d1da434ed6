"""State of TCP connections that ZeroMQ owns, and its form of messages. Imports no torch.

Servers run it. Such a descriptor may be closed, and become another file, at any time. What is only
read may then be wrong once. A connection is ended by a copy of its descriptor, after a check that
the copy is this connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import Any

# <linux/tcp.h>: offset of `tcpi_bytes_received` in `struct tcp_info`, since Linux 4.1.
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128
_RESET_WHEN_CLOSED = struct.pack("=ii", 1, 0)
# What ZeroMQ adds to a frame, short or long, and CURVE to a frame.
_SHORT, _LONG, _LONG_FROM, _CURVE = 2, 9, 256, 33
# Names that ZeroMQ itself gives to peers: a zero byte and a number.
_NAME_BYTES = 5


def wire_bytes(sizes: Iterable[int], has_curve: bool) -> int:
    """Return the bytes of a message on the wire, given the sizes of its frames."""
    overhead = _CURVE if has_curve else 0
    sealed = [size + overhead for size in sizes]
    return sum(size + (_LONG if size >= _LONG_FROM else _SHORT) for size in sealed)


def is_unnamed(name: bytes) -> bool:
    """Return whether ZeroMQ itself has named a peer."""
    return len(name) == _NAME_BYTES and name[0] == 0


def peer_of(descriptor: int) -> Any:
    """Return the address and port of a connection's peer; None if it has ended."""
    try:
        with _borrowed(descriptor) as connection:
            return connection.getpeername()
    except OSError:
        return None


def bytes_received(descriptor: int) -> int | None:
    """Return the bytes that a connection has received; None if it has ended.

    Also None where the system does not count them.
    """
    try:
        with _borrowed(descriptor) as connection:
            size = _RECEIVED_AT + _RECEIVED.size
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    except OSError:
        return None
    return None if len(info) < size else int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0])


def end_connection(descriptor: int, peer: Any) -> bool:
    """End the connection of a descriptor with a peer; return whether it was still this one.

    Its owner finds it closed by the peer, and when it has closed it, the peer is told (reset): one
    that sends without a pause, to a full window, would wait for a minute.
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
    """Yield a socket object of a descriptor, which stays open."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    try:
        yield connection
    finally:
        connection.detach()
