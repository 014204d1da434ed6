"""Addresses of graph servers, and the choice between a server's local and TCP socket.

Servers, clients and receivers use it. Imports no torch.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from khop.distributed.processes.hosts import host_identity
from khop.distributed.processes.socket_files import is_own_socket
from khop.distributed.remote.messages import ServerEntry
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.keys import ClientKeys, ServerKeys


@dataclass(frozen=True)
class Servers:
    """Address of server 0, through which all graph servers are found, and keys to connect.

    Attributes:
        master: 'HOST:PORT' of server 0.
        server_key: public CURVE key of the servers. If None, CURVE is not used.
        credentials: this process's keys.
    """

    master: str
    server_key: str | None = None
    credentials: KeyPair | None = None

    @classmethod
    def with_keys(cls, master: str, keys: ClientKeys | ServerKeys | None) -> Servers:
        """Return the address of server 0 (`master`) with a process's keys. None: without CURVE."""
        return cls(master) if keys is None else cls(master, keys.server_key, keys.credentials())

    @property
    def directory(self) -> Endpoint:
        return Endpoint(f"tcp://{self.master}", self.server_key)


def endpoint_of(entry: ServerEntry, server_key: str | None) -> Endpoint:
    """Return the endpoint at which this process reaches a server: its local socket, else TCP.

    `server_key` is the key of the TCP socket. If None, CURVE is not used.
    """
    path = local_socket(entry)
    if path is not None:
        return Endpoint(f"ipc://{path}")
    return Endpoint(entry.addresses.tcp, server_key)


def relocate(connection: Connection, entry: ServerEntry | None, server_key: str | None) -> None:
    """Move a connection to the server's endpoint in `entry`. If `entry` is None, do nothing.

    If the endpoint is invalid, the connection ends, and its state names this reason. `server_key`:
    see `endpoint_of`.
    """
    if entry is not None:
        try:
            connection.relocate(endpoint_of(entry, server_key))
        except Exception as error:
            connection.refuse(f"its address in the directory is {entry.addresses}: {error}")


def local_socket(entry: ServerEntry) -> str | None:
    """Return the path of a server's local `ipc://` socket. None if this process must use TCP.

    Traffic over it is not encrypted, and the process that registered the address need not have the
    server's key. So the path is used only if the socket must have been made by this user.
    """
    ipc = entry.addresses.ipc
    if ipc is None or entry.host != host_identity():
        return None
    path = ipc.removeprefix("ipc://")
    return path if is_own_socket(path) else None


def address_of(host: str, port: int | str) -> str:
    """Return 'HOST:PORT' in ZeroMQ's form. ValueError if host or port is invalid."""
    port_number = -1
    with contextlib.suppress(TypeError, ValueError):
        port_number = int(port)
    if not 0 < port_number < 1 << 16:
        raise ValueError(f"master_port must be a port, 1 to 65535 (got {port!r})")
    if not host or not isinstance(host, str):
        raise ValueError(f"master_addr must be an address or a name (got {host!r})")
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{host}:{port_number}"


def check_rank(num_servers: int, num_clients: int, role: str, rank: int) -> None:
    """Check the numbers of a job, and the rank of a process with role 'server' or 'client'.

    Raises:
        TypeError: one of the numbers is no integer.
        ValueError: a number is too small, or the rank is too large.
    """
    for name, value, low in (
        ("num_servers", num_servers, 1),
        ("num_clients", num_clients, 0),
        (f"{role}_rank", rank, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an integer (got {value!r})")
        if value < low:
            raise ValueError(f"{name} must be at least {low} (got {value})")
    count = num_servers if role == "server" else num_clients
    if count and rank >= count:
        raise ValueError(f"{role}_rank {rank} is not one of {count} {role}s (0 to {count - 1})")
