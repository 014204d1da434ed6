"""Where graph servers are, and which of their sockets to use from here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from khop.distributed.hosts import host_identity
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

    def endpoint(self, entry: Mapping[str, Any]) -> Endpoint:
        """How to reach a server that the directory knows, from this machine."""
        return endpoint_of(entry, self.server_key)


def endpoint_of(entry: Mapping[str, Any], server_key: str | None) -> Endpoint:
    """How to reach a server, by its entry in the directory.

    Args:
        entry: {'host', 'addresses': {'tcp', 'ipc'}}.
        server_key: of sockets that other machines can reach; None: no CURVE.
    """
    addresses = entry["addresses"]
    near = addresses.get("ipc")
    is_near = near is not None and entry.get("host") == host_identity()
    # The socket lies in a folder that only its owner can enter.
    if is_near and os.access(near.removeprefix("ipc://"), os.W_OK):
        return Endpoint(near)
    return Endpoint(addresses["tcp"], server_key)
