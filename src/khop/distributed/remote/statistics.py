"""Statistics of a graph server, which readers request: sums since the server's start, no rates.

Readers such as `khop top` and `khop.metrics` subtract two snapshots to get a rate. Snapshots come
from the network, and are shown in a terminal: annotations bound all fields. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from khop.codec import AtMost, Between, Id
from khop.metrics.text import REQUEST_BUCKETS

_Seconds = Annotated[float, Between(0.0, 1e15)]


@dataclass
class Batches:
    """Counters of batches that were sent in full. `seconds` is the sum from request to end."""

    count: Id
    bytes: Id
    seconds: _Seconds

    def add(self, nbytes: int, seconds: float) -> None:
        self.count += 1
        self.bytes += nbytes
        self.seconds += seconds


@dataclass
class Requests:
    """Counters of the requests of one name: number, failures, and times.

    Attributes:
        buckets: number of requests per range of `REQUEST_BUCKETS`, then of slower ones.
    """

    count: Id
    failed: Id
    seconds: _Seconds
    buckets: list[Id]

    def __post_init__(self) -> None:
        if len(self.buckets) != len(REQUEST_BUCKETS) + 1:
            raise ValueError(f"counts {len(self.buckets)} classes of times")


@dataclass(frozen=True)
class SamplerState:
    """A sampler process of a session: batches in flight, and batches made with their bytes."""

    pid: Id
    outstanding: Id
    made: Id
    bytes: Id


@dataclass(frozen=True)
class SessionState:
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
    restarts: Id
    buffered_bytes: Id
    unsent_chunks: Id
    ring_bytes: Id
    cache_bytes: Id


@dataclass(frozen=True)
class CountedSession(SessionState):
    """A loader's state on a server, with the counters of its batches."""

    batches: Batches


@dataclass(frozen=True)
class JobStoreState:
    """State of the tensors of a job on a graph server.

    Attributes:
        clients: ranks of the job's clients.
        tensors: number of tensors.
        version: number of completed steps.
    """

    job: str
    clients: list[Id]
    tensors: Id
    bytes: Id
    version: Id


@dataclass(frozen=True)
class Snapshot:
    """Counters and current state of a server at one time.

    Attributes:
        rank, parts, address, pid: of the server and its process.
        version: khop's.
        started: seconds since 1970.
        uptime: seconds.
        clients: names of the clients that have sessions.
        requests: counters by the name of the request.
        refused: {reason: number of requests that were refused unread}.
        bytes_in, bytes_out: bytes of requests and of replies, with batches.
        sessions_total: numbers of sessions that were 'opened', 'closed' and 'expired'.
        ring_bytes: bytes of all arenas.
        stores: jobs' stores of tensors.
        rss (bytes), descriptors, cpu_seconds: figures of the server's process.
    """

    rank: Id
    parts: list[Id]
    address: str
    pid: Id
    version: str
    started: _Seconds
    uptime: _Seconds
    clients: list[str]
    sessions: list[CountedSession]
    requests: Annotated[dict[str, Requests], AtMost(1024)]
    refused: Annotated[dict[str, Id], AtMost(1024)]
    bytes_in: Id
    bytes_out: Id
    batches: Batches
    sessions_total: Annotated[dict[str, Id], AtMost(16)]
    sampler_restarts: Id
    ring_bytes: Id
    stores: list[JobStoreState]
    rss: Id
    descriptors: Id
    cpu_seconds: _Seconds

    @property
    def failures(self) -> int:
        """Requests that were refused or answered with an exception."""
        return sum(r.failed for r in self.requests.values()) + sum(self.refused.values())

    def totals(self) -> dict[str, int]:
        """Return counters of the server by name, from which rates are computed."""
        return {
            "requests": sum(r.count for r in self.requests.values()),
            "failed": self.failures,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "batches": self.batches.count,
        }
