"""Start of a trainer's server process, with sockets that only the job's trainers can use.

Runs in trainers. Trainers on the same machine reach a server at `ipc://` in a folder that only the
owner can enter. Trainers on other machines reach it at `tcp://` with CURVE keys of the job.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from khop.channel.control import Message
from khop.cores import background_threads
from khop.distributed.job.context import WorkerContext
from khop.distributed.processes.child import ChildProcess
from khop.distributed.processes.hosts import outside_address
from khop.distributed.processes.socket_files import remove_socket, socket_folder
from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.protocol import wait_until_ready
from khop.distributed.rpc.transport import transport_of
from khop.errors import RendezvousError
from khop.loopback import is_loopback
from khop.placement import unbound

Announcement: TypeAlias = "Mapping[str, str | None]"
"""Addresses of a server ('ipc', 'tcp', 'own') and its public key ('key')."""


class PartitionServerProcess:
    """Server process that this trainer runs for other trainers.

    Args:
        context: the trainer's group.
        module: the program, `khop.distributed.rpc.partition_server` for example.
        config: configuration of the program, without sockets and keys.
        content: name of its data, for error messages: 'partition 3'.
        near: True if other trainers on this machine need it.
        far: True if trainers on other machines need it.
        credentials: the job's keys. If None, no CURVE.

    Raises:
        RendezvousError: other machines need it, but cannot reach this one's address.
        PartitionUnavailableError: it ended before it could serve.
    """

    def __init__(
        self,
        context: WorkerContext,
        module: str,
        config: Mapping[str, Any],
        content: str,
        near: bool,
        far: bool,
        credentials: KeyPair | None,
    ) -> None:
        address = context.address
        if far and is_loopback(address):  # trainer 0 may be known as localhost on its own machine
            address = outside_address() or address
        if far and is_loopback(address):
            raise RendezvousError(
                f"trainers of other machines need {content} from this one, whose address came out "
                f"as {context.address}: pass host= to init_worker_group"
            )
        self._module = module
        self.content = content
        self._socket = str(socket_folder() / "server") if near else None
        curve, self._server_key = None, None
        if far and credentials is not None:
            own = KeyPair.new()
            self._server_key = own.public
            curve = {**asdict(own), "clients": [credentials.public]}
        self._config: dict[str, Any] = {
            **config,
            "ipc_path": self._socket,
            "tcp_host": address if far else None,
            "tcp_port": None,
            "curve": curve,
            "num_threads": background_threads(1, 4),
        }
        self.announcement: Announcement = {}
        """Addresses and public key for other trainers, read by `announced_endpoint`."""
        self.process = ChildProcess(module, self._config, placement=unbound())
        try:
            self.learn_addresses(wait_until_ready(self.process, f"the server of {content}"))
        except BaseException:
            self.close()
            raise

    def learn_addresses(self, ready: Message) -> bool:
        """Record the addresses in a server's first message, READY. Return True if they are new."""
        addresses = ready.json()["addresses"]
        before = self.announcement
        self.announcement = {
            "ipc": addresses.get("ipc"),
            "tcp": addresses.get("tcp"),
            "key": self._server_key,
            "own": addresses.get("own"),
        }
        return self.announcement != before

    def start_again(self) -> None:
        """Restart a server that has ended, at the same addresses if possible, with the same keys.

        Return without waiting: the server sends its addresses later (`learn_addresses`).
        """
        self.process.close()
        if self._socket is not None:
            path = str(_kept_or_new_folder(Path(self._socket).parent) / "server")
            if path != self._socket:
                remove_socket(self._socket)
            self._socket = path
        tcp = self.announcement.get("tcp")
        port = None if tcp is None else int(tcp.rpartition(":")[2])
        self._config.update(ipc_path=self._socket, tcp_port=port)
        self.process = ChildProcess(self._module, self._config, placement=unbound())

    def close(self) -> None:
        """End the server process and wait for its end. A second call does nothing."""
        self.process.close()
        if self._socket is not None:  # a server that was killed has not removed its socket
            remove_socket(self._socket)


def announced_endpoint(announcement: Announcement, is_near: bool) -> Endpoint:
    """Return a server's endpoint from the values that its trainer has published.

    `is_near` is True if the server is on this machine. A transport that the user of this process
    has named comes first, if the server has it, too.
    """
    own = announcement.get("own")
    transport = transport_of(own)
    if transport is not None and (is_near or transport.reaches_other_machines):
        return Endpoint(str(own))
    if is_near:
        return Endpoint(str(announcement["ipc"]))
    return Endpoint(str(announcement["tcp"]), announcement["key"])


def _kept_or_new_folder(folder: Path) -> Path:
    """Return a folder for sockets: this one, or a new one if other users could enter it.

    A server that ended without a failure has removed its folder, which is made again.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return folder if is_ours and not status.st_mode & 0o077 else socket_folder()
