"""Counters of a graph server, and snapshots of its state. Run by graph servers.

Threads of a server count as they work, with a lock and a few additions per event. Current state
(sessions, samplers, sizes of queues) is read for each snapshot, by a function of the server. A
snapshot is a dictionary for JSON. It has sums since the server's start, not rates. Readers such as
`khop top` and `khop.metrics` subtract two snapshots to get a rate.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from khop._version import __version__
from khop.metrics.text import REQUEST_BUCKETS

OTHER = "other"
"""Common name of all requests and reasons after the first 64: see `ServerCounters`."""

_MAX_NAMES = 64
_PAGE = os.sysconf("SC_PAGE_SIZE")


class SamplerState(TypedDict):
    """A sampler process of a session: batches in flight, and batches made with their bytes."""

    pid: int
    outstanding: int
    made: int
    bytes: int


class SessionState(TypedDict):
    """A loader's state on a server.

    Attributes:
        session: name under which its batches are counted (`ServerCounters.batch`).
        loader: name of the loader, chosen by the client.
        direct: whether its samplers write to a trainer of this machine. If so, the server does not
            see their batches, and the numbers below are 0.
        restarts: number of restarts of samplers.
        buffered_bytes: bytes of batches that are made and not sent in full.
        unsent_chunks: number of these batches' chunks that are not sent.
        ring_bytes: bytes of its samplers' arenas.
        cache_bytes: bytes of its samplers for rows of other partitions that they keep.
    """

    session: str
    loader: str
    client: str
    direct: bool
    samplers: list[SamplerState]
    restarts: int
    buffered_bytes: int
    unsent_chunks: int
    ring_bytes: int
    cache_bytes: int


@dataclass
class _Requests:
    """Counters of the requests of one name: number, failures, and times."""

    count: int = 0
    failed: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(REQUEST_BUCKETS) + 1))


@dataclass
class _Batches:
    count: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, nbytes: int, seconds: float) -> None:
        self.count += 1
        self.bytes += nbytes
        self.seconds += seconds


class ServerCounters:
    """Counters of a graph server: requests, batches, bytes, sessions. All threads count here.

    The first 64 names of requests and of reasons have counters of their own. Later names count as
    'other', so that clients cannot fill the server's memory with names. Callers pass 'other' for
    unknown requests, so that known ones are always among the 64.

    Args:
        rank, parts, address: rank, partitions and address of the server.
        sessions: returns the current sessions. Called by the thread that takes a snapshot.
    """

    def __init__(
        self,
        rank: int,
        parts: list[int],
        address: str,
        sessions: Callable[[], Sequence[SessionState]] = list,
        stores: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        self._rank, self._parts = rank, list(parts)
        self._address = address
        self._current = sessions
        self._stores = stores
        self._lock = threading.Lock()
        self._started = time.time()
        self._began = time.monotonic()
        self._requests: dict[str, _Requests] = {}
        self._refused: dict[str, int] = {}
        self._bytes_in = self._bytes_out = 0
        self._batches = _Batches()
        self._of_sessions: dict[str, _Batches] = {}
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
                requests = self._requests.setdefault(_admitted(op, self._requests), _Requests())
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
            self._of_sessions.setdefault(session, _Batches())

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
        """Return all counters and the current state of the server, for JSON.

        Returns:
            'rank', 'parts', 'address', 'pid', 'version' of khop, 'started' (seconds since 1970),
            'uptime' (seconds).
            'clients': names of the clients that have sessions.
            'sessions': list of `SessionState`, each with 'batches': {'count', 'bytes', 'seconds'}.
            'requests': {name: {'count', 'failed', 'seconds', 'buckets'}}. 'buckets' has the number
            of requests per range of `REQUEST_BUCKETS`, then of slower ones.
            'refused': {reason: count}.
            'bytes_in', 'bytes_out': bytes of requests and of replies, with batches.
            'batches': {'count', 'bytes', 'seconds'}.
            'sessions_total': {'opened', 'closed', 'expired'}.
            'sampler_restarts'.
            'ring_bytes': bytes of all arenas.
            'stores': list of {'job', 'clients' (ranks), 'tensors' (their number), 'bytes',
            'version'} of jobs' stores of tensors.
            'rss' (bytes), 'descriptors', 'cpu_seconds': figures of the server's process.
        """
        current = self._current()  # takes other locks, so not under this one
        with self._lock:
            sessions = [
                {**s, "batches": asdict(self._of_sessions.get(s["session"], _Batches()))}
                for s in current
            ]
            counted = {
                "requests": {name: asdict(counted) for name, counted in self._requests.items()},
                "refused": dict(self._refused),
                "bytes_in": self._bytes_in,
                "bytes_out": self._bytes_out,
                "batches": asdict(self._batches),
                "sessions_total": dict(self._sessions),
                "sampler_restarts": self._restarts,
            }
        return {
            "rank": self._rank,
            "parts": list(self._parts),
            "address": self._address,
            "pid": os.getpid(),
            "version": __version__,
            "started": self._started,
            "uptime": time.monotonic() - self._began,
            "clients": sorted({session["client"] for session in current}),
            "sessions": sessions,
            **counted,
            "ring_bytes": sum(session["ring_bytes"] for session in current),
            "stores": self._stores(),
            **_process_figures(),
        }


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
