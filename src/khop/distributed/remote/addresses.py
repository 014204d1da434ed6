"""Where graph servers are, and which of their sockets to use from here."""

from __future__ import annotations

import os
from dataclasses import dataclass

from khop.distributed.hosts import host_identity
from khop.distributed.remote.messages import ServerEntry
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
    near = entry.addresses.ipc
    # The socket lies in a folder that only its owner can enter.
    if (
        near is not None
        and entry.host == host_identity()
        and os.access(near.removeprefix("ipc://"), os.W_OK)
    ):
        return Endpoint(near)
    return Endpoint(entry.addresses.tcp, server_key)
