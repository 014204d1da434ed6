"""Samplers of graph servers on the client's own machine; see `remote.server.local_clients`.

Such a sampler writes into the trainer's ring, as one of worker mode does. What cannot be had in
this way (the server has gone, or does not run under the same user) is asked of servers by a
receiver, which waits for them and says what is wrong.

Batches of such samplers are not checked as those are that come over a network: the socket is taken
only from a process of this one's own user, who could change this one's memory as well.
"""

from __future__ import annotations

import os
import select
import socket
import stat
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from khop import codec, log
from khop.channel.control import ControlLine, Message, Op
from khop.distributed.processes.child import ChildProcess
from khop.distributed.processes.socket_files import is_own_socket, lines_path, peer_of
from khop.distributed.remote.addresses import local_socket
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.messages import SamplerEnded, SamplerStarted, ServerEntry
from khop.distributed.rpc.protocol import rebuild_error
from khop.distributed.sampling.process_handle import Process
from khop.errors import PartitionUnavailableError, ProtocolError

_RECEIVER = "khop.distributed.remote.client.receiver"
# Seconds that a server may take to start a sampler, and to say how one has ended.
_START, _STATUS = 10.0, 2.0
_WHERE = "the graph server of this machine"
_log = log.get(__name__)


class LocalSampler:
    """A sampler process that a graph server of this machine runs for this one.

    Args:
        path: of the server's socket.
        config: what to ask for; see `khop.distributed.remote.server.local_clients`.
        memory: descriptors to pass along.

    Attributes:
        line: the control line to the sampler.
        pid: its process id.

    Raises:
        OSError: the server is not there, or is another user's.
        KhopError: it refuses, or does not answer.
    """

    def __init__(self, path: str, config: Mapping[str, Any], memory: Sequence[int]) -> None:
        self._server = ControlLine(_connected(path))
        try:
            self._server.send_json(Op.CONFIG, dict(config), memory)
            message = self._hear(_START)
            if message is None:
                raise PartitionUnavailableError("the graph server of this machine does not answer")
            self.line, self.pid = _started(message)
        except BaseException:
            self._server.close()
            raise

    def _hear(self, seconds: float) -> Message | None:
        """What the server says within some seconds; None: nothing, or it has gone."""
        poller = select.poll()
        poller.register(self._server.fileno(), select.POLLIN)
        try:
            while (message := self._server.receive()) is None:
                if not poller.poll(1000 * seconds):
                    return None
        except EOFError:
            return None
        return message

    def exit_status(self) -> str:
        """How the sampler ended, in words, as its server says; it is known to have ended."""
        return "ended with its graph server" if self._end is None else self._end.status

    @property
    def ended_with_server(self) -> bool:
        """Whether its server has gone, too."""
        return self._end is None

    def last_task(self) -> tuple[int, int] | None:
        """(epoch, batch) that it worked on last, if its server says so."""
        return None if self._end is None else self._end.task

    def log_tail(self) -> str:
        """The end of its log, as its server has it."""
        return "" if self._end is None else self._end.log

    @cached_property
    def _end(self) -> SamplerEnded | None:
        """What the server says of the sampler's end; None: it has gone itself.

        Raises:
            ProtocolError: nonsense.
        """
        message = self._hear(_STATUS)
        if message is None:
            return None
        for descriptor in message.descriptors:
            os.close(descriptor)
        return codec.from_json(SamplerEnded, message.json(), f"{_WHERE} told of a sampler's end")

    def close(self) -> None:
        """Ends the sampler; harmless if called again."""
        self.line.close()
        self._server.close()


def _started(message: Message) -> tuple[ControlLine, int]:
    """The control line and the process id of a sampler that has been started.

    Raises:
        KhopError, or what else the server has raised: it refuses.
        ProtocolError: it sent something else.
    """
    try:
        if message.op is not Op.READY:
            raise rebuild_error(message.json(), _WHERE)
        started = codec.from_json(SamplerStarted, message.json(), f"{_WHERE} started a sampler")
        if len(message.descriptors) != 1:
            raise ProtocolError(f"{_WHERE} passed {len(message.descriptors)} descriptors, not one")
        line = _line_of(message.descriptors[0])
    except BaseException:
        for descriptor in message.descriptors:
            os.close(descriptor)
        raise
    return line, started.pid


def _line_of(descriptor: int) -> ControlLine:
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(kind):
        end = socket.socket(fileno=descriptor)
        if (end.family, end.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            return ControlLine(end)
        end.detach()
    raise ProtocolError(f"{_WHERE} passed what is no control line of a sampler")


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
    """Starts a loader's samplers on graph servers of this machine, or receivers in their place.

    Args:
        remote: knows where servers are.
        ranks: the servers that sampler 0, 1, ... shall be on, beginning again after the last.
    """

    def __init__(self, remote: DirectoryClient, ranks: Sequence[int]) -> None:
        self._remote = remote
        self._ranks = list(ranks)
        # Servers, by incarnation, that gave no sampler: they are not asked again and again.
        self._refused_by: set[str] = set()

    def all_are_near(self) -> bool:
        """Whether all of the servers are on this machine, and let this process in."""
        return all(self._path(rank) is not None for rank in self._ranks)

    def _path(self, rank: int) -> str | None:
        entry = self._entry(rank)
        near = None if entry is None else local_socket(entry)
        path = None if near is None else lines_path(near)
        return path if path is not None and is_own_socket(path) else None

    def _entry(self, rank: int) -> ServerEntry | None:
        table = self._remote.table
        return None if table is None else table.servers.get(rank)

    def is_fallback(self, process: Process, number: int) -> bool:
        """Whether a receiver stands in for a sampler that could be had on this machine again."""
        if isinstance(process, LocalSampler):
            return False
        rank = self._ranks[number % len(self._ranks)]
        return self._path(rank) is not None and self._incarnation(rank) not in self._refused_by

    def _incarnation(self, rank: int) -> str:
        entry = self._entry(rank)
        return "" if entry is None else entry.incarnation

    def __call__(self, config: Mapping[str, Any], memory: Sequence[int]) -> Process:
        """Starts a process; see `khop.distributed.sampling.pool.SamplerPool`."""
        rank = self._ranks[config["number"] % len(self._ranks)]
        path, incarnation = self._path(rank), self._incarnation(rank)
        if path is not None:
            loader = {k: v for k, v in config["session"].items() if k != "loader"}
            wanted = {
                "spec": {
                    **loader,
                    "session": f"{config['session']['loader']}/{config['number']}",
                    "depth": config["depth"],
                    "timeout": config["timeout"],
                    "credits": 1 << 16,
                },
                "number": config["number"],
                "has_arrays": config["has_arrays"],
            }
            try:
                return LocalSampler(path, wanted, memory)
            except Exception as error:  # whatever the server raises
                self._refused_by.add(incarnation)
                # A server that is not there is nothing strange; one that refuses is.
                say = _log.info if isinstance(error, OSError) else _log.warning
                say("nearby-refused", f"no sampler in this process's memory: {error}")
        return ChildProcess(_RECEIVER, config, memory)
