"""Requests to the directory and about the graph, with their replies. Imports no torch.

Graph servers and clients use it. `khop.distributed.rpc.protocol` describes the form of messages. A
request is a dataclass below, sent with the arrays that its docstring names. The reply has the
fields of the dataclass in the request's attribute `reply`, or an `error`. Both sides read with
`khop.codec`, which checks types and bounds. `session_messages` has the requests of sessions.
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
    """Return a new random secret. A process or loader proves its identity with its secret."""
    return secrets.token_hex(16)


def incarnation_of(secret: str) -> str:
    """Return the hash of a secret. It identifies the owner to others, who do not get the secret."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()[:32]


# The directory's table --------------------------------------------------------------------------


@dataclass(frozen=True)
class Addresses:
    """Addresses of a server. Only processes of its user on its machine can use `ipc`."""

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
    """A graph server as the directory lists it.

    Attributes:
        incarnation: hash of the server's secret, which is new after each start.
        parts: partitions that the server has.
        host: identity of its machine, see `khop.distributed.processes.hosts.host_identity`.
        silent: seconds since the server's last registration.
    """

    incarnation: Digest
    parts: Parts
    addresses: Addresses
    host: Digest
    pid: Pid
    silent: Seconds = 0.0


@dataclass(frozen=True)
class ClientEntry:
    """A client as the directory lists it.

    Attributes:
        gone: it has left, or was silent for too long.
        is_cut_off: its connection to the directory has ended, and it has not come back yet.
    """

    incarnation: Digest
    name: ShortName
    pid: Pid
    silent: Seconds = 0.0
    gone: bool = False
    is_cut_off: bool = False


@dataclass(frozen=True)
class Table:
    """Contents of the directory: all graph servers and clients of the job.

    Attributes:
        directory: incarnation of the directory. It is new after a restart, which loses the table.
        num_servers, num_clients: numbers of servers and clients in the job. 0 clients: any number.
        num_parts, fingerprint: number of partitions, and fingerprint, of the partition folder.
        servers: servers that have registered, by rank.
        clients: clients by rank. Empty in replies to a client's registration.
        finished: True if all clients have registered and are gone.
        contending: True if another process, perhaps dead, has the sender's rank. Register again.
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
        """Return the rank of the server that has the state of `part` (data of users' requests).

        The state is on the server of lowest rank that has the partition, also after restarts.

        Returns:
            The rank. None before all servers have registered, or if no server has the partition.
        """
        serving = [rank for rank, entry in self.servers.items() if part in entry.parts]
        return min(serving, default=None) if len(self.servers) >= self.num_servers else None


# Requests to the directory ----------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    """Reply that only confirms a request: it has no fields."""


class GraphServerRequest:
    """Base of the requests to graph servers. A subclass sets the attributes by class arguments.

    Attributes:
        op: name of the request.
        reply: dataclass of the reply's fields.
        carries: maximum bytes of the request's arrays.
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
        parts, addresses, host, pid: the server's partitions, addresses, machine and process.
        gone: {rank: incarnation} of clients that are gone. A restarted directory needs them.
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
    """Notice to the directory that the server or client with this rank and secret leaves."""

    role: Literal["server", "client"]
    rank: ClientRank
    secret: Digest


@dataclass(frozen=True)
class Publish(GraphServerRequest, op="publish", carries=MAX_VALUE):
    """Request to publish a client's value by name. Carries JSON text, uint8, at most 64 KiB."""

    rank: ClientRank
    secret: Digest
    name: Label


@dataclass(frozen=True)
class Published:
    """Reply to `WaitFor`: values of clients, in the order of `ranks`.

    Carries the joined JSON texts, uint8. `ends` has the offset at which each text ends. A reply has
    at most 1 MiB of texts. Request the missing values again.
    """

    ranks: Annotated[list[ClientRank], AtMost(MAX_CLIENTS), Distinct()]
    ends: Annotated[list[Id], AtMost(MAX_CLIENTS)]


@dataclass(frozen=True)
class WaitFor(GraphServerRequest, op="wait_for", reply=Published):
    """Request for clients' values. The reply comes once all are published, or after `wait` s."""

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
    """Request to a server that only tests whether it answers."""


@dataclass(frozen=True)
class Statistics(GraphServerRequest, op="statistics"):
    """Request for a server's counters. The reply carries `ServerCounters.snapshot`, as JSON."""


@dataclass(frozen=True)
class DescribeGraph(GraphServerRequest, op="graph"):
    """Request for types, sizes and attributes of the graph. The reply carries JSON text, uint8."""


@dataclass(frozen=True)
class NodesRequest(GraphServerRequest, carries=8 * MAX_ROWS):
    """Base of requests for one value per node. They carry node ids of one type, [n] int64."""

    node_type: Id


@dataclass(frozen=True)
class ToNewIds(NodesRequest, op="to_new_ids"):
    """Request to convert original ids, which it carries, to the folder's numbering."""


@dataclass(frozen=True)
class ToOriginalIds(NodesRequest, op="to_original_ids"):
    """Request to convert ids in the folder's numbering, which it carries, to original ids."""


@dataclass(frozen=True)
class NodeTimes(NodesRequest, op="node_times"):
    """Request for the times of nodes. Carries their ids in the folder's numbering."""


@dataclass(frozen=True)
class Split(GraphServerRequest, op="split"):
    """Request for the nodes whose boolean attribute is True (a split), from index `begin` on.

    The reply carries the split's length, [1], then its nodes' new ids, ascending, and original ids.
    """

    node_type: Id
    name: Label
    begin: Id


@dataclass(frozen=True)
class HomeEdges(GraphServerRequest, op="home_edges"):
    """Request for every `step`-th edge of a partition, from index `begin` to `end` - 1.

    The reply carries the original ids of the edges' sources and destinations, [2, n] int64.
    """

    edge_type: Id
    partition: Part
    begin: Id
    end: Id
    step: Annotated[int, Between(1, INT64)]


@dataclass(frozen=True)
class DeviceCount(GraphServerRequest, op="device_count"):
    """Request for the number of CUDA devices at the server. The reply carries one int64, [1]."""


# Encoding ---------------------------------------------------------------------------------------


def read_table(arrays: Sequence[Array], where: str) -> Table:
    """Read the directory's table from the arrays of its reply.

    Raises:
        ProtocolError: the table is malformed. The error names the server `where`.
    """
    return codec.from_json(Table, read_json(arrays, where), f"{where} sent a malformed table")


def read_reply(
    request: GraphServerRequest | type[GraphServerRequest], header: Mapping[str, Any], where: str
) -> object:
    """Check a server's reply to a request, and return it as the request's `reply` class.

    `header` is the reply's. Errors name the server `where`.

    Raises:
        ProtocolError: the reply is malformed.
    """
    fields = {name: value for name, value in header.items() if name not in _ENVELOPE}
    text = f"{where} sent a malformed reply to '{request.op}'"
    return codec.from_json(request.reply, fields, text)


def json_array(content: object) -> Array:
    """Convert content to JSON text in an array, [n] uint8, for what is too large for a header."""
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def text_bytes(arrays: Sequence[Array]) -> bytes:
    """Return the bytes of a message's only array, a text.

    Raises:
        ProtocolError: the message has other arrays.
    """
    if len(arrays) != 1 or arrays[0].dtype != np.uint8 or arrays[0].ndim != 1:
        raise ProtocolError("a message must carry one text")
    return arrays[0].tobytes()


def read_json(arrays: Sequence[Array], where: str) -> Any:
    """Return the content of the JSON text in a message's only array.

    Raises:
        ProtocolError: the text is malformed. The error names the server `where`.
    """
    try:
        return json.loads(text_bytes(arrays))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{where} sent malformed JSON: {str(error)[:100]}") from None
