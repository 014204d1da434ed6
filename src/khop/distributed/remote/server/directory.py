"""The directory that server 0 keeps: servers, clients, and what clients publish for each other.

Soft state. Everybody registers again every second; what is silent is lost after a while, and a
directory that was started again knows all that matters two seconds later. Who comes second with
another folder, another number of servers, or a rank that a living process has, is refused.

A process proves who it is by a secret that it made itself and that nobody is told; others are told
its hash, the incarnation. Whoever lacks a client's secret cannot publish, register or say goodbye
in its name. Servers prove themselves by the servers' key (`Source.is_server`), too.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from khop import log
from khop.distributed.processes.hosts import host_identity
from khop.distributed.remote.messages import (
    MAX_CLIENTS,
    ClientEntry,
    Goodbye,
    Publish,
    Published,
    RegisterClient,
    RegisterServer,
    ServerEntry,
    Table,
    WaitFor,
    incarnation_of,
)
from khop.distributed.remote.server.identity import Source
from khop.errors import RendezvousError, SecurityError
from khop.typing import Array

_log = log.get(__name__)

_MAX_NAMES = 4096
_MAX_WAITERS = 4 * MAX_CLIENTS
_MAX_WAITERS_EACH = 64
_MAX_CLIENTS_EACH = 256
_MAX_VALUE = 64 << 10
_MAX_REPLY = 1 << 20
_MAX_PUBLISHED = 256 << 20
# A rank's process that was silent for so long is dead if another says to have its rank.
_REPLACED_AFTER = 1.5
# A client that has gone is forgotten after so many times `lost_after`, where any number may come.
_FORGOTTEN_AFTER = 4

Send = Callable[[Published, Sequence[Array]], None]


@dataclass
class _Peer:
    """A server or client.

    Attributes:
        entry: what others are told of it.
        source: where it was last heard of.
        since: when it was first heard of.
        heard: when it was last heard of.
        gone: whether it has said goodbye, or was silent for too long.
        contender: incarnation of another process that says to have this rank, and since when.
        published: {name: JSON text} of a client, the oldest first.
        nbytes: of all its texts.
    """

    entry: ServerEntry | ClientEntry
    source: Source
    since: float
    heard: float
    gone: bool = False
    contender: tuple[str, float] | None = None
    published: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    nbytes: int = 0

    def unpublish(self, name: str) -> int:
        """Forgets a value; returns its bytes."""
        nbytes = len(self.published.pop(name, b""))
        self.nbytes -= nbytes
        return nbytes


@dataclass
class _Waiter:
    """A client that waits for what others publish.

    Attributes:
        since: when it came. Who has not been heard of since may be the dead predecessor of somebody
            who is about to come: all clients of a job are started again together.
    """

    request: WaitFor
    user: str
    since: float
    until: float
    send: Send = field(repr=False)


class Directory:
    """The directory's table, and the answers to its requests.

    Args:
        num_servers: how many servers there shall be.
        num_clients: how many clients; 0: any number, that come and go.
        num_parts: of the folder.
        fingerprint: of the folder.
        lost_after: seconds of silence after which a client counts as lost.
        clock: tells the time, in seconds.

    Attributes:
        incarnation: of this directory.
    """

    def __init__(
        self,
        num_servers: int,
        num_clients: int,
        num_parts: int,
        fingerprint: str,
        lost_after: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_servers = num_servers
        self._num_clients = num_clients
        self._num_parts = num_parts
        self._fingerprint = fingerprint
        self._lost_after = lost_after
        self._clock = clock
        self.incarnation = uuid.uuid4().hex
        self._servers: dict[int, _Peer] = {}
        self._clients: dict[int, _Peer] = {}
        self._published_bytes = 0
        self._waiters: list[_Waiter] = []

    @property
    def finished(self) -> bool:
        """Whether all clients have come and gone."""
        clients = self._clients
        expected = range(self._num_clients)
        return self._num_clients > 0 and all(r in clients and clients[r].gone for r in expected)

    def lookup(self) -> Table:
        """What is known."""
        now = self._clock()
        clients: dict[int, Any] = {
            rank: replace(peer.entry, silent=_seconds(now - peer.heard), gone=peer.gone)  # type: ignore[arg-type]
            for rank, peer in sorted(self._clients.items())
        }
        return replace(self._table(), clients=clients)

    def _table(self) -> Table:
        """What is known but for the clients, which may be thousands."""
        now = self._clock()
        servers: dict[int, Any] = {
            rank: replace(peer.entry, silent=_seconds(now - peer.heard))
            for rank, peer in sorted(self._servers.items())
        }
        return Table(
            self.incarnation,
            self._num_servers,
            self._num_clients,
            self._num_parts,
            self._fingerprint,
            servers,
            finished=self.finished,
        )

    # Who is there -------------------------------------------------------------------------------

    def register_server(self, request: RegisterServer, source: Source) -> Table:
        """Takes note of a server.

        Raises:
            SecurityError: the asker does not have the servers' key.
            RendezvousError: it contradicts what is known.
        """
        rank = request.rank
        if not source.is_server:
            raise SecurityError(
                f"server {rank} registers without the servers' key: graph servers need server.key, "
                "client.key is for trainers"
            )
        self._check_numbers(request)
        if rank >= self._num_servers:
            raise RendezvousError(f"server {rank} registers, but there are {self._num_servers}")
        if any(part >= self._num_parts for part in request.parts):
            raise RendezvousError(
                f"server {rank} serves partitions {request.parts}, but there are {self._num_parts}"
            )
        if request.fingerprint != self._fingerprint:
            raise RendezvousError(
                f"graph server {rank} has opened another partition folder ({request.fingerprint}) "
                f"than server 0 ({self._fingerprint}): copy the same folder to all machines"
            )
        entry = ServerEntry(
            incarnation_of(request.secret),
            request.parts,
            request.addresses,
            request.host,
            request.pid,
        )
        entered = self._enter("server", self._servers, rank, entry, source)
        if entered:
            self._take_gone(request.gone, source)
        return self.lookup() if entered else replace(self._table(), contending=True)

    def register_client(self, request: RegisterClient, source: Source) -> Table:
        """Takes note of a client.

        Raises:
            RendezvousError: it contradicts what is known.
        """
        self._check_numbers(request)
        rank, most = request.rank, self._num_clients or MAX_CLIENTS
        if rank >= most:
            raise RendezvousError(f"client {rank} registers, but there are {most}")
        if not request.name.isprintable():
            raise RendezvousError(f"client {rank} has a name that cannot be shown")
        if rank not in self._clients and self._num_clients == 0:
            own = sum(peer.source.user == source.user for peer in self._clients.values())
            if own >= _MAX_CLIENTS_EACH:
                raise RendezvousError(
                    f"{own} clients have registered from where client {rank} is, no more may"
                )
        entry = ClientEntry(incarnation_of(request.secret), request.name, request.pid)
        entered = self._enter("client", self._clients, rank, entry, source)
        return self._table() if entered else replace(self._table(), contending=True)

    def _check_numbers(self, request: RegisterServer | RegisterClient) -> None:
        for name, given, known in (
            ("num_servers", request.num_servers, self._num_servers),
            ("num_clients", request.num_clients, self._num_clients),
        ):
            if given != known:
                raise RendezvousError(
                    f"{request.role} {request.rank} says {name}={given}, but server 0 was started "
                    f"with {name}={known}: they must be the same everywhere"
                )

    def _enter(
        self,
        role: str,
        peers: dict[int, _Peer],
        rank: int,
        entry: ServerEntry | ClientEntry,
        source: Source,
    ) -> bool:
        """Enters a peer; False if another may still have its rank."""
        now, known = self._clock(), peers.get(rank)
        if known is not None and known.entry.incarnation == entry.incarnation:
            known.entry, known.source, known.heard, known.gone = entry, source, now, False
            return True
        if known is not None and not known.gone and not self._may_replace(known, entry, source):
            return self._contend(role, rank, known, entry.incarnation)
        if known is not None:
            self._published_bytes -= known.nbytes  # its successor publishes its own
        peers[rank] = _Peer(entry, source, now, now)
        _log.info(f"{role}-registered", f"{role} {rank} has registered", pid=entry.pid)
        return True

    def _may_replace(self, known: _Peer, entry: ServerEntry | ClientEntry, source: Source) -> bool:
        """Whether another process may take the rank of one that has not gone."""
        silent = self._clock() - known.heard
        if isinstance(known.entry, ServerEntry) and isinstance(entry, ServerEntry):
            # Two cannot listen at one address: the predecessor has left it. Without keys anybody
            # may say so, but a process of this machine is there or is not.
            if known.entry.addresses == entry.addresses:
                return source.is_proven or silent > _REPLACED_AFTER or _has_ended(known.entry)
            return silent > _REPLACED_AFTER
        # Where each client has a key of its own, a rank is not for another while it may come back.
        is_same = source.user == known.source.user or not source.has_own_key
        return silent > (_REPLACED_AFTER if is_same else self._lost_after)

    def _contend(self, role: str, rank: int, known: _Peer, incarnation: str) -> bool:
        """Another process says to have a rank: waits until the known one is heard of or is not."""
        if known.contender is None or known.contender[0] != incarnation:
            known.contender = incarnation, self._clock()
        elif known.heard > known.contender[1]:
            raise RendezvousError(
                f"there is a {role} {rank} already, which is alive (pid {known.entry.pid}): each "
                "must have a rank of its own"
            )
        return False

    def _take_gone(self, gone: dict[int, str], source: Source) -> None:
        """Clients that have gone, as a server remembers them; a new directory does not."""
        now = self._clock()
        for rank, incarnation in gone.items():
            if rank < self._num_clients and rank not in self._clients:
                entry = ClientEntry(incarnation, f"client {rank}", 0)
                self._clients[rank] = _Peer(entry, source, now, now, gone=True)

    def goodbye(self, request: Goodbye, source: Source) -> None:
        """A server or client ends, if it is the one that has registered."""
        is_server = request.role == "server"
        peers = self._servers if is_server else self._clients
        known = peers.get(request.rank)
        if known is None or known.entry.incarnation != incarnation_of(request.secret):
            return
        if not is_server:
            known.gone = True
        elif source.is_server:
            del peers[request.rank]
        _log.info(f"{request.role}-left", f"{request.role} {request.rank} has said goodbye")

    # What clients publish -----------------------------------------------------------------------

    def publish(self, request: Publish, value: bytes) -> None:
        """Takes in a value of a client.

        Args:
            request: whose, and its name.
            value: its JSON text.

        Raises:
            RendezvousError: too much, the client has not registered, or another process has its
                rank by now.
        """
        client = self._clients.get(request.rank)
        if client is None:
            raise RendezvousError(f"client {request.rank} publishes before it has registered")
        if client.entry.incarnation != incarnation_of(request.secret):
            raise RendezvousError(f"another process is client {request.rank} by now")
        client.heard = self._clock()
        name = request.name
        if len(value) > _MAX_VALUE:
            raise RendezvousError(
                f"client {request.rank} publishes {len(value)} bytes as '{name}', more than "
                f"{_MAX_VALUE}"
            )
        self._published_bytes += len(value) - client.unpublish(name)
        client.published[name] = value
        client.nbytes += len(value)
        while len(client.published) > _MAX_NAMES:
            self._published_bytes -= client.unpublish(next(iter(client.published)))
        while self._published_bytes > _MAX_PUBLISHED:
            # The oldest value, of a loader made long ago, of whoever has published most.
            most = max(self._clients.values(), key=lambda peer: peer.nbytes)
            self._published_bytes -= most.unpublish(next(iter(most.published)))
        for waiter in [w for w in self._waiters if w.request.name == name and self._is_done(w)]:
            self._answer(waiter)

    def wait_for(self, request: WaitFor, source: Source, send: Send) -> None:
        """Answers, by `send`, when all have published what is asked for, or when time is over.

        A value counts if its client has been heard of since the one that asks has come.

        Raises:
            RendezvousError: too many wait.
        """
        own = sum(waiter.user == source.user for waiter in self._waiters)
        if own >= _MAX_WAITERS_EACH * self._clients_of(source) or (
            len(self._waiters) >= _MAX_WAITERS
        ):
            raise RendezvousError(f"{own} requests of yours wait here already: ask again later")
        asker = self._clients.get(request.rank)
        is_known = asker and asker.entry.incarnation == incarnation_of(request.secret)
        came = asker.since if asker and is_known else 0.0
        waiter = _Waiter(request, source.user, came, self._clock() + request.wait, send)
        self._waiters.append(waiter)
        if request.wait == 0 or self._is_done(waiter):
            self._answer(waiter)

    def _clients_of(self, source: Source) -> int:
        """Clients that have registered from there, one at least."""
        return max(1, sum(peer.source.user == source.user for peer in self._clients.values()))

    def _is_done(self, waiter: _Waiter) -> bool:
        return all(self._value(rank, waiter) is not None for rank in waiter.request.ranks)

    def _value(self, rank: int, waiter: _Waiter) -> bytes | None:
        """What a client has published for a waiter; None: nothing that counts."""
        client = self._clients.get(rank)
        if client is None or client.heard < waiter.since:
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
        except Exception as error:  # of its connection; others wait, too
            _log.warning("reply-failed", f"an answer to {waiter.user} was not sent: {error!r}")

    # Time ---------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Notices who is silent, and whose time is over. Called several times a second."""
        now = self._clock()
        for waiter in [w for w in self._waiters if now >= w.until or self._is_done(w)]:
            self._answer(waiter)
        for rank, client in list(self._clients.items()):
            silent = now - client.heard
            if not client.gone and silent > self._lost_after:
                client.gone = True
                _log.warning("client-lost", f"client {rank} is lost: silent for {silent:.0f} s")
            is_old = client.gone and silent > _FORGOTTEN_AFTER * self._lost_after
            if is_old and self._num_clients == 0:
                self._published_bytes -= client.nbytes
                del self._clients[rank]


def _seconds(silent: float) -> float:
    return round(max(0.0, silent), 2)


def _has_ended(entry: ServerEntry) -> bool:
    """Whether a server was a process of this machine, and is no more."""
    if entry.host != host_identity():
        return False
    try:
        state = Path(f"/proc/{entry.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return state in "ZX"  # dead, but not yet reaped
