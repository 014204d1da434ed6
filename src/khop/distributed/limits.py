"""What one peer may make a server do: bounds of its requests, and of what is sent back.

Sizes are checked before memory is taken for them. A frame that is too long is refused by ZeroMQ
when its length arrives, with the connection; the number of frames and the header by
`khop.channel.message`; what a reply would take is worked out from the request before anything is
drawn or gathered.

Peers get their turns one request at a time (ZeroMQ's fair queueing). One that floods gets errors
that cost less than answers (`RateLimiter`), and so does one that does not read what it asked for
(`Unread`).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        unread_bytes: of large replies that wait for a peer to read them; beyond, it gets errors.
        unread: replies that wait for a peer; beyond, they are dropped.
        rate: requests a second of a peer, for long.
        burst: requests of a peer at once.
        handshake_ms: milliseconds that a connection may take to prove itself.
        backlog: connections that wait to be accepted.
    """

    reply_bytes: int = MESSAGE_BYTES
    unread_bytes: int = 2 << 30
    unread: int = 4096
    rate: float = 20_000.0
    burst: float = 40_000.0
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


class Unread:
    """Bytes of large replies that peers have not read: ZeroMQ still has their memory."""

    # ZeroMQ's binding copies smaller frames.
    LARGE = 1 << 16
    _MANY_PEERS = 64

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[tuple[zmq.MessageTracker, int]]] = {}

    def send(self, socket: zmq.Socket[bytes], peer: bytes, frames: Sequence[Any]) -> None:
        """Sends a reply and keeps account of its large frames.

        Args:
            socket: a ROUTER.
            peer: whom to send it to.
            frames: objects with the buffer protocol, not copied if large.
        """
        socket.send(peer, zmq.SNDMORE)
        for i, frame in enumerate(frames):
            more = zmq.SNDMORE if i + 1 < len(frames) else 0
            nbytes = len(frame)
            if nbytes < self.LARGE:
                socket.send(frame, more, copy=False)
                continue
            data = frame.buffer if isinstance(frame, zmq.Frame) else frame
            tracker = socket.send(data, more, copy=False, track=True)
            assert tracker is not None
            self._waiting.setdefault(peer, []).append((tracker, nbytes))

    def of(self, peer: bytes) -> int:
        """Bytes that a peer has not read."""
        if len(self._waiting) > self._MANY_PEERS:  # those that are gone ask no more
            for other in list(self._waiting):
                self._forget_read(other)
        self._forget_read(peer)
        return sum(nbytes for _, nbytes in self._waiting.get(peer, ()))

    def _forget_read(self, peer: bytes) -> None:
        left = [entry for entry in self._waiting.pop(peer, ()) if not entry[0].done]
        if left:
            self._waiting[peer] = left


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
