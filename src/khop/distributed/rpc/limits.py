"""Bounds of each peer's requests to a server, and of the replies. Imports no torch.

Sizes are checked before memory is allocated. ZeroMQ refuses a frame that is too long when its
length arrives, and ends the connection. `khop.channel.message` bounds the number of frames and the
header. The size of a reply is computed from the request before sampling or gathering begins.

ZeroMQ takes one request of each peer in turn (fair queueing). A peer that sends too many requests
(`RateLimiter`) or does not read its replies (`SendBacklog`) gets errors, which cost less.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from khop import log
from khop.channel.message import FRAME_BYTES, MESSAGE_BYTES
from khop.errors import ProtocolError

_log = log.get(__name__)


@dataclass(frozen=True)
class Limits:
    """Bounds of the load of a server. Each attribute is a maximum.

    Attributes:
        reply_bytes: bytes of all arrays of a reply.
        unread_bytes: bytes that a peer has not read. With more, requests of the peer get errors.
        unread: messages that a peer has not read. Further messages are dropped.
        waiting: queued requests of a user at a graph server.
        waiting_bytes: bytes of the queued requests of a user.
        rate: requests of a user per second, sustained.
        burst: requests of a user at once.
        connections: connections over TCP. At this number, no further ones are accepted.
        handshakes: connections over TCP without authentication. At this number, none is accepted.
        handshake_ms: milliseconds that a handshake may take.
        backlog: connections that wait to be accepted.
        silent_seconds: seconds that a connection may be open before its first message.
        untaken_bytes: bytes of a connection that the server has received and not taken, because
            their message is not whole or waits in ZeroMQ. With more, the connection ends. All
            connections of a user may have `waiting_bytes`, and all users four times as much.
    """

    reply_bytes: int = MESSAGE_BYTES
    unread_bytes: int = 2 << 30
    unread: int = 4096
    waiting: int = 1 << 16
    waiting_bytes: int = 2 << 30
    rate: float = 20_000.0
    burst: float = 40_000.0
    connections: int = 4096
    handshakes: int = 1024
    handshake_ms: int = 5_000
    backlog: int = 128
    silent_seconds: float = 10.0
    untaken_bytes: int = MESSAGE_BYTES + (64 << 20)


DEFAULT = Limits()

ENVELOPE_BYTES = FRAME_BYTES + 1024
"""`ZMQ_MAXMSGSIZE` of all sockets: a frame, and the 33 bytes that CURVE adds."""


class RateLimiter:
    """Limit of requests per second of each peer, with bursts (token buckets).

    A bucket gains `rate` tokens per second, up to `burst`. The last 4096 peers have buckets.
    `clock` returns seconds.
    """

    _MAX_PEERS = 4096

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def admit(self, peer: bytes) -> bool:
        """Take a token of a peer for a request. Return False if it has none left."""
        now = self._clock()
        tokens, since = self._buckets.pop(peer, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        admitted = tokens >= 1
        self._buckets[peer] = (tokens - admitted, now)
        if len(self._buckets) > self._MAX_PEERS:
            self._buckets.popitem(last=False)
        return admitted


class ErrorLog:
    """Log of unexpected errors in a loop that continues, bounded so that it cannot fill a disk.

    Each error is counted by a call of `count`, even if it is not logged.
    """

    def __init__(self, count: Callable[[], None]) -> None:
        self._count = count
        self._rate = RateLimiter(1.0, 50)

    @contextlib.contextmanager
    def guarded(self, work: str) -> Iterator[None]:
        """Log and count an exception of the block, and suppress it, so that a loop continues.

        `work` says in the log what failed.
        """
        try:
            yield
        except Exception as error:
            self._count()
            if self._rate.admit(b""):
                _log.error("unexpected", f"{work} failed: {error!r}", exc_info=error)


@dataclass
class _Waiting:
    """Bytes that one peer has been sent and has not read yet.

    Attributes:
        sent: per tracked frame, its tracker and the bytes sent since the tracked frame before.
        untracked: bytes sent since the last tracked frame.
    """

    sent: deque[tuple[zmq.MessageTracker, int]] = field(default_factory=deque)
    nbytes: int = 0
    untracked: int = 0


class SendBacklog:
    """Count of the bytes that each peer has not read, and whose memory ZeroMQ therefore holds.

    All messages to a peer go through `send`, in one thread. Any thread may call `of`. ZeroMQ
    reports when it has released a tracked frame. Frames to a peer leave in the order of sending. So
    the last frame of a message is tracked, once per 64 KiB of messages: when it has left, the
    frames before it have left, too.
    """

    STEP = 1 << 16
    # Bytes of memory for a frame, in addition to its content.
    _OVERHEAD = 64
    _MAX_PEERS = 4096

    def __init__(self) -> None:
        self._peers: OrderedDict[bytes, _Waiting] = OrderedDict()
        self._counting = threading.Lock()

    def send(self, socket: zmq.Socket[bytes], peer: bytes, frames: Sequence[Any]) -> None:
        """Send a message from `socket`, counting its bytes. Dropped if `peer` has disconnected."""
        waiting = self._peers.pop(peer, None) or _Waiting()
        self._peers[peer] = waiting
        if len(self._peers) > self._MAX_PEERS:
            self._forget_oldest()
        socket.send(peer, zmq.SNDMORE)
        for i, frame in enumerate(frames):
            more = zmq.SNDMORE if i + 1 < len(frames) else 0
            waiting.untracked += len(frame) + self._OVERHEAD
            if more or waiting.untracked < self.STEP:
                socket.send(frame, more, copy=False)
                continue
            data = frame.buffer if isinstance(frame, zmq.Frame) else frame
            tracked = zmq.Frame(data, track=True, copy=False, copy_threshold=0)
            socket.send(tracked, more, copy=False)
            assert tracked.tracker is not None
            with self._counting:
                waiting.sent.append((tracked.tracker, waiting.untracked))
                waiting.nbytes += waiting.untracked
            waiting.untracked = 0

    def of(self, peer: bytes) -> int:
        """Return the number of bytes that a peer has not read, up to the last tracked frame."""
        waiting = self._peers.get(peer)
        if waiting is None:
            return 0
        with self._counting:
            while waiting.sent and waiting.sent[0][0].done:
                waiting.nbytes -= waiting.sent.popleft()[1]
            return waiting.nbytes

    def _forget_oldest(self) -> None:
        """Forget the peer that was served the longest time ago, unless it has unread bytes.

        So the table stays small: at most `_MAX_PEERS`, and connections with unread bytes.
        """
        oldest = next(iter(self._peers))
        if self.of(oldest):
            self._peers.move_to_end(oldest)
        else:
            del self._peers[oldest]


def unread_error(nbytes: int, limit: int) -> str | None:
    """Return a text if `nbytes`, which a peer has not read, are above `limit`, else None."""
    if nbytes <= limit:
        return None
    return f"a peer has not read {nbytes} bytes of replies: it must read before it asks"


def check_unread(nbytes: int, limit: int) -> None:
    """Raise ProtocolError if `nbytes`, which a peer has not read, are above `limit`."""
    if (why := unread_error(nbytes, limit)) is not None:
        raise ProtocolError(why)


def check_reply_bytes(nbytes: int, limit: int, content: str) -> None:
    """Raise ProtocolError if a reply's `nbytes` exceed `limit`. `content` names it: '5 rows'."""
    if nbytes > limit:
        raise ProtocolError(
            f"{content} would make a reply of {nbytes} bytes, more than the {limit} that are "
            "allowed: ask for less at a time (a smaller batch, or a smaller fan-out)"
        )
