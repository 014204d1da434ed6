"""Samplers that write into the arenas of clients on a graph server's machine. Run by graph servers.

Between machines batches are sent; on one machine they need not be. A client there connects to a
Unix socket next to the server's `ipc://` socket, in a folder that only their owner can enter, and
sends the specification of a sampler and its arena. The server starts the sampler and passes its end
of the control line to the client: from then on client and sampler communicate as in worker mode,
and nothing is copied. The server keeps this end open, too, only to send endpoints of other servers.
It ends the sampler when the client's connection closes, however the client ends, or with itself.

    client -> server   CONFIG   `session_messages.HostedSampler`; arena, arrays
    server -> client   READY    {'pid'}; the sampler's control line
                       ERROR    {'type', 'message'}: refused; the connection is closed
                       ERROR    {'status', 'task', 'log'}: how the sampler has ended; the batch that
                                it worked on last, and the end of its log
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from khop import codec, log
from khop.channel.control import MAX_PAYLOAD, ControlLine, Message, Op
from khop.distributed.processes.socket_files import peer_of
from khop.distributed.remote.server.counters import SessionState
from khop.distributed.remote.server.session import SessionEnvironment
from khop.distributed.remote.server.validation import SessionValidator
from khop.distributed.remote.session_messages import HostedSampler, SessionSpec
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
class _LocalClient:
    """A client's connection, and the sampler that works for it.

    Attributes:
        connection: connection to the client.
        pending_request: the client's request, until it is granted or refused.
        spec: specification of the sampler's session. None until the request is granted.
        process: the sampler.
        end: pidfd of the sampler, readable when it has ended.
        client: pidfd of the client, readable when it has ended; its forks may still hold the
            connection. None if the system does not give the client's process id.
    """

    connection: ControlLine
    pending_request: Message | None = None
    spec: SessionSpec | None = None
    process: Process | None = None
    end: int | None = None
    client: int | None = None


class LocalSamplerService:
    """The samplers that a server runs for clients of its machine. Used by the server's loop.

    Args:
        path: path of the socket, in a folder that only the owner can enter.
        host: environment of samplers on this server.
        checks: checks of clients' requests.
        max_guests: maximum number of connected clients, with at most a sampler each.
    """

    def __init__(
        self, path: str, host: SessionEnvironment, checks: SessionValidator, max_guests: int = 4096
    ) -> None:
        self._host = host
        self._checks = checks
        self._max_guests = max_guests
        self._path = path
        self._local_clients: dict[int, _LocalClient] = {}
        self._ends: dict[int, _LocalClient] = {}
        self._clients: dict[int, _LocalClient] = {}
        self._accept_again = 0.0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._listener.bind(path)
        self._listener.listen(_BACKLOG)

    def descriptors(self) -> set[int]:
        """Return the descriptors to poll; when one is readable, call `look_at` with it."""
        found = {*self._local_clients, *self._ends, *self._clients}
        if time.monotonic() >= self._accept_again:
            found.add(self._listener.fileno())
        return found

    def look_at(self, descriptor: int) -> None:
        """Process a readable descriptor."""
        # The descriptor processed just before may have ended this one's owner.
        if descriptor == self._listener.fileno():
            self._accept()
        elif descriptor in self._local_clients:
            self._hear(self._local_clients[descriptor])
        elif descriptor in self._ends:
            self._on_exit(self._ends[descriptor])
        elif descriptor in self._clients:
            self._disconnect(self._clients[descriptor])

    def _accept(self) -> None:
        try:
            accepted = self._listener.accept()[0]
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # no descriptor is left: the client waits; do not poll meanwhile
            self._accept_again = time.monotonic() + _NO_DESCRIPTOR
            _log.warning("client-waits", f"a client of this machine waits: {error.strerror}")
            return
        pid, user = peer_of(accepted)
        if user not in (os.geteuid(), 0):
            accepted.close()
            _log.warning("client-refused", f"user {user} of this machine is not let in", user=user)
            return
        guest = _LocalClient(ControlLine(accepted))
        self._local_clients[accepted.fileno()] = guest
        with contextlib.suppress(OSError):
            guest.client = os.pidfd_open(pid) if pid > 0 else None
        if guest.client is not None:
            self._clients[guest.client] = guest

    def _hear(self, guest: _LocalClient) -> None:
        """Process a client's request, or its end."""
        try:
            message = guest.connection.receive()
        except (EOFError, ProtocolError, OSError):
            self._disconnect(guest)
            return
        if message is None:
            return
        if guest.pending_request is not None or guest.spec is not None:  # a second request
            _drop(message)
            self._disconnect(guest)
            return
        guest.pending_request = message
        self._grant(guest)

    def start_pending(self) -> None:
        """Start the samplers that had to wait for other servers to register."""
        for guest in [g for g in self._local_clients.values() if g.pending_request is not None]:
            self._grant(guest)

    def _grant(self, guest: _LocalClient) -> None:
        """Start a client's sampler if possible; else the request waits, or is refused."""
        message = guest.pending_request
        assert message is not None
        try:
            if not self._start(guest, message):
                return
        except Exception as error:
            with contextlib.suppress(ConnectionError):
                guest.connection.send_json(Op.ERROR, describe_error(error))
            self._disconnect(guest)
            return
        guest.pending_request = None
        _drop(message)

    def _start(self, guest: _LocalClient, message: Message) -> bool:
        """Start a sampler; return False if servers that it needs have not registered yet."""
        if message.op is not Op.CONFIG:
            raise ProtocolError("a client of this machine says first what it wants")
        if len(self._local_clients) > self._max_guests:
            raise MemoryError(
                f"{self._max_guests} clients of this machine are connected to this graph server, "
                "its limit"
            )
        asked = codec.from_json(HostedSampler, message.json(), "a client of this machine")
        spec, number = asked.spec, asked.number
        self._checks.pipeline(spec.pipeline)
        if self._host.missing_parts():
            return False
        if len(message.descriptors) != 1 + asked.has_arrays:
            raise ProtocolError("a client of this machine passes a ring, and arrays if it has some")
        arena, *own = message.descriptors
        shared = [*([] if self._host.labels is None else [self._host.labels]), *own]
        config = {
            **self._host.sampler_config(spec, number, spec.device(0)),
            "number": number,
            "num_shared": len(shared),
        }
        process = self._host.program(config, [arena, *shared])
        try:
            guest.end = os.pidfd_open(process.pid)
        except OSError:  # no descriptor is left
            end_process(process)
            raise
        guest.spec, guest.process = spec, process
        self._ends[guest.end] = guest
        guest.connection.send_json(Op.READY, {"pid": process.pid}, [process.line.fileno()])
        _log.info(
            "sampler-lent",
            f"sampler {number} (pid {process.pid}) works in the memory of {spec.client}",
            session=spec.session,
            pid=process.pid,
        )
        return True

    def _on_exit(self, guest: _LocalClient) -> None:
        """Report the end of a sampler to its client, which must connect again for another."""
        assert guest.process is not None and guest.end is not None
        process = guest.process
        told = {
            "status": process.exit_status(),
            "task": process.last_task(),
            "log": process.log_tail()[-_MAX_LOG:],
        }
        guest.connection.post(Op.ERROR, json.dumps(told).encode())
        self._forget_sampler(guest)

    def _forget_sampler(self, guest: _LocalClient) -> None:
        if guest.process is None or guest.end is None:
            return
        del self._ends[guest.end]
        os.close(guest.end)
        # The client has this end of the line, too, so it is shut down for both.
        guest.process.line.shut_down()
        end_process(guest.process)
        guest.process = guest.end = None

    def _disconnect(self, guest: _LocalClient) -> None:
        """End a client's sampler and close its connection."""
        self._forget_sampler(guest)
        if guest.pending_request is not None:
            _drop(guest.pending_request)
            guest.pending_request = None
        if guest.client is not None:
            del self._clients[guest.client]
            os.close(guest.client)
            guest.client = None
        del self._local_clients[guest.connection.fileno()]
        guest.connection.close()

    def relocate(self, part: int, endpoint: Endpoint) -> None:
        """Send the new endpoint of a partition to the samplers."""
        for guest in self._ends.values():
            if guest.process is not None:
                send_endpoint(guest.process, part, endpoint)

    def flush(self) -> None:
        """Send messages that found no room before. Called several times a second."""
        for guest in self._ends.values():
            if guest.process is not None:
                guest.process.line.flush()

    def states(self) -> list[SessionState]:
        """Return the samplers' state, for statistics. Their batches are counted by clients."""
        return [
            {
                "session": guest.spec.session,
                "loader": guest.spec.session,
                "client": guest.spec.client,
                "direct": True,
                "samplers": [{"pid": process.pid, "outstanding": 0, "made": 0, "bytes": 0}],
                "restarts": 0,
                "buffered_bytes": 0,
                "unsent_chunks": 0,
                "ring_bytes": 0,
            }
            for guest in list(self._ends.values())
            if (process := guest.process) is not None and guest.spec is not None
        ]

    def close(self) -> None:
        """End all samplers and close the connections of their clients."""
        self._listener.close()
        with contextlib.suppress(OSError):
            Path(self._path).unlink()
        for guest in list(self._local_clients.values()):
            self._disconnect(guest)


def _drop(message: Message) -> None:
    for descriptor in message.descriptors:
        os.close(descriptor)
