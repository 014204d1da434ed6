"""Requests to the directory, their replies, and its table. Imports no torch.

Graph servers and clients use it. A request is a dataclass below, sent as
`khop.distributed.rpc.protocol` describes, with the arrays that its docstring names, of at most
`carries` bytes. The reply has the fields of the request's `reply`, or `error`. Both sides read with
`khop.codec`, which checks the types and bounds given here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from khop.codec import AtMost, Between, Distinct, Id
from khop.distributed.remote.message_fields import (
    MAX_CLIENTS,
    MAX_SERVERS,
    MAX_VALUE,
    MAX_WAIT,
    Address,
    ClientCount,
    ClientRank,
    Digest,
    Label,
    Parts,
    Pid,
    Seconds,
    ServerCount,
    ServerRank,
    ShortName,
)

_TCP = re.compile(r"tcp://(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[0-9A-Za-z._-]+):([0-9]{1,5})")
_IPC = re.compile(r"ipc:///[^\0]+")


@dataclass(frozen=True)
class Addresses:
    """Addresses of a server: `tcp` for all, `ipc` for processes of its user on its machine."""

    tcp: Address
    ipc: Address | None = None

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

    incarnation: Digest
    parts: Parts
    addresses: Addresses
    host: Digest
    pid: Pid
    silent: Seconds = 0.0


@dataclass(frozen=True)
class ClientEntry:
    """Entry of a client in the directory; `gone`: it has left, or was silent for too long."""

    incarnation: Digest
    name: ShortName
    pid: Pid
    silent: Seconds = 0.0
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

        It is the lowest of those that serve the partition, so it is the same after restarts.

        Args:
            part: the partition.

        Returns:
            The rank. None before all servers have registered, or if no server has the partition.
        """
        serving = [rank for rank, entry in self.servers.items() if part in entry.parts]
        return min(serving, default=None) if len(self.servers) >= self.num_servers else None


@dataclass(frozen=True)
class Done:
    """A reply without further fields."""


@dataclass(frozen=True)
class Lookup:
    """Request for the directory's contents; the reply carries a `Table`, as JSON."""

    op: ClassVar[str] = "lookup"
    reply: ClassVar[type] = Done
    carries: ClassVar[int] = 0


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
    carries: ClassVar[int] = 0

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
    carries: ClassVar[int] = 0

    rank: ClientRank
    secret: Digest
    num_servers: ServerCount
    num_clients: ClientCount
    name: ShortName
    pid: Pid

    @property
    def role(self) -> Literal["client"]:
        """Role of the sender."""
        return "client"


@dataclass(frozen=True)
class Goodbye:
    """Notice that the server or client with this rank and secret leaves."""

    op: ClassVar[str] = "goodbye"
    reply: ClassVar[type] = Done
    carries: ClassVar[int] = 0

    role: Literal["server", "client"]
    rank: ClientRank
    secret: Digest


@dataclass(frozen=True)
class Publish:
    """Request to publish a client's value by name; carries its JSON, uint8, at most 64 KiB."""

    op: ClassVar[str] = "publish"
    reply: ClassVar[type] = Done
    carries: ClassVar[int] = MAX_VALUE

    rank: ClientRank
    secret: Digest
    name: Label


@dataclass(frozen=True)
class Published:
    """Values of clients, in the order of `ranks`.

    Carries the JSON texts one after the other, uint8; `ends` has the end of each. Values beyond
    1 MiB in all are left out: request them again.
    """

    ranks: Annotated[list[ClientRank], AtMost(MAX_CLIENTS), Distinct()]
    ends: Annotated[list[Id], AtMost(MAX_CLIENTS)]


@dataclass(frozen=True)
class WaitFor:
    """Request for clients' values; answered when all are published, or after `wait` seconds."""

    op: ClassVar[str] = "wait_for"
    reply: ClassVar[type] = Published
    carries: ClassVar[int] = 0

    rank: ClientRank
    secret: Digest
    name: Label
    ranks: Annotated[list[ClientRank], AtMost(MAX_CLIENTS), Distinct()]
    wait: Annotated[float, Between(0.0, MAX_WAIT)]
