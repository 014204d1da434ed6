"""Where graph servers are, and which of their sockets to use from here."""

from __future__ import annotations

from dataclasses import dataclass

from khop.distributed.hosts import host_identity
from khop.distributed.remote.messages import ServerEntry
from khop.distributed.socket_files import is_own_socket
from khop.distributed.transport import Credentials, Endpoint


@dataclass(frozen=True)
class Servers:
    """Where servers are found, and with what.

    Attributes:
        master: 'HOST:PORT' of server 0.
        server_key: public CURVE key of the servers; None: no CURVE.
        credentials: this process's keys.
    """

    master: str
    server_key: str | None = None
    credentials: Credentials | None = None

    @property
    def directory(self) -> Endpoint:
        """Where the directory is."""
        return Endpoint(f"tcp://{self.master}", self.server_key)

    def endpoint(self, entry: ServerEntry) -> Endpoint:
        """How to reach a server that the directory knows, from this machine."""
        return endpoint_of(entry, self.server_key)


def endpoint_of(entry: ServerEntry, server_key: str | None) -> Endpoint:
    """How to reach a server, by its entry in the directory.

    Args:
        entry: of the server.
        server_key: of sockets that other machines can reach; None: no CURVE.
    """
    path = local_socket(entry)
    if path is not None:
        return Endpoint(f"ipc://{path}")
    return Endpoint(entry.addresses.tcp, server_key)


def local_socket(entry: ServerEntry) -> str | None:
    """Path of a server's `ipc://` socket, if the server is on this machine and this user's.

    What is said there is not encrypted, and who has registered the address need not have the
    server's key, so the path counts only if nobody else can have put a socket there.
    """
    near = entry.addresses.ipc
    if near is None or entry.host != host_identity():
        return None
    path = near.removeprefix("ipc://")
    return path if is_own_socket(path) else None
