"""What one peer may make a server do: bounds of its requests, and of what is sent back.

Sizes are checked before memory is taken for them. A frame that is too long is refused by ZeroMQ
when its length arrives, with the connection; the number of frames and the header by
`khop.channel.message`; what a reply would take is worked out from the request before anything is
drawn or gathered.

Peers get their turns one request at a time (ZeroMQ's fair queueing). One that floods gets errors
that cost less than answers (`RateLimiter`), and so does one that does not read what it asked for
(`SendBacklog`).
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zmq

from khop.channel.message import FRAME_BYTES, MESSAGE_BYTES
from khop.errors import ProtocolError
from khop.typing import Int64Array, IntArray


@dataclass(frozen=True)
class Limits:
    """Bounds of what is asked of a server.

    Attributes:
        reply_bytes: of all arrays of a reply.
        unread_bytes: that wait for a peer to read them; beyond, it gets errors.
        unread: messages that wait for a peer; beyond, they are dropped.
        waiting: requests of a user that wait for their turn at a graph server.
        waiting_bytes: of these.
        rate: requests a second of a user, for long.
        burst: requests of a user at once.
        connections: over TCP; while there are as many, no further ones are accepted.
        handshakes: connections over TCP that have not shown a key; likewise.
        handshake_ms: milliseconds that a connection may take to prove itself.
        backlog: connections that wait to be accepted.
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


DEFAULT = Limits()

ENVELOPE_BYTES = FRAME_BYTES + 1024
"""`ZMQ_MAXMSGSIZE` of all sockets: a frame with what CURVE adds (33 bytes)."""


class RateLimiter:
    """Token buckets, one for each of the last few thousand peers.

    Args:
        rate: requests a second that a bucket is refilled by.
        burst: requests that a full bucket holds.
        clock: seconds.
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
        """Whether a request of a peer shall be answered; takes a token if so."""
        now = self._clock()
        tokens, since = self._buckets.pop(peer, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        admitted = tokens >= 1
        self._buckets[peer] = (tokens - admitted, now)
        if len(self._buckets) > self._MAX_PEERS:
            self._buckets.popitem(last=False)
        return admitted


@dataclass
class _Waiting:
    """What waits for one peer.

    Attributes:
        sent: (tells when a frame has left, bytes up to it from the one before), oldest first.
        nbytes: of all these.
        untracked: bytes sent since the last of them.
    """

    sent: deque[tuple[zmq.MessageTracker, int]] = field(default_factory=deque)
    nbytes: int = 0
    untracked: int = 0


class SendBacklog:
    """Bytes that peers have not read: ZeroMQ still has their memory.

    Everything that is sent to a peer goes through `send`. ZeroMQ tells when it has let go of a
    frame; frames of a peer leave in the order in which they were sent. So one frame in every 64 KiB
    is followed, and stands for those before it.
    """

    STEP = 1 << 16
    # What a frame takes beside its bytes.
    _OVERHEAD = 64
    _MAX_PEERS = 4096

    def __init__(self) -> None:
        self._peers: OrderedDict[bytes, _Waiting] = OrderedDict()

    def send(self, socket: zmq.Socket[bytes], peer: bytes, frames: Sequence[Any]) -> None:
        """Sends a message and keeps account of it; dropped if the peer has gone.

        Args:
            socket: a ROUTER.
            peer: whom to send it to.
            frames: objects with the buffer protocol, not copied if large.
        """
        waiting = self._peers.pop(peer, None) or _Waiting()
        self._peers[peer] = waiting
        if len(self._peers) > self._MAX_PEERS:
            self._forget_oldest()
        socket.send(peer, zmq.SNDMORE)
        for i, frame in enumerate(frames):
            more = zmq.SNDMORE if i + 1 < len(frames) else 0
            waiting.untracked += len(frame) + self._OVERHEAD
            if waiting.untracked < self.STEP:
                socket.send(frame, more, copy=False)
                continue
            data = frame.buffer if isinstance(frame, zmq.Frame) else frame
            tracked = zmq.Frame(data, track=True, copy=False, copy_threshold=0)
            socket.send(tracked, more, copy=False)
            assert tracked.tracker is not None
            waiting.sent.append((tracked.tracker, waiting.untracked))
            waiting.nbytes += waiting.untracked
            waiting.untracked = 0

    def of(self, peer: bytes) -> int:
        """Bytes that a peer has not read; what is less than `STEP` does not count."""
        waiting = self._peers.get(peer)
        if waiting is None:
            return 0
        while waiting.sent and waiting.sent[0][0].done:
            waiting.nbytes -= waiting.sent.popleft()[1]
        return waiting.nbytes

    def _forget_oldest(self) -> None:
        """Forgets the peer that was sent something the longest ago, if it has read it, or has gone.

        Those that have not stay: there are no more of them than connections.
        """
        oldest = next(iter(self._peers))
        if self.of(oldest):
            self._peers.move_to_end(oldest)
        else:
            del self._peers[oldest]


def check_reply_bytes(nbytes: int, limit: int, what: str) -> None:
    """Raises ProtocolError if a reply would take more than is allowed.

    Args:
        nbytes: of all its arrays.
        limit: see `Limits.reply_bytes`.
        what: that would take it, for the message: 'neighbours of 5 rows'.
    """
    if nbytes > limit:
        raise ProtocolError(
            f"{what} would make a reply of {nbytes} bytes, more than the {limit} that are allowed: "
            "ask for less at a time (a smaller batch, or a smaller fan-out)"
        )


def degrees_of(indptr: IntArray, first_row: int, ids: Int64Array) -> Int64Array:
    """[n] how many neighbours rows have; 0 of rows that are not there, which kernels refuse."""
    rows = ids - first_row
    rows = rows[(ids >= first_row) & (rows >= 0) & (rows < len(indptr) - 1)]
    # A damaged file may count backwards.
    degrees: Int64Array = np.maximum(indptr[rows + 1].astype(np.int64) - indptr[rows], 0)
    return degrees


def pieces(sizes: Int64Array, limit: int) -> list[slice]:
    """Cuts a row of sizes into pieces of at most `limit` in sum, or of one entry."""
    cuts, begin, total = [], 0, 0
    for i, size in enumerate(sizes.tolist()):
        if total + size > limit and i > begin:
            cuts.append(slice(begin, i))
            begin, total = i, 0
        total += size
    return [*cuts, slice(begin, len(sizes))]
