"""Poller of `khop top`: the directory's table and each server's snapshot, again and again.

A poll waits for replies no longer than its limit. A server that has not replied by then is shown
as of its last reply; after three seconds without a reply it counts as lost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from khop.cli.snapshot import check_snapshot, check_table
from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.messages import Lookup, Statistics, read_json
from khop.distributed.remote.server_client import Reply
from khop.errors import KhopError, ProtocolError

LOST_AFTER = 3.0
"""Seconds of silence after which a server counts as lost."""

_REQUEST_SECONDS = 10.0

Snapshot = Mapping[str, Any]
"""Snapshot of a server, from `khop.distributed.remote.server.counters.ServerCounters.snapshot`."""


@dataclass(frozen=True)
class Lost:
    """A server or directory that does not reply.

    Attributes:
        seconds: time without a reply.
        why: its last error, or empty if there was none.
    """

    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Poll:
    """The state of all servers at one time.

    Attributes:
        time: seconds since 1970.
        master: 'HOST:PORT' of the directory.
        table: the directory's last table.
        directory: set if the directory is lost.
        pictures: last snapshot of each server, by rank.
        lost: servers that are lost, by rank.
    """

    time: float
    master: str
    table: Mapping[str, Any]
    directory: Lost | None
    pictures: Mapping[int, Snapshot]
    lost: Mapping[int, Lost]

    @property
    def servers(self) -> dict[int, Mapping[str, Any]]:
        """The directory's entries of servers, by rank."""
        return {int(rank): entry for rank, entry in sorted(self.table["servers"].items())}


class Poller:
    """Poller of graph servers; a context manager.

    Args:
        servers: address and keys of the directory.
        timeout: seconds to wait for the directory's first reply.

    Raises:
        PartitionUnavailableError: the directory did not reply in time.
        ProtocolError: it sent something else than its table.
    """

    def __init__(self, servers: Servers, timeout: float) -> None:
        self._master = servers.master
        self._client = DirectoryClient(servers, timeout=_REQUEST_SECONDS)
        self._asked: dict[int | None, Future[Reply]] = {}
        self._heard: dict[int | None, float] = {}
        self._why: dict[int | None, str] = {}
        self._pictures: dict[int, Snapshot] = {}
        try:
            reply = self._client.request(None, Lookup(), timeout=timeout)
            self._table = self._read_table(reply)
        except BaseException as error:
            self.close()
            if isinstance(error, RuntimeError) and not isinstance(error, KhopError):
                raise ProtocolError(str(error)) from None  # of a type that is not known here
            raise
        self._heard[None] = time.monotonic()

    def poll(self, patience: float) -> Poll:
        """Poll the directory and all servers.

        Args:
            patience: seconds to wait for replies.
        """
        ranks = [int(rank) for rank in self._table["servers"]]
        for rank in (None, *ranks):
            if rank not in self._asked:
                request = Lookup() if rank is None else Statistics()
                self._asked[rank] = self._client.submit(rank, request)
                self._heard.setdefault(rank, time.monotonic())
        wait(self._asked.values(), patience)
        for rank, answer in list(self._asked.items()):
            if answer.done():
                del self._asked[rank]
                self._take(rank, answer)
        lost = {rank: self._lost(rank) for rank in (None, *ranks)}
        return Poll(
            time.time(),
            self._master,
            self._table,
            lost.pop(None),
            dict(self._pictures),
            {rank: how for rank, how in lost.items() if rank is not None and how is not None},
        )

    def _take(self, rank: int | None, answer: Future[Reply]) -> None:
        error = answer.exception()
        if error is not None:
            self._why[rank] = str(error).partition("\n")[0]
            return
        who, reply = self._name(rank), answer.result()
        try:
            if rank is None:
                self._table = self._read_table(reply)
            else:
                content = read_json(reply.arrays, who)
                self._pictures[rank] = check_snapshot(content, who)
        except ProtocolError as malformed:  # as if it had not replied
            self._why[rank] = str(malformed)
            return
        self._heard[rank] = time.monotonic()
        self._why.pop(rank, None)

    def _read_table(self, reply: Reply) -> Mapping[str, Any]:
        who = self._name(None)
        return check_table(read_json(reply.arrays, who), who)

    def _name(self, rank: int | None) -> str:
        return f"the directory at {self._master}" if rank is None else f"server {rank}"

    def _lost(self, rank: int | None) -> Lost | None:
        silent = time.monotonic() - self._heard[rank]
        return Lost(silent, self._why.get(rank, "")) if silent > LOST_AFTER else None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Poller:
        """Return the watcher itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def rates(snapshot: Snapshot, before: Snapshot | None) -> dict[str, float] | None:
    """Compute a server's rates between two snapshots, or None if they cannot be compared.

    Returns:
        Per second: 'requests', 'failed', 'bytes_in', 'bytes_out', 'batches'.
    """
    seconds = _between(snapshot, before)
    if before is None or seconds is None:
        return None
    now, then = _sums(snapshot), _sums(before)
    return {name: (now[name] - then[name]) / seconds for name in now}


def session_rates(snapshot: Snapshot, before: Snapshot | None) -> dict[str, dict[str, float]]:
    """Compute batches and bytes of batches per second of each session; see `rates`."""
    seconds = _between(snapshot, before)
    if before is None or seconds is None:
        return {}
    earlier = {session["session"]: session["batches"] for session in before["sessions"]}
    found = {}
    for session in snapshot["sessions"]:
        now, then = session["batches"], earlier.get(session["session"], {})
        found[session["session"]] = {
            name: (now[name] - then.get(name, 0)) / seconds for name in ("count", "bytes")
        }
    return found


def _between(snapshot: Snapshot, before: Snapshot | None) -> float | None:
    """Return the seconds between two snapshots of one process, or None if there are none."""
    if before is None or any(before[name] != snapshot[name] for name in ("pid", "started")):
        return None
    seconds: float = snapshot["uptime"] - before["uptime"]
    return seconds if seconds > 0 else None


def _sums(snapshot: Snapshot) -> dict[str, float]:
    requests = snapshot["requests"].values()
    return {
        "requests": sum(r["count"] for r in requests),
        "failed": failures(snapshot),
        "bytes_in": snapshot["bytes_in"],
        "bytes_out": snapshot["bytes_out"],
        "batches": snapshot["batches"]["count"],
    }


def failures(snapshot: Snapshot) -> int:
    """Count the requests that were refused or answered with an exception."""
    counts: list[int] = [answered["failed"] for answered in snapshot["requests"].values()]
    return sum([*counts, *snapshot["refused"].values()])
