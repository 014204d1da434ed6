"""Values that clients publish in the directory, and requests that wait for them.

Runs in server 0, in its loop. When a client is removed, its values are removed, too. Number and
bytes of values are bounded, per client and for all clients together.

A request for several values waits for the first missing one, then for the next. So a new value
wakes only the requests that wait for it, and each request looks at each of its ranks once. Requests
that were woken take turns by user, for a few milliseconds per turn of the loop.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from khop import log
from khop.distributed.membership.leases import Lease
from khop.distributed.remote.messages import (
    MAX_CLIENTS,
    MAX_VALUE,
    ClientEntry,
    Publish,
    Published,
    ServerEntry,
    WaitFor,
    incarnation_of,
)
from khop.distributed.rpc.fair_queue import FairQueue
from khop.distributed.rpc.identity import Source
from khop.errors import RendezvousError
from khop.typing import Array

_log = log.get(__name__)

_MAX_NAMES = 4096
_MAX_WAITERS = 4 * MAX_CLIENTS
_MAX_WAITERS_PER_CLIENT = 64
_MAX_REPLY = 1 << 20
_MAX_PUBLISHED = 256 << 20
# Bytes that a value takes beside its text and its name.
_OVERHEAD = 128
# Seconds of processor time for which requests are answered before other work of the loop.
_ANSWER_SECONDS = 0.005

Send: TypeAlias = Callable[[Published, Sequence[Array]], None]
Entry = TypeVar("Entry", ServerEntry, ClientEntry)


@dataclass
class RegisteredProcess(Generic[Entry]):
    """A server or client that has registered in the directory, with its lease and values.

    Attributes:
        source: sender of its last registration.
        since: time of its first registration.
        lease: its lease, renewed by each registration and each published value.
        gone: whether it has left, or its lease has ended.
        contender: another process that claims this rank: its incarnation and time of first claim.
        published: values that a client has published, {name: JSON text}, the oldest first.
        nbytes: bytes of all its texts and their names.
    """

    entry: Entry
    source: Source
    since: float
    lease: Lease
    gone: bool = False
    contender: tuple[str, float] | None = None
    published: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    nbytes: int = 0


RegisteredClient: TypeAlias = RegisteredProcess[ClientEntry]


def _size_of(name: str, value: bytes) -> int:
    return len(value) + sys.getsizeof(name) + _OVERHEAD


@dataclass(eq=False)
class _Waiter:
    """A client's request for values that are not all published yet.

    Attributes:
        ranks: the ranks whose values it needs, in order.
        since: when the client registered first. The value of another client counts only if that
            client has sent a message since. Else it may be of an earlier start of the job, as all
            clients are restarted together.
        num_ready: number of ranks, from the first on, whose values are published.
    """

    name: str
    ranks: array[int]
    source: Source
    since: float
    until: float
    send: Send = field(repr=False)
    num_ready: int = 0


class PublishedValues:
    """Values of the clients, by name, and the requests that wait for missing values.

    `clients` is the directory's table of clients by rank. It changes as clients come and go.
    `clock` returns seconds.
    """

    def __init__(
        self, clients: Mapping[int, RegisteredClient], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clients = clients
        self._clock = clock
        self._nbytes = 0
        # Requests that wait, by the name and rank of the value that they miss.
        self._waiting: dict[tuple[str, int], list[_Waiter]] = {}
        self._num_waiting: Counter[str] = Counter()
        # Requests whose missing value has come, or whose time is over.
        self._ready: FairQueue[_Waiter] = FairQueue(_MAX_WAITERS, _MAX_WAITERS)

    @property
    def has_answers(self) -> bool:
        return bool(self._ready)

    def publish(self, request: Publish, value: bytes) -> None:
        """Publish a value of a client, its JSON text.

        Raises:
            RendezvousError: the value is too large, the client has not registered, or another
                process has its rank by now.
        """
        client = self._clients.get(request.rank)
        if client is None:
            raise RendezvousError(f"client {request.rank} publishes before it has registered")
        if client.entry.incarnation != incarnation_of(request.secret):
            raise RendezvousError(f"another process is client {request.rank} by now")
        client.lease.renew()
        name = request.name
        if len(value) > MAX_VALUE:
            raise RendezvousError(
                f"client {request.rank} publishes {len(value)} bytes as '{name}', more than "
                f"{MAX_VALUE}"
            )
        self._remove(client, name)
        client.published[name] = value
        self._count(client, _size_of(name, value))
        while len(client.published) > _MAX_NAMES:
            self._remove(client, next(iter(client.published)))
        while self._nbytes > _MAX_PUBLISHED:
            # The oldest values, of old loaders, of the client that has published most.
            most = max(self._clients.values(), key=lambda client: client.nbytes)
            while self._nbytes > _MAX_PUBLISHED and most.published:
                self._remove(most, next(iter(most.published)))
        self._put_ready(self._waiting.pop((name, request.rank), ()))
        self.answer_ready()

    def _count(self, client: RegisteredProcess[Entry], nbytes: int) -> None:
        client.nbytes += nbytes
        self._nbytes += nbytes

    def _remove(self, client: RegisteredProcess[Entry], name: str) -> None:
        value = client.published.pop(name, None)
        if value is not None:
            self._count(client, -_size_of(name, value))

    def _put_ready(self, waiters: Sequence[_Waiter]) -> None:
        for waiter in waiters:
            self._ready.put(waiter.source.user, waiter, connection=waiter.source.connection)

    def wait_for(self, request: WaitFor, source: Source, send: Send) -> None:
        """Answer `source`'s request for values by `send`, when all are published or time is over.

        A value counts if its client has sent a message since the requesting client registered.

        Raises:
            RendezvousError: too many requests wait.
        """
        user, clients = source.user, self._clients
        own, waiting = self._num_waiting[user], self._num_waiting.total()
        is_many = own >= _MAX_WAITERS_PER_CLIENT and own >= _MAX_WAITERS_PER_CLIENT * sum(
            peer.source.user == user for peer in clients.values()
        )
        if is_many or waiting >= _MAX_WAITERS:
            raise RendezvousError(f"{own} requests of yours wait here already: ask again later")
        client = clients.get(request.rank)
        is_known = client and client.entry.incarnation == incarnation_of(request.secret)
        since = client.since if client and is_known else 0.0
        until = self._clock() + request.wait
        waiter = _Waiter(request.name, array("H", request.ranks), source, since, until, send)
        if request.wait == 0:
            self._answer(waiter)
            return
        self._num_waiting[user] += 1
        self._put_ready([waiter])
        self.answer_ready()

    def _value(self, rank: int, waiter: _Waiter) -> bytes | None:
        """Return the value that client `rank` has published, for a request that waits for it.

        None if it is missing, or may be of an earlier start of the job.
        """
        client = self._clients.get(rank)
        if client is None or client.lease.heard_at < waiter.since:
            return None
        return client.published.get(waiter.name)

    def _answer(self, waiter: _Waiter) -> None:
        ranks: list[int] = []
        ends: list[int] = []
        text = bytearray()
        for rank in waiter.ranks:
            value = self._value(rank, waiter)
            if value is None or len(text) + len(value) > _MAX_REPLY:
                continue
            text += value
            ranks.append(rank)
            ends.append(len(text))
        try:
            waiter.send(Published(ranks, ends), [np.frombuffer(bytes(text), np.uint8)])
        except Exception as error:  # of this connection: others must get their answers
            user = waiter.source.user
            _log.warning("reply-failed", f"an answer to {user} was not sent: {error!r}")

    def _is_complete(self, waiter: _Waiter) -> bool:
        """Look for the missing values of a request. Return True if it can be answered now."""
        if waiter.until <= self._clock():
            return True
        while waiter.num_ready < len(waiter.ranks):
            rank = waiter.ranks[waiter.num_ready]
            if self._value(rank, waiter) is None:
                self._waiting.setdefault((waiter.name, rank), []).append(waiter)
                return False
            waiter.num_ready += 1
        return True

    def answer_ready(self) -> None:
        """Answer requests that have all values, or whose time is over, for a few milliseconds."""
        end = time.thread_time() + _ANSWER_SECONDS
        while (turn := self._ready.take()) is not None:
            began = time.thread_time()
            waiter = turn.entry
            if self._is_complete(waiter):
                self._num_waiting[waiter.source.user] -= 1
                if not self._num_waiting[waiter.source.user]:
                    del self._num_waiting[waiter.source.user]
                self._answer(waiter)
            now = time.thread_time()
            self._ready.charge(turn, now - began)
            if now >= end:
                return

    def forget(self, client: RegisteredProcess[Entry]) -> None:
        """Remove all values of `client`, which is removed or whose rank another process has."""
        for name in list(client.published):
            self._remove(client, name)

    def tick(self) -> None:
        """Answer requests whose time is over, or whose values count by now. Called every 0.25 s.

        A value begins to count when its client registers again.
        """
        now = self._clock()
        for (name, rank), waiters in list(self._waiting.items()):
            ready = {w for w in waiters if w.until <= now or self._value(rank, w) is not None}
            if ready:
                self._waiting[name, rank] = [w for w in waiters if w not in ready]
                self._put_ready([w for w in waiters if w in ready])
            if not self._waiting[name, rank]:
                del self._waiting[name, rank]
        self.answer_ready()
