"""The graph server: its event loop over sockets, sessions and clients of this machine.

One thread, the loop, owns the sockets, the sessions with their sampler processes, and on server 0
the directory. It answers requests about sessions and directory (`control_handler`), and sends
chunks of batches of all sessions in turn. None of its steps takes long. Other threads
(`request_threads`) answer requests about the graph, of clients and of other servers' samplers, so
that these do not wait for batches. Loop and threads serve users in turn. One more thread
(`DirectoryClient`) registers this server with the directory every second, and gets the other
servers' addresses.

If work for one peer, session or sampler fails, the error is logged and the loop continues.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import zmq

from khop import log
from khop.channel.control import ControlLine
from khop.channel.shared import share
from khop.cores import background_threads
from khop.data.direct_rows import DiskOptions
from khop.distributed.membership.leases import LeaseTable, lease_seconds
from khop.distributed.processes.hosts import maps_same_host
from khop.distributed.processes.socket_files import lines_path, remove_socket, socket_folder
from khop.distributed.remote.addresses import endpoint_of
from khop.distributed.remote.messages import Addresses, RegisterClient, RegisterServer, Table
from khop.distributed.remote.server.cache_budget import CacheBudget
from khop.distributed.remote.server.control_handler import ControlHandler
from khop.distributed.remote.server.counters import ServerCounters
from khop.distributed.remote.server.directory import Directory
from khop.distributed.remote.server.graph_handler import (
    GraphRequestHandler,
    ServerHandler,
    by_new_id,
    part_handlers,
    with_labels,
)
from khop.distributed.remote.server.job_stores import JobStores
from khop.distributed.remote.server.local_clients import LocalSamplerService
from khop.distributed.remote.server.server_config import ServerConfig
from khop.distributed.remote.server.session import SESSION_LEASE, Session
from khop.distributed.remote.server.session_environment import SessionEnvironment
from khop.distributed.remote.server.session_table import SessionTable
from khop.distributed.remote.server.validation import SessionLimits, SessionValidator
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.frame_handler import refusal
from khop.distributed.rpc.identity import descriptor_of, source_of
from khop.distributed.rpc.keys import ServerKeys
from khop.distributed.rpc.limits import ErrorLog
from khop.distributed.rpc.protocol import peek_op, peek_part
from khop.distributed.rpc.request_threads import RequestThreads
from khop.distributed.rpc.state_handler import WriterThread
from khop.distributed.sampling.process_handle import SamplerProcess
from khop.errors import ProtocolError
from khop.storage.folder import PartitionFolder
from khop.storage.named_stores import NamedStore
from khop.storage.part import Part
from khop.typing import Array

_log = log.get(__name__)

_TICK_MS = 250
# Messages read from a socket before other work of the loop.
_READ_AT_ONCE = 64
# Most seconds that server 0 stays after all clients are gone, for other servers to leave.
_FAREWELL = 5.0

_TOO_MANY = "too many requests of yours wait here: wait for replies before you send others"


class GraphServer:
    """Server of a graph and of batches: the event loop of the graph server's process.

    Args:
        config: configuration.
        keys: keys of the server. If None, there are none.
        labels: {index of a node type: labels, [num_nodes, ...] by original id}, not in the folder.
        stack: gets functions that clean up after the server is closed.

    Attributes:
        addresses: addresses of its sockets, by 'tcp' and 'ipc'.
        counters: its counters.
    """

    def __init__(
        self,
        config: ServerConfig,
        keys: ServerKeys | None,
        labels: Mapping[int, Array],
        stack: contextlib.ExitStack,
    ) -> None:
        self._rank = config.rank
        folder = PartitionFolder(config.root)
        disk = DiskOptions.from_json(config.disk)
        folder.attach(map(NamedStore.from_json, config.stores), disk and disk.without_cache())
        self._parts = config.parts_of(folder)
        meta = with_labels(folder.meta, labels)
        shared = None
        if labels:
            shared = share({f"label.{i}": by_new_id(folder, i, a) for i, a in labels.items()})
            stack.callback(os.close, shared)
        ipc_path = str(socket_folder() / "server")
        atexit.register(remove_socket, ipc_path)
        stack.callback(remove_socket, ipc_path)
        self._sockets = sockets = config.create_sockets(keys, ipc_path)
        self.addresses = sockets.addresses
        lease = lease_seconds() if config.lease is None else config.lease
        self._stores = stores = JobStores(config.rank, config.tensor_limits, lease)
        # Sessions need the counters. The counters read the sessions, but only when both exist.
        self.counters = counters = ServerCounters(
            config.rank,
            self._parts,
            self.addresses["tcp"],
            lambda: self._sessions.states() + self._local_samplers.states(),
            stores.states,
        )
        self._errors = ErrorLog(lambda: counters.refused("unexpected"))
        # Samplers of one of its partitions send it requests for its other partitions, if they do
        # not read their files.
        self._endpoints = {part: Endpoint(self.addresses["ipc"]) for part in self._parts}
        every = range(folder.num_parts) if maps_same_host(config.same_host_reads) else ()
        self._readable = {part for part in every if folder.can_read_part(part)}
        self._mapped = self._readable.intersection(self._parts)
        sampler = {
            "root": str(folder.root),
            "credentials": None if keys is None else asdict(keys.credentials()),
            "graph_mode": config.graph_mode,
            "feature_mode": config.feature_mode,
            "pin_memory": False,
            "methods": config.methods,
            "stores": config.stores,
            "disk": config.disk,
        }
        host = SessionEnvironment(
            sampler,
            self._parts,
            folder.num_parts,
            self._endpoints,
            shared,
            counters.batch,
            counters.sampler_restarted,
            mapped=self._mapped,
            budget=CacheBudget(config.cache_limit),
        )
        self._leases = LeaseTable()
        allowed = SessionLimits(
            config.buffer_limit, samplers=config.sampler_limit, lease=min(lease, SESSION_LEASE)
        )
        checks = SessionValidator(meta)
        self._sessions = SessionTable(checks, host, counters, allowed, self._leases)
        self._local_samplers = LocalSamplerService(
            lines_path(ipc_path), host, checks, allowed.samplers
        )
        counts = config.num_servers, config.num_clients, folder.num_parts
        self._directory = (
            Directory(*counts, folder.fingerprint, lease, leases=self._leases)
            if config.rank == 0
            else None
        )
        handlers = part_handlers([Part(folder, p) for p in self._parts], stores, config.requests)
        graph = GraphRequestHandler(folder, meta, config.rank, self._parts)
        handler, limits = ServerHandler(graph, handlers, counters), sockets.limits
        unread, rank = sockets.backlog.of, config.rank
        # At least two threads, so that requests about the graph do not wait for one another.
        self._threads = RequestThreads(handler, background_threads(2, 8), limits, unread)
        self._control = ControlHandler(
            self._sessions, self._directory, counters, rank, sockets.send, limits, unread
        )
        # {partition: thread that applies its writes}, where it has requests that write.
        self._writers = {
            p: WriterThread(h.state, sockets) for p, h in handlers.items() if h.state is not None
        }
        self._all_threads = {t.descriptor: t for t in (self._threads, *self._writers.values())}
        self._tables: deque[Table] = deque()
        # All messages that arrived before this time have been read.
        self._read_until = time.monotonic()
        self._has_read_all = True
        self._finished_at: float | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._refused: Exception | None = None
        self._finished, self._ends_with_clients = False, config.end_with_clients
        # {rank: incarnation} of the clients that have left or are lost.
        self._gone: dict[int, str] = {}
        addresses = Addresses(**self.addresses)
        self._registration = config.registration(folder.fingerprint, self._parts, addresses)

    # Called by other threads --------------------------------------------------------------------

    def registration(self, secret: str) -> RegisterServer:
        """Return the server's registration, which `DirectoryClient` sends to the directory."""
        return replace(self._registration, secret=secret, gone=dict(self._gone))

    def take_table(self, table: Table) -> None:
        self._tables.append(table)
        os.eventfd_write(self._wake, 1)

    def admit(self, clients: Sequence[str]) -> None:
        """Admit only clients with these public keys. Connections with other keys end."""
        self._sockets.admit(clients)

    def take_refusal(self, error: Exception) -> None:
        self._refused = error
        os.eventfd_write(self._wake, 1)

    # The loop -----------------------------------------------------------------------------------

    def serve(self, line: ControlLine) -> None:
        """Run the loop until the control line closes or all clients are gone.

        Raises:
            RendezvousError: the directory refuses this server.
        """
        poller, polled = zmq.Poller(), dict[Any, int]()
        own = *self._all_threads, line.fileno(), self._wake, *self._sockets.fronts
        for source in own:
            poller.register(source, zmq.POLLIN)
        tick_at = 0.0
        while not self._finished:
            lines = self._follow_lines(poller, polled)
            has_work = self._control.has_requests or self._sessions.has_turns
            began, self._has_read_all = time.monotonic(), True
            for ready, _ in poller.poll(0 if has_work else _TICK_MS):
                if ready == line.fileno():
                    if _has_ended(line):
                        return
                elif ready in lines:
                    self._sessions.listen(*lines[ready])
                else:
                    self._on_ready(ready)
            if self._refused is not None:
                raise self._refused
            while self._tables:
                with self._errors.guarded("the directory's table"):
                    self._apply_table(self._tables.popleft())
            if self._has_read_all:
                self._read_until = began
            self._control.process_queued()
            self._sessions.stream()
            if time.monotonic() >= tick_at:
                self._tick()
                tick_at = time.monotonic() + _TICK_MS / 1000

    def _on_ready(self, ready: Any) -> None:
        """Process a readable descriptor or socket, other than a sampler's control line."""
        if ready == self._wake:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        elif ready in self._all_threads:
            for reply in self._all_threads[ready].replies():
                with self._errors.guarded("a reply"):
                    self._sockets.send(*reply)
        elif isinstance(ready, int):
            with self._errors.guarded("a client of this machine"):
                self._local_samplers.process_ready(ready)
        else:
            with self._errors.guarded("what has arrived"):
                self._queue_requests(self._sockets.fronts.index(ready))

    def _follow_lines(
        self, poller: zmq.Poller, polled: dict[Any, int]
    ) -> dict[Any, tuple[Session, SamplerProcess]]:
        """Poll samplers' control lines and local clients. Return the lines' samplers.

        `polled` has what was polled before, and its events.
        """
        lines: dict[Any, tuple[Session, SamplerProcess]] = {}
        current: dict[Any, int] = dict.fromkeys(self._local_samplers.descriptors(), zmq.POLLIN)
        for session, sampler in self._sessions.samplers():
            line = sampler.process.line
            lines[line.fileno()] = session, sampler
            current[line.fileno()] = zmq.POLLIN | (zmq.POLLOUT if line.has_unsent else 0)
        for descriptor in polled.keys() - current.keys():
            poller.unregister(descriptor)
            del polled[descriptor]
        for descriptor, flags in current.items():
            if polled.get(descriptor) != flags:
                poller.register(descriptor, flags)
                polled[descriptor] = flags
        return lines

    def _queue_requests(self, front: int) -> None:
        """Queue a few messages of socket number `front`, each in the queue of its user."""
        for _ in range(_READ_AT_ONCE):
            message = self._sockets.receive(front)
            if message is None:
                return
            self._queue_request(front, message)
        self._has_read_all = False

    def _queue_request(self, front: int, message: list[zmq.Frame]) -> None:
        """Queue a request that came at socket number `front`, or refuse it."""
        peer, *frames = message
        # A message without frames has no request.
        source = source_of(front, peer, frames[0] if frames else peer, self._sockets.curve)
        request = [frame.buffer for frame in frames]
        # Samplers of other servers are many, and processes of this user are trusted.
        is_bounded = not (source.is_server and source.is_proven)
        why = self._sockets.why_not(peer.bytes, source.user.encode(), is_bounded)
        if why is None:
            nbytes, op = sum(map(len, request)), peek_op(request[0]) if request else ""
            if self._control.handles(op):
                if op == RegisterClient.op:
                    source = replace(source, descriptor=descriptor_of(frames[0]))
                has_room = self._control.put(source, request, nbytes, is_bounded)
            else:
                # A request that writes goes to the writer of its part.
                part = peek_part(request[0]) if self._writers and request else None
                writer = None if part is None else self._writers.get(part)
                threads = writer if writer and writer.handles(op) else self._threads
                name = peer.bytes
                has_room = threads.put(source.user, front, name, frames, is_bounded, source)
            why = None if has_room else _TOO_MANY
        if why is not None:
            self.counters.refused("too much at a time")
            _log.debug("request-refused", f"{source.user}: {why}")
            self._sockets.send(front, peer.bytes, refusal(request, ProtocolError(why)))

    def _tick(self) -> None:
        self._leases.look()
        with self._errors.guarded("samplers of this machine"):
            self._local_samplers.flush()
        if self._directory is not None:
            with self._errors.guarded("the directory"):
                self._directory.tick(self._heard_until)
        self._sessions.tick(self._heard_until)

    def _heard_until(self, user: str, now: float) -> float:
        """Return the time up to which all messages of a user have been read, as `tick` needs it."""
        del now
        waiting_since = self._control.waiting_since(user)
        return self._read_until if waiting_since is None else min(waiting_since, self._read_until)

    # Servers and clients ------------------------------------------------------------------------

    def _apply_table(self, table: Table) -> None:
        """Apply a new table of the directory: servers' addresses, gone clients, states' servers.

        Samplers that waited for a partition's server are started.
        """
        for rank, client in table.clients.items():
            if client.gone:
                self._gone[rank] = client.incarnation
            else:
                self._gone.pop(rank, None)
        self._stores.end_lost(table.clients)
        if table.finished and self._ends_with_clients:
            now = time.monotonic()  # server 0 waits until the other servers have left
            if self._finished_at is None:
                self._finished_at = now
                _log.info("clients-gone", "all clients have gone: ending")
            is_last = self._directory is None or len(table.servers) <= 1
            self._finished = is_last or now - self._finished_at > _FAREWELL
        for entry in table.servers.values():
            if entry.host == self._registration.host:
                self._mapped.update(self._readable.intersection(entry.parts))
            for part in entry.parts:
                if part in self._parts:
                    continue
                endpoint = endpoint_of(entry, self._sockets.server_key)
                if self._endpoints.get(part) != endpoint:
                    self._endpoints[part] = endpoint
                    self._sessions.relocate(part, endpoint)
                    self._local_samplers.relocate(part, endpoint)
        for part, writer in self._writers.items():
            primary = table.primary(part)
            if primary is not None:
                where = f"graph server {primary} is the primary of partition {part}"
                writer.state.moved = None if primary == self._rank else f"{where}, not {self._rank}"
        self._sessions.start()
        self._local_samplers.start_pending()

    def close(self) -> None:
        self._local_samplers.close()
        self._sessions.close()
        for threads in self._all_threads.values():
            threads.close()
        self._sockets.close()
        os.close(self._wake)


def _has_ended(line: ControlLine) -> bool:
    """Discard the messages on a control line. Return True if its other end is closed."""
    with contextlib.suppress(EOFError):
        while line.receive() is not None:
            pass
        return False
    return True
