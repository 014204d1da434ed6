"""State of TCP connections that another thread, or ZeroMQ, owns. Imports no torch.

Servers run it. Such a descriptor may be closed, and become another file, at any time. What is only
read may then be wrong once. A connection is ended by a copy of its descriptor, after a check that
the copy is this connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

# <linux/tcp.h>: offset of `tcpi_bytes_received` in `struct tcp_info`, since Linux 4.1.
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128


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

    Its owner finds it closed by the peer.
    """
    try:
        own = os.dup(descriptor)
    except OSError:
        return False
    try:
        if peer is None or peer_of(own) != peer:
            return False
        with contextlib.suppress(OSError), _borrowed(own) as connection:
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
