"""All that clients and servers say to a graph server, and what it says to them.

A request is a dataclass below (`khop.distributed.rpc.protocol` says how it travels), with the
arrays that its docstring names. The reply has the fields of the request's `reply`, or `error`. Both
sides read with `khop.codec`, so what is said here is what is checked. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from khop import codec
from khop.channel.message import FRAME_BYTES
from khop.codec import INT64, AtMost, Between, Distinct, Id, Name, Word
from khop.distributed.rpc.protocol import Request
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.errors import ProtocolError
from khop.typing import Array

MAX_CLIENTS = 2048
MAX_SERVERS = 512
MAX_WAIT = 10.0
MAX_DEPTH = 4096
CHUNK_BYTES = FRAME_BYTES  # of a batch, in one event
LEAST_CHUNK = 4096  # bytes that a chunk counts for at least of what may be in flight
MAX_ROWS = 4 << 20  # of a reply; whoever wants more asks for the next piece
MAX_WORKERS = 256

# Everybody's name is sent to every server, every second.
_ShortName = Annotated[str, AtMost(64)]
_Address = Annotated[str, AtMost(256)]
_Digest = Annotated[str, AtMost(64)]
_Pid = Annotated[int, Between(0, 2**31)]
_Seconds = Annotated[float, Between(0.0, 1e9)]
_ServerRank = Annotated[int, Between(0, MAX_SERVERS - 1)]
_ClientRank = Annotated[int, Between(0, MAX_CLIENTS - 1)]
_ServerCount = Annotated[int, Between(1, MAX_SERVERS)]
_ClientCount = Annotated[int, Between(0, MAX_CLIENTS)]
_Part = Annotated[int, Between(0, 65_535)]
_Parts = Annotated[list[_Part], AtMost(65_536), Distinct()]
_BatchIds = Annotated[list[Id], AtMost(16 * MAX_DEPTH), Distinct()]
_Label = Annotated[str, AtMost(512)]


_TCP = re.compile(r"tcp://(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[0-9A-Za-z._-]+):([0-9]{1,5})")
_IPC = re.compile(r"ipc:///[^\0]+")


def new_secret() -> str:
    """A secret of this process or loader, by which it is known again."""
    return secrets.token_hex(16)


def incarnation_of(secret: str) -> str:
    """What others are told of who has a secret: enough to know it again, not to pose as it."""
    return hashlib.sha256(secret.encode()).hexdigest()[:32]


# The directory -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Addresses:
    """Where a server listens: `tcp` for all, `ipc` for processes of its user on its machine."""

    tcp: _Address
    ipc: _Address | None = None

    def __post_init__(self) -> None:
        found = _TCP.fullmatch(self.tcp)
        if found is None or not 0 < int(found[1]) < 1 << 16:
            raise ValueError(f"names an address that is not tcp://HOST:PORT ({self.tcp!a})")
        if self.ipc is not None and not _IPC.fullmatch(self.ipc):
            raise ValueError(f"names an address that is not ipc:///PATH ({self.ipc!a})")


@dataclass(frozen=True)
class ServerEntry:
    """What is known of a server.

    Attributes:
        incarnation: changes when it is started again.
        parts: partitions that it serves.
        addresses: where.
        host: its machine; see `khop.distributed.processes.hosts.host_identity`.
        pid: its process.
        silent: seconds since it was heard of.
    """

    incarnation: _Digest
    parts: _Parts
    addresses: Addresses
    host: _Digest
    pid: _Pid
    silent: _Seconds = 0.0


@dataclass(frozen=True)
class ClientEntry:
    """What is known of a client; `gone`: it has said goodbye, or was silent for too long."""

    incarnation: _Digest
    name: _ShortName
    pid: _Pid
    silent: _Seconds = 0.0
    gone: bool = False


@dataclass(frozen=True)
class Table:
    """What the directory knows.

    Attributes:
        directory: its incarnation; another one has forgotten what it was told.
        num_servers, num_clients: how many there shall be; 0 clients: any number.
        num_parts: partitions of the folder.
        fingerprint: of the folder.
        servers: those that have registered, by rank.
        clients: by rank; empty in answers to a client's registration.
        finished: all clients have come and gone.
        contending: another process has the asker's rank, and is perhaps dead: ask again soon.
    """

    directory: _Digest
    num_servers: _ServerCount
    num_clients: _ClientCount
    num_parts: Annotated[int, Between(1, 65_536)]
    fingerprint: _Digest
    servers: Annotated[dict[_ServerRank, ServerEntry], AtMost(MAX_SERVERS)]
    clients: Annotated[dict[_ClientRank, ClientEntry], AtMost(MAX_CLIENTS)] = field(
        default_factory=dict
    )
    finished: bool = False
    contending: bool = False


@dataclass(frozen=True)
class Done:
    """A reply that says nothing more."""


@dataclass(frozen=True)
class Lookup:
    """Asks what the directory knows; the reply carries a `Table`, as JSON."""

    op: ClassVar[str] = "lookup"
    reply: ClassVar[type] = Done


@dataclass(frozen=True)
class RegisterServer:
    """A server lives; said every second. Needs the servers' key. Answered as `Lookup`.

    Attributes:
        rank: which server.
        secret: of its process.
        num_servers, num_clients: as it was told.
        parts: see `ServerEntry`; so are addresses, host and pid.
        fingerprint: of its folder.
        gone: {client: incarnation} of clients that have gone, for a directory that is new.
    """

    op: ClassVar[str] = "register_server"
    reply: ClassVar[type] = Done

    rank: _ServerRank
    secret: _Digest
    num_servers: _ServerCount
    num_clients: _ClientCount
    parts: _Parts
    addresses: Addresses
    host: _Digest
    pid: _Pid
    fingerprint: _Digest
    gone: Annotated[dict[_ClientRank, _Digest], AtMost(MAX_CLIENTS)] = field(default_factory=dict)

    @property
    def role(self) -> Literal["server"]:
        """For messages."""
        return "server"


@dataclass(frozen=True)
class RegisterClient:
    """A client lives; said every second. Answered as `Lookup`, without the clients."""

    op: ClassVar[str] = "register_client"
    reply: ClassVar[type] = Done

    rank: _ClientRank
    secret: _Digest
    num_servers: _ServerCount
    num_clients: _ClientCount
    name: _ShortName
    pid: _Pid

    @property
    def role(self) -> Literal["client"]:
        """For messages."""
        return "client"


@dataclass(frozen=True)
class Goodbye:
    """The server or client with this rank and secret ends."""

    op: ClassVar[str] = "goodbye"
    reply: ClassVar[type] = Done

    role: Literal["server", "client"]
    rank: _ClientRank
    secret: _Digest


@dataclass(frozen=True)
class Publish:
    """A client publishes a value under a name; carries its JSON text, uint8, at most 64 KiB."""

    op: ClassVar[str] = "publish"
    reply: ClassVar[type] = Done

    rank: _ClientRank
    secret: _Digest
    name: _Label


@dataclass(frozen=True)
class Published:
    """Values of clients, in the order of `ranks`.

    Carries the JSON texts one after the other, uint8; `ends` says where each ends. What is over
    1 MiB is left out: whoever misses a value asks for it again.
    """

    ranks: Annotated[list[_ClientRank], AtMost(MAX_CLIENTS), Distinct()]
    ends: Annotated[list[Id], AtMost(MAX_CLIENTS)]


@dataclass(frozen=True)
class WaitFor:
    """Asks for what clients have published; answered when all have, or after `wait` seconds."""

    op: ClassVar[str] = "wait_for"
    reply: ClassVar[type] = Published

    rank: _ClientRank
    secret: _Digest
    name: _Label
    ranks: Annotated[list[_ClientRank], AtMost(MAX_CLIENTS), Distinct()]
    wait: Annotated[float, Between(0.0, MAX_WAIT)]


# Sessions ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SessionSpec:
    """What a client's loader has on a server; equal ones are the same session.

    Attributes:
        session: its name, 'loader/number'.
        secret: who has it may take the session over; nobody else is told of it.
        client: name of the client.
        pipeline: what batches shall be.
        num_workers: sampler processes.
        buffer_bytes: for batches that are made and not sent.
        concurrency: batches that a sampler works at.
        depth: batches that may be asked for at a time.
        worker_devices: a device for each sampler, or None.
        max_restarts: of samplers.
        timeout: seconds that samplers wait for other servers.
        credits: bytes that may be on their way before any is acknowledged.
    """

    session: Name
    secret: _Digest
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

    def __post_init__(self) -> None:
        devices = self.worker_devices
        if devices is not None and len(devices) != self.num_workers:
            raise ValueError(f"names {len(devices)} worker_devices for {self.num_workers} samplers")

    def device(self, number: int) -> str | None:
        """The device of a sampler."""
        return None if self.worker_devices is None else self.worker_devices[number]


@dataclass(frozen=True)
class Held:
    """Batches that a session has already, of those that were outstanding."""

    held: _BatchIds


@dataclass(frozen=True)
class Open:
    """Opens a session, or takes one over to this connection.

    Carries the arrays that `names` says: weights of negatives, float64.

    Attributes:
        spec: what it shall be.
        outstanding: batches that are still wanted; all others are dropped.
        names: of the arrays.
    """

    op: ClassVar[str] = "open"
    reply: ClassVar[type] = Held

    spec: SessionSpec
    outstanding: _BatchIds
    names: Annotated[list[Literal["src_weight", "dst_weight"]], Distinct()]


@dataclass(frozen=True)
class Batch:
    """Asks for a batch; carries [num_columns, n] int64. No reply, but what follows."""

    op: ClassVar[str] = "batch"
    reply: ClassVar[type] = Done

    session: Name
    batch_id: Id
    batch: Id
    run_key: Word


@dataclass(frozen=True)
class Cancel:
    """Batches that are not wanted any more. No reply."""

    op: ClassVar[str] = "cancel"
    reply: ClassVar[type] = Done

    session: Name
    ids: _BatchIds


@dataclass(frozen=True)
class Acknowledge:
    """So many more bytes may be sent. No reply."""

    op: ClassVar[str] = "ack"
    reply: ClassVar[type] = Done

    session: Name
    bytes: Id


@dataclass(frozen=True)
class Progress:
    """How far a session has come.

    Attributes:
        made: batches that its samplers have made so far.
        waiting_for: what keeps them from making more, in words.
    """

    session: Name
    made: Id
    waiting_for: str | None


@dataclass(frozen=True)
class Alive:
    """The client lives; said every second. A session that is silent for 10 s ends."""

    op: ClassVar[str] = "alive"
    reply: ClassVar[type] = Progress

    session: Name


@dataclass(frozen=True)
class Close:
    """Ends a session."""

    op: ClassVar[str] = "close"
    reply: ClassVar[type] = Done

    session: Name


# What a server says of a session, unasked ------------------------------------------------------


@dataclass(frozen=True)
class ErrorText:
    """An exception: the name of its type, its text, and perhaps where it was raised."""

    type: Name
    message: Annotated[str, AtMost(120_000)]
    traceback: Annotated[str, AtMost(120_000)] = ""


@dataclass(frozen=True)
class LayoutEvent:
    """What batches of a layout are, before the first of them; carries its JSON text, uint8."""

    event: ClassVar[str] = "layout"

    session: Name
    number: Annotated[int, Between(0, 1 << 20)]


@dataclass(frozen=True)
class Chunk:
    """Bytes of a batch, in order; carries them, uint8, at most `CHUNK_BYTES`.

    Attributes:
        session: whose it is.
        batch_id: as the client calls it.
        offset: where the bytes begin.
        nbytes: of the whole batch.
        layout: its layout, by the number that `LayoutEvent` gave.
        extras: JSON of what travels beside it; of the last chunk.
    """

    event: ClassVar[str] = "chunk"

    session: Name
    batch_id: Id
    offset: Annotated[int, Between(0, 1 << 40)]
    nbytes: Annotated[int, Between(16, 1 << 40)]
    layout: Annotated[int, Between(0, 1 << 20)]
    extras: Annotated[str, AtMost(1 << 20)] | None


@dataclass(frozen=True)
class Failed:
    """A batch cannot be made."""

    event: ClassVar[str] = "failed"

    session: Name
    batch_id: Id
    error: ErrorText


EVENTS: Mapping[str, type] = {e.event: e for e in (LayoutEvent, Chunk, Failed)}
"""What a server says unasked, by name."""


# On one machine ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostedSampler:
    """What a client of the server's machine asks for, over a local socket; see `local_samplers`.

    Attributes:
        spec: what its sampler shall do; `secret` is not looked at.
        number: of the sampler, among the loader's.
        has_arrays: whether arrays come along.
    """

    spec: SessionSpec
    number: Annotated[int, Between(0, 1 << 16)]
    has_arrays: bool


@dataclass(frozen=True)
class SamplerStarted:
    """The sampler that a client has asked for works; carries the end of its control line."""

    pid: _Pid


@dataclass(frozen=True)
class SamplerEnded:
    """A client's sampler has ended.

    Attributes:
        status: how, in words.
        task: (epoch, batch) that it worked on last, if that is known.
        log: the end of its log.
    """

    status: Annotated[str, AtMost(4096)]
    task: tuple[Word, Word] | None
    log: Annotated[str, AtMost(120_000)]


# About the server, and the graph ---------------------------------------------------------------


@dataclass(frozen=True)
class Pong:
    """The server that has answered."""

    rank: _ServerRank


@dataclass(frozen=True)
class Ping:
    """Asks whether a server answers."""

    op: ClassVar[str] = "ping"
    reply: ClassVar[type] = Pong


@dataclass(frozen=True)
class Statistics:
    """Asks what a server has counted; the reply carries JSON, see `ServerCounters.snapshot`."""

    op: ClassVar[str] = "statistics"
    reply: ClassVar[type] = Done


@dataclass(frozen=True)
class DescribeGraph:
    """Asks what is served; the reply carries JSON text, uint8."""

    op: ClassVar[str] = "graph"
    reply: ClassVar[type] = Done


@dataclass(frozen=True)
class _OfNodes:
    """A request that carries ids of nodes of a type, by its index; the reply, one for each."""

    reply: ClassVar[type] = Done

    node_type: Id


@dataclass(frozen=True)
class ToNewIds(_OfNodes):
    """Asks for the folder's ids of original ids."""

    op: ClassVar[str] = "to_new_ids"


@dataclass(frozen=True)
class ToOriginalIds(_OfNodes):
    """Asks for the original ids of the folder's."""

    op: ClassVar[str] = "to_original_ids"


@dataclass(frozen=True)
class NodeTimes(_OfNodes):
    """Asks for the times of nodes, by the folder's ids."""

    op: ClassVar[str] = "node_times"


@dataclass(frozen=True)
class Split:
    """Asks for a split from its entry `begin` on.

    The reply carries [its length], ids of the folder (ascending), and their original ids.
    """

    op: ClassVar[str] = "split"
    reply: ClassVar[type] = Done

    node_type: Id
    name: _Label
    begin: Id


@dataclass(frozen=True)
class HomeEdges:
    """Asks for edges begin, begin + step, ... < end of a partition.

    The reply carries [2, n] original ids of their sources and destinations.
    """

    op: ClassVar[str] = "home_edges"
    reply: ClassVar[type] = Done

    edge_type: Id
    partition: _Part
    begin: Id
    end: Id
    step: Annotated[int, Between(1, INT64)]


@dataclass(frozen=True)
class DeviceCount:
    """Asks how many CUDA devices the server's machine has; the reply carries [that]."""

    op: ClassVar[str] = "device_count"
    reply: ClassVar[type] = Done


# On the wire -------------------------------------------------------------------------------------


def read_table(arrays: Sequence[Array], where: str) -> Table:
    """What the directory says.

    Raises:
        ProtocolError: malformed; names the server.
    """
    return codec.from_json(Table, read_text(arrays, where), f"{where} sent a table that is none")


def read_reply(request: Request, header: Mapping[str, Any], where: str) -> Any:
    """What a server has answered to a request, of type `request.reply`.

    Raises:
        ProtocolError: malformed; names the server.
    """
    fields = {name: value for name, value in header.items() if name not in ("id", "served")}
    return codec.from_json(request.reply, fields, f"{where} answered '{request.op}' with nonsense")


def text_array(content: Any) -> Array:
    """JSON as an array, for what may be longer than a header."""
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def text_bytes(arrays: Sequence[Array]) -> bytes:
    """The bytes of the one text that a message carries.

    Raises:
        ProtocolError: it carries something else.
    """
    if len(arrays) != 1 or arrays[0].dtype != np.uint8 or arrays[0].ndim != 1:
        raise ProtocolError("a message must carry one text")
    return arrays[0].tobytes()


def read_text(arrays: Sequence[Array], where: str) -> Any:
    """The JSON that `text_array` made.

    Raises:
        ProtocolError: it is none; names the server.
    """
    try:
        return json.loads(text_bytes(arrays))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{where} sent what is not JSON: {str(error)[:100]}") from None


def event_header(event: Any) -> dict[str, Any]:
    """The header of an event."""
    return {"event": event.event, **codec.to_json(event)}


def read_event(header: Mapping[str, Any], where: str) -> Any:
    """An event of a session from its header: one of `EVENTS`.

    Raises:
        ProtocolError: malformed, or none; names the server.
    """
    kind = EVENTS.get(str(header.get("event")))
    if kind is None:
        raise ProtocolError(f"{where} speaks of an event '{str(header.get('event'))[:40]!r}'")
    fields = {name: value for name, value in header.items() if name != "event"}
    return codec.from_json(kind, fields, f"{where} sent an event '{kind.__name__}'")
