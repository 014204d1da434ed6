"""Bounds of a server's TCP connections: their number, and what they make ZeroMQ keep.

Partition servers and graph servers run it. Imports no torch.

ZeroMQ accepts any number of connections. A connection may send a message of any number of frames,
which ZeroMQ keeps until the message is whole. ZeroMQ's bounded queues do not help: they count whole
messages, and the process ends when a peer with a full queue disconnects. So this module counts
outside of ZeroMQ:

- the connections, from ZeroMQ's reports
- the user of each connection, from the first message that the server takes from it
- the bytes that the kernel has received and the server has not taken.

A connection that exceeds a bound is ended. The bounds are in `Limits`.

A client of khop sends an empty message as soon as it is connected. A connection without a message
is no client's. Before the message, a handshake counts as a connection of its key, for 30 s.
"""

from __future__ import annotations

import contextlib
import math
import resource
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import zmq

from khop import log
from khop.distributed.rpc.identity import ADMITTED, LATER, REFUSED, property_of
from khop.distributed.rpc.limits import Limits, RateLimiter
from khop.distributed.rpc.tcp_sockets import (
    Listener,
    Peer,
    bytes_received,
    end_connection,
    is_unnamed,
    peer_of,
    wire_bytes,
)
from khop.loopback import is_loopback

_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
_EVENT = struct.Struct("=Hi")
_MONITOR = "inproc://connections"
# Descriptors left for samplers, local clients and files. At most a quarter of all.
_RESERVE = 256
# Least bound of connections, however few descriptors there are.
_LEAST = 16
# Listening resumes when the number of connections is this share below the bound. Clients with all
# connections that they may have must not prevent that.
_ROOM = 1 / 16
# Share of the connections that clients may have. The others are for servers and handshakes.
_CLIENTS = 7 / 8
# Connections that each key may have, however many keys there are.
_LEAST_OF_KEY = 64
# Connections of a key that have brought no message, by its handshakes of the last 30 s.
_SILENT_OF_KEY, _HANDSHAKE_SECONDS = 64, 30.0
# Handshakes per second and at once: of a key, and of a key that all clients have. Each may be a
# guess at the name that ZeroMQ gives next.
_RATE_OF_KEY, _RATE_OF_ALL = (2.0, 256.0), (64.0, 4096.0)
_LOOK_SECONDS = 0.25
# The thread takes at most this share of a core for looking at connections.
_LOOK_SHARE = 0.05
_COUNT_SECONDS = 1.0
# Messages that may be taken before the reports of their connections are read.
_MAX_EARLY = 4096
# Bytes of a connection beside its messages: its handshake, and heartbeats with their replies.
_HANDSHAKE_BYTES, _BYTES_PER_SECOND = 4096, 128
_REVOKED = "its key was revoked"
_log = log.get(__name__)


@dataclass
class _Connection:
    """An open TCP connection of the server, with its user and the bytes taken from it.

    Attributes:
        since: when it was accepted (`time.monotonic`).
        user: its key, else its address. None before its first message.
        taken: bytes on the wire of the messages that the server has taken.
    """

    peer: Peer
    since: float
    user: str | None = None
    key: str | None = None
    taken: int = 0


class _Message(NamedTuple):
    """A message that the server has taken: its last frame, and its bytes on the wire.

    `is_unnamed` is True if ZeroMQ, not the peer, has chosen the peer's name.
    """

    descriptor: int
    frame: zmq.Frame
    nbytes: int
    is_unnamed: bool


class Connections:
    """The open connections of a server's TCP socket, and the thread that keeps their bounds.

    Make it before the socket `front` is bound. The thread ends with the context. Its queue of
    reports has no bound, since a full one would block ZeroMQ. So the thread must wait for nothing
    but reports.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        front: zmq.Socket[bytes],
        listener: Listener,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = listener
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[int, _Connection] = {}
        self._by_key: Counter[str] = Counter()
        self._handshakes: dict[str, deque[float]] = {}
        self._server_key: str | None = None
        self._clients: frozenset[str] = frozenset()
        # Messages of connections that are not known yet.
        self._early: deque[_Message] = deque(maxlen=_MAX_EARLY)
        self._proved: deque[float] = deque()
        self._others = 0
        self._count_at = self._look_at = 0.0
        self._ended_log = RateLimiter(1.0, 50, clock)
        self._paused_log = RateLimiter(1 / 60, 1, clock)
        self._rate_of_key = RateLimiter(*_RATE_OF_KEY, clock)
        self._rate_of_all = RateLimiter(*_RATE_OF_ALL, clock)
        front.monitor(_MONITOR, _EVENTS)
        self._reports: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._reports.linger = 0
        self._reports.rcvhwm = 0
        self._reports.connect(_MONITOR)
        threading.Thread(target=self._run, name="khop-connections", daemon=True).start()

    @property
    def num_connections(self) -> int:
        return len(self._open)

    # Keys ---------------------------------------------------------------------------------------

    def set_keys(self, server: str, clients: Iterable[str]) -> None:
        """Set the server's key and the clients' keys to admit (Z85). Connections of others end."""
        with self._lock:
            self._server_key, self._clients = server, frozenset(clients)
            revoked = [
                (descriptor, connection)
                for descriptor, connection in self._open.items()
                if connection.key not in (None, server) and connection.key not in self._clients
            ]
        for descriptor, connection in revoked:
            self._end(descriptor, connection, _REVOKED)

    def admit(self, key: str) -> bytes:
        """Decide whether a handshake with a client's key is admitted now. Any thread may call it.

        The bounds keep some connections for servers, and for clients with other keys.
        """
        with self._lock:
            if key == self._server_key:
                return ADMITTED
            if key not in self._clients:
                return REFUSED
            now = self._clock()
            most = int(self._most_connections() * _CLIENTS)
            of_key, silent, rate = most, self._limits.handshakes, self._rate_of_all
            if len(self._clients) > 1:
                of_key = min(most, max(_LEAST_OF_KEY, most // len(self._clients)))
                silent, rate = _SILENT_OF_KEY, self._rate_of_key
            waiting = self._waiting(key, now)
            clients = sum(self._by_key.values()) - self._by_key[self._server_key or ""]
            clients += sum(map(len, self._handshakes.values()))
            own = self._by_key[key] + len(waiting)
            is_full = clients >= most or own >= of_key or len(waiting) >= silent
            if is_full or not rate.admit(key.encode()):
                return LATER
            waiting.append(now)
            return ADMITTED

    def _waiting(self, key: str, now: float) -> deque[float]:
        """Return the times of a key's recent handshakes that no message has followed yet."""
        for times in self._handshakes.values():
            while times and times[0] < now - _HANDSHAKE_SECONDS:
                times.popleft()
        self._handshakes = {k: times for k, times in self._handshakes.items() if times}
        return self._handshakes.setdefault(key, deque())

    # Messages -----------------------------------------------------------------------------------

    def note_message(self, name: bytes, frames: Sequence[zmq.Frame]) -> bool:
        """Count a message that the server has taken. Return False if its peer is no client.

        A peer that has chosen its own name is disconnected. If this name were the next one that
        ZeroMQ itself gives, ZeroMQ would end the process.

        Args:
            name: ZeroMQ's name of the peer.
            frames: the message. Each frame has the properties of its connection.
        """
        try:
            descriptor = int(frames[-1].get(zmq.SRCFD))
        except (zmq.ZMQError, ValueError):
            return True
        nbytes = wire_bytes(map(len, frames), self._server_key is not None)
        message = _Message(descriptor, frames[-1], nbytes, is_unnamed(name))
        connection = self._open.get(descriptor)
        if connection is None:  # accepted a moment ago, or ended meanwhile
            self._early.append(message)
        else:
            self._count(message, connection)
        return message.is_unnamed

    def _count(self, message: _Message, connection: _Connection) -> None:
        with self._lock:  # the server's loop and this module's thread
            connection.taken += message.nbytes
        # A greeting is the first message of its connection, so it settles whose the descriptor is.
        if connection.user is None or not message.frame:
            self._learn_user(message.descriptor, connection, message.frame)
        if not message.is_unnamed:
            self._end(message.descriptor, connection, "it names itself")

    def _learn_user(self, descriptor: int, connection: _Connection, frame: zmq.Frame) -> None:
        address, key = property_of(frame, "Peer-Address") or "", property_of(frame, "User-Id")
        user = "loopback" if is_loopback(address) else address
        if self._server_key is None or key is None:
            connection.user = user
            return
        with self._lock:
            if connection.key == key:
                return
            # With one key for all, users differ by address.
            is_shared = len(self._clients) <= 1 or key == self._server_key
            connection.user = f"{key} {user}" if is_shared else key
            if connection.key is not None:
                self._by_key[connection.key] -= 1
            connection.key = key
            self._by_key[key] += 1
            if waiting := self._handshakes.get(key):
                waiting.popleft()
            is_revoked = key != self._server_key and key not in self._clients
        if is_revoked:  # since its handshake
            self._end(descriptor, connection, _REVOKED)

    # The thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                pause = self._look_at - self._clock()
                if self._listener.is_paused or self._open:
                    self._reports.poll(max(0, math.ceil(1000 * min(pause, _LOOK_SECONDS))))
                else:
                    self._reports.poll(None)
                while self._reports.poll(0):
                    event, descriptor = _EVENT.unpack(self._reports.recv_multipart()[0])
                    self._note_event(event, descriptor)
                while self._early:  # messages taken before this thread knew of their connection
                    message = self._early.popleft()
                    if (connection := self._open.get(message.descriptor)) is not None:
                        self._count(message, connection)
                with self._lock:
                    most = self._most_connections()
                self._pause_or_resume(most)
                if self._clock() >= self._look_at:
                    self._look()
        except zmq.ContextTerminated:
            pass
        finally:
            self._reports.close(0)

    def _note_event(self, event: int, descriptor: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            connection = _Connection(peer_of(descriptor), self._clock())
            with self._lock:
                self._open[descriptor] = connection
        elif event == zmq.EVENT_DISCONNECTED:
            with self._lock:
                ended = self._open.pop(descriptor, None)
                if ended is not None and ended.key is not None:
                    self._by_key[ended.key] -= 1
                    self._by_key += Counter()  # forget those at 0
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._proved.append(self._clock())

    def _look(self) -> None:
        """End connections without a message, or with too many bytes that are not taken."""
        began = self._clock()
        with self._lock:
            connections = list(self._open.items())
        untaken: dict[str, list[tuple[int, int, _Connection]]] = {}
        for descriptor, connection in connections:
            age = began - connection.since
            if connection.user is None and age > self._limits.silent_seconds:
                self._end(descriptor, connection, "it has sent no message")
                continue
            received = bytes_received(descriptor)
            if received is not None:
                kept = received - connection.taken - _HANDSHAKE_BYTES
                kept -= int(age * _BYTES_PER_SECOND)
                of_user = untaken.setdefault(connection.user or "", [])
                of_user.append((kept, descriptor, connection))
        self._bound_untaken(untaken)
        self._look_at = began + max(_LOOK_SECONDS, (self._clock() - began) / _LOOK_SHARE)

    def _bound_untaken(self, untaken: dict[str, list[tuple[int, int, _Connection]]]) -> None:
        """End connections until no bound of bytes that the server has not taken is exceeded.

        The ones with most such bytes end first. `untaken` lists connections by user.
        """
        limits = self._limits
        sums: Counter[str] = Counter()
        for user, of_user in untaken.items():
            of_user.sort(key=lambda one: one[0])
            sums[user] = sum(max(0, kept) for kept, _, _ in of_user)
            while of_user and (
                of_user[-1][0] > limits.untaken_bytes or sums[user] > limits.waiting_bytes
            ):
                sums[user] -= self._end_largest(of_user)
        while sum(sums.values()) > 4 * limits.waiting_bytes:
            user = max(sums, key=lambda user: sums[user])
            sums[user] -= self._end_largest(untaken[user])

    def _end_largest(self, of_user: list[tuple[int, int, _Connection]]) -> int:
        kept, descriptor, connection = of_user.pop()
        self._end(descriptor, connection, f"{kept} bytes of unfinished or waiting messages")
        return kept

    def _end(self, descriptor: int, connection: _Connection, why: str) -> None:
        if end_connection(descriptor, connection.peer) and self._ended_log.admit(b""):
            who = connection.user or connection.peer
            _log.warning("connection-ended", f"a connection of {who} was ended: {why}")

    # The number of connections ------------------------------------------------------------------

    def _pause_or_resume(self, most: int) -> None:
        count, unproved = len(self._open), self._count_unproved()
        fullness = max(count / most, unproved / self._limits.handshakes)
        try:
            if not self._listener.is_paused and fullness >= 1:
                self._listener.pause()
                if self._paused_log.admit(b""):
                    _log.warning(
                        "connections-paused",
                        f"{count} connections, of which up to {unproved} have not shown a key: no "
                        "further ones are taken until there are fewer",
                        connections=count,
                        unproved=unproved,
                    )
            elif self._listener.is_paused and fullness < 1 - _ROOM:
                self._listener.resume()
        except OSError as error:  # closed meanwhile, or a system without such filters
            _log.debug("connections-unbounded", f"further connections are not dropped: {error}")

    def _most_connections(self) -> int:
        """Return the maximum number of connections, which depends on free descriptors."""
        now = self._clock()
        if now >= self._count_at:
            self._count_at = now + _COUNT_SECONDS
            with contextlib.suppress(OSError):  # no descriptor is left: keep the last count
                open_now = sum(1 for _ in Path("/proc/self/fd").iterdir())
                self._others = max(0, open_now - len(self._open))
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # Connections in the backlog are accepted even after the listener is paused.
        kept = min(_RESERVE, allowed // 4) + self._limits.backlog
        return max(_LEAST, min(self._limits.connections, allowed - kept - self._others))

    def _count_unproved(self) -> int:
        """Return an upper bound of the number of connections that are not authenticated.

        ZeroMQ reports authentications, but not of which connection. A connection without one is
        younger than a handshake may take. So recent reports are subtracted from young connections.
        """
        since = self._clock() - self._limits.handshake_ms / 1000
        while self._proved and self._proved[0] < since:
            self._proved.popleft()
        young = 0
        for connection in reversed(self._open.values()):
            if connection.since < since:
                break
            young += 1
        return max(0, young - len(self._proved))
