"""Windows of the writes that clients have sent to a part's primary. Imports no torch.

A server has one table a part, which its writer thread alone uses. A client numbers its writes. The
window of a client has the replies of its last writes until the client says that it has them, so
that a write that is sent again gets its reply and is not applied again. A write is applied after
all of its client's earlier ones.

All is bounded. A client may have `MOST_IN_FLIGHT` writes without a reply, each reply of at most
`REPLY_BYTES`. A user may have `_CLIENTS_OF_USER` clients; for one more, the user's client that has
been idle longest is forgotten, if it has been so for ten minutes. The writes of a forgotten client
are refused: whether one that is sent again was applied is not known any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

from khop.distributed.rpc.frame_handler import NotYet, Steps
from khop.distributed.rpc.identity import Source
from khop.distributed.rpc.protocol import StateEnvelope
from khop.errors import ProtocolError, StateLostError
from khop.typing import Array

MOST_IN_FLIGHT = 64
"""Most writes of a client to a part that have been sent and have no reply."""

REPLY_BYTES = 16 << 10
"""Most bytes of the reply to a write."""

_CLIENTS_OF_USER = 256
_MOST_CLIENTS = 4096
_IDLE_SECONDS = 600.0


class Write:
    """A write that is applied, or has been; its reply is kept for when it is sent again."""

    __slots__ = ("_begin", "_error", "_reply", "_steps")

    def __init__(self, begin: Callable[[], list[Array] | Steps]) -> None:
        self._begin: Callable[[], list[Array] | Steps] | None = begin
        self._steps: Steps | None = None
        self._reply: list[Array] | None = None
        self._error: Exception | None = None

    @property
    def is_done(self) -> bool:
        """True if the write has a reply or has failed."""
        return self._reply is not None or self._error is not None

    def advance(self) -> None:
        """Apply a slice of the write."""
        try:
            if self._steps is None:
                assert self._begin is not None
                reply = self._begin()
                if isinstance(reply, list):
                    self._keep(reply)
                    return
                self._steps = reply
            next(self._steps)
        except StopIteration as end:
            self._keep(end.value)
        except Exception as error:
            self._settle(error=error)

    def _keep(self, reply: list[Array]) -> None:
        nbytes = sum(array.nbytes for array in reply)
        if nbytes > REPLY_BYTES:
            text = f"a write was applied, but its reply has {nbytes} bytes, more than {REPLY_BYTES}"
            self._settle(error=ProtocolError(text))
        else:
            self._settle([array.copy() for array in reply])  # state changes, this reply does not

    def _settle(self, reply: list[Array] | None = None, error: Exception | None = None) -> None:
        self._reply, self._error = reply, error
        self._begin = self._steps = None  # they hold the request's arrays

    def steps(self) -> Steps:
        """Yield until the write is done, and return its reply; raises its error.

        Several requests may do so at a time, if a write is sent again while it is applied.
        """
        while not self.is_done:
            self.advance()
            if not self.is_done:
                yield
        if self._error is not None:
            raise self._error
        assert self._reply is not None
        return self._reply


class _Window:
    """Writes of one client."""

    __slots__ = ("key", "last", "last_used", "settled", "user", "writes")

    def __init__(self, source: Source, now: float) -> None:
        self.user = source.user
        self.key = source.key
        self.last_used = now
        self.last = 0
        self.settled = 0
        self.writes: dict[int, Write] = {}


class WriteWindows:
    """Windows of all clients of a part's state. For one thread.

    Args:
        clock: source of time, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}  # the one used last at the end

    def enroll(self, client: str, source: Source) -> None:
        """Make a window for a client, if it has none.

        Raises:
            ProtocolError: the id is malformed or another key's, or there are too many clients.
        """
        if len(client) != 32 or not set(client) <= set("0123456789abcdef"):
            raise ProtocolError("a client's id must be 128 bits, hexadecimal")
        window = self._windows.get(client)
        if window is not None:
            if window.key != source.key:
                raise ProtocolError("a client's id is in use by another key")
            return
        own = [known for known, w in self._windows.items() if w.user == source.user]
        if len(own) >= _CLIENTS_OF_USER or len(self._windows) >= _MOST_CLIENTS:
            if not own or self._clock() - self._windows[own[0]].last_used < _IDLE_SECONDS:
                raise ProtocolError(
                    f"{len(own)} clients of this user, and {len(self._windows)} in all, write to "
                    "this part: close some, or use them for several writes"
                )
            del self._windows[own[0]]
        self._windows[client] = _Window(source, self._clock())

    def admit(
        self, envelope: StateEnvelope, source: Source, begin: Callable[[], list[Array] | Steps]
    ) -> Write:
        """Return the write of a request: a new one, or the one that was sent before.

        Args:
            envelope: its envelope.
            source: its sender.
            begin: begins to apply it.

        Raises:
            StateLostError: the client has no window, or none that this sender may use.
            ProtocolError: the number is one that the client has a reply of, or is malformed.
            NotYet: an earlier write has not arrived yet.
        """
        window = self._windows.pop(envelope.client, None)
        if window is not None:
            self._windows[envelope.client] = window
        if window is None or window.key != source.key:
            raise StateLostError(
                "the server has no window of writes for this client: it has been idle for long "
                "while others came. Whether a write in flight was applied is not known"
            )
        window.last_used = self._clock()
        sequence = envelope.sequence
        if not envelope.settled <= sequence or not envelope.previous < sequence:
            raise ProtocolError(f"write {sequence} is none that its sender waits for")
        if envelope.settled > window.settled:
            window.settled = envelope.settled
            kept = window.writes.items()
            window.writes = {n: w for n, w in kept if n >= window.settled or not w.is_done}
        known = window.writes.get(sequence)
        if known is not None:
            return known
        if sequence <= window.last or sequence < window.settled:
            raise ProtocolError(
                f"write {sequence} is older than what its sender has a reply of ({window.settled}) "
                f"or has sent since ({window.last}): it is not applied"
            )
        if envelope.previous > window.last:
            raise NotYet
        if len(window.writes) >= MOST_IN_FLIGHT:
            raise ProtocolError(
                f"{len(window.writes)} writes of a client are without a reply that it has: wait "
                "for replies before you write again"
            )
        window.last = sequence
        earlier = [w for w in window.writes.values() if not w.is_done]
        write = window.writes[sequence] = Write(lambda: _after(earlier, begin))
        return write


def _after(earlier: list[Write], begin: Callable[[], list[Array] | Steps]) -> list[Array] | Steps:
    """Begin a write, after those that came earlier over another connection."""
    return begin() if not earlier else _finish_first(earlier, begin)


def _finish_first(earlier: list[Write], begin: Callable[[], Any]) -> Generator[None, None, Any]:
    for write in earlier:
        while not write.is_done:
            write.advance()
            yield
    reply = begin()
    return reply if isinstance(reply, list) else (yield from reply)
