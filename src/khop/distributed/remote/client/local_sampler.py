"""Samplers of graph servers on the client's machine, see `remote.server.local_clients`.

Runs in trainers. Such a sampler writes into the trainer's arena, as a trainer's own samplers do. If
a server has ended, or runs under another user, a receiver replaces its sampler. The receiver waits
for the servers and reports errors.

Batches from the network are checked, batches of these samplers are not. The server runs under this
user, and could change this process's memory in any case. Imports no torch.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from khop import codec, log
from khop.channel.control import ControlLine, Message, Op
from khop.distributed.processes.child import ChildProcess, wait_for_message
from khop.distributed.processes.socket_files import is_own_socket, lines_path, peer_of
from khop.distributed.remote.addresses import local_socket
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.session_messages import SamplerEnded, SamplerStarted, session_fields
from khop.distributed.rpc.protocol import rebuild_error
from khop.distributed.sampling.process_handle import Process, Program
from khop.errors import PartitionUnavailableError, ProtocolError
from khop.placement import Placement

# Seconds in which a server starts a sampler, and reports the end of one.
_START, _STATUS = 10.0, 2.0
_WHERE = "the graph server of this machine"
_log = log.get(__name__)


def start_receiver(
    config: Mapping[str, Any], memory: Sequence[int], placement: Placement | None = None
) -> ChildProcess:
    """Start a receiver process. `SamplerPool` calls it as its `program`."""
    program = "khop.distributed.remote.client.receiver"
    return ChildProcess(program, config, memory, placement=placement)


class LocalSampler:
    """A sampler process that a graph server of this machine runs for this trainer.

    Args:
        path: path of the server's socket.
        config: fields of a `session_messages.HostedSampler`.
        memory: file descriptors of the arena and, with `has_arrays`, of shared arrays.

    Raises:
        OSError: the server is unreachable, or is another user's.
        KhopError: the server refuses, or does not answer.
    """

    def __init__(self, path: str, config: Mapping[str, Any], memory: Sequence[int]) -> None:
        self._server = ControlLine(_connected(path))
        try:
            self._server.send_json(Op.CONFIG, dict(config), memory)
            message = wait_for_message(self._server, _START)
            if message is None:
                raise PartitionUnavailableError(f"{_WHERE} does not answer")
            self.line, self.pid = _started(message)
        except BaseException:
            self._server.close()
            raise

    def exit_status(self) -> str:
        return "ended with its graph server" if self._end is None else self._end.status

    @property
    def ended_with_server(self) -> bool:
        return self._end is None

    def last_task(self) -> tuple[int, int] | None:
        return None if self._end is None else self._end.task

    def log_tail(self) -> str:
        return "" if self._end is None else self._end.log

    @cached_property
    def _end(self) -> SamplerEnded | None:
        """Report of the server about the sampler's end. None if the server itself has ended.

        Raises:
            ProtocolError: the report is malformed.
        """
        message = wait_for_message(self._server, _STATUS)
        if message is None:
            return None
        message.close_descriptors()
        return codec.from_json(SamplerEnded, message.json(), f"{_WHERE} reported a sampler's end")

    def close(self) -> None:
        """End the sampler. A second call does nothing."""
        self.line.close()
        self._server.close()


def _started(message: Message) -> tuple[ControlLine, int]:
    """Return the control line and the process id of a sampler that has been started.

    Raises:
        Exception: the server refuses, with this error.
        ProtocolError: the server's reply is malformed.
    """
    try:
        if message.op is not Op.READY:
            raise rebuild_error(message.json(), _WHERE)
        started = codec.from_json(SamplerStarted, message.json(), f"{_WHERE} started a sampler")
        if len(message.descriptors) != 1:
            raise ProtocolError(f"{_WHERE} passed {len(message.descriptors)} descriptors, not one")
        descriptor = message.descriptors[0]
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            end = socket.socket(fileno=descriptor)
            if (end.family, end.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET):
                if started.reduced is not None:
                    _log.warning("cache-reduced", f"{_WHERE}: {started.reduced}")
                return ControlLine(end), started.pid
            end.detach()
        raise ProtocolError(f"{_WHERE} passed a descriptor that is no control line of a sampler")
    except BaseException:
        message.close_descriptors()
        raise


def _connected(path: str) -> socket.socket:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        end.connect(path)
        user = peer_of(end)[1]
        if user != os.geteuid():  # it gets this process's memory
            raise PermissionError(f"user {user} listens at '{path}', not user {os.geteuid()}")
    except OSError:
        end.close()
        raise
    return end


class LocalSamplerFactory:
    """Factory of a loader's processes: samplers of graph servers on this machine, or receivers.

    Args:
        remote: client of the directory, which has the servers' addresses.
        ranks: ranks of the servers. Samplers are assigned to them in turn.
        receiver: factory of receivers.
    """

    def __init__(
        self, remote: DirectoryClient, ranks: Sequence[int], receiver: Program = start_receiver
    ) -> None:
        self._remote = remote
        self._ranks, self._receiver = list(ranks), receiver
        # Incarnations of servers that have started no sampler on request. Receivers replace them.
        self._refused_by: set[str] = set()

    def all_are_local(self) -> bool:
        """Return True if all servers run on this machine and under this user."""
        return all(self._locate(index) is not None for index in range(len(self._ranks)))

    def _locate(self, index: int) -> tuple[str, str] | None:
        """Return the server's socket and incarnation for the sampler of this index.

        None if the server is on another machine.
        """
        table = self._remote.table
        rank = self._ranks[index % len(self._ranks)]
        entry = None if table is None else table.servers.get(rank)
        ipc = None if entry is None else local_socket(entry)
        path = None if ipc is None else lines_path(ipc)
        if entry is None or path is None or not is_own_socket(path):
            return None
        return path, entry.incarnation

    def is_fallback(self, process: Process, index: int) -> bool:
        """Return whether the process is a receiver that a local sampler could replace."""
        if isinstance(process, LocalSampler):
            return False
        server = self._locate(index)
        return server is not None and server[1] not in self._refused_by

    def __call__(self, config: Mapping[str, Any], memory: Sequence[int]) -> Process:
        """Start a sampler, or a receiver if no server can start a sampler here."""
        server = self._locate(config["number"])
        if server is not None and server[1] not in self._refused_by:
            path, incarnation = server
            request = {
                "spec": session_fields(config, credits=1 << 16),
                "sampler": config["number"],
                "has_arrays": config["has_arrays"],
            }
            try:
                return LocalSampler(path, request, memory)
            except Exception as error:  # any error of the server
                self._refused_by.add(incarnation)
                # That a server is unreachable is normal, but a refusal is not.
                log_it = _log.info if isinstance(error, OSError) else _log.warning
                log_it("nearby-refused", f"no sampler in this process's memory: {error}")
        return self._receiver(config, memory)
