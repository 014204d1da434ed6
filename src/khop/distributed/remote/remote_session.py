"""A session as the receiver sees it: a server, what it is asked for, and how far it has got."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from khop import log
from khop.channel.layout import Layout
from khop.channel.message import pack
from khop.distributed.remote.incoming import Incoming
from khop.distributed.remote.link import Link
from khop.distributed.remote.messages import Acknowledge, Open, SessionSpec
from khop.distributed.wire import request_header
from khop.typing import Array

CLOSED, OPENING, OPEN = range(3)
"""States of a session."""

# A server that is lost for so long is not waited for where another may do its work.
_GRACE = 1.0
_log = log.get(__name__)


@dataclass
class Wanted:
    """A batch that the trainer waits for.

    Attributes:
        server: place of the one server that may make it; None: any.
        asked: when it was asked for.
        incoming: what has arrived of it.
    """

    id: int
    epoch: int
    batch: int
    server: int | None
    asked: float
    incoming: Incoming | None = None

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
        progress: when it last got on with its work.
        made: batches that its samplers have made.
        waiting_for: what keeps it from making them, as it says.
        layouts: {its number of a layout: the layout}.
        refused: why it does not open the session, if it does not.
        to_acknowledge: bytes that have arrived, and that it has not heard of.
        opening: number of the last request to open it; no other request has one.
    """

    def __init__(self, spec: SessionSpec, rank: int, link: Link) -> None:
        self._spec = spec
        self.rank = rank
        self.link = link
        self.state = CLOSED
        self.wanted: dict[int, Wanted] = {}
        self.progress = time.monotonic()
        self.made = -1
        self.waiting_for: str | None = None
        self.layouts: dict[int, Layout] = {}
        self.refused: dict[str, Any] | None = None
        self.to_acknowledge = 0
        self.opening = 0

    @property
    def is_lost(self) -> bool:
        """Whether it has been away for longer than is waited for."""
        since = self.link.lost_since
        return since is not None and time.monotonic() - since > _GRACE

    @property
    def name(self) -> str:
        """Of the session."""
        return self._spec.session

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
        self.layouts.clear()
        self.made = -1
        self.opening += 1
        request = Open(self._spec, list(self.wanted), list(arrays))  # type: ignore[arg-type]
        self.send(request, list(arrays.values()), self.opening)

    def end(self) -> None:
        """The connection is lost: what was on its way is, too."""
        self.state = CLOSED
        self.to_acknowledge = 0
        for wanted in self.wanted.values():
            wanted.drop_incoming()

    def say(self, event: str, what: str) -> None:
        """Logs what has become of the server: a warning if it is lost and something is wanted."""
        say = _log.warning if self.wanted and self.state == CLOSED else _log.info
        text = f"graph server {self.rank} at {self.link.address} {what}"
        say(event, text, server=self.rank, session=self.name, wanted=len(self.wanted))

    def acknowledge(self, many: int) -> None:
        """Says what has arrived, if that is much, or if nothing else is expected."""
        if self.to_acknowledge >= many or (self.to_acknowledge and not self.wanted):
            self.send(Acknowledge(self.name, self.to_acknowledge))
            self.to_acknowledge = 0
