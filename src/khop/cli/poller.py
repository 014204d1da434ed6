"""Poller of `khop top`: requests the list of graph servers, and each server's statistics.

Graph server 0 has the list (the directory). Replies come from the network and are shown in a
terminal, so they are checked in full when they arrive. Imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from khop import codec
from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.messages import (
    Lookup,
    ServerEntry,
    Statistics,
    Table,
    read_json,
    read_table,
)
from khop.distributed.remote.server_client import Reply
from khop.distributed.remote.statistics import Snapshot
from khop.errors import KhopError, ProtocolError

LOST_AFTER = 3.0
"""Seconds without a reply after which a server counts as lost."""

_REQUEST_SECONDS = 10.0
_SHORTEST = 1e-3  # least seconds between snapshots: rates over less time are noise


def read_snapshot(content: object, sender: str) -> Snapshot:
    """Read a server's statistics from `content`, parsed JSON.

    Raises:
        ProtocolError: the JSON is malformed. The message names the sender and the field.
    """
    return codec.from_json(Snapshot, content, f"{sender} has sent malformed statistics")


@dataclass(frozen=True)
class Rates:
    """Events per second of a graph server, between two snapshots of its counters.

    All are empty before the second snapshot.

    Attributes:
        server: 'requests', 'failed', 'bytes_in', 'bytes_out' and 'batches'.
        sessions: 'count' and 'bytes' of the batches of each loader (session), by its name.
        requests: requests of each type, by name.
    """

    server: dict[str, float] = field(default_factory=dict)
    sessions: dict[str, dict[str, float]] = field(default_factory=dict)
    requests: dict[str, float] = field(default_factory=dict)

    @classmethod
    def between(cls, before: Snapshot | None, now: Snapshot) -> Rates:
        """Compute the rates from two snapshots, `before` and `now`.

        They are empty if `before` is None or of another process.
        """
        if before is None or (before.pid, before.started) != (now.pid, now.started):
            return cls()
        seconds = now.uptime - before.uptime
        if seconds < _SHORTEST:
            return cls()
        totals = before.totals()
        answered = {name: requests.count for name, requests in before.requests.items()}
        batches = {s.session: (s.batches.count, s.batches.bytes) for s in before.sessions}
        sessions = {}
        for session in now.sessions:
            count, nbytes = batches.get(session.session, (0, 0))
            sessions[session.session] = {
                "count": (session.batches.count - count) / seconds,
                "bytes": (session.batches.bytes - nbytes) / seconds,
            }
        return cls(
            {name: (total - totals[name]) / seconds for name, total in now.totals().items()},
            sessions,
            {n: (r.count - answered.get(n, 0)) / seconds for n, r in now.requests.items()},
        )


@dataclass(frozen=True)
class Lost:
    """State of a graph server that does not reply.

    Attributes:
        seconds: time without a reply.
        why: last error, or empty if there was none.
    """

    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Server:
    """A graph server, as `khop top` shows it.

    Attributes:
        rank, entry: rank, and entry in the list of servers (addresses and parts).
        snapshot: last counters, or None before the first reply.
        rates: rates between the last two snapshots.
        lost: None unless the server is lost.
    """

    rank: int
    entry: ServerEntry
    snapshot: Snapshot | None
    rates: Rates
    lost: Lost | None


@dataclass(frozen=True)
class Poll:
    """State of all graph servers at one time, which `khop top` shows.

    Attributes:
        time: seconds since 1970.
        master: 'HOST:PORT' of graph server 0, which has the directory, the list of servers.
        table: last list of servers.
        directory: None unless the directory is lost.
        servers: the servers of the table, by rank.
    """

    time: float
    master: str
    table: Table
    directory: Lost | None
    servers: Sequence[Server]


class Poller:
    """Poller of graph servers, as a context manager.

    If a server does not reply in time, a poll has its last snapshot. After `LOST_AFTER` seconds
    without a reply the server counts as lost.

    Args:
        servers: address and keys of the directory.
        timeout: seconds to wait for the directory's first reply.

    Raises:
        PartitionUnavailableError: the directory did not reply in time.
        ProtocolError: the directory sent no valid table.
    """

    def __init__(self, servers: Servers, timeout: float) -> None:
        self._master = servers.master
        self._client = DirectoryClient(servers, timeout=_REQUEST_SECONDS)
        # Keys: ranks of servers, and None for the directory.
        self._pending: dict[int | None, Future[Reply]] = {}
        self._replied_at: dict[int | None, float] = {}
        self._errors: dict[int | None, str] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._rates: dict[int, Rates] = {}
        try:
            self._take(None, self._client.request(None, Lookup(), timeout=timeout))
        except BaseException as error:
            self._client.close()
            if isinstance(error, RuntimeError) and not isinstance(error, KhopError):
                raise ProtocolError(str(error)) from None  # the server named an unknown type
            raise

    def poll(self, patience: float) -> Poll:
        """Request statistics from all servers, and return the state of all.

        Args:
            patience: seconds to wait for replies.
        """
        for rank in (None, *self._table.servers):
            if rank not in self._pending:
                request = Lookup() if rank is None else Statistics()
                self._pending[rank] = self._client.submit(rank, request)
                self._replied_at.setdefault(rank, time.monotonic())
        wait(self._pending.values(), patience)
        for rank, pending in list(self._pending.items()):
            if pending.done():
                del self._pending[rank]
                try:
                    self._take(rank, pending.result())
                except Exception as error:  # of the server, or of its malformed reply
                    self._errors[rank] = str(error).partition("\n")[0]
        servers = [
            Server(
                rank,
                entry,
                self._snapshots.get(rank),
                self._rates.get(rank, Rates()),
                self._lost(rank),
            )
            for rank, entry in sorted(self._table.servers.items())
        ]
        return Poll(time.time(), self._master, self._table, self._lost(None), servers)

    def _take(self, rank: int | None, reply: Reply) -> None:
        """Check and keep a reply of the server with a rank, or of the list of servers (rank None).

        Raises:
            ProtocolError: the reply is malformed.
        """
        if rank is None:
            self._table: Table = read_table(reply.arrays, f"the directory at {self._master}")
        else:
            name = f"server {rank}"
            snapshot = read_snapshot(read_json(reply.arrays, name), name)
            self._rates[rank] = Rates.between(self._snapshots.get(rank), snapshot)
            self._snapshots[rank] = snapshot
        self._replied_at[rank] = time.monotonic()
        self._errors.pop(rank, None)

    def _lost(self, rank: int | None) -> Lost | None:
        silent = time.monotonic() - self._replied_at.get(rank, time.monotonic())
        return Lost(silent, self._errors.get(rank, "")) if silent > LOST_AFTER else None

    def __enter__(self) -> Poller:
        """Return the poller itself, for a `with` statement."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections to the servers."""
        self._client.close()
