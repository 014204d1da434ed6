"""Requests to graph servers, their replies and events. Imports no torch.

Graph servers, clients and receivers use it. A request is a dataclass below, sent as
`khop.distributed.rpc.protocol` describes, with the arrays that its docstring names. The reply has
the fields of the request's `reply`, or `error`. Both sides read with `khop.codec`, which checks the
types and bounds given here.
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
LEAST_CHUNK = 4096  # minimum bytes that a chunk counts for against a session's credits
MAX_ROWS = 4 << 20  # of a reply; more rows are requested in pieces
MAX_WORKERS = 256

# All clients' names are sent to every server, every second.
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
    """Return a new secret, with which a process or loader authenticates."""
    return secrets.token_hex(16)


def incarnation_of(secret: str) -> str:
    """Return the hash of a secret, which others may have: it identifies the secret's owner."""
    return hashlib.sha256(secret.encode()).hexdigest()[:32]


# The directory -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Addresses:
    """Addresses of a server: `tcp` for all, `ipc` for processes of its user on its machine."""

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
    """Entry of a server in the directory.

    Attributes:
        incarnation: hash of its secret; changes when it is restarted.
        parts: partitions that it serves.
        addresses: its addresses.
        host: its machine; see `khop.distributed.processes.hosts.host_identity`.
        pid: its process id.
        silent: seconds since its last registration.
    """

    incarnation: _Digest
    parts: _Parts
    addresses: Addresses
    host: _Digest
    pid: _Pid
    silent: _Seconds = 0.0


@dataclass(frozen=True)
class ClientEntry:
    """Entry of a client in the directory; `gone`: it has left, or was silent for too long."""

    incarnation: _Digest
    name: _ShortName
    pid: _Pid
    silent: _Seconds = 0.0
    gone: bool = False


@dataclass(frozen=True)
class Table:
    """Contents of the directory.

    Attributes:
        directory: its incarnation; changes when it is restarted, which loses its contents.
        num_servers, num_clients: numbers of servers and clients in the job; 0 clients: any number.
        num_parts: number of partitions of the folder.
        fingerprint: fingerprint of the folder.
        servers: servers that have registered, by rank.
        clients: clients by rank; empty in replies to a client's registration.
        finished: all clients have registered and are gone.
        contending: another process has the sender's rank, and may be dead: register again soon.
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
    """A reply without further fields."""


@dataclass(frozen=True)
class Lookup:
    """Request for the directory's contents; the reply carries a `Table`, as JSON."""

    op: ClassVar[str] = "lookup"
    reply: ClassVar[type] = Done


@dataclass(frozen=True)
class RegisterServer:
    """Registration and heartbeat of a server, every second. Needs the servers' key.

    The reply is that of `Lookup`.

    Attributes:
        rank: rank of the server.
        secret: secret of its process.
        num_servers, num_clients: the numbers that it was started with.
        parts, addresses, host, pid: see `ServerEntry`.
        fingerprint: fingerprint of its folder.
        gone: {client: incarnation} of clients that are gone, for a directory that was restarted.
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
        """Role of the sender."""
        return "server"


@dataclass(frozen=True)
class RegisterClient:
    """Registration and heartbeat of a client, every second.

    The reply is that of `Lookup`, without the clients.
    """

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
        """Role of the sender."""
        return "client"


@dataclass(frozen=True)
class Goodbye:
    """Notice that the server or client with this rank and secret leaves."""

    op: ClassVar[str] = "goodbye"
    reply: ClassVar[type] = Done

    role: Literal["server", "client"]
    rank: _ClientRank
    secret: _Digest


@dataclass(frozen=True)
class Publish:
    """Request to publish a client's value by name; carries its JSON, uint8, at most 64 KiB."""

    op: ClassVar[str] = "publish"
    reply: ClassVar[type] = Done

    rank: _ClientRank
    secret: _Digest
    name: _Label


@dataclass(frozen=True)
class Published:
    """Values of clients, in the order of `ranks`.

    Carries the JSON texts one after the other, uint8; `ends` has the end of each. Values beyond
    1 MiB in all are left out: request them again.
    """

    ranks: Annotated[list[_ClientRank], AtMost(MAX_CLIENTS), Distinct()]
    ends: Annotated[list[Id], AtMost(MAX_CLIENTS)]


@dataclass(frozen=True)
class WaitFor:
    """Request for clients' values; answered when all are published, or after `wait` seconds."""

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
    """Specification of a session, a loader's state on a server. Equal ones are the same session.

    Attributes:
        session: its name, 'loader/number'.
        secret: secret of the loader, needed to take the session over; never published.
        client: name of the client.
        pipeline: specification of the batches.
        num_workers: number of sampler processes.
        buffer_bytes: bytes of batches that may be made and not sent.
        concurrency: batches in flight in each sampler.
        depth: maximum number of batches in flight.
        worker_devices: device of each sampler; None for the CPU.
        max_restarts: maximum number of restarts of samplers.
        timeout: seconds that samplers wait for other servers.
        credits: bytes that may be in flight without an acknowledgement.
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
        """Return the device of a sampler; None for the CPU."""
        return None if self.worker_devices is None else self.worker_devices[number]


@dataclass(frozen=True)
class Held:
    """Reply to `Open`: the outstanding batches that the session has already."""

    held: _BatchIds


@dataclass(frozen=True)
class Open:
    """Request to open a session, or to take one over to this connection.

    Carries the arrays of `names`: sampling weights of negative endpoints, float64.

    Attributes:
        spec: specification of the session.
        outstanding: ids of the batches that the client waits for; all others are dropped.
        names: names of the arrays.
    """

    op: ClassVar[str] = "open"
    reply: ClassVar[type] = Held

    spec: SessionSpec
    outstanding: _BatchIds
    names: Annotated[list[Literal["src_weight", "dst_weight"]], Distinct()]


@dataclass(frozen=True)
class Batch:
    """Request for a batch; carries [num_columns, n] int64. No reply: events follow."""

    op: ClassVar[str] = "batch"
    reply: ClassVar[type] = Done

    session: Name
    batch_id: Id
    batch: Id
    run_key: Word


@dataclass(frozen=True)
class Cancel:
    """Request to drop batches. No reply."""

    op: ClassVar[str] = "cancel"
    reply: ClassVar[type] = Done

    session: Name
    ids: _BatchIds


@dataclass(frozen=True)
class Acknowledge:
    """Acknowledgement of bytes that have arrived: as many more may be sent. No reply."""

    op: ClassVar[str] = "ack"
    reply: ClassVar[type] = Done

    session: Name
    bytes: Id


@dataclass(frozen=True)
class Progress:
    """Progress of a session; the reply to `Alive`.

    Attributes:
        made: batches that its samplers have made so far.
        waiting_for: reason for which no sampler can be started, in words, if there is one.
    """

    session: Name
    made: Id
    waiting_for: str | None


@dataclass(frozen=True)
class Alive:
    """Heartbeat of a session's client, every second. A session that is silent for 10 s ends."""

    op: ClassVar[str] = "alive"
    reply: ClassVar[type] = Progress

    session: Name


@dataclass(frozen=True)
class Close:
    """Request to end a session."""

    op: ClassVar[str] = "close"
    reply: ClassVar[type] = Done

    session: Name


# Events of a session -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ErrorText:
    """An exception: the name of its type, its text, and its traceback if known."""

    type: Name
    message: Annotated[str, AtMost(120_000)]
    traceback: Annotated[str, AtMost(120_000)] = ""


@dataclass(frozen=True)
class LayoutEvent:
    """A layout, sent before the first batch that has it; carries its JSON text, uint8."""

    event: ClassVar[str] = "layout"

    session: Name
    number: Annotated[int, Between(0, 1 << 20)]


@dataclass(frozen=True)
class Chunk:
    """Bytes of a batch, in order; carries them, uint8, at most `CHUNK_BYTES`.

    Attributes:
        session: name of the session.
        batch_id: id of the batch, chosen by the client.
        offset: offset of the bytes in the batch.
        nbytes: size of the whole batch.
        layout: number of its layout, as in `LayoutEvent`.
        extras: JSON of the batch's extras; in the last chunk only.
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
    """Notice that a batch cannot be made."""

    event: ClassVar[str] = "failed"

    session: Name
    batch_id: Id
    error: ErrorText


EVENTS: Mapping[str, type] = {e.event: e for e in (LayoutEvent, Chunk, Failed)}
"""Events of a session, by name."""


# On one machine ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostedSampler:
    """Request of a client on the server's machine for a sampler; see `server.local_clients`.

    Attributes:
        spec: specification of the session; `secret` is ignored.
        number: index of the sampler in its loader.
        has_arrays: whether arrays are passed along.
    """

    spec: SessionSpec
    number: Annotated[int, Between(0, 1 << 16)]
    has_arrays: bool


@dataclass(frozen=True)
class SamplerStarted:
    """Reply to `HostedSampler`: the sampler was started. Passes an end of its control line."""

    pid: _Pid


@dataclass(frozen=True)
class SamplerEnded:
    """Notice that a client's sampler has ended.

    Attributes:
        status: how it ended, in words.
        task: (epoch, batch) that it worked on last, if known.
        log: the end of its log.
    """

    status: Annotated[str, AtMost(4096)]
    task: tuple[Word, Word] | None
    log: Annotated[str, AtMost(120_000)]


# About the server, and the graph ---------------------------------------------------------------


@dataclass(frozen=True)
class Pong:
    """Reply to `Ping`: the server's rank."""

    rank: _ServerRank


@dataclass(frozen=True)
class Ping:
    """Request that shows whether a server answers."""

    op: ClassVar[str] = "ping"
    reply: ClassVar[type] = Pong


@dataclass(frozen=True)
class Statistics:
    """Request for a server's counters; the reply carries JSON, see `ServerCounters.snapshot`."""

    op: ClassVar[str] = "statistics"
    reply: ClassVar[type] = Done


@dataclass(frozen=True)
class DescribeGraph:
    """Request for a description of the graph; the reply carries JSON text, uint8."""

    op: ClassVar[str] = "graph"
    reply: ClassVar[type] = Done


@dataclass(frozen=True)
class _OfNodes:
    """Request that carries ids of nodes of a type, by its index. The reply has a value for each."""

    reply: ClassVar[type] = Done

    node_type: Id


@dataclass(frozen=True)
class ToNewIds(_OfNodes):
    """Request for the folder's ids of original ids."""

    op: ClassVar[str] = "to_new_ids"


@dataclass(frozen=True)
class ToOriginalIds(_OfNodes):
    """Request for the original ids of the folder's ids."""

    op: ClassVar[str] = "to_original_ids"


@dataclass(frozen=True)
class NodeTimes(_OfNodes):
    """Request for the times of nodes, by the folder's ids."""

    op: ClassVar[str] = "node_times"


@dataclass(frozen=True)
class Split:
    """Request for a split, from its entry `begin` on.

    The reply carries [its length], ids of the folder (ascending), and their original ids.
    """

    op: ClassVar[str] = "split"
    reply: ClassVar[type] = Done

    node_type: Id
    name: _Label
    begin: Id


@dataclass(frozen=True)
class HomeEdges:
    """Request for edges begin, begin + step, ... < end of a partition.

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
    """Request for the number of CUDA devices of the server's machine; the reply carries [it]."""

    op: ClassVar[str] = "device_count"
    reply: ClassVar[type] = Done


# Encoding ----------------------------------------------------------------------------------------


def read_table(arrays: Sequence[Array], where: str) -> Table:
    """Read the directory's table from the arrays of its reply.

    Raises:
        ProtocolError: malformed; names the server.
    """
    return codec.from_json(Table, read_text(arrays, where), f"{where} sent a table that is none")


def read_reply(request: Request, header: Mapping[str, Any], where: str) -> Any:
    """Read a server's reply to a request, of type `request.reply`.

    Raises:
        ProtocolError: malformed; names the server.
    """
    fields = {name: value for name, value in header.items() if name not in ("id", "served")}
    return codec.from_json(request.reply, fields, f"{where} answered '{request.op}' with nonsense")


def text_array(content: Any) -> Array:
    """Return JSON text as an array, uint8, for content that may be longer than a header."""
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def text_bytes(arrays: Sequence[Array]) -> bytes:
    """Return the bytes of the only text that a message carries.

    Raises:
        ProtocolError: it carries something else.
    """
    if len(arrays) != 1 or arrays[0].dtype != np.uint8 or arrays[0].ndim != 1:
        raise ProtocolError("a message must carry one text")
    return arrays[0].tobytes()


def read_text(arrays: Sequence[Array], where: str) -> Any:
    """Return the content of a `text_array`.

    Raises:
        ProtocolError: it is not JSON; names the server.
    """
    try:
        return json.loads(text_bytes(arrays))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{where} sent what is not JSON: {str(error)[:100]}") from None


def event_header(event: Any) -> dict[str, Any]:
    """Return the header of an event."""
    return {"event": event.event, **codec.to_json(event)}


def read_event(header: Mapping[str, Any], where: str) -> Any:
    """Read an event of a session, one of `EVENTS`, from its header.

    Raises:
        ProtocolError: malformed, or not an event; names the server.
    """
    kind = EVENTS.get(str(header.get("event")))
    if kind is None:
        raise ProtocolError(f"{where} speaks of an event '{str(header.get('event'))[:40]!r}'")
    fields = {name: value for name, value in header.items() if name != "event"}
    return codec.from_json(kind, fields, f"{where} sent an event '{kind.__name__}'")
