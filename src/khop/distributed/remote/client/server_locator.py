"""Addresses of the graph servers, from the directory, for a receiver. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from khop import log
from khop.channel.message import pack
from khop.distributed.remote.addresses import endpoint_of
from khop.distributed.remote.client.server_session import ServerSession
from khop.distributed.remote.directory_messages import Lookup, Table
from khop.distributed.remote.encoding import read_table
from khop.distributed.rpc.connection import Connection
from khop.distributed.rpc.protocol import request_header

_log = log.get(__name__)


class ServerLocator:
    """Connection to the directory, which relocates servers that are unreachable.

    Args:
        directory: the connection.
        server_key: public key of the servers. If None, CURVE is not used.
    """

    def __init__(self, directory: Connection, server_key: str | None) -> None:
        self._directory = directory
        self._server_key = server_key

    def look_up(self) -> None:
        """Request the servers' addresses."""
        self._directory.send(pack(request_header(Lookup(), 0), []))

    def relocate(self, sessions: Sequence[ServerSession]) -> None:
        """Process the directory's replies, and follow servers to new addresses."""
        try:
            if self._directory.pump():
                self.look_up()
            for header, arrays, _ in self._directory.receive():
                if "error" not in header:
                    table = read_table(arrays, f"the directory at {self._directory.address}")
                    for remote in sessions:
                        self._locate(remote, table)
        except Exception as error:
            self._directory.refuse(f"cannot be used: {error}")
            _log.warning("directory-refused", f"the directory: {error!r}")

    def _locate(self, remote: ServerSession, table: Table) -> None:
        entry = table.servers.get(remote.rank)
        if entry is not None and not remote.link.is_up:
            try:
                remote.link.relocate(endpoint_of(entry, self._server_key))
            except Exception as error:
                remote.link.refuse(f"cannot be at {entry.addresses}: {error}")

    def outage(self) -> str | None:
        """Return why the directory is unreachable, for messages; None if it is connected."""
        if self._directory.is_up:
            return None
        return f"the directory at {self._directory.address} {self._directory.state()}"

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Return the sockets to poll."""
        return self._directory.sockets

    def close(self) -> None:
        """Close the connection."""
        self._directory.close()
