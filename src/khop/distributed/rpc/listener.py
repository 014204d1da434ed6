"""Listening TCP socket of a server, with a bound on its connections. Imports no torch.

Partition servers and graph servers run it. A connection takes a descriptor, and memory up to the
size of a frame, before it is authenticated. ZeroMQ does not bound their number: it accepts until
descriptors run out, and then retries without a pause. It cannot pause either: to unbind a socket
ends all of its connections. So the server makes the listening socket itself (`ZMQ_USE_FD`), and
while there are too many connections the kernel drops requests for more (a socket filter, which does
not apply to existing connections). Connected peers are served meanwhile; TCP retries the others.

Two numbers are bounded: all connections, and those that are not authenticated. The second is all
that strangers can get, since a handshake that takes too long ends with its connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket
import struct
import threading
import time
from collections import deque
from pathlib import Path

import zmq

from khop import log
from khop.distributed.rpc.limits import Limits

_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
_EVENT = struct.Struct("=Hi")
_MONITOR = "inproc://connections"
# Descriptors left for samplers, local clients and files; a quarter of all if that is less.
_RESERVE = 256
# Least bound of connections, however few descriptors there are.
_LEAST = 16
# Listening resumes when the number of connections is this share below the bound.
_ROOM = 1 / 8
_LOOK_MS = 250
_COUNT_SECONDS = 1.0
_SAY_SECONDS = 60.0
# <asm/socket.h>, <linux/filter.h>: a program of one instruction, `return 0`: drop.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_INSTRUCTION, _PROGRAM = struct.Struct("HBBI"), struct.Struct("@HP")
_RETURN = 0x06
_log = log.get(__name__)


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


class ConnectionLimiter:
    """Thread that pauses a listener while it has too many connections. Ends with the context.

    The thread counts connections from ZeroMQ's reports. It does nothing else, so that it never
    lags. Its queue of reports is not bounded: ZeroMQ would block if a bounded one were full.

    Args:
        context: context of the socket.
        front: the socket, before it is bound.
        listener: the listener on which it will accept connections.
        limits: `connections`, `handshakes`, `handshake_ms` and `backlog` are used.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        front: zmq.Socket[bytes],
        listener: Listener,
        limits: Limits,
    ) -> None:
        self._context = context
        self._listener = listener
        self._limits = limits
        self._accepted: dict[int, float] = {}
        self._proved: deque[float] = deque()
        self._others = 0
        self._count_at = self._say_at = 0.0
        front.monitor(_MONITOR, _EVENTS)
        self._reports: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._reports.linger = 0
        self._reports.rcvhwm = 0
        self._reports.connect(_MONITOR)
        threading.Thread(target=self._run, name="khop-connections", daemon=True).start()

    @property
    def num_connections(self) -> int:
        """Number of open connections."""
        return len(self._accepted)

    def _run(self) -> None:
        try:
            while True:
                self._reports.poll(_LOOK_MS if self._listener.is_paused else None)
                while self._reports.poll(0):
                    event, descriptor = _EVENT.unpack(self._reports.recv_multipart()[0])
                    self._note(event, descriptor)
                self._pause_or_resume()
        except zmq.ContextTerminated:
            pass
        finally:
            self._reports.close(0)

    def _note(self, event: int, descriptor: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._accepted[descriptor] = time.monotonic()
        elif event == zmq.EVENT_DISCONNECTED:
            self._accepted.pop(descriptor, None)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._proved.append(time.monotonic())

    def _pause_or_resume(self) -> None:
        count, most = len(self._accepted), self._most_connections()
        unproved = self._count_unproved()
        fullness = max(count / most, unproved / self._limits.handshakes)
        try:
            if not self._listener.is_paused and fullness >= 1:
                self._listener.pause()
                self._say(count, unproved)
            elif self._listener.is_paused and fullness < 1 - _ROOM:
                self._listener.resume()
        except OSError as error:  # closed meanwhile; or a system that has no such filters
            _log.debug("connections-unbounded", f"further connections are not dropped: {error}")

    def _most_connections(self) -> int:
        """Return the bound of connections, given the free descriptors."""
        now = time.monotonic()
        if now >= self._count_at:
            self._count_at = now + _COUNT_SECONDS
            with contextlib.suppress(OSError):  # no descriptor is left: keep the last count
                open_now = sum(1 for _ in Path("/proc/self/fd").iterdir())
                self._others = max(0, open_now - len(self._accepted))
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # Connections in the backlog are accepted even after the listener is paused.
        kept = min(_RESERVE, allowed // 4) + self._limits.backlog
        return max(_LEAST, min(self._limits.connections, allowed - kept - self._others))

    def _count_unproved(self) -> int:
        """Return an upper bound of the connections that are not authenticated.

        ZeroMQ reports that a connection was authenticated, but not which. All that are not are
        younger than the time limit of a handshake.
        """
        since = time.monotonic() - self._limits.handshake_ms / 1000
        while self._proved and self._proved[0] < since:
            self._proved.popleft()
        young = 0
        for accepted in reversed(self._accepted.values()):
            if accepted < since:
                break
            young += 1
        return max(0, young - len(self._proved))

    def _say(self, count: int, unproved: int) -> None:
        now = time.monotonic()
        if now < self._say_at:
            return
        self._say_at = now + _SAY_SECONDS
        _log.warning(
            "connections-paused",
            f"{count} connections, of which up to {unproved} have not shown a key: no further ones "
            "are taken until there are fewer",
            connections=count,
            unproved=unproved,
        )
