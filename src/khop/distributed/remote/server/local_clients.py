"""Samplers that write into the arenas of clients on a graph server's machine. Run by graph servers.

Between machines batches are sent. On one machine they need no copy. A client on this machine
connects to a Unix socket next to the server's `ipc://` socket, in a folder that only their owner
can enter. It sends the specification of a sampler, and its arena. The server starts the sampler and
passes its end of the control line to the client. Client and sampler then communicate without the
server, which keeps its end only to send endpoints of other servers. It ends the sampler when the
client's connection closes, or when the server itself ends.

    client -> server   CONFIG   `session_messages.HostedSampler`, with arena and arrays
    server -> client   READY    `session_messages.SamplerStarted`, with the sampler's control line
                       ERROR    {'type', 'message'}: refused, and the connection is closed
                       ERROR    `session_messages.SamplerEnded`
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from khop import codec, log
from khop.channel.control import MAX_PAYLOAD, ControlLine, Message, Op
from khop.distributed.processes.socket_files import peer_of
from khop.distributed.remote.server.cache_budget import CacheGrant
from khop.distributed.remote.server.session_environment import SessionEnvironment
from khop.distributed.remote.server.validation import SessionValidator
from khop.distributed.remote.session_messages import (
    HostedSampler,
    SamplerEnded,
    SamplerStarted,
    SessionSpec,
)
from khop.distributed.remote.statistics import SamplerState, SessionState
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.protocol import describe_error
from khop.distributed.sampling.process_handle import Process, end_process, send_endpoint
from khop.errors import ProtocolError

_BACKLOG = 128
# Seconds until connections are accepted again after no descriptor was left for one.
_NO_DESCRIPTOR = 1.0
# Characters of a log that fit in a message, whatever their encoding in JSON.
_MAX_LOG = MAX_PAYLOAD // 8
_log = log.get(__name__)


@dataclass
class _LocalSampler:
    """Sampler process that the server runs for a client. `pidfd` is readable once it has ended."""

    spec: SessionSpec
    process: Process
    pidfd: int
    grant: CacheGrant


@dataclass
class _LocalClient:
    """A client's connection, and the sampler that works for it.

    Attributes:
        pending_request: the client's request, until it is granted or refused.
        is_granted: whether a sampler was started for the client, even if it has ended.
        pidfd: pidfd of the client, readable once the client has ended. Its forks may then still
            hold the connection. None if the system does not give the client's process id.
    """

    connection: ControlLine
    pending_request: Message | None = None
    is_granted: bool = False
    sampler: _LocalSampler | None = None
    pidfd: int | None = None


class LocalSamplerService:
    """The samplers that a server runs for clients of its machine. Used by the server's loop.

    Args:
        path: path of the socket, in a folder that only the owner can enter.
        max_clients: maximum number of connected clients, each with one sampler at most.
    """

    def __init__(
        self, path: str, host: SessionEnvironment, checks: SessionValidator, max_clients: int = 4096
    ) -> None:
        self._host = host
        self._checks = checks
        self._max_clients = max_clients
        self._path = path
        self._local_clients: dict[int, _LocalClient] = {}
        # {descriptor that is polled: its function}, except for the listener.
        self._on_ready: dict[int, Callable[[], None]] = {}
        self._accept_again = 0.0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._listener.bind(path)
        self._listener.listen(_BACKLOG)

    def descriptors(self) -> set[int]:
        """Return the descriptors to poll. Call `process_ready` for each readable descriptor."""
        descriptors = set(self._on_ready)
        if time.monotonic() >= self._accept_again:
            descriptors.add(self._listener.fileno())
        return descriptors

    def process_ready(self, descriptor: int) -> None:
        if descriptor == self._listener.fileno():
            self._accept()
        elif descriptor in self._on_ready:  # else the one before has ended its owner
            self._on_ready[descriptor]()

    def _accept(self) -> None:
        try:
            accepted = self._listener.accept()[0]
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # no descriptor is left: the client waits, do not poll meanwhile
            self._accept_again = time.monotonic() + _NO_DESCRIPTOR
            _log.warning("client-waits", f"a client of this machine waits: {error.strerror}")
            return
        pid, user = peer_of(accepted)
        if user not in (os.geteuid(), 0):
            accepted.close()
            _log.warning("client-refused", f"user {user} of this machine is not let in", user=user)
            return
        client = _LocalClient(ControlLine(accepted))
        self._local_clients[accepted.fileno()] = client
        self._on_ready[accepted.fileno()] = partial(self._receive, client)
        with contextlib.suppress(OSError):
            client.pidfd = os.pidfd_open(pid) if pid > 0 else None
        if client.pidfd is not None:
            self._on_ready[client.pidfd] = partial(self._disconnect, client)

    def _receive(self, client: _LocalClient) -> None:
        """Process the request of a client, or the end of its connection."""
        try:
            message = client.connection.receive()
        except (EOFError, ProtocolError, OSError):
            self._disconnect(client)
            return
        if message is None:
            return
        if client.pending_request is not None or client.is_granted:  # a second request
            message.close_descriptors()
            self._disconnect(client)
            return
        client.pending_request = message
        self._process_request(client, message)

    def start_pending(self) -> None:
        """Start the samplers of pending requests, if the needed servers have registered by now."""
        for client in list(self._local_clients.values()):
            if client.pending_request is not None:
                self._process_request(client, client.pending_request)

    def _process_request(self, client: _LocalClient, message: Message) -> None:
        """Start a client's sampler, or refuse the request, or leave it pending."""
        try:
            if not self._start(client, message):
                return
        except Exception as error:
            with contextlib.suppress(ConnectionError):
                client.connection.send_json(Op.ERROR, describe_error(error))
            self._disconnect(client)
            return
        client.pending_request = None
        message.close_descriptors()

    def _start(self, client: _LocalClient, message: Message) -> bool:
        """Start a client's sampler. Return False if servers that it needs are not there yet."""
        if message.op is not Op.CONFIG:
            raise ProtocolError(
                "a client of this machine sends something else before its request for a sampler"
            )
        if len(self._local_clients) > self._max_clients:
            raise MemoryError(
                f"{self._max_clients} clients of this machine are connected to this graph server, "
                "its limit"
            )
        hosted = codec.from_json(HostedSampler, message.json(), "a client of this machine")
        spec, index = hosted.spec, hosted.sampler
        self._checks.pipeline(spec.pipeline)
        if self._host.missing_parts():
            return False
        if len(message.descriptors) != 1 + hosted.has_arrays:
            raise ProtocolError("a client of this machine passes not just an arena and its arrays")
        arena, *own = message.descriptors
        shared = [*([] if self._host.labels is None else [self._host.labels]), *own]
        grant, process = self._host.grant(spec), None
        config = {
            **self._host.sampler_config(spec, index, spec.device(0), grant),
            "number": index,
            "num_shared": len(shared),
        }
        try:
            process = self._host.program(config, [arena, *shared])
            pidfd = os.pidfd_open(process.pid)
        except BaseException:  # no process or descriptor is left
            self._host.budget.give_back(grant)
            if process is not None:
                end_process(process)
            raise
        client.is_granted, client.sampler = True, _LocalSampler(spec, process, pidfd, grant)
        self._on_ready[pidfd] = partial(self._on_exit, client)
        started = codec.to_json(SamplerStarted(process.pid, grant.reason))
        client.connection.send_json(Op.READY, started, [process.line.fileno()])
        _log.info(
            "sampler-lent",
            f"sampler {index} (pid {process.pid}) works in the memory of {spec.client}",
            session=spec.session,
            pid=process.pid,
        )
        return True

    def _on_exit(self, client: _LocalClient) -> None:
        """Report the end of a sampler to its client, which must connect again for a new one."""
        assert client.sampler is not None
        process = client.sampler.process
        tail = process.log_tail()[-_MAX_LOG:]
        report = SamplerEnded(process.exit_status(), process.last_task(), tail)
        client.connection.post(Op.ERROR, json.dumps(codec.to_json(report)).encode())
        self._end_sampler(client)

    def _end_sampler(self, client: _LocalClient) -> None:
        sampler, client.sampler = client.sampler, None
        if sampler is not None:
            del self._on_ready[sampler.pidfd]
            os.close(sampler.pidfd)
            self._host.budget.give_back(sampler.grant)
            # The client has this end of the line, too, so it is shut down for both.
            sampler.process.line.shut_down()
            end_process(sampler.process)

    def _disconnect(self, client: _LocalClient) -> None:
        self._end_sampler(client)
        if client.pending_request is not None:
            client.pending_request.close_descriptors()
            client.pending_request = None
        if client.pidfd is not None:
            del self._on_ready[client.pidfd]
            os.close(client.pidfd)
            client.pidfd = None
        del self._local_clients[client.connection.fileno()]
        del self._on_ready[client.connection.fileno()]
        client.connection.close()

    def _samplers(self) -> list[_LocalSampler]:
        samplers = [client.sampler for client in list(self._local_clients.values())]
        return [sampler for sampler in samplers if sampler is not None]

    def relocate(self, part: int, endpoint: Endpoint) -> None:
        for sampler in self._samplers():
            send_endpoint(sampler.process, part, endpoint)

    def flush(self) -> None:
        """Send queued messages to samplers whose sockets were full. Called every 0.25 s."""
        for sampler in self._samplers():
            sampler.process.line.flush()

    def states(self) -> list[SessionState]:
        """Return the state of the samplers, for statistics. Only their clients count batches."""
        return [
            SessionState(
                session=sampler.spec.session,
                loader=sampler.spec.session,
                client=sampler.spec.client,
                direct=True,
                samplers=[SamplerState(sampler.process.pid, 0, 0, 0)],
                cache_bytes=sampler.grant.cache_bytes,
                **dict.fromkeys(("restarts", "buffered_bytes", "unsent_chunks", "ring_bytes"), 0),
            )
            for sampler in self._samplers()
        ]

    def close(self) -> None:
        """End all samplers and close the connections of their clients."""
        self._listener.close()
        with contextlib.suppress(OSError):
            Path(self._path).unlink()
        for client in list(self._local_clients.values()):
            self._disconnect(client)
