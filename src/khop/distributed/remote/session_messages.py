"""Requests about a loader's session on a graph server, and its events. Imports no torch.

Graph servers, clients and receivers use it. `messages` has the other requests, and describes how
requests are sent. Clients on the server's machine send a `HostedSampler` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from khop import codec
from khop.channel.message import MESSAGE_BYTES
from khop.codec import AtMost, Between, Distinct, Id, Name, Word
from khop.distributed.remote.messages import (
    MAX_DEPTH,
    MAX_SEEDS,
    MAX_WORKERS,
    BatchIds,
    Digest,
    GraphServerRequest,
    Pid,
)
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.errors import ProtocolError

LayoutNumber = Annotated[int, Between(0, 1 << 20)]
_Lookahead = Annotated[int, Between(0, 64)]
_Reason = Annotated[str, AtMost(1000)]


@dataclass(frozen=True)
class SessionSpec:
    """Specification of a session, which is a loader's state on a server.

    Attributes:
        session: name of the session: its loader, and the index of one of the loader's processes.
        secret: secret of the loader, with which another connection can take over the session.
        client: name of the client.
        pipeline: specification of the batches.
        num_workers: number of sampler processes.
        buffer_bytes: maximum bytes of batches that are made and not sent.
        concurrency: batches in flight in each sampler.
        depth: maximum number of batches in flight.
        worker_devices: device of each sampler, None for the CPU. If None, all use the CPU.
        max_restarts: maximum number of restarts of samplers.
        timeout: seconds that samplers wait for other servers.
        credits: maximum bytes that are sent and not acknowledged.
        cache_bytes: requested bytes of its samplers, for rows of other partitions that they keep.
        lookahead: least and greatest number of batches that a sampler announces ahead.
    """

    session: Name
    secret: Digest
    client: Name
    pipeline: PipelineSpec
    num_workers: Annotated[int, Between(1, MAX_WORKERS)]
    buffer_bytes: Annotated[int, Between(1 << 16, 1 << 50)]
    concurrency: Annotated[int, Between(1, 256)]
    depth: Annotated[int, Between(1, MAX_DEPTH)]
    worker_devices: Annotated[list[Name | None], AtMost(MAX_WORKERS)] | None
    max_restarts: Annotated[int, Between(0, 1 << 20)]
    timeout: Annotated[float, Between(0.1, 1e6)]
    credits: Annotated[int, Between(1 << 16, 1 << 30)]
    cache_bytes: Annotated[int, Between(0, 1 << 50)] = 0
    lookahead: tuple[_Lookahead, _Lookahead] = (0, 0)

    def __post_init__(self) -> None:
        devices = self.worker_devices
        if devices is not None and len(devices) != self.num_workers:
            raise ValueError(f"names {len(devices)} worker_devices for {self.num_workers} samplers")

    def device(self, sampler: int) -> str | None:
        """Return the device of the sampler of this index. None means the CPU."""
        return None if self.worker_devices is None else self.worker_devices[sampler]


def session_fields(config: Mapping[str, Any], credits: int) -> dict[str, Any]:
    """Return the fields of a `SessionSpec`, for JSON, from a receiver's configuration.

    `credits` is the maximum number of bytes that are sent and not acknowledged.
    """
    fields = {name: value for name, value in config["session"].items() if name != "loader"}
    return {
        **fields,
        "session": f"{config['session']['loader']}/{config['number']}",
        "depth": config["depth"],
        "timeout": config["timeout"],
        "credits": credits,
    }


# Requests ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """Reply to `Open`.

    Attributes:
        held: ids of the outstanding batches that need not be requested again.
        lookahead: maximum number of batches that are requested to be drawn ahead.
        cache_bytes: bytes that the session got of the ones that it requested.
        reduced: reason why these are fewer. None if they are not.
    """

    held: BatchIds
    lookahead: Annotated[int, Between(0, 1 << 20)] = 0
    cache_bytes: Annotated[int, Between(0, 1 << 50)] = 0
    reduced: _Reason | None = None


@dataclass(frozen=True)
class Open(GraphServerRequest, op="open", reply=Held, carries=MESSAGE_BYTES):
    """Request to open a session, or to move an open one to the sender's connection.

    Carries the arrays of `names`: sampling weights of negative endpoints, float64.

    Attributes:
        outstanding: ids of the batches that the client waits for. The server drops all others.
        names: names of the arrays.
    """

    spec: SessionSpec
    outstanding: BatchIds
    names: Annotated[list[Literal["src_weight", "dst_weight"]], Distinct()]


@dataclass(frozen=True)
class Batch(GraphServerRequest, op="batch", carries=3 * 8 * MAX_SEEDS):
    """Request to make the batch of the seeds that it carries, [num_columns, n] int64.

    Events with the batch follow. With `ahead` none follow: the batch may be drawn, and is requested
    later by the same ids. The server may ignore such a request.
    """

    session: Name
    batch_id: Id
    batch: Id
    run_key: Word
    ahead: bool = False


@dataclass(frozen=True)
class Cancel(GraphServerRequest, op="cancel"):
    """Request to drop batches, by their ids. It has no reply."""

    session: Name
    ids: BatchIds


@dataclass(frozen=True)
class Acknowledge(GraphServerRequest, op="ack"):
    """Notice that `bytes` have arrived. The server may then send more bytes. No reply."""

    session: Name
    bytes: Id


@dataclass(frozen=True)
class Progress:
    """Progress of a session, in reply to the heartbeat `Alive`.

    Attributes:
        made: batches that its samplers have made so far.
        waiting_for: reason in words why no sampler can start. None if there is no reason.
    """

    session: Name
    made: Id
    waiting_for: str | None


@dataclass(frozen=True)
class Alive(GraphServerRequest, op="alive", reply=Progress):
    """Heartbeat of a session's client, every second. A session that is silent for 10 s ends."""

    session: Name


@dataclass(frozen=True)
class Close(GraphServerRequest, op="close"):
    """Request to end a session."""

    session: Name


# Events -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ErrorText:
    """An exception as it is sent: the name of its type, its text, and its traceback if known."""

    type: Name
    message: Annotated[str, AtMost(120_000)]
    traceback: Annotated[str, AtMost(120_000)] = ""


@dataclass(frozen=True)
class LayoutEvent:
    """Layout of batches, sent before the first of them. Carries its JSON text, [n] uint8."""

    event: ClassVar[str] = "layout"

    session: Name
    layout: LayoutNumber


@dataclass(frozen=True)
class Chunk:
    """Piece of a batch. Pieces arrive in order. Each carries at most `CHUNK_BYTES` uint8.

    Attributes:
        batch_id: id of the batch, chosen by the client.
        offset: offset of the bytes in the batch.
        nbytes: size of the whole batch.
        layout: number of its layout, as in `LayoutEvent`.
        extras: JSON of the batch's extras, in the last chunk only.
    """

    event: ClassVar[str] = "chunk"

    session: Name
    batch_id: Id
    offset: Annotated[int, Between(0, 1 << 40)]
    nbytes: Annotated[int, Between(16, 1 << 40)]
    layout: LayoutNumber
    extras: Annotated[str, AtMost(1 << 20)] | None


@dataclass(frozen=True)
class Failed:
    """Notice that a requested batch cannot be made, with the error."""

    event: ClassVar[str] = "failed"

    session: Name
    batch_id: Id
    error: ErrorText


Event: TypeAlias = LayoutEvent | Chunk | Failed
_EVENTS: dict[str, type[Event]] = {e.event: e for e in (LayoutEvent, Chunk, Failed)}


def event_header(event: Event) -> dict[str, Any]:
    """Return the header of the message that sends an event."""
    return {"event": event.event, **codec.to_json(event)}


def read_event(header: Mapping[str, Any], where: str) -> Event:
    """Read an event from the header of its message.

    Raises:
        ProtocolError: the event is malformed or unknown. The error names the server `where`.
    """
    name = str(header.get("event"))
    event_type = _EVENTS.get(name)
    if event_type is None:
        raise ProtocolError(f"{where} sent an unknown event '{name[:40]!r}'")
    fields = {name: value for name, value in header.items() if name != "event"}
    return codec.from_json(event_type, fields, f"{where} sent an event '{event_type.__name__}'")


# Samplers for clients on the server's machine ---------------------------------------------------


@dataclass(frozen=True)
class HostedSampler:
    """Request of a client on the server's machine for a sampler, see `server.local_clients`.

    Attributes:
        spec: specification of the session. `secret` is ignored.
        sampler: index of the sampler in its loader.
        has_arrays: whether arrays are passed together with the request.
    """

    spec: SessionSpec
    sampler: Annotated[int, Between(0, 1 << 16)]
    has_arrays: bool


@dataclass(frozen=True)
class SamplerStarted:
    """Reply to `HostedSampler`: a sampler was started. Passes one end of its control line.

    For `reduced`, see `Held`.
    """

    pid: Pid
    reduced: _Reason | None = None


@dataclass(frozen=True)
class SamplerEnded:
    """Notice that a client's sampler has ended.

    Attributes:
        status: exit status in words.
        task: (epoch, batch) that the sampler worked on last, if known.
        log: last lines of the sampler's log.
    """

    status: Annotated[str, AtMost(4096)]
    task: tuple[Word, Word] | None
    log: Annotated[str, AtMost(120_000)]
