"""Configuration of a graph server, from `khop serve` or `init_server`. Imports no torch."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, replace
from typing import Any

import zmq

from khop.distributed.processes.hosts import host_address, host_identity
from khop.distributed.remote.messages import Addresses, RegisterServer
from khop.distributed.rpc.keys import ServerKeys, check_secured
from khop.distributed.rpc.limits import DEFAULT
from khop.distributed.rpc.server_sockets import ServerSockets
from khop.errors import RendezvousError
from khop.storage.folder import PartitionFolder

_ANY_ADDRESS = ("0.0.0.0", "*")


@dataclass(frozen=True)
class ServerConfig:
    """Configuration of a graph server.

    Attributes:
        root: the partition folder.
        rank: rank of the server.
        num_servers, num_clients: numbers of servers and clients. 0 clients mean any number.
        end_with_clients: whether the server ends when all `num_clients` clients have left.
        master: 'HOST:PORT' of server 0.
        parts: partitions to serve. If None, `rank`, `rank + num_servers` and so on.
        host, port: address to listen at. If None, server 0 listens at `master`. Other servers then
            listen at a free port of their address on the route to `master`.
        keys: `ServerKeys.to_json()`. If None, there are no keys.
        key_file: file of these keys, read again when it changes. If None, they do not change.
        insecure: whether to listen beyond loopback without keys.
        buffer_limit: maximum bytes of the sessions of all clients.
        cache_limit: maximum bytes for rows of other partitions that samplers keep, and for batches
            that they draw ahead, of the sessions of all clients.
        sampler_limit: maximum number of sampler processes of the sessions of all clients.
        connection_limit: maximum number of connections over TCP.
        tensor_limit: maximum bytes of the tensors of all jobs' stores.
        job_tensor_limit: maximum bytes of the tensors of one job. If None, `tensor_limit`.
        lease: seconds of silence after which a client counts as lost. If None, $KHOP_LEASE, or 30.
            A session ends after 10 s of silence, or after `lease` if this is shorter.
        timeout: seconds that samplers wait for other servers.
        graph_mode, feature_mode: location of graph and attributes for samplers on devices.
        metrics_port: port at which counters are served as Prometheus text. If None, they are not.
        methods: users' sampling methods, by module or by the name of an installed package. The
            server and its samplers import them.
        requests: modules of users' requests, which the server imports, see `rpc.state_handler`.
        same_host_reads: whether samplers read partitions of servers on this host from their files.
            If None, $KHOP_SAME_HOST_READS, or True without it.
        stores: `NamedStore.to_json()` of attributes in users' stores.
        disk: `DiskOptions` of each sampler, as a list. If None, all attributes are mapped.
        has_labels: whether labels are passed with the configuration, in shared memory:
            {index of a node type: labels by original id}.
    """

    root: str
    rank: int
    num_servers: int
    num_clients: int
    master: str
    parts: list[int] | None = None
    host: str | None = None
    port: int | None = None
    keys: dict[str, Any] | None = None
    key_file: str | None = None
    insecure: bool = False
    buffer_limit: int = 8 << 30
    cache_limit: int = 4 << 30
    sampler_limit: int = 1024
    connection_limit: int = DEFAULT.connections
    tensor_limit: int = 8 << 30
    job_tensor_limit: int | None = None
    lease: float | None = None
    timeout: float = 180.0
    graph_mode: str = "ZERO_COPY"
    feature_mode: str = "ZERO_COPY"
    metrics_port: int | None = None
    methods: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    same_host_reads: bool | None = None
    stores: list[Any] = field(default_factory=list)
    disk: list[Any] | None = None
    has_labels: bool = False
    end_with_clients: bool = True

    @property
    def tensor_limits(self) -> tuple[int, int]:
        """Maximum bytes of the tensors of all jobs, and of one job."""
        of_job = self.tensor_limit if self.job_tensor_limit is None else self.job_tensor_limit
        return self.tensor_limit, of_job

    def parts_of(self, folder: PartitionFolder) -> list[int]:
        """Return the partitions of the folder that this server serves.

        Raises:
            IndexError, ValueError: a partition does not exist, or there are too few of them.
        """
        rank, num_servers = self.rank, self.num_servers
        if not 0 <= rank < num_servers:
            raise ValueError(
                f"rank {rank} is not one of {num_servers} servers (0 to {num_servers - 1})"
            )
        if self.parts is None and num_servers > folder.num_parts:
            raise ValueError(
                f"'{folder.root}' has {folder.num_parts} partitions for {num_servers} graph "
                "servers: start fewer, or choose the partitions of each (--part, once for each)"
            )
        default = range(rank, folder.num_parts, num_servers)
        parts = default if self.parts is None else sorted(set(self.parts))
        if not parts:
            raise ValueError("a graph server needs a partition to serve")
        return [folder.check_part(part) for part in parts]

    def registration(
        self, fingerprint: str, parts: list[int], addresses: Addresses
    ) -> RegisterServer:
        """Return the registration of this process with the directory, without its secret.

        `fingerprint` is the partition folder's. The server has `parts` and these addresses.
        """
        counts = self.num_servers, self.num_clients
        of_process = host_identity(), os.getpid()
        return RegisterServer(self.rank, "", *counts, parts, addresses, *of_process, fingerprint)

    def create_sockets(self, keys: ServerKeys | None, ipc_path: str) -> ServerSockets:
        """Bind the server's sockets, and return them. Their address 'tcp' is the one to publish.

        `ipc_path` is the path of the local socket.

        Raises:
            ValueError: `master` is malformed.
            SecurityError: the server would listen beyond loopback without keys.
            RendezvousError: `host` has no address, or the address cannot be bound.
        """
        master, _, master_port = self.master.rpartition(":")
        if not master or not master_port.isdecimal() or not 0 < int(master_port) < 1 << 16:
            raise ValueError(f"master must be HOST:PORT (got '{self.master}')")
        is_first = self.rank == 0
        published = self.host
        if not published or published in _ANY_ADDRESS:
            published = master if is_first else host_address(master)
        listen = self.host or published
        if listen not in _ANY_ADDRESS:  # sockets are bound to addresses, not to names
            try:
                results = socket.getaddrinfo(listen, None, socket.AF_INET, socket.SOCK_STREAM)
            except OSError as error:
                text = f"'{listen}' is no address of this machine: {error}"
                raise RendezvousError(text) from None
            listen = str(results[0][4][0])
        check_secured(listen, keys, self.insecure, f"graph server {self.rank}")
        port = self.port or (int(master_port) if is_first else 0)
        limits = replace(DEFAULT, connections=self.connection_limit)
        curve = None if keys is None else keys.curve()
        try:
            sockets = ServerSockets(ipc_path, listen, curve, port, limits)
        except zmq.ZMQError as error:
            raise RendezvousError(
                f"graph server {self.rank} cannot listen at {listen}:{port or '(any port)'}: "
                f"{error.strerror}. Is another server there, or is it another machine's address?"
            ) from None
        own_port = sockets.addresses["tcp"].rpartition(":")[2]
        sockets.addresses["tcp"] = f"tcp://{published}:{own_port}"
        return sockets
