"""What a graph server counts, and the picture of itself that it gives to whoever asks.

Threads of a server count as they work (`ServerCounters`, a lock and a few additions each time).
What changes by itself (sessions, samplers, how much waits where) is not counted but looked up when
a picture is taken: the server gives a function for that. A picture (`snapshot()`) is a dictionary
that JSON can hold. It has sums since the start, never rates: whoever looks twice can take the
difference, and nobody else needs to agree on an interval. `khop top` and `khop.metrics` read it.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from khop._version import __version__
from khop.metrics.buckets import REQUEST_BUCKETS

OTHER = "other"
"""Where names are counted for which there is no room: see `ServerCounters`."""

_MAX_NAMES = 64
_PAGE = os.sysconf("SC_PAGE_SIZE")


class SamplerState(TypedDict):
    """A sampler process of a session.

    Attributes:
        pid: its process.
        outstanding: batches that it was asked for and has not made.
        made: batches that it has made.
        bytes: bytes of these.
    """

    pid: int
    outstanding: int
    made: int
    bytes: int


class SessionState(TypedDict):
    """What a client's loader has on a server.

    Attributes:
        session: the name that its batches are counted under (`ServerCounters.batch`).
        loader: the loader, as the client calls it.
        client: the client.
        direct: whether its samplers write to a trainer of this machine themselves; then the server
            knows nothing of their batches, and the numbers below are 0.
        samplers: its sampler processes.
        restarts: samplers that died and were started again.
        buffered_bytes: batches that are made and not yet received by the client.
        unsent_chunks: chunks of them that wait to be sent.
        ring_bytes: shared memory that its samplers may write to.
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


class ServerState(TypedDict):
    """What a server looks up when a picture is taken.

    Attributes:
        clients: names of the clients that are known.
        sessions: what they have open.
    """

    clients: list[str]
    sessions: list[SessionState]


def joined(state: ServerState, further: list[SessionState]) -> ServerState:
    """A state with further sessions."""
    clients = sorted({*state["clients"], *(session["client"] for session in further)})
    return {"clients": clients, "sessions": [*state["sessions"], *further]}


@dataclass
class _Requests:
    """Requests of one name."""

    count: int = 0
    failed: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(REQUEST_BUCKETS) + 1))


@dataclass
class _Batches:
    """Batches of one session."""

    count: int = 0
    nbytes: int = 0
    seconds: float = 0.0

    def add(self, nbytes: int, seconds: float) -> None:
        self.count += 1
        self.nbytes += nbytes
        self.seconds += seconds

    def as_dict(self) -> dict[str, Any]:
        return {"count": self.count, "bytes": self.nbytes, "seconds": self.seconds}


def _nothing() -> ServerState:
    return {"clients": [], "sessions": []}


class ServerCounters:
    """Counts what a server does; any thread may call any method.

    Names of requests and reasons are counted one by one as long as there are few of them: the 65th
    and those after it count as 'other', so that nobody can fill the server's memory with names.
    Pass only names that the server answers, and 'other' for those that it does not know; then the
    known ones always have room.

    Args:
        rank: the server's number.
        parts: partitions that it serves.
        address: where it is reached; see `located`.
        state: gives what is looked up; called by the thread that takes a picture.
    """

    def __init__(
        self,
        rank: int,
        parts: list[int],
        address: str,
        state: Callable[[], ServerState] = _nothing,
    ) -> None:
        self._rank, self._parts = rank, list(parts)
        self._address = address
        self._state = state
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

    def located(self, address: str) -> None:
        """Says where the server is reached, once that is known."""
        self._address = address

    def count_request(
        self, op: str, seconds: float, bytes_in: int, bytes_out: int, failed: bool = False
    ) -> None:
        """Counts a request that was answered.

        Args:
            op: its name; 'other' if the server does not know it.
            seconds: how long it took to answer.
            bytes_in: bytes of the request.
            bytes_out: bytes of the reply.
            failed: whether the reply is an exception.
        """
        place = bisect_left(REQUEST_BUCKETS, seconds)
        with self._lock:
            requests = self._requests.get(op)
            if requests is None:
                requests = self._requests.setdefault(_admitted(op, self._requests), _Requests())
            requests.count += 1
            requests.failed += failed
            requests.seconds += seconds
            requests.buckets[place] += 1
            self._bytes_in += bytes_in
            self._bytes_out += bytes_out

    def refused(self, reason: str) -> None:
        """Counts a request that was not looked at, for a reason of a few words ('too large')."""
        with self._lock:
            name = _admitted(reason, self._refused)
            self._refused[name] = self._refused.get(name, 0) + 1

    def session_opened(self, session: str) -> None:
        """Counts a session, and its batches from here on."""
        with self._lock:
            self._sessions["opened"] += 1
            self._of_sessions.setdefault(session, _Batches())

    def session_ended(self, session: str, expired: bool = False) -> None:
        """Forgets a session's own counts; sums keep them.

        Args:
            session: its name.
            expired: it ended because nothing was heard of its client, not because that said so.
        """
        with self._lock:
            self._sessions["expired" if expired else "closed"] += 1
            self._of_sessions.pop(session, None)

    def batch(self, session: str, nbytes: int, seconds: float) -> None:
        """Counts a batch that was sent, all of it.

        Args:
            session: whose it was; it counts for the sums alone if the session is not open.
            nbytes: its size.
            seconds: the time since it was asked for.
        """
        with self._lock:
            self._batches.add(nbytes, seconds)
            self._bytes_out += nbytes
            own = self._of_sessions.get(session)
            if own is not None:
                own.add(nbytes, seconds)

    def sampler_restarted(self) -> None:
        """Counts a sampler process that died and was started again."""
        with self._lock:
            self._restarts += 1

    def snapshot(self) -> dict[str, Any]:
        """A picture of the server.

        Returns:
            'rank', 'parts', 'address', 'pid', 'version' of khop, 'started' (seconds since 1970),
            'uptime' (seconds); 'clients' (names) and 'sessions' (`SessionState`, each with
            'batches': {'count', 'bytes', 'seconds'}); 'requests': {name: {'count', 'failed',
            'seconds', 'buckets': requests in each class of `REQUEST_BUCKETS`, and slower ones}};
            'refused': {reason: count}; 'bytes_in', 'bytes_out' (batches included); 'batches':
            {'count', 'bytes', 'seconds'}; 'sessions_total': {'opened', 'closed', 'expired'};
            'sampler_restarts'; 'ring_bytes', and of the server's process 'rss' (bytes),
            'descriptors' and 'cpu_seconds'.
        """
        state = self._state()  # may take locks of its own: not under ours
        with self._lock:
            counted = self._counted()
            sessions = [
                {**session, "batches": self._of_session(session["session"])}
                for session in state["sessions"]
            ]
        return {
            "rank": self._rank,
            "parts": list(self._parts),
            "address": self._address,
            "pid": os.getpid(),
            "version": __version__,
            "started": self._started,
            "uptime": time.monotonic() - self._began,
            "clients": list(state["clients"]),
            "sessions": sessions,
            **counted,
            "ring_bytes": sum(session["ring_bytes"] for session in state["sessions"]),
            **process_figures(),
        }

    def _of_session(self, session: str) -> dict[str, Any]:
        return self._of_sessions.get(session, _Batches()).as_dict()

    def _counted(self) -> dict[str, Any]:
        return {
            "requests": {name: asdict(counted) for name, counted in self._requests.items()},
            "refused": dict(self._refused),
            "bytes_in": self._bytes_in,
            "bytes_out": self._bytes_out,
            "batches": self._batches.as_dict(),
            "sessions_total": dict(self._sessions),
            "sampler_restarts": self._restarts,
        }


def _admitted(name: str, known: Mapping[str, Any]) -> str:
    """The name to count under: its own while there is room."""
    return name if name in known or len(known) < _MAX_NAMES else OTHER


def process_figures() -> dict[str, Any]:
    """Of this process: 'rss' in bytes, open 'descriptors', 'cpu_seconds'.

    Zero where the system does not say (no /proc).
    """
    rss = descriptors = 0
    with suppress(OSError):
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    with suppress(OSError):
        descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # one lists
    return {"rss": rss, "descriptors": descriptors, "cpu_seconds": time.process_time()}
