"""The directory on server 0: servers and clients; `published_values` has what clients publish.

Its state is soft. All processes register again every second, which renews their leases. A client
whose lease ends counts as lost, and a restarted directory is complete two seconds later. A process
with another folder, another number of servers, or the rank of a living process is refused.

A process authenticates with a secret that it made itself. Others get only its hash, the
incarnation. Without a client's secret no process can publish, register or unregister in its name.
Servers also authenticate with the servers' key (`Source.is_server`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from khop import log
from khop.distributed.membership.leases import DEFAULT_LEASE, LeaseTable
from khop.distributed.processes.hosts import host_identity
from khop.distributed.remote.directory_messages import (
    ClientEntry,
    Goodbye,
    Publish,
    RegisterClient,
    RegisterServer,
    ServerEntry,
    Table,
    WaitFor,
)
from khop.distributed.remote.message_fields import MAX_CLIENTS, incarnation_of
from khop.distributed.remote.server.change_log import ChangeLog
from khop.distributed.remote.server.published_values import (
    PublishedValues,
    RegisteredProcess,
    Send,
)
from khop.distributed.rpc.identity import Source
from khop.errors import RendezvousError, SecurityError

_log = log.get(__name__)

_MAX_CLIENTS_EACH = 256
# Seconds of silence after which another process may take a rank.
_REPLACED_AFTER = 1.5
# If the number of clients is not fixed, one that is gone is removed after this many leases.
_FORGOTTEN_AFTER = 4


class Directory:
    """The directory's table, and the answers to its requests.

    Args:
        num_servers: number of servers in the job.
        num_clients: number of clients; 0: any number, that come and go.
        num_parts: number of partitions of the folder.
        fingerprint: fingerprint of the folder.
        lease: seconds of silence after which a client counts as lost.
        clock: returns the time in seconds.
        leases: table of the leases, by the same clock. If None, a new one.

    Attributes:
        incarnation: incarnation of this directory.
    """

    def __init__(
        self,
        num_servers: int,
        num_clients: int,
        num_parts: int,
        fingerprint: str,
        lease: float = DEFAULT_LEASE,
        clock: Callable[[], float] = time.monotonic,
        leases: LeaseTable | None = None,
    ) -> None:
        self._num_servers = num_servers
        self._num_clients = num_clients
        self._num_parts = num_parts
        self._fingerprint = fingerprint
        self._lease = lease
        self._leases = leases or LeaseTable(clock)
        self._clock = clock
        self.incarnation = uuid.uuid4().hex
        self._servers: dict[int, RegisteredProcess] = {}
        self._clients: dict[int, RegisteredProcess] = {}
        self._values = PublishedValues(self._clients, clock)
        self._changes = ChangeLog(_log, clock)

    @property
    def finished(self) -> bool:
        """True if all clients have registered and are gone; False if their number is not fixed."""
        clients = self._clients
        expected = range(self._num_clients)
        return self._num_clients > 0 and all(r in clients and clients[r].gone for r in expected)

    def lookup(self) -> Table:
        """Return the table."""
        clients: dict[int, Any] = {
            rank: replace(peer.entry, silent=_seconds(peer.lease.silence()), gone=peer.gone)  # type: ignore[arg-type]
            for rank, peer in sorted(self._clients.items())
        }
        return replace(self._table(), clients=clients)

    def _table(self) -> Table:
        """Return the table without the clients, which may be thousands."""
        servers: dict[int, Any] = {
            rank: replace(peer.entry, silent=_seconds(peer.lease.silence()))
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

    # Servers and clients ------------------------------------------------------------------------

    def register_server(self, request: RegisterServer, source: Source) -> Table:
        """Register a server and return the table.

        Raises:
            SecurityError: the sender does not have the servers' key.
            RendezvousError: the registration contradicts earlier ones or server 0.
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
        """Register a client and return the table without the clients.

        Raises:
            RendezvousError: the registration contradicts earlier ones or server 0.
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
        peers: dict[int, RegisteredProcess],
        rank: int,
        entry: ServerEntry | ClientEntry,
        source: Source,
    ) -> bool:
        """Enter a peer; return False if another process may still have its rank."""
        known = peers.get(rank)
        if known is not None and known.entry.incarnation == entry.incarnation:
            known.entry, known.source, known.gone = entry, source, False
            known.lease.renew()
            return True
        if known is not None and not known.gone and not self._may_replace(known, entry, source):
            return self._contend(role, rank, known, entry.incarnation)
        if known is not None:
            self._values.forget(known)  # the new process publishes other values
        peers[rank] = RegisteredProcess(entry, source, self._clock(), self._leases.grant())
        what = f"{role} {rank} has registered"
        self._changes.info(source.user, f"{role}-registered", what, pid=entry.pid)
        return True

    def _may_replace(
        self, known: RegisteredProcess, entry: ServerEntry | ClientEntry, source: Source
    ) -> bool:
        """Return whether another process may take the rank of one that is not gone."""
        silent = known.lease.silence()
        if isinstance(known.entry, ServerEntry) and isinstance(entry, ServerEntry):
            # Two processes cannot listen at one address, so the earlier one has ended. Without keys
            # any process can claim this, but for one of this machine it can be checked.
            if known.entry.addresses == entry.addresses:
                return source.is_proven or silent > _REPLACED_AFTER or _has_ended(known.entry)
            return silent > _REPLACED_AFTER
        # If each client has its own key, another key gets a rank only once its client is lost.
        is_same = source.user == known.source.user or not source.has_own_key
        return silent > (_REPLACED_AFTER if is_same else self._lease)

    def _contend(self, role: str, rank: int, known: RegisteredProcess, incarnation: str) -> bool:
        """Return False while a rank may be in use; RendezvousError if its process is alive."""
        if known.contender is None or known.contender[0] != incarnation:
            known.contender = incarnation, self._clock()
        elif known.lease.heard_at > known.contender[1]:
            raise RendezvousError(
                f"there is a {role} {rank} already, which is alive (pid {known.entry.pid}): each "
                "must have a rank of its own"
            )
        return False

    def _take_gone(self, gone: dict[int, str], source: Source) -> None:
        """Enter clients that a server reports as gone; a restarted directory has lost them."""
        now = self._clock()
        for rank, incarnation in gone.items():
            if rank < self._num_clients and rank not in self._clients:
                entry = ClientEntry(incarnation, f"client {rank}", 0)
                lease = self._leases.grant()
                self._clients[rank] = RegisteredProcess(entry, source, now, lease, gone=True)

    def goodbye(self, request: Goodbye, source: Source) -> None:
        """Unregister a server or client, if it is the process that has registered."""
        is_server = request.role == "server"
        peers = self._servers if is_server else self._clients
        known = peers.get(request.rank)
        if known is None or known.entry.incarnation != incarnation_of(request.secret):
            return
        if known.gone or (is_server and not source.is_server):
            return
        if is_server:
            del peers[request.rank]
        known.gone = True
        what = f"{request.role} {request.rank} has said goodbye"
        self._changes.info(source.user, f"{request.role}-left", what)

    # Published values ---------------------------------------------------------------------------

    def publish(self, request: Publish, value: bytes) -> None:
        """Publish a value of a client; see `PublishedValues.publish`."""
        self._values.publish(request, value)

    def wait_for(self, request: WaitFor, source: Source, send: Send) -> None:
        """Answer a request for values, by `send`; see `PublishedValues.wait_for`."""
        self._values.wait_for(request, source, send)

    # Time ---------------------------------------------------------------------------------------

    @property
    def has_answers(self) -> bool:
        """True if requests for values can be answered; see `answer_some`."""
        return self._values.has_answers

    def answer_some(self) -> None:
        """Answer requests for values, for a few milliseconds."""
        self._values.answer_some()

    def tick(self, heard_until: Callable[[str, float], float] = lambda user, now: now) -> None:
        """Mark silent clients as gone, answer expired requests. Called several times a second.

        Args:
            heard_until: returns the time up to which all messages of a user have been read, given
                the user and the time now. A client is not silent while its messages wait here.
        """
        now = self._clock()
        self._values.tick()
        for rank, client in list(self._clients.items()):
            silent = client.lease.silence(now)
            if not client.gone and silent > self._lease:
                silent = client.lease.silence(heard_until(client.source.user, now))
            if not client.gone and silent > self._lease:
                client.gone = True
                what = f"client {rank} is lost: silent for {silent:.0f} s"
                self._changes.warning(client.source.user, "client-lost", what)
            is_old = client.gone and silent > _FORGOTTEN_AFTER * self._lease
            if is_old and self._num_clients == 0:
                self._values.forget(client)
                del self._clients[rank]


def _seconds(silent: float) -> float:
    return round(max(0.0, silent), 2)


def _has_ended(entry: ServerEntry) -> bool:
    """Return whether a server was a process of this machine, and has ended."""
    if entry.host != host_identity():
        return False
    try:
        state = Path(f"/proc/{entry.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return state in "ZX"  # dead, but not yet reaped
