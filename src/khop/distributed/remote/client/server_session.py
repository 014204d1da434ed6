"""A session as the receiver sees it: a server, what it is asked for, and how far it has got."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from khop import codec, log
from khop.channel.layout import Layout
from khop.channel.message import pack
from khop.distributed.remote.client.reassembly import BatchReassembler
from khop.distributed.remote.messages import (
    CHUNK_BYTES,
    Acknowledge,
    Alive,
    Chunk,
    ErrorText,
    Failed,
    Open,
    SessionSpec,
    read_event,
    read_reply,
)
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.protocol import request_header
from khop.errors import ProtocolError
from khop.typing import Array

CLOSED, OPENING, OPEN = range(3)
"""States of a session."""

# A server that is lost for so long is not waited for where another may do its work.
_GRACE = 1.0
# Layouts of a session that its server may number.
_MAX_LAYOUTS = 1024
# Pauses after the first, second, ... fault in a row.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 15.0
# A session that its server does not know is opened again at most so often, in seconds.
_OPEN_AGAIN = 1.0
_log = log.get(__name__)


@dataclass
class Wanted:
    """A batch that the trainer waits for.

    Attributes:
        server: place of the one server that may make it; None: any.
        asked: when it was asked for.
        incoming: what has arrived of it.
        most_arrived: how many bytes of it have arrived at most, over all connections.
    """

    id: int
    epoch: int
    batch: int
    server: int | None
    asked: float
    incoming: BatchReassembler | None = None
    most_arrived: int = 0

    def drop_incoming(self) -> None:
        """Forgets what has arrived."""
        if self.incoming is not None:
            self.incoming.abandon()
            self.incoming = None


class RemoteSession:
    """A server, and the session on it.

    Args:
        spec: what it shall be.
        rank: of the server.
        link: to the server.

    Attributes:
        state: of the session.
        wanted: {id: batch} that it is asked for, in order.
        progress: when it last got on with its work, or made its first fault since.
        fault: the last message that could not be taken in, in words; None: none since a batch was.
        num_faults: how many there were.
        waiting_for: what keeps its samplers from making batches, as it says.
        complaint: why it has refused a request last.
        layouts: {its number of a layout: the layout}.
        refused: why it does not open the session, if it does not.
        to_acknowledge: bytes that have arrived, and that it has not heard of.
        opening: number of the last request to open it; no other request has one.
    """

    def __init__(self, spec: SessionSpec, rank: int, link: Connection) -> None:
        self._spec = spec
        self.rank = rank
        self.link = link
        self.state = CLOSED
        self.wanted: dict[int, Wanted] = {}
        self.progress = time.monotonic()
        self.fault: str | None = None
        self.num_faults = 0
        self.waiting_for: str | None = None
        self.complaint: str | None = None
        self.layouts: dict[int, Layout] = {}
        self.refused: dict[str, str] | None = None
        self.unacked_bytes = 0
        self.opening = 0
        self._open_at = 0.0
        # Opening is progress once: a server that begins anew again and again does not get on.
        self._opening_counts = True

    @property
    def is_lost(self) -> bool:
        """Whether it has been away for longer than is waited for."""
        since = self.link.lost_since
        return since is not None and time.monotonic() - since > _GRACE

    @property
    def name(self) -> str:
        """Of the session."""
        return self._spec.session

    @property
    def where(self) -> str:
        """The server, for messages."""
        return f"graph server {self.rank} at {self.link.address}"

    @property
    def may_open(self) -> bool:
        """Whether the session is to be opened now."""
        is_due = time.monotonic() >= self._open_at
        return self.link.is_up and self.state == CLOSED and is_due

    def send(self, request: Any, arrays: Sequence[Array] = (), number: int = 0) -> None:
        """Sends a request; dropped while the server is lost."""
        self.link.send(pack(request_header(request, number), arrays))

    def open(self, arrays: Mapping[str, Array]) -> None:
        """Opens the session, or takes it over to this connection.

        Args:
            arrays: that its samplers read.
        """
        self.end()
        self.state = OPENING
        self._open_at = time.monotonic() + _OPEN_AGAIN
        self.layouts.clear()
        self.opening += 1
        request = Open(self._spec, list(self.wanted), list(arrays))  # type: ignore[arg-type]
        self.send(request, list(arrays.values()), self.opening)

    def connected(self) -> None:
        """There is a new connection."""
        self.end()
        self._open_at = 0.0

    def read(self, header: Mapping[str, Any], arrays: Sequence[Array]) -> Any:
        """A message of the server, checked as far as it can be by itself.

        Returns:
            An event of the session (the array of a chunk is one of bytes), the reply to its opening
            or to `Alive`, or `ErrorText`; None: to an opening that is overtaken.

        Raises:
            ProtocolError: it is none that the server may send.
        """
        if "event" in header:
            return self._read_event(header, arrays)
        # A request whose number could not be read is refused without one.
        number = 0 if header.get("id") is None and "error" in header else header.get("id")
        if type(number) is not int or not 0 <= number <= self.opening:
            raise ProtocolError(f"a reply to a request {str(number)[:40]!a} that was not sent")
        if arrays:
            raise ProtocolError(f"{len(arrays)} arrays with a reply that has none")
        if 0 < number < self.opening:
            return None
        if "error" in header:
            return codec.from_json(ErrorText, header["error"], "it sent an error")
        if number > 0 and self.state != OPENING:
            raise ProtocolError("a second reply to the session's opening")
        return read_reply(Alive if number == 0 else Open, header, "it")

    def _read_event(self, header: Mapping[str, Any], arrays: Sequence[Array]) -> Any:
        event = read_event(header, "it")
        if event.session != self.name:
            raise ProtocolError(f"an event of another session, {event.session[:40]!a}")
        if isinstance(event, Failed):
            if arrays:
                raise ProtocolError(f"{len(arrays)} arrays with a failure, which has none")
        elif len(arrays) != 1 or arrays[0].dtype != np.uint8 or arrays[0].ndim != 1:
            raise ProtocolError(f"an event '{event.event}' without one vector of bytes")
        elif isinstance(event, Chunk) and not 0 < len(arrays[0]) <= CHUNK_BYTES:
            raise ProtocolError(f"a chunk of {len(arrays[0])} bytes, not 1 to {CHUNK_BYTES}")
        return event

    def learn(self, number: int, layout: Layout) -> None:
        """Takes note of what the server calls a layout."""
        if self.layouts.setdefault(number, layout) is not layout:
            raise ProtocolError(f"layout {number} becomes another")
        if len(self.layouts) > _MAX_LAYOUTS:
            raise ProtocolError(f"more than {_MAX_LAYOUTS} layouts of one session")

    def opened(self) -> None:
        """The server has the session."""
        self.state = OPEN
        self.refused = None
        if self._opening_counts:
            self._opening_counts = False
            self._get_on()

    def arrived(self, wanted: Wanted) -> None:
        """Bytes of a batch have arrived; those that are sent once more are no progress."""
        assert wanted.incoming is not None
        if wanted.incoming.arrived > wanted.most_arrived:
            wanted.most_arrived = wanted.incoming.arrived
            self._opening_counts = True
            self._get_on()

    def completed(self, wanted: Wanted) -> None:
        """A batch has arrived in full, and is as it should be."""
        del self.wanted[wanted.id]
        self.fault, self.num_faults = None, 0
        self._opening_counts = True
        self._get_on()

    def _get_on(self) -> None:
        if self.fault is None:
            self.progress = time.monotonic()

    def note_fault(self, why: str) -> None:
        """Ends a connection over which came what cannot be; the next comes later each time."""
        if self.fault is None:
            self.progress = time.monotonic()
        pause = min(_FIRST_PAUSE * 2.0 ** min(self.num_faults, 16), _LONGEST_PAUSE)
        self.fault = why
        self.num_faults += 1
        self.link.refuse(f"sent what cannot be: {why}", pause)

    def end(self) -> None:
        """The connection or session is lost: what was on its way is, too."""
        self.state = CLOSED
        self.unacked_bytes = 0
        for wanted in self.wanted.values():
            wanted.drop_incoming()

    def say(self, event: str, what: str) -> None:
        """Logs what has become of the server: a warning if it is lost and something is wanted."""
        say = _log.warning if self.wanted and self.state == CLOSED else _log.info
        text = f"{self.where} {what}"
        say(event, text, server=self.rank, session=self.name, wanted=len(self.wanted))

    def acknowledge(self, many: int) -> None:
        """Says what has arrived, if that is much, or if nothing else is expected."""
        if self.unacked_bytes >= many or (self.unacked_bytes and not self.wanted):
            self.send(Acknowledge(self.name, self.unacked_bytes))
            self.unacked_bytes = 0
