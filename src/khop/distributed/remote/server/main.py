"""Program of the graph server's process.

`khop serve` runs it in its own process; `init_server` starts it as a child. Configuration:

    root            the partition folder
    rank, num_servers, num_clients
    parts           partitions to serve; null: every num_servers-th from `rank` on
    master          'HOST:PORT' of server 0
    host, port      where to listen; null: server 0 at `master`, others at the address on the route
                    to it and a free port
    keys            `ServerKeys.to_json()`; null: none
    key_file        where these were read; read again when it changes; null: nowhere
    insecure        listen beyond loopback without keys
    buffer_limit    bytes that the sessions of all clients may hold
    sampler_limit   sampler processes that the sessions of all clients may have
    connection_limit   connections over TCP
    lease           seconds of silence after which a client counts as lost; null: $KHOP_LEASE, or
                    30. A session ends after 10 s, or after this time if that is less
    timeout         seconds that samplers wait for other servers
    graph_mode, feature_mode   placement of graph and attributes for samplers on devices
    metrics_port    where to serve counters as Prometheus text; null: nowhere
    methods         modules of users' sampling methods, or names of installed ones, which it and its
                    samplers import
    requests        modules of users' requests, which it imports; see `rpc.state_handler`
    has_labels      a `share()`d block is passed along: {index of a node type: labels by original
                    id}
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import zmq

from khop import log
from khop.channel.control import ControlLine, Op
from khop.channel.shared import read_shared, share
from khop.cores import background_threads
from khop.distributed.membership.leases import LeaseTable, lease_seconds
from khop.distributed.processes.child import start_up
from khop.distributed.processes.hosts import host_address, host_identity
from khop.distributed.processes.socket_files import lines_path, remove_socket, socket_folder
from khop.distributed.remote.addresses import Servers
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.directory_messages import Addresses, RegisterServer
from khop.distributed.remote.server.control_handler import ControlHandler
from khop.distributed.remote.server.counters import ServerCounters, joined
from khop.distributed.remote.server.directory import Directory
from khop.distributed.remote.server.graph_handler import (
    GraphRequestHandler,
    ServerHandler,
    with_labels,
)
from khop.distributed.remote.server.graph_server import GraphServer
from khop.distributed.remote.server.key_watch import KeyFileWatch
from khop.distributed.remote.server.local_clients import LocalSamplerService
from khop.distributed.remote.server.session import SESSION_LEASE, SessionEnvironment
from khop.distributed.remote.server.session_table import SessionTable
from khop.distributed.remote.server.validation import SessionLimits, SessionValidator
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.rpc.keys import ServerKeys, check_secured
from khop.distributed.rpc.limits import DEFAULT
from khop.distributed.rpc.listener import raise_descriptor_limit
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.rpc.protocol import describe_error
from khop.distributed.rpc.request_threads import RequestThreads
from khop.distributed.rpc.server_sockets import ServerSockets
from khop.distributed.rpc.state_handler import WriterThread, users_requests
from khop.errors import RendezvousError
from khop.sampler.methods.modules import import_methods, modules_named
from khop.storage.folder import PartitionFolder
from khop.storage.named_stores import NamedStore
from khop.storage.part import Part
from khop.typing import Array

_log = log.get(__name__)

DEFAULTS: dict[str, Any] = {
    "parts": None,
    "host": None,
    "port": None,
    "keys": None,
    "key_file": None,
    "insecure": False,
    "buffer_limit": 8 << 30,
    "sampler_limit": 1024,
    "connection_limit": DEFAULT.connections,
    "lease": None,
    "timeout": 180.0,
    "graph_mode": "ZERO_COPY",
    "feature_mode": "ZERO_COPY",
    "metrics_port": None,
    "methods": (),
    "requests": (),
    "stores": (),
    "has_labels": False,
}
"""Defaults of a configuration."""


def split_address(address: str, what: str) -> tuple[str, int]:
    """Return host and port of 'HOST:PORT'.

    Raises:
        ValueError: malformed; the message names the option, `what`.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{what} must be HOST:PORT (got '{address}')")
    return host, int(port)


def parts_of(folder: PartitionFolder, rank: int, num_servers: int) -> list[int]:
    """Return a server's default partitions: every num_servers-th from `rank` on."""
    if num_servers > folder.num_parts:
        raise ValueError(
            f"'{folder.root}' has {folder.num_parts} partitions for {num_servers} graph servers: "
            "start fewer, or say which serve what (--part, once for each)"
        )
    return list(range(rank, folder.num_parts, num_servers))


def serve(
    config: Mapping[str, Any],
    labels: Mapping[int, Array],
    line: ControlLine,
    on_ready: Callable[[Mapping[str, str]], None],
) -> None:
    """Run a graph server until the line closes, or all clients are gone.

    Args:
        config: see above.
        labels: {index of a node type: [num_nodes, ...] by original id} that the folder lacks.
        line: control line; its close ends the server.
        on_ready: called with its addresses, once clients can reach it.

    Raises:
        FolderError, ValueError, IndexError: the folder or a partition does not exist.
        ImportError: a module of `methods` is not found.
        SecurityError: it would listen beyond loopback without keys.
        RendezvousError: its address cannot be bound, or server 0 refuses it.
    """
    config = {**DEFAULTS, **config}
    config["methods"] = modules_named(config["methods"])
    raise_descriptor_limit()
    import_methods(config["methods"])
    with contextlib.ExitStack() as stack:
        server, counters, registration = _make_server(config, labels, stack)
        keys = None if config["keys"] is None else ServerKeys.from_json(config["keys"])
        stack.callback(server.close)
        if keys is not None and config["key_file"] is not None:
            stack.enter_context(KeyFileWatch(config["key_file"], keys, server.admit))
        remote = DirectoryClient(
            Servers(
                config["master"],
                None if keys is None else keys.server_key,
                None if keys is None else keys.credentials(),
            ),
            lambda secret: replace(registration, secret=secret, gone=dict(server.gone)),
            on_table=server.take_table,
            on_refused=server.take_refusal,
        )
        # Server 0 does not unregister: the directory ends with it.
        stack.callback(remote.close, goodbye=config["rank"] != 0)
        if config["metrics_port"] is not None:
            # Imported here: few servers have a metrics port.
            from khop.metrics import MetricsServer, of_server

            stack.enter_context(
                MetricsServer(config["metrics_port"], lambda: of_server(counters.snapshot()))
            )
        address = server.addresses["tcp"]
        _log.info("server-ready", f"graph server {config['rank']} is at {address}", address=address)
        on_ready(server.addresses)
        server.serve(line)
    _log.info("server-ended", f"graph server {config['rank']} has ended")


def _make_server(
    config: Mapping[str, Any], labels: Mapping[int, Array], stack: contextlib.ExitStack
) -> tuple[GraphServer, ServerCounters, RegisterServer]:
    """Return the server, its counters and its registration; `stack` cleans up at the end."""
    rank, num_servers = config["rank"], config["num_servers"]
    if not 0 <= rank < num_servers:
        raise ValueError(
            f"rank {rank} is not one of {num_servers} servers (0 to {num_servers - 1})"
        )
    folder = PartitionFolder(config["root"])
    folder.attach(map(NamedStore.from_json, config["stores"]))
    wanted = config["parts"]
    parts = parts_of(folder, rank, num_servers) if wanted is None else sorted(set(wanted))
    parts = [folder.check_part(part) for part in parts]
    if not parts:
        raise ValueError("a graph server needs a partition to serve")
    keys = None if config["keys"] is None else ServerKeys.from_json(config["keys"])
    listen, advertised, port = _address(config)
    check_secured(listen, keys, config["insecure"], f"graph server {rank}")

    meta = with_labels(folder.meta, labels)
    endpoints: dict[int, Endpoint] = {}
    # Sessions need the counters. The counters read the sessions, but only when both exist.
    counters = ServerCounters(
        rank, parts, "", lambda: joined(sessions.state(), local_samplers.states())
    )
    host = _host(config, folder, parts, endpoints, labels, keys, counters, stack)
    lease = lease_seconds() if config["lease"] is None else config["lease"]
    leases = LeaseTable()
    allowed = SessionLimits(
        config["buffer_limit"], samplers=config["sampler_limit"], lease=min(lease, SESSION_LEASE)
    )
    checks = SessionValidator(meta)
    sessions = SessionTable(checks, host, counters, allowed, leases)
    ipc_path = str(socket_folder() / "server")
    atexit.register(remove_socket, ipc_path)
    stack.callback(remove_socket, ipc_path)
    local_samplers = LocalSamplerService(lines_path(ipc_path), host, checks, allowed.samplers)
    graph = GraphRequestHandler(folder, meta, rank, parts)
    handlers = {part: _handler_of(Part(folder, part), config["requests"]) for part in parts}
    directory = None
    if rank == 0:
        directory = Directory(
            num_servers,
            config["num_clients"],
            folder.num_parts,
            folder.fingerprint,
            lease,
            leases=leases,
        )
    try:
        sockets = ServerSockets(
            ipc_path,
            listen,
            None if keys is None else keys.curve(),
            port,
            replace(DEFAULT, connections=config["connection_limit"]),
        )
    except zmq.ZMQError as error:
        raise RendezvousError(
            f"graph server {rank} cannot listen at {listen}:{port or '(any port)'}: "
            f"{error.strerror}. Is another server there, or is it another machine's address?"
        ) from None
    own_port = sockets.addresses["tcp"].rpartition(":")[2]
    sockets.addresses["tcp"] = f"tcp://{advertised}:{own_port}"
    counters.located(sockets.addresses["tcp"])
    # Samplers of one of its partitions send it requests for its other partitions.
    endpoints.update({part: Endpoint(sockets.addresses["ipc"]) for part in parts})
    # At least two threads, so that requests about the graph do not wait for one another.
    handler = ServerHandler(graph, handlers, counters)
    server = GraphServer(
        sockets,
        RequestThreads(handler, background_threads(2, 8), sockets.limits, sockets.backlog.of),
        ControlHandler(
            sessions, directory, counters, rank, sockets.send, sockets.limits, sockets.backlog.of
        ),
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
        config["num_clients"],
        parts,
        Addresses(**sockets.addresses),
        host_identity(),
        os.getpid(),
        folder.fingerprint,
    )
    return server, counters, registration


def _handler_of(part: Part, requests: Sequence[str]) -> RequestHandler:
    return RequestHandler(part, types=users_requests(requests, part))


def _host(
    config: Mapping[str, Any],
    folder: PartitionFolder,
    parts: list[int],
    endpoints: dict[int, Endpoint],
    labels: Mapping[int, Array],
    keys: ServerKeys | None,
    counters: ServerCounters,
    stack: contextlib.ExitStack,
) -> SessionEnvironment:
    """Return the environment of sessions on this server."""
    shared = None
    if labels:
        shared = share({f"label.{i}": _by_new_id(folder, i, a) for i, a in labels.items()})
        stack.callback(os.close, shared)
    sampler = {
        "root": str(folder.root),
        "credentials": None if keys is None else asdict(keys.credentials()),
        "graph_mode": config["graph_mode"],
        "feature_mode": config["feature_mode"],
        "pin_memory": False,
        "methods": list(config["methods"]),
        "stores": list(config["stores"]),
    }
    return SessionEnvironment(
        sampler,
        parts,
        folder.num_parts,
        endpoints,
        shared,
        counters.batch,
        counters.sampler_restarted,
    )


def _by_new_id(folder: PartitionFolder, place: int, labels: Array) -> Array:
    """Return labels in the order of the folder's numbering."""
    node_type = folder.meta.node_types[place]
    if len(labels) != node_type.count:
        raise ValueError(
            f"{len(labels)} labels for {node_type.count} nodes of type '{node_type.name}'"
        )
    ordered = np.empty_like(labels)
    ordered[folder.id_map(node_type.name)] = labels
    return ordered


def _address(config: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return the address to listen at, the address to publish, and the port (0: any)."""
    master, master_port = split_address(config["master"], "master")
    is_first = config["rank"] == 0
    host = config["host"] or (master if is_first else host_address(master))
    port = config["port"] or (master_port if is_first else 0)
    advertised = host
    if host in ("0.0.0.0", "*"):
        advertised = master if is_first else host_address(master)
    listen = host if host in ("0.0.0.0", "*") else _resolved(host)
    return listen, advertised, port


def _resolved(host: str) -> str:
    """Return the IPv4 address of a name: sockets are bound to addresses."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise RendezvousError(f"'{host}' is no address of this machine: {error}") from None
    return str(found[0][4][0])


def main() -> None:
    """Serve a graph for the process at the other end of the control line."""
    line, message = start_up()
    try:
        labels: dict[int, Array] = {}
        if message.json().get("has_labels"):
            shared = message.descriptors.pop()
            labels = {int(name): rows for name, rows in read_shared(shared).items()}
            os.close(shared)

        def on_ready(addresses: Mapping[str, str]) -> None:
            line.send_json(Op.READY, {"addresses": dict(addresses)})

        serve(message.json(), labels, line, on_ready)
    except (EOFError, ConnectionError):
        pass  # the process that started it has ended
    except Exception as error:
        with contextlib.suppress(ConnectionError):
            line.send_json(Op.ERROR, describe_error(error))
        sys.exit(1)
