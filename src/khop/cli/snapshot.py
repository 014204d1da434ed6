"""Schemas of the input of `khop top`: the directory's table, and servers' snapshots.

Both come from the network and are shown in a terminal, so they are checked in full when they
arrive. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from khop import codec
from khop.codec import AtMost, Between, Id
from khop.distributed.remote.messages import Table
from khop.metrics.buckets import REQUEST_BUCKETS

_Seconds = Annotated[float, Between(0.0, 1e15)]


@dataclass(frozen=True)
class _Batches:
    count: Id
    bytes: Id
    seconds: _Seconds


@dataclass(frozen=True)
class _Sampler:
    pid: Id
    outstanding: Id
    made: Id
    bytes: Id


@dataclass(frozen=True)
class _Session:
    session: str
    loader: str
    client: str
    direct: bool
    samplers: list[_Sampler]
    restarts: Id
    buffered_bytes: Id
    unsent_chunks: Id
    ring_bytes: Id
    batches: _Batches


@dataclass(frozen=True)
class _Requests:
    count: Id
    failed: Id
    seconds: _Seconds
    buckets: list[Id]

    def __post_init__(self) -> None:
        if len(self.buckets) != len(REQUEST_BUCKETS) + 1:
            raise ValueError(f"counts {len(self.buckets)} classes of times")


@dataclass(frozen=True)
class Snapshot:
    """Snapshot of a server's counters; see `ServerCounters.snapshot`."""

    rank: Id
    parts: list[Id]
    address: str
    pid: Id
    version: str
    started: _Seconds
    uptime: _Seconds
    clients: list[str]
    sessions: list[_Session]
    requests: Annotated[dict[str, _Requests], AtMost(1024)]
    refused: Annotated[dict[str, Id], AtMost(1024)]
    bytes_in: Id
    bytes_out: Id
    batches: _Batches
    sessions_total: Annotated[dict[str, Id], AtMost(16)]
    sampler_restarts: Id
    ring_bytes: Id
    rss: Id
    descriptors: Id
    cpu_seconds: _Seconds


def check_table(content: Any, who: str) -> dict[str, Any]:
    """Check a directory's table, and return it as JSON has it.

    Raises:
        ProtocolError: it is malformed; the message names the sender and the field.
    """
    table = codec.from_json(Table, content, f"{who} has sent a malformed table")
    checked: dict[str, Any] = codec.to_json(table)
    return checked


def check_snapshot(content: Any, who: str) -> dict[str, Any]:
    """Check a server's snapshot; like `check_table`."""
    snapshot = codec.from_json(Snapshot, content, f"{who} has sent malformed statistics")
    checked: dict[str, Any] = codec.to_json(snapshot)
    return checked
