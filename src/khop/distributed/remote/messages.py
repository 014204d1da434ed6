"""Requests to the directory and about the graph, with their replies. Imports no torch.

Graph servers and clients use it. A request is a dataclass below, sent as
`khop.distributed.rpc.protocol` describes, with the arrays that its docstring names. The reply has
the fields of the request's `reply`, or `error`. Both sides read with `khop.codec`, which checks the
types and bounds of the annotations. `session_messages` has the requests of sessions.
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
from khop.codec import INT64, AtMost, Between, Distinct, Id
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
MAX_SEEDS = 1 << 20  # of a batch
MAX_VALUE = 64 << 10  # bytes of a value that a client publishes

# All clients' names are sent to every server, every second.
ShortName = Annotated[str, AtMost(64)]
Address = Annotated[str, AtMost(256)]
Digest = Annotated[str, AtMost(64)]
Pid = Annotated[int, Between(0, 2**31)]
Seconds = Annotated[float, Between(0.0, 1e9)]
ServerRank = Annotated[int, Between(0, MAX_SERVERS - 1)]
ClientRank = Annotated[int, Between(0, MAX_CLIENTS - 1)]
ServerCount = Annotated[int, Between(1, MAX_SERVERS)]
ClientCount = Annotated[int, Between(0, MAX_CLIENTS)]
Part = Annotated[int, Between(0, 65_535)]
Parts = Annotated[list[Part], AtMost(65_536), Distinct()]
BatchIds = Annotated[list[Id], AtMost(16 * MAX_DEPTH), Distinct()]
Label = Annotated[str, AtMost(512)]

_TCP = re.compile(r"tcp://(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[0-9A-Za-z._-]+):([0-9]{1,5})")
_IPC = re.compile(r"ipc:///[^\0]+")
# Fields of every reply.
_ENVELOPE = ("id", "incarnation", "served")


def new_secret() -> str:
    """Return a new secret, with which a process or loader authenticates."""
    return secrets.token_hex(16)


def incarnation_of(secret: str) -> str:
    """Return the hash of a secret. It identifies the secret's owner and is public."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()[:32]


# The directory's table --------------------------------------------------------------------------


@dataclass(frozen=True)
class Addresses:
    """Addresses of a server: `tcp` for all, `ipc` for processes of its user on its machine."""

    tcp: Address
    ipc: Address | None = None

    def __post_init__(self) -> None:
        match = _TCP.fullmatch(self.tcp)
        if match is None or not 0 < int(match[1]) < 1 << 16:
            raise ValueError(f"names an address that is not tcp://HOST:PORT ({self.tcp!a})")
        if self.ipc is not None and not _IPC.fullmatch(self.ipc):
            raise ValueError(f"names an address that is not ipc:///PATH ({self.ipc!a})")


@dataclass(frozen=True)
class ServerEntry:
    """Entry of a server in the directory.

    Attributes:
        incarnation: hash of its secret. Another one after each start.
        parts: partitions that it serves.
        host: its machine, see `khop.distributed.processes.hosts.host_identity`.
        silent: seconds since its last registration.
    """

    incarnation: Digest
    parts: Parts
    addresses: Addresses
    host: Digest
    pid: Pid
    silent: Seconds = 0.0


@dataclass(frozen=True)
class ClientEntry:
    """Entry of a client in the directory. `gone`: it has left, or its lease has ended."""

    incarnation: Digest
    name: ShortName
    pid: Pid
    silent: Seconds = 0.0
    gone: bool = False


@dataclass(frozen=True)
class Table:
    """Contents of the directory.

    Attributes:
        directory: its incarnation. Another one after a restart, which loses its contents.
        num_servers, num_clients: numbers of servers and clients in the job. 0 clients: any number.
        num_parts, fingerprint: of the folder.
        servers: servers that have registered, by rank.
        clients: clients by rank. Empty in replies to a client's registration.
        finished: all clients have registered and are gone.
        contending: another process, perhaps dead, has the sender's rank: register again soon.
    """

    directory: Digest
    num_servers: ServerCount
    num_clients: ClientCount
    num_parts: Annotated[int, Between(1, 65_536)]
    fingerprint: Digest
    servers: Annotated[dict[ServerRank, ServerEntry], AtMost(MAX_SERVERS)]
    clients: Annotated[dict[ClientRank, ClientEntry], AtMost(MAX_CLIENTS)] = field(
        default_factory=dict
    )
    finished: bool = False
    contending: bool = False

    def primary(self, part: int) -> int | None:
        """Return the rank of the server that has the state of a partition.

        It is the lowest rank among the partition's servers, so it is the same after restarts.

        Returns:
            The rank. None before all servers have registered, or if no server has the partition.
        """
        serving = [rank for rank, entry in self.servers.items() if part in entry.parts]
        return min(serving, default=None) if len(self.servers) >= self.num_servers else None


# Requests to the directory ----------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    """A reply without further fields."""


class GraphServerRequest:
    """Base of the requests to graph servers. Subclasses pass their attributes as class arguments.

    Attributes:
        op: name of the request.
        reply: dataclass of the reply's fields.
        carries: most bytes of the request's arrays.
    """

    op: ClassVar[str]
    reply: ClassVar[type[object]] = Done
    carries: ClassVar[int] = 0

    def __init_subclass__(
        cls, op: str = "", reply: type[object] | None = None, carries: int | None = None
    ) -> None:
        super().__init_subclass__()
        if op:
            cls.op = op
        cls.reply = cls.reply if reply is None else reply
        cls.carries = cls.carries if carries is None else carries


@dataclass(frozen=True)
class Lookup(GraphServerRequest, op="lookup"):
    """Request for the directory's contents. The reply carries a `Table`, as JSON."""


@dataclass(frozen=True)
class RegisterServer(GraphServerRequest, op="register_server"):
    """Registration and heartbeat of a server, every second. Needs the servers' key.

    The reply carries a `Table`, as JSON.

    Attributes:
        parts, addresses, host, pid: see `ServerEntry`.
        gone: {client: incarnation} of clients that are gone, for a directory that was restarted.
    """

    rank: ServerRank
    secret: Digest
    num_servers: ServerCount
    num_clients: ClientCount
    parts: Parts
    addresses: Addresses
    host: Digest
    pid: Pid
    fingerprint: Digest
    gone: Annotated[dict[ClientRank, Digest], AtMost(MAX_CLIENTS)] = field(default_factory=dict)

    role: ClassVar[Literal["server", "client"]] = "server"


@dataclass(frozen=True)
class RegisterClient(GraphServerRequest, op="register_client"):
    """Registration and heartbeat of a client, every second.

    The reply carries a `Table` without the clients, as JSON.
    """

    rank: ClientRank
    secret: Digest
    num_servers: ServerCount
    num_clients: ClientCount
    name: ShortName
    pid: Pid

    role: ClassVar[Literal["server", "client"]] = "client"


@dataclass(frozen=True)
class Goodbye(GraphServerRequest, op="goodbye"):
    """Notice that the server or client with this rank and secret leaves."""

    role: Literal["server", "client"]
    rank: ClientRank
    secret: Digest


@dataclass(frozen=True)
class Publish(GraphServerRequest, op="publish", carries=MAX_VALUE):
    """Request to publish a client's value by name. Carries its JSON, uint8, at most 64 KiB."""

    rank: ClientRank
    secret: Digest
    name: Label


@dataclass(frozen=True)
class Published:
    """Values of clients, in the order of `ranks`.

    Carries the JSON texts one after the other, uint8. `ends` has the end of each. Values beyond
    1 MiB in all are left out: request them again.
    """

    ranks: Annotated[list[ClientRank], AtMost(MAX_CLIENTS), Distinct()]
    ends: Annotated[list[Id], AtMost(MAX_CLIENTS)]


@dataclass(frozen=True)
class WaitFor(GraphServerRequest, op="wait_for", reply=Published):
    """Request for clients' values. The reply comes when all are there, or after `wait` seconds."""

    rank: ClientRank
    secret: Digest
    name: Label
    ranks: Annotated[list[ClientRank], AtMost(MAX_CLIENTS), Distinct()]
    wait: Annotated[float, Between(0.0, MAX_WAIT)]


# Requests about a server and its graph ----------------------------------------------------------


@dataclass(frozen=True)
class Pong:
    """Reply to `Ping`: the server's rank."""

    rank: ServerRank


@dataclass(frozen=True)
class Ping(GraphServerRequest, op="ping", reply=Pong):
    """Request that shows whether a server answers."""


@dataclass(frozen=True)
class Statistics(GraphServerRequest, op="statistics"):
    """Request for a server's counters. The reply carries `ServerCounters.snapshot`, as JSON."""


@dataclass(frozen=True)
class DescribeGraph(GraphServerRequest, op="graph"):
    """Request for a description of the graph. The reply carries JSON text, uint8."""


@dataclass(frozen=True)
class NodesRequest(GraphServerRequest, carries=8 * MAX_ROWS):
    """Base of requests that carry ids of nodes of one type, [n] int64, for a value per node."""

    node_type: Id


@dataclass(frozen=True)
class ToNewIds(NodesRequest, op="to_new_ids"):
    """Request for the folder's ids of original ids."""


@dataclass(frozen=True)
class ToOriginalIds(NodesRequest, op="to_original_ids"):
    """Request for the original ids of the folder's ids."""


@dataclass(frozen=True)
class NodeTimes(NodesRequest, op="node_times"):
    """Request for the times of nodes, by the folder's ids."""


@dataclass(frozen=True)
class Split(GraphServerRequest, op="split"):
    """Request for a split, from its entry `begin` on.

    The reply carries [its length], ids of the folder (ascending), and their original ids.
    """

    node_type: Id
    name: Label
    begin: Id


@dataclass(frozen=True)
class HomeEdges(GraphServerRequest, op="home_edges"):
    """Request for edges begin, begin + step, ... < end of a partition.

    The reply carries [2, n] original ids of their sources and destinations.
    """

    edge_type: Id
    partition: Part
    begin: Id
    end: Id
    step: Annotated[int, Between(1, INT64)]


@dataclass(frozen=True)
class DeviceCount(GraphServerRequest, op="device_count"):
    """Request for the number of CUDA devices of the server's machine. The reply carries [it]."""


# Encoding ---------------------------------------------------------------------------------------


def read_table(arrays: Sequence[Array], where: str) -> Table:
    """Read the directory's table from the arrays of its reply.

    Raises:
        ProtocolError: malformed. Names the server, like the errors of the functions below.
    """
    return codec.from_json(Table, read_json(arrays, where), f"{where} sent a malformed table")


def read_reply(
    request: GraphServerRequest | type[GraphServerRequest], header: Mapping[str, Any], where: str
) -> object:
    """Read a server's reply to a request, of type `request.reply`."""
    fields = {name: value for name, value in header.items() if name not in _ENVELOPE}
    text = f"{where} sent a malformed reply to '{request.op}'"
    return codec.from_json(request.reply, fields, text)


def json_array(content: object) -> Array:
    """Return JSON text as an array, uint8, for content that exceeds the limits of a header."""
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def text_bytes(arrays: Sequence[Array]) -> bytes:
    """Return the bytes of a message's only array, a text."""
    if len(arrays) != 1 or arrays[0].dtype != np.uint8 or arrays[0].ndim != 1:
        raise ProtocolError("a message must carry one text")
    return arrays[0].tobytes()


def read_json(arrays: Sequence[Array], where: str) -> Any:
    """Return the content of a `json_array`."""
    try:
        return json.loads(text_bytes(arrays))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{where} sent malformed JSON: {str(error)[:100]}") from None
