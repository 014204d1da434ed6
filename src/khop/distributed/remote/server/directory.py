"""The directory on server 0: servers and clients. `published_values` has the clients' values.

The directory is not saved. All processes register again every second, which renews their leases. So
a restarted directory is complete two seconds later. A client whose lease ends counts as lost. A
process with another folder, another number of servers, or the rank of a living process is refused.

A process authenticates with a secret that it made itself. Other processes get only the secret's
hash, the incarnation. Without a client's secret no process can publish, register or unregister in
this client's name. Servers also authenticate with the servers' key (`Source.is_server`).
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
from khop.distributed.remote.messages import (
    MAX_CLIENTS,
    ClientEntry,
    Goodbye,
    RegisterClient,
    RegisterServer,
    ServerEntry,
    Table,
    incarnation_of,
)
from khop.distributed.remote.server.published_values import (
    Entry,
    PublishedValues,
    RegisteredProcess,
)
from khop.distributed.rpc.identity import Source
from khop.distributed.rpc.limits import RateLimiter
from khop.errors import RendezvousError, SecurityError

_log = log.get(__name__)

_MAX_CLIENTS_PER_USER = 256
# Seconds of silence after which another process can take a rank.
_REPLACED_AFTER = 1.5
# If the number of clients is not fixed, one that is gone is removed after this many leases.
_FORGOTTEN_AFTER = 4
# Lines of a user in the log, per second and at once, so that none can fill a disk. All trainers of
# a large job can come in one second. Refused requests, which change nothing, are not logged.
_LINES_RATE, _LINES_BURST = 0.2, 512.0


class Directory:
    """Table of a job's graph servers and clients, which register here. Runs in server 0.

    Args:
        num_servers, num_clients: numbers of processes. If 0, any number of clients come and go.
        num_parts, fingerprint: number of partitions, and fingerprint, of the folder.
        lease: seconds of silence after which a client counts as lost.
        clock: returns the time in seconds.
        leases: table of the leases, by the same clock. If None, a new one.
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
        self._servers: dict[int, RegisteredProcess[ServerEntry]] = {}
        self._clients: dict[int, RegisteredProcess[ClientEntry]] = {}
        self.values = PublishedValues(self._clients, clock)
        self._lines = RateLimiter(_LINES_RATE, _LINES_BURST, clock)
        self._num_omitted = 0

    def _log_change(
        self, user: str, event: str, message: str, is_warning: bool = False, **fields: Any
    ) -> None:
        """Log a change that a user has caused. Above a rate per user, lines are only counted."""
        if not self._lines.admit(user.encode()):
            self._num_omitted += 1
            return
        if self._num_omitted:
            fields["left_out"] = self._num_omitted
            self._num_omitted = 0
        (_log.warning if is_warning else _log.info)(event, message, **fields)

    @property
    def finished(self) -> bool:
        """True if all clients have registered and are gone. False if their number is not fixed."""
        clients = self._clients
        expected = range(self._num_clients)
        return self._num_clients > 0 and all(r in clients and clients[r].gone for r in expected)

    def lookup(self) -> Table:
        clients = {
            rank: replace(
                peer.entry,
                silent=_seconds(peer.lease.silence()),
                gone=peer.gone,
                is_cut_off=peer.source.has_disconnected,
            )
            for rank, peer in sorted(self._clients.items())
        }
        return replace(self._table(), clients=clients)

    def _table(self) -> Table:
        """Return the directory's contents without the clients, which can be thousands."""
        servers = {
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

    def register_server(self, request: RegisterServer, source: Source) -> Table:
        """Register the server `source`, or renew its registration. Return the directory's table.

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
        incarnation = incarnation_of(request.secret)
        entry = ServerEntry(
            incarnation, request.parts, request.addresses, request.host, request.pid
        )
        if not self._enter("server", self._servers, rank, entry, source):
            return replace(self._table(), contending=True)
        self._take_gone(request.gone, source)
        return self.lookup()

    def register_client(self, request: RegisterClient, source: Source) -> Table:
        """Register the client `source`, or renew its registration.

        Return the table without clients.

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
            if own >= _MAX_CLIENTS_PER_USER:
                raise RendezvousError(
                    f"{own} clients have registered from where client {rank} is, the limit"
                )
        entry = ClientEntry(incarnation_of(request.secret), request.name, request.pid)
        is_entered = self._enter("client", self._clients, rank, entry, source)
        return replace(self._table(), contending=not is_entered)

    def _check_numbers(self, request: RegisterServer | RegisterClient) -> None:
        for name, passed, known in (
            ("num_servers", request.num_servers, self._num_servers),
            ("num_clients", request.num_clients, self._num_clients),
        ):
            if passed != known:
                raise RendezvousError(
                    f"{request.role} {request.rank} has {name}={passed}, but server 0 was started "
                    f"with {name}={known}: they must be the same everywhere"
                )

    def _enter(
        self,
        role: str,
        peers: dict[int, RegisteredProcess[Entry]],
        rank: int,
        entry: Entry,
        source: Source,
    ) -> bool:
        """Enter a server or client (`role`), which sent from `source`, in `peers` by its rank.

        Returns False while another process, which may be dead, has the rank.

        Raises:
            RendezvousError: the other process is alive, since it has renewed its lease.
        """
        known = peers.get(rank)
        if known is not None and known.entry.incarnation == entry.incarnation:
            known.entry, known.source, known.gone = entry, source, False
            known.lease.renew()
            return True
        if known is not None and not known.gone and not self._may_replace(known, entry, source):
            if known.contender is None or known.contender[0] != entry.incarnation:
                known.contender = entry.incarnation, self._clock()
            elif known.lease.heard_at > known.contender[1]:
                raise RendezvousError(
                    f"there is a {role} {rank} already, which is alive (pid {known.entry.pid}): "
                    "each must have a rank of its own"
                )
            return False
        if known is not None:
            self.values.forget(known)  # the new process publishes other values
        peers[rank] = RegisteredProcess(entry, source, self._clock(), self._leases.grant())
        text = f"{role} {rank} has registered"
        self._log_change(source.user, f"{role}-registered", text, pid=entry.pid)
        return True

    def _may_replace(self, known: RegisteredProcess[Entry], entry: Entry, source: Source) -> bool:
        """Return True if a new process (`entry`) may take the rank of an older one (`known`)."""
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

    def _take_gone(self, gone: dict[int, str], source: Source) -> None:
        """Enter clients that a server reports as gone, by rank, if a restart has lost them."""
        now = self._clock()
        for rank, incarnation in gone.items():
            if rank < self._num_clients and rank not in self._clients:
                entry = ClientEntry(incarnation, f"client {rank}", 0)
                lease = self._leases.grant()
                self._clients[rank] = RegisteredProcess(entry, source, now, lease, gone=True)

    def goodbye(self, request: Goodbye, source: Source) -> None:
        """Unregister a server or client, if the request has the secret of its registration."""
        is_server = request.role == "server"
        known = (self._servers if is_server else self._clients).get(request.rank)
        if known is None or known.entry.incarnation != incarnation_of(request.secret):
            return
        if known.gone or (is_server and not source.is_server):
            return
        if is_server:
            del self._servers[request.rank]
        known.lease.renew()  # a sign of life: clients that came after the last one need its values
        known.gone = True
        text = f"{request.role} {request.rank} has said goodbye"
        self._log_change(source.user, f"{request.role}-left", text)

    def tick(self, heard_until: Callable[[str, float], float] = lambda user, now: now) -> None:
        """Mark silent clients as gone, and answer requests whose time is over. Every 0.25 s.

        Args:
            heard_until: returns the time up to which all messages of a user have been read, given
                the user and the current time. A client with unread messages is not silent.
        """
        now = self._clock()
        self.values.tick()
        for rank, client in list(self._clients.items()):
            silent = client.lease.silence(now)
            if not client.gone and silent > self._lease:
                silent = client.lease.silence(heard_until(client.source.user, now))
            if not client.gone and silent > self._lease:
                client.gone = True
                text = f"client {rank} is lost: silent for {silent:.0f} s"
                self._log_change(client.source.user, "client-lost", text, is_warning=True)
            is_old = client.gone and silent > _FORGOTTEN_AFTER * self._lease
            if is_old and self._num_clients == 0:
                self.values.forget(client)
                del self._clients[rank]


def _seconds(silent: float) -> float:
    return round(max(0.0, silent), 2)


def _has_ended(entry: ServerEntry) -> bool:
    """Return whether a server ran on this machine and has ended. False if this is not known."""
    if entry.host != host_identity():
        return False
    try:
        state = Path(f"/proc/{entry.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return state in "ZX"  # dead, but not yet reaped
