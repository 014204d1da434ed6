"""Values that clients publish in the directory, and requests that wait for them.

Runs in server 0, in its loop. All values of a client go with it. Their number and bytes are
bounded, for each client and in all.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from khop import log
from khop.distributed.remote.directory_messages import (
    ClientEntry,
    Publish,
    Published,
    ServerEntry,
    WaitFor,
)
from khop.distributed.remote.message_fields import MAX_CLIENTS, incarnation_of
from khop.distributed.remote.server.identity import Source
from khop.errors import RendezvousError
from khop.typing import Array

_log = log.get(__name__)

_MAX_NAMES = 4096
_MAX_WAITERS = 4 * MAX_CLIENTS
_MAX_WAITERS_EACH = 64
_MAX_VALUE = 64 << 10
_MAX_REPLY = 1 << 20
_MAX_PUBLISHED = 256 << 20

Send = Callable[[Published, Sequence[Array]], None]


@dataclass
class RegisteredProcess:
    """A server or client that has registered.

    Attributes:
        entry: its entry, which others get.
        source: sender of its last registration.
        since: time of its first registration.
        last_message_at: time of its last message.
        gone: whether it has left, or was silent for too long.
        contender: incarnation of another process that claims this rank, and since when.
        published: {name: JSON text} of a client, the oldest first.
        nbytes: bytes of all its texts.
    """

    entry: ServerEntry | ClientEntry
    source: Source
    since: float
    last_message_at: float
    gone: bool = False
    contender: tuple[str, float] | None = None
    published: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    nbytes: int = 0

    def unpublish(self, name: str) -> int:
        """Remove a value; return its bytes."""
        nbytes = len(self.published.pop(name, b""))
        self.nbytes -= nbytes
        return nbytes


@dataclass
class _Waiter:
    """A client's request for values that are not all published yet.

    Attributes:
        since: when the client registered first. Values of clients that were silent since then do
            not count: all clients of a job are restarted together, so such a client may be dead,
            and its successor not registered yet.
    """

    request: WaitFor
    user: str
    since: float
    until: float
    send: Send = field(repr=False)


class PublishedValues:
    """Values of the clients, by name, and the requests that wait for some of them.

    Args:
        clients: the registered clients by rank, kept by the directory.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        clients: Mapping[int, RegisteredProcess],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = clients
        self._clock = clock
        self._nbytes = 0
        self._waiters: list[_Waiter] = []

    def publish(self, request: Publish, value: bytes) -> None:
        """Publish a value of a client.

        Args:
            request: the client, and the value's name.
            value: its JSON text.

        Raises:
            RendezvousError: the value is too large, the client has not registered, or another
                process has its rank by now.
        """
        client = self._clients.get(request.rank)
        if client is None:
            raise RendezvousError(f"client {request.rank} publishes before it has registered")
        if client.entry.incarnation != incarnation_of(request.secret):
            raise RendezvousError(f"another process is client {request.rank} by now")
        client.last_message_at = self._clock()
        name = request.name
        if len(value) > _MAX_VALUE:
            raise RendezvousError(
                f"client {request.rank} publishes {len(value)} bytes as '{name}', more than "
                f"{_MAX_VALUE}"
            )
        self._nbytes += len(value) - client.unpublish(name)
        client.published[name] = value
        client.nbytes += len(value)
        while len(client.published) > _MAX_NAMES:
            self._nbytes -= client.unpublish(next(iter(client.published)))
        while self._nbytes > _MAX_PUBLISHED:
            # The oldest value, of an old loader, of the client that has published most.
            most = max(self._clients.values(), key=lambda peer: peer.nbytes)
            self._nbytes -= most.unpublish(next(iter(most.published)))
        for waiter in [w for w in self._waiters if w.request.name == name and self._is_done(w)]:
            self._answer(waiter)

    def wait_for(self, request: WaitFor, source: Source, send: Send) -> None:
        """Answer, by `send`, when all requested values are published, or when time is over.

        A value counts if its client has sent a message since the requesting client registered.

        Raises:
            RendezvousError: too many requests wait.
        """
        own = sum(waiter.user == source.user for waiter in self._waiters)
        if own >= _MAX_WAITERS_EACH * self._clients_of(source) or (
            len(self._waiters) >= _MAX_WAITERS
        ):
            raise RendezvousError(f"{own} requests of yours wait here already: ask again later")
        client = self._clients.get(request.rank)
        is_known = client and client.entry.incarnation == incarnation_of(request.secret)
        came = client.since if client and is_known else 0.0
        waiter = _Waiter(request, source.user, came, self._clock() + request.wait, send)
        self._waiters.append(waiter)
        if request.wait == 0 or self._is_done(waiter):
            self._answer(waiter)

    def _clients_of(self, source: Source) -> int:
        """Return the number of clients of a source's user, at least 1."""
        return max(1, sum(peer.source.user == source.user for peer in self._clients.values()))

    def _is_done(self, waiter: _Waiter) -> bool:
        return all(self._value(rank, waiter) is not None for rank in waiter.request.ranks)

    def _value(self, rank: int, waiter: _Waiter) -> bytes | None:
        """Return a client's value for a waiter; None if there is none that counts."""
        client = self._clients.get(rank)
        if client is None or client.last_message_at < waiter.since:
            return None
        return client.published.get(waiter.request.name)

    def _answer(self, waiter: _Waiter) -> None:
        self._waiters.remove(waiter)
        ranks: list[int] = []
        ends: list[int] = []
        text = bytearray()
        for rank in waiter.request.ranks:
            value = self._value(rank, waiter)
            if value is None or len(text) + len(value) > _MAX_REPLY:
                continue
            text += value
            ranks.append(rank)
            ends.append(len(text))
        try:
            waiter.send(Published(ranks, ends), [np.frombuffer(bytes(text), np.uint8)])
        except Exception as error:  # of this connection; others must get their answers
            _log.warning("reply-failed", f"an answer to {waiter.user} was not sent: {error!r}")

    def forget(self, client: RegisteredProcess) -> None:
        """Forget the values of a client that another replaces, or that is removed."""
        self._nbytes -= client.nbytes

    def tick(self) -> None:
        """Answer expired requests. Called several times a second."""
        now = self._clock()
        for waiter in [w for w in self._waiters if now >= w.until or self._is_done(w)]:
            self._answer(waiter)
