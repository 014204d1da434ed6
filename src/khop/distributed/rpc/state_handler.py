"""Handler of requests that write and read the state of a part's primary. Imports no torch.

State is the data that users' own requests keep in a server's memory. Partition servers and graph
servers run the handler, in one thread per part, so state needs no lock. A request names the server
process (incarnation) that it is for. A server that was started again has lost its state, and
refuses requests for its earlier incarnation with StateLostError.

A client numbers its writes. Its *window* at the server keeps the replies of its last writes, until
the client confirms them. So a write that is sent again gets the kept reply, and is not applied
again. A write is applied after all of its client's earlier writes.

A client may have `MOST_IN_FLIGHT` writes without a reply. A reply has at most `REPLY_BYTES`. A user
may have `_CLIENTS_OF_USER` clients. A further one replaces the client of the user that has been
idle longest, if it was idle for ten minutes. Writes of a client without a window are refused, since
the server cannot decide whether it has applied them before.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from khop import codec
from khop.data.tickets import Ticket
from khop.distributed.rpc.frame_handler import FrameHandler, NotYet, RequestType, Steps
from khop.distributed.rpc.identity import Source
from khop.distributed.rpc.protocol import (
    MOST_IN_FLIGHT,
    Enroll,
    RequestFields,
    StateEnvelope,
    check_empty,
)
from khop.distributed.rpc.request_threads import RequestThreads
from khop.distributed.rpc.server_sockets import ServerSockets
from khop.errors import ProtocolError, StateLostError
from khop.storage.part import Part
from khop.typing import Array

REPLY_BYTES = 16 << 10
"""Maximum bytes of the reply to a write."""

_CLIENTS_OF_USER = 256
_MOST_CLIENTS = 4096
_IDLE_SECONDS = 600.0


class StateHandler(FrameHandler):
    """Handler of requests for a part's state, users' data: classes `write` and `read_state`.

    `types` are these requests. `incarnation` is a name of this server that no restart repeats.

    Attributes:
        moved: reason why this server does not have the part's state. If None, it has. Any thread
            may set.
    """

    def __init__(self, part: int, types: Sequence[RequestType], incarnation: str) -> None:
        enroll = RequestType(Enroll, "read_state", self._enroll, carries=0, arrays=0)
        super().__init__("partition", part, [enroll, *types], incarnation)
        self._windows = WriteWindows()
        self.moved: str | None = None

    def _enroll(self, request: Enroll, arrays: list[Array]) -> list[Array]:
        check_empty(arrays)
        return []

    def _answer(
        self,
        request_type: RequestType,
        request: RequestFields,
        arrays: list[Array],
        header: Mapping[str, object],
        source: Source,
    ) -> list[Array] | Steps:
        if self.moved is not None:
            raise StateLostError(self.moved)
        if isinstance(request, Enroll):
            self._windows.enroll(request.client, source)
            return request_type.answer(request, arrays)
        envelope = codec.from_json(StateEnvelope, header.get("state"), "a request's state")
        if envelope.incarnation != self.incarnation:
            raise StateLostError(
                f"the server of partition {self._index} has been started again and has lost its "
                "state"
            )
        if request_type.access == "read_state":
            return request_type.answer(request, arrays)
        return self._windows.admit(
            envelope, source, lambda: request_type.answer(request, arrays)
        ).steps()


class WriterThread(RequestThreads):
    """Thread that applies the writes to a part's state, and reads it. Replies go over `sockets`."""

    def __init__(self, state: StateHandler, sockets: ServerSockets) -> None:
        super().__init__(state, 1, sockets.limits, sockets.backlog.of, completes=True)
        self.state = state

    def handles(self, op: str) -> bool:
        return op in self.state.names


def users_requests(modules: Sequence[str], part: Part) -> list[RequestType]:
    """Return the requests that a user's modules add to khop's requests for a part.

    The modules are named when the server is started, never by a message.

    Args:
        modules: names of modules with a function `request_types(part)`, which returns a list of
            `RequestType`. It is called once per part. The functions of the list share its state.
            A name may have a second argument of the function after a colon.
        part: the part.

    Raises:
        ValueError: a module has no such function, or two requests have the same name.
        ImportError: a module is not found.
    """
    types: list[RequestType] = []
    for entry in modules:
        name, _, argument = entry.partition(":")
        make = getattr(importlib.import_module(name), "request_types", None)
        if make is None:
            raise ValueError(f"requests: the module '{name}' has no function request_types(part)")
        types += make(part, argument) if argument else make(part)
    names = [t.message.op for t in types]
    if len(set(names)) < len(names):
        raise ValueError(f"requests: {sorted(names)} are not all different")
    return types


class Write:
    """A client's write to a part's state, by the steps `apply`. Keeps its reply, to repeat it."""

    __slots__ = ("_apply", "_error", "_reply")

    def __init__(self, apply: Steps) -> None:
        self._apply: Steps | None = apply
        self._reply: list[Array] = []
        self._error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self._apply is None

    def advance(self) -> list[Ticket] | None:
        """Apply a slice of the write. Return the tickets that it waits for, if any."""
        assert self._apply is not None
        try:
            return next(self._apply)
        except StopIteration as end:
            self._reply = end.value
        except Exception as error:
            self._error = error
        self._apply = None  # it holds the request's arrays
        return None

    def steps(self) -> Steps:
        """Yield until the write is done. Return its reply, or raise its error.

        Several requests may iterate at a time, if a write is sent again while it is applied.
        """
        while not self.is_done:
            tickets = self.advance()
            if not self.is_done:
                yield tickets
        if self._error is not None:
            raise self._error
        return self._reply


def _apply(earlier: Sequence[Write], begin: Callable[[], list[Array] | Steps]) -> Steps:
    """Apply a write, after the client's earlier writes that are not complete yet.

    `begin` starts the write, and returns its reply or a generator of slices.
    """
    for write in earlier:
        while not write.is_done:
            yield write.advance()
    reply = begin()
    if not isinstance(reply, list):
        reply = yield from reply
    nbytes = sum(array.nbytes for array in reply)
    if nbytes > REPLY_BYTES:
        raise ProtocolError(
            f"a write was applied, but its reply has {nbytes} bytes, more than {REPLY_BYTES}"
        )
    return [array.copy() for array in reply]  # state changes, this reply does not


@dataclass(slots=True)
class _Window:
    user: str
    key: str | None
    last_used: float
    last: int = 0
    settled: int = 0
    writes: dict[int, Write] = field(default_factory=dict)


class WriteWindows:
    """Kept replies (a window) of all clients that write to a part's state. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}  # the one used last at the end

    def enroll(self, client: str, source: Source) -> None:
        """Begin to keep replies for `client`, the id of `source`, if this is not done yet.

        Raises:
            ProtocolError: the id is malformed or used with another key, or clients are too many.
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
        self._windows[client] = _Window(source.user, source.key, self._clock())

    def admit(
        self, envelope: StateEnvelope, source: Source, begin: Callable[[], list[Array] | Steps]
    ) -> Write:
        """Return the write of a request. If it was sent before, return the earlier object.

        `envelope` has the write's number, and `begin` starts it.

        Raises:
            StateLostError: the client has no window, or it belongs to another key.
            ProtocolError: the client already has a reply of this number, or numbers are malformed.
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
        write = window.writes[sequence] = Write(_apply(earlier, begin))
        return write
