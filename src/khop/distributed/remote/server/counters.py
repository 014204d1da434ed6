"""Counters of a graph server, and snapshots of its state. Run by graph servers.

Threads of a server count as they work, with a lock and a few additions per event. Current state
(sessions, samplers, sizes of queues) is read for each snapshot, by functions of the server.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from khop import codec
from khop._version import __version__
from khop.distributed.remote.statistics import (
    Batches,
    CountedSession,
    JobStoreState,
    Requests,
    SessionState,
    Snapshot,
)
from khop.metrics.text import REQUEST_BUCKETS

OTHER = "other"
"""Common name of all requests and reasons after the first 64: see `ServerCounters`."""

_MAX_NAMES = 64
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ServerCounters:
    """Counters of a graph server: requests, batches, bytes, sessions. All threads count here.

    The first 64 names of requests and of reasons have counters of their own. Later names count as
    'other', so that clients cannot fill the server's memory with names. Callers pass 'other' for
    unknown requests, so that known ones are always among the 64.

    Args:
        rank, parts, address: rank, partitions and address of the server.
        sessions, stores: return the current sessions, and jobs' stores. Called by the thread that
            takes a snapshot.
    """

    def __init__(
        self,
        rank: int,
        parts: list[int],
        address: str,
        sessions: Callable[[], Sequence[SessionState]] = list,
        stores: Callable[[], list[JobStoreState]] = list,
    ) -> None:
        self._rank, self._parts = rank, list(parts)
        self._address = address
        self._current = sessions
        self._stores = stores
        self._lock = threading.Lock()
        self._started = time.time()
        self._began = time.monotonic()
        self._requests: dict[str, Requests] = {}
        self._refused: dict[str, int] = {}
        self._bytes_in = self._bytes_out = 0
        self._batches = Batches(0, 0, 0.0)
        self._of_sessions: dict[str, Batches] = {}
        self._sessions = {"opened": 0, "closed": 0, "expired": 0}
        self._restarts = 0

    def count_request(
        self, op: str, seconds: float, bytes_in: int, bytes_out: int, failed: bool = False
    ) -> None:
        """Count a request `op`: `seconds` to its reply, the bytes of both, and if it `failed`."""
        bucket = bisect_left(REQUEST_BUCKETS, seconds)
        with self._lock:
            requests = self._requests.get(op)
            if requests is None:
                new = Requests(0, 0, 0.0, [0] * (len(REQUEST_BUCKETS) + 1))
                requests = self._requests.setdefault(_admitted(op, self._requests), new)
            requests.count += 1
            requests.failed += failed
            requests.seconds += seconds
            requests.buckets[bucket] += 1
            self._bytes_in += bytes_in
            self._bytes_out += bytes_out

    def refused(self, reason: str) -> None:
        """Count a request that was refused unread. `reason` is a few words ('too large')."""
        with self._lock:
            name = _admitted(reason, self._refused)
            self._refused[name] = self._refused.get(name, 0) + 1

    def session_opened(self, session: str) -> None:
        with self._lock:
            self._sessions["opened"] += 1
            self._of_sessions.setdefault(session, Batches(0, 0, 0.0))

    def session_ended(self, session: str, expired: bool = False) -> None:
        """Count the end of a session. `expired` is True if its client was silent for too long."""
        with self._lock:
            self._sessions["expired" if expired else "closed"] += 1
            self._of_sessions.pop(session, None)

    def batch(self, session: str, nbytes: int, seconds: float) -> None:
        """Count a batch of `nbytes` that was sent in full, `seconds` after its request.

        If its session is not open, the batch counts only for the sums of the server.
        """
        with self._lock:
            self._batches.add(nbytes, seconds)
            self._bytes_out += nbytes
            own = self._of_sessions.get(session)
            if own is not None:
                own.add(nbytes, seconds)

    def sampler_restarted(self) -> None:
        with self._lock:
            self._restarts += 1

    def snapshot(self) -> dict[str, Any]:
        """Return all counters and the current state of the server, a `Snapshot`, for JSON."""
        current, stores = self._current(), self._stores()  # take other locks, so not under this one
        with self._lock:
            sessions = [
                CountedSession(
                    **vars(s), batches=self._of_sessions.get(s.session, Batches(0, 0, 0.0))
                )
                for s in current
            ]
            snapshot = Snapshot(
                rank=self._rank,
                parts=self._parts,
                address=self._address,
                pid=os.getpid(),
                version=__version__,
                started=self._started,
                uptime=time.monotonic() - self._began,
                clients=sorted({session.client for session in current}),
                sessions=sessions,
                requests=self._requests,
                refused=self._refused,
                bytes_in=self._bytes_in,
                bytes_out=self._bytes_out,
                batches=self._batches,
                sessions_total=self._sessions,
                sampler_restarts=self._restarts,
                ring_bytes=sum(session.ring_bytes for session in current),
                stores=stores,
                **_process_figures(),
            )
            copied: dict[str, Any] = codec.to_json(snapshot)
        return copied


def _admitted(name: str, known: Mapping[str, Any]) -> str:
    """Return the name under which to count: `name`, or 'other' if 64 others are `known`."""
    return name if name in known or len(known) < _MAX_NAMES else OTHER


def _process_figures() -> dict[str, Any]:
    """Return this process's 'rss' in bytes, open 'descriptors' and 'cpu_seconds'.

    The first two are 0 if the system has no /proc.
    """
    rss = descriptors = 0
    with suppress(OSError):
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    with suppress(OSError):
        descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # one is of the listing
    return {"rss": rss, "descriptors": descriptors, "cpu_seconds": time.process_time()}
