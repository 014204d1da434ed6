"""Program of the graph server's process.

`khop serve` runs it in its own process. `init_server` starts it as a child, and sends the
`ServerConfig`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import zmq

from khop import codec, log
from khop.channel.control import ControlLine, Op
from khop.channel.shared import read_shared, share
from khop.cores import half_of_cores
from khop.distributed.membership.leases import LeaseTable, lease_seconds
from khop.distributed.processes.child import start_up
from khop.distributed.processes.hosts import host_identity
from khop.distributed.processes.socket_files import lines_path, remove_socket, socket_folder
from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.messages import Addresses, RegisterServer
from khop.distributed.remote.server.control_handler import ControlHandler
from khop.distributed.remote.server.counters import ServerCounters
from khop.distributed.remote.server.directory import Directory
from khop.distributed.remote.server.graph_handler import (
    GraphRequestHandler,
    ServerHandler,
    with_labels,
)
from khop.distributed.remote.server.graph_server import GraphServer
from khop.distributed.remote.server.local_clients import LocalSamplerService
from khop.distributed.remote.server.server_config import ServerConfig
from khop.distributed.remote.server.session import SESSION_LEASE, SessionEnvironment
from khop.distributed.remote.server.session_table import SessionTable
from khop.distributed.remote.server.validation import SessionLimits, SessionValidator
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.key_files import read_server_keys
from khop.distributed.rpc.keys import ServerKeys, check_secured
from khop.distributed.rpc.limits import DEFAULT
from khop.distributed.rpc.listener import raise_descriptor_limit
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.protocol import describe_error
from khop.distributed.rpc.request_threads import RequestThreads
from khop.distributed.rpc.server_sockets import ServerSockets
from khop.distributed.rpc.state_handler import WriterThread, users_requests
from khop.errors import RendezvousError, SecurityError
from khop.sampler.methods.modules import import_methods, modules_named
from khop.storage.folder import PartitionFolder
from khop.storage.named_stores import NamedStore
from khop.storage.part import Part
from khop.typing import Array

# Seconds between checks of the key file.
_KEY_FILE_SECONDS = 1.0
_log = log.get(__name__)


def serve(
    config: ServerConfig,
    labels: Mapping[int, Array],
    line: ControlLine,
    on_ready: Callable[[Mapping[str, str]], None],
) -> None:
    """Run a graph server until the line closes, or all clients are gone.

    Args:
        config: the configuration.
        labels: {index of a node type: [num_nodes, ...] by original id} that the folder lacks.
        line: control line, whose close ends the server.
        on_ready: called with its addresses, once clients can reach it.

    Raises:
        FolderError, ValueError, IndexError: the folder or a partition does not exist.
        ImportError: a module of `methods` is not found.
        SecurityError: it would listen beyond loopback without keys.
        RendezvousError: its address cannot be bound, or server 0 refuses it.
    """
    config = replace(config, methods=modules_named(config.methods))
    keys = None if config.keys is None else ServerKeys.from_json(config.keys)
    raise_descriptor_limit()
    import_methods(config.methods)
    with contextlib.ExitStack() as stack:
        server, counters, registration = _create_server(config, labels, keys, stack)
        stack.callback(server.close)
        if keys is not None and config.key_file is not None:
            watch = KeyFileWatch(config.key_file, keys, server.admit)
            watch.start()
            stack.callback(watch.close)
        remote = DirectoryClient(
            Servers.with_keys(config.master, keys),
            lambda secret: replace(registration, secret=secret, gone=dict(server.gone)),
            on_table=server.take_table,
            on_refused=server.take_refusal,
        )
        # Server 0 does not unregister: the directory ends with it.
        stack.callback(remote.close, goodbye=config.rank != 0)
        if config.metrics_port is not None:
            # Imported here: few servers have a metrics port.
            from khop.metrics import MetricsServer, of_server

            stack.enter_context(
                MetricsServer(config.metrics_port, lambda: of_server(counters.snapshot()))
            )
        address = server.addresses["tcp"]
        _log.info("server-ready", f"graph server {config.rank} is at {address}", address=address)
        on_ready(server.addresses)
        server.serve(line)
    _log.info("server-ended", f"graph server {config.rank} has ended")


def _create_server(
    config: ServerConfig,
    labels: Mapping[int, Array],
    keys: ServerKeys | None,
    stack: contextlib.ExitStack,
) -> tuple[GraphServer, ServerCounters, RegisterServer]:
    """Return the server, its counters and its registration. `stack` cleans up at the end."""
    rank, num_servers, num_clients = config.rank, config.num_servers, config.num_clients
    folder = PartitionFolder(config.root)
    folder.attach(map(NamedStore.from_json, config.stores))
    parts = config.parts_of(folder)
    meta = with_labels(folder.meta, labels)
    shared_labels = None
    if labels:
        shared_labels = share({f"label.{i}": _by_new_id(folder, i, a) for i, a in labels.items()})
        stack.callback(os.close, shared_labels)
    ipc_path = str(socket_folder() / "server")
    atexit.register(remove_socket, ipc_path)
    stack.callback(remove_socket, ipc_path)
    sockets = _create_sockets(config, keys, ipc_path)

    # Sessions need the counters. The counters read the sessions, but only when both exist.
    counters = ServerCounters(
        rank, parts, sockets.addresses["tcp"], lambda: sessions.states() + local_samplers.states()
    )
    # Samplers of one of its partitions send it requests for its other partitions.
    endpoints = {part: Endpoint(sockets.addresses["ipc"]) for part in parts}
    sampler = {
        "root": str(folder.root),
        "credentials": None if keys is None else asdict(keys.credentials()),
        "graph_mode": config.graph_mode,
        "feature_mode": config.feature_mode,
        "pin_memory": False,
        "methods": config.methods,
        "stores": config.stores,
    }
    host = SessionEnvironment(
        sampler,
        parts,
        folder.num_parts,
        endpoints,
        shared_labels,
        counters.batch,
        counters.sampler_restarted,
    )
    lease = lease_seconds() if config.lease is None else config.lease
    leases = LeaseTable()
    allowed = SessionLimits(
        config.buffer_limit, samplers=config.sampler_limit, lease=min(lease, SESSION_LEASE)
    )
    checks = SessionValidator(meta)
    sessions = SessionTable(checks, host, counters, allowed, leases)
    local_samplers = LocalSamplerService(lines_path(ipc_path), host, checks, allowed.samplers)
    handlers = {}
    for part in parts:
        opened = Part(folder, part)
        handlers[part] = RequestHandler(opened, types=users_requests(config.requests, opened))
    directory = None
    if rank == 0:
        fingerprint, num_parts = folder.fingerprint, folder.num_parts
        directory = Directory(
            num_servers, num_clients, num_parts, fingerprint, lease, leases=leases
        )
    graph = GraphRequestHandler(folder, meta, rank, parts)
    limits, unread = sockets.limits, sockets.backlog.of
    server = GraphServer(
        sockets,
        # At least two threads, so that requests about the graph do not wait for one another.
        RequestThreads(
            ServerHandler(graph, handlers, counters), half_of_cores(2, 8), limits, unread
        ),
        ControlHandler(sessions, directory, counters, rank, sockets.send, limits, unread),
        sessions,
        local_samplers,
        parts,
        endpoints,
        counters,
        directory,
        leases,
        rank,
        {p: WriterThread(h.state, sockets) for p, h in handlers.items() if h.state is not None},
    )
    registration = RegisterServer(
        rank,
        "",
        num_servers,
        num_clients,
        parts,
        Addresses(**sockets.addresses),
        host_identity(),
        os.getpid(),
        folder.fingerprint,
    )
    return server, counters, registration


def _by_new_id(folder: PartitionFolder, type_index: int, labels: Array) -> Array:
    """Return labels in the order of the folder's numbering."""
    node_type = folder.meta.node_types[type_index]
    if len(labels) != node_type.count:
        raise ValueError(
            f"{len(labels)} labels for {node_type.count} nodes of type '{node_type.name}'"
        )
    ordered = np.empty_like(labels)
    ordered[folder.id_map(node_type.name)] = labels
    return ordered


def _create_sockets(config: ServerConfig, keys: ServerKeys | None, ipc_path: str) -> ServerSockets:
    listen, published, port = config.address()
    check_secured(listen, keys, config.insecure, f"graph server {config.rank}")
    limits = replace(DEFAULT, connections=config.connection_limit)
    curve = None if keys is None else keys.curve()
    try:
        sockets = ServerSockets(ipc_path, listen, curve, port, limits)
    except zmq.ZMQError as error:
        raise RendezvousError(
            f"graph server {config.rank} cannot listen at {listen}:{port or '(any port)'}: "
            f"{error.strerror}. Is another server there, or is it another machine's address?"
        ) from None
    own_port = sockets.addresses["tcp"].rpartition(":")[2]
    sockets.addresses["tcp"] = f"tcp://{published}:{own_port}"
    return sockets


class KeyFileWatch:
    """Thread that watches a `server.key`, which `khop keygen --add` and `--revoke` replace.

    A file that has changed is read again, with the checks of the start. Until it can be read, the
    keys stay as they are.

    Args:
        path: the file. Links are followed at each look: Kubernetes changes secrets by a link.
        keys: the keys with which the server was started.
        admit: called with the clients' public keys when they have changed.
    """

    def __init__(
        self, path: str | Path, keys: ServerKeys, admit: Callable[[Sequence[str]], None]
    ) -> None:
        self._path = Path(path)
        self._keys = keys
        self._admit = admit
        self._seen: tuple[int, ...] | None = None
        self._complaint = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="khop-key-file", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_KEY_FILE_SECONDS):
            self.look()

    def look(self) -> None:
        """Read the file if it has changed, and admit the clients that it names now."""
        try:
            status = self._path.stat()
            seen = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
            if seen == self._seen:
                return
            keys = read_server_keys(self._path)
            assert keys is not None  # a file was named
            if keys.server != self._keys.server:
                raise SecurityError(
                    f"'{self._path}' has another server pair: start this server again to use it"
                )
        except (OSError, SecurityError) as error:  # and look again: perhaps it is half written
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.warning("keys-unreadable", f"clients' keys stay as they were: {error}")
            return
        self._seen, self._complaint = seen, ""
        before, now = set(self._keys.clients.values()), set(keys.clients.values())
        self._keys = keys
        if before != now:
            self._admit(sorted(now))
            _log.info(
                "keys-changed",
                f"'{self._path}' was changed: {len(now - before)} clients were added, "
                f"{len(before - now)} revoked",
            )


def main() -> None:
    """Serve a graph for the process at the other end of the control line."""
    line, message = start_up()
    try:
        content, names = message.json(), {field.name for field in fields(ServerConfig)}
        content = {name: value for name, value in content.items() if name in names}
        config = codec.from_json(ServerConfig, content, "a graph server's configuration")
        labels: dict[int, Array] = {}
        if config.has_labels:
            shared = message.descriptors.pop()
            labels = {int(name): rows for name, rows in read_shared(shared).items()}
            os.close(shared)

        def on_ready(addresses: Mapping[str, str]) -> None:
            line.send_json(Op.READY, {"addresses": dict(addresses)})

        serve(config, labels, line, on_ready)
    except (EOFError, ConnectionError):
        pass  # the process that started it has ended
    except Exception as error:
        with contextlib.suppress(ConnectionError):
            line.send_json(Op.ERROR, describe_error(error))
        sys.exit(1)
