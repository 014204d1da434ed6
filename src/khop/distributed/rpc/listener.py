"""Listening TCP socket of a server, with a bound on its connections. Imports no torch.

Partition servers and graph servers run it. A connection takes a descriptor, and memory up to the
size of a frame, before it is authenticated. ZeroMQ does not bound their number: it accepts until
descriptors run out, and then retries without a pause. It cannot pause either: to unbind a socket
ends all of its connections. So the server makes the listening socket itself (`ZMQ_USE_FD`), and
while there are too many connections the kernel drops requests for more (a socket filter, which does
not apply to existing connections). Connected peers are served meanwhile; TCP retries the others.

Two numbers are bounded: all connections, and those that are not authenticated (`connections`). The
second is all that strangers can get, since a handshake that takes too long ends with its
connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket
import struct

import zmq

# <asm/socket.h>, <linux/filter.h>: a program of one instruction, `return 0`: drop.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_INSTRUCTION, _PROGRAM = struct.Struct("HBBI"), struct.Struct("@HP")
_RETURN = 0x06


def raise_descriptor_limit() -> None:
    """Raise the limit of descriptors to the hard limit, for this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # more than the kernel's limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Listener:
    """A listening TCP socket.

    Args:
        host: an address, or '*' for all addresses of this machine.
        port: the port. If 0, any free port.
        backlog: connections that wait to be accepted.

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
        """Make a ZeroMQ socket accept connections here; return its address."""
        front.setsockopt(zmq.USE_FD, os.dup(self._socket.fileno()))  # closed by ZeroMQ
        front.bind("tcp://127.0.0.1:*")  # ignored
        return front.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def pause(self) -> None:
        """Drop requests for connections until `resume`; OSError if the system cannot."""
        code = ctypes.create_string_buffer(_INSTRUCTION.pack(_RETURN, 0, 0, 0))
        program = _PROGRAM.pack(1, ctypes.addressof(code))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        self.is_paused = True

    def resume(self) -> None:
        """Accept connections again."""
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        self.is_paused = False

    def close(self) -> None:
        """Close the socket. Listening ends when ZeroMQ has closed its descriptor, too."""
        self._socket.close()
