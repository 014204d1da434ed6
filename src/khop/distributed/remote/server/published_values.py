"""Values that clients publish in the directory, and requests that wait for them.

Runs in server 0, in its loop. All values of a client go with it. Their number and bytes are
bounded, for each client and in all.

Sets of ranks are integers with a bit for each, so that a request for thousands of ranks is compared
with what is published in a fraction of a microsecond. A value that is published concerns only
requests for its name. Requests that can be answered wait in turns by user, and are answered for a
few milliseconds at a time.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import sys
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from khop.distributed.remote.message_fields import MAX_CLIENTS, MAX_VALUE, incarnation_of
from khop.distributed.rpc.fair_queue import FairQueue
from khop.distributed.rpc.identity import Source
from khop.errors import RendezvousError
from khop.typing import Array

_log = log.get(__name__)

_MAX_NAMES = 4096
_MAX_WAITERS = 4 * MAX_CLIENTS
_MAX_WAITERS_EACH = 64
_MAX_REPLY = 1 << 20
_MAX_PUBLISHED = 256 << 20
# Bytes that a value takes beside its text and its name.
_OVERHEAD = 128
# Seconds for which requests are answered at a time.
_ANSWER_SECONDS = 0.005

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
        nbytes: bytes of all its texts and their names.
    """

    entry: ServerEntry | ClientEntry
    source: Source
    since: float
    last_message_at: float
    gone: bool = False
    contender: tuple[str, float] | None = None
    published: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    nbytes: int = 0

    def publish(self, name: str, value: bytes) -> int:
        """Add a value; return the bytes that it takes more than the one before."""
        added = _size_of(name, value) - self.unpublish(name)
        self.published[name] = value
        self.nbytes += _size_of(name, value)
        return added

    def unpublish(self, name: str) -> int:
        """Remove a value; return its bytes."""
        value = self.published.pop(name, None)
        nbytes = 0 if value is None else _size_of(name, value)
        self.nbytes -= nbytes
        return nbytes


def _size_of(name: str, value: bytes) -> int:
    return len(value) + sys.getsizeof(name) + _OVERHEAD


def _as_bits(ranks: Sequence[int]) -> int:
    flags = np.zeros(MAX_CLIENTS, np.uint8)
    flags[np.array(ranks, np.int64)] = 1
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


@dataclass(eq=False)
class _Waiter:
    """A client's request for values that are not all published yet.

    Attributes:
        order: the ranks that it waits for, in order.
        ranks: the same, as bits.
        since: when the client registered first. Values of clients that were silent since then do
            not count: all clients of a job are restarted together, so such a client may be dead,
            and its successor not registered yet.
    """

    name: str
    order: array[int]
    source: Source
    ranks: int
    since: float
    until: float
    send: Send = field(repr=False)


@dataclass
class _Group:
    """Requests that wait for values of one name.

    Attributes:
        published: the ranks that have published it, as bits.
        waiters: the requests.
    """

    published: int
    waiters: dict[_Waiter, None] = field(default_factory=dict)


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
        self._groups: dict[str, _Group] = {}
        # Requests whose values are all there, but some of clients that may be dead.
        self._unconfirmed: dict[_Waiter, None] = {}
        self._expiring: list[tuple[float, int, _Waiter]] = []
        self._numbers = itertools.count()
        self._num_waiting: Counter[str] = Counter()
        self._answerable: FairQueue[_Waiter] = FairQueue(_MAX_WAITERS, _MAX_WAITERS)

    @property
    def has_answers(self) -> bool:
        """True if `answer_some` would answer a request."""
        return bool(self._answerable)

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
        if len(value) > MAX_VALUE:
            raise RendezvousError(
                f"client {request.rank} publishes {len(value)} bytes as '{name}', more than "
                f"{MAX_VALUE}"
            )
        self._nbytes += client.publish(name, value)
        while len(client.published) > _MAX_NAMES:
            self._unpublish(request.rank, client, next(iter(client.published)))
        while self._nbytes > _MAX_PUBLISHED:
            # The oldest values, of old loaders, of the client that has published most.
            rank, most = max(self._clients.items(), key=lambda item: item[1].nbytes)
            while self._nbytes > _MAX_PUBLISHED and most.published:
                self._unpublish(rank, most, next(iter(most.published)))
        group = self._groups.get(name)
        if group is not None and name in client.published:
            bit = 1 << request.rank
            group.published |= bit
            self._settle(group, [w for w in group.waiters if w.ranks & bit])
            self.answer_some()

    def _unpublish(self, rank: int, client: RegisteredProcess, name: str) -> None:
        self._nbytes -= client.unpublish(name)
        if name in self._groups:
            self._groups[name].published &= ~(1 << rank)

    def _settle(self, group: _Group, waiters: Iterable[_Waiter]) -> None:
        """Pass on the requests whose values are all published, and count."""
        self._confirm([w for w in waiters if not w.ranks & ~group.published])

    def _confirm(self, complete: Sequence[_Waiter]) -> None:
        """Pass on requests, all of whose values are published, if all of these count."""
        alive_since = self._alive_since() if complete else None
        for waiter in complete:
            assert alive_since is not None
            if waiter.ranks & ~alive_since(waiter.since):
                self._unconfirmed[waiter] = None
            else:
                self._pass_on(waiter)

    def _alive_since(self) -> Callable[[float], int]:
        """Return a function of a time: the ranks that have sent a message since, as bits."""
        clients = sorted((c.last_message_at, rank) for rank, c in self._clients.items())
        ranks = itertools.accumulate((1 << rank for _, rank in reversed(clients)), int.__or__)
        alive = [*reversed([*ranks]), 0]
        times = [time for time, _ in clients]
        return lambda since: alive[bisect.bisect_left(times, since)]

    def _pass_on(self, waiter: _Waiter) -> None:
        """Let a request be answered."""
        group = self._groups[waiter.name]
        del group.waiters[waiter]
        if not group.waiters:
            del self._groups[waiter.name]
        self._unconfirmed.pop(waiter, None)
        self._answerable.put(waiter.source.user, waiter, connection=waiter.source.connection)

    def wait_for(self, request: WaitFor, source: Source, send: Send) -> None:
        """Answer, by `send`, when all requested values are published, or when time is over.

        A value counts if its client has sent a message since the requesting client registered.

        Raises:
            RendezvousError: too many requests wait.
        """
        user, name = source.user, request.name
        own, waiting = self._num_waiting[user], self._num_waiting.total()
        is_many = own >= _MAX_WAITERS_EACH and own >= _MAX_WAITERS_EACH * self._clients_of(source)
        if is_many or waiting >= _MAX_WAITERS:
            raise RendezvousError(f"{own} requests of yours wait here already: ask again later")
        client = self._clients.get(request.rank)
        is_known = client and client.entry.incarnation == incarnation_of(request.secret)
        came = client.since if client and is_known else 0.0
        ranks = _as_bits(request.ranks)
        until = self._clock() + request.wait
        waiter = _Waiter(name, array("H", request.ranks), source, ranks, came, until, send)
        if request.wait == 0:
            self._answer(waiter)
            return
        self._num_waiting[user] += 1
        group = self._groups.get(name)
        if group is None:
            clients = self._clients.items()
            known = _as_bits([rank for rank, peer in clients if name in peer.published])
            group = self._groups[name] = _Group(known)
        group.waiters[waiter] = None
        heapq.heappush(self._expiring, (until, next(self._numbers), waiter))
        self._settle(group, [waiter])
        self.answer_some()

    def _clients_of(self, source: Source) -> int:
        """Return the number of clients of a source's user, at least 1."""
        return max(1, sum(peer.source.user == source.user for peer in self._clients.values()))

    def _value(self, rank: int, waiter: _Waiter) -> bytes | None:
        """Return a client's value for a waiter; None if there is none that counts."""
        client = self._clients.get(rank)
        if client is None or client.last_message_at < waiter.since:
            return None
        return client.published.get(waiter.name)

    def _answer(self, waiter: _Waiter) -> None:
        ranks: list[int] = []
        ends: list[int] = []
        text = bytearray()
        for rank in waiter.order:
            value = self._value(rank, waiter)
            if value is None or len(text) + len(value) > _MAX_REPLY:
                continue
            text += value
            ranks.append(rank)
            ends.append(len(text))
        try:
            waiter.send(Published(ranks, ends), [np.frombuffer(bytes(text), np.uint8)])
        except Exception as error:  # of this connection; others must get their answers
            user = waiter.source.user
            _log.warning("reply-failed", f"an answer to {user} was not sent: {error!r}")

    def answer_some(self) -> None:
        """Answer requests that can be, for a few milliseconds."""
        end = time.thread_time() + _ANSWER_SECONDS
        while (turn := self._answerable.take()) is not None:
            began = time.thread_time()
            waiter = turn.entry
            self._num_waiting[waiter.source.user] -= 1
            if not self._num_waiting[waiter.source.user]:
                del self._num_waiting[waiter.source.user]
            self._answer(waiter)
            now = time.thread_time()
            self._answerable.charge(turn, now - began)
            if now >= end:
                return

    def forget(self, rank: int, client: RegisteredProcess) -> None:
        """Forget the values of a client that another replaces, or that is removed."""
        for name in list(client.published):
            self._unpublish(rank, client, name)

    def tick(self) -> None:
        """Answer expired requests. Called several times a second."""
        now = self._clock()
        while self._expiring and self._expiring[0][0] <= now:
            waiter = heapq.heappop(self._expiring)[2]
            group = self._groups.get(waiter.name)
            if group is not None and waiter in group.waiters:
                self._pass_on(waiter)
        # Values may have gone meanwhile.
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        groups = self._groups
        self._confirm([w for w in unconfirmed if not w.ranks & ~groups[w.name].published])
        self.answer_some()
