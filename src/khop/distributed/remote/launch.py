"""Start of a graph server from Python: `init_server`. Runs in the process that starts it.

The server is a child process (`remote.server.main`, which `khop serve` runs, too) and imports no
torch. It ends when its clients have left, or with the process that started it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from khop.channel.control import Op
from khop.channel.shared import share
from khop.distributed.dataset import DistDataset, check_dataset
from khop.distributed.job.context import DistContext, DistRole, enter, get_context, leave
from khop.distributed.membership.leases import lease_seconds
from khop.distributed.processes.child import ChildProcess, wait_for_message
from khop.distributed.processes.socket_files import remove_socket
from khop.distributed.remote.addresses import address_of, check_place
from khop.distributed.rpc.key_files import key_file_path, read_server_keys
from khop.distributed.rpc.keys import check_secured
from khop.distributed.rpc.protocol import rebuild_error, wait_until_ready
from khop.errors import PartitionUnavailableError
from khop.typing import Array

_DEFAULT_GROUP = "khop-servers"
_ENDED_WELL = "exited with status 0"


class ServerContext(DistContext):
    """Place of a process that runs a graph server; `init_server` returns it.

    Attributes:
        process: the server's process.
        addresses: its addresses, by 'tcp' and 'ipc'.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> context = init_server(1, 0, dataset, "127.0.0.1", port, num_clients=1)
        >>> context.is_server(), sorted(context.addresses)
        (True, ['ipc', 'tcp'])
        >>> wait_and_shutdown_server()  # until its client, another process, has left
    """

    def __init__(self, config: dict[str, Any], labels: dict[str, Array], group_name: str) -> None:
        super().__init__(DistRole.SERVER, config["num_servers"], config["rank"], group_name)
        self.addresses: dict[str, str] = {}
        self._num_clients: int = config["num_clients"]
        memory = [share(labels)] if labels else []
        try:
            self.process = ChildProcess("khop.distributed.remote.server.main", config, memory)
        finally:
            for descriptor in memory:
                os.close(descriptor)
        try:
            ready = wait_until_ready(self.process, f"graph server {self.rank}")
            self.addresses = ready.json()["addresses"]
        except BaseException:
            self.close()
            raise

    @property
    def global_world_size(self) -> int:
        """Number of servers and clients."""
        return self.world_size + self._num_clients

    def num_servers(self) -> int:
        """Return the number of graph servers."""
        return self.world_size

    def num_clients(self) -> int:
        """Return the number of clients; 0: any number, that come and go."""
        return self._num_clients

    def wait(self) -> None:
        """Wait until the server has ended.

        Raises:
            PartitionUnavailableError: it was killed, or failed.
        """
        while (message := wait_for_message(self.process.line)) is not None:
            if message.op is Op.ERROR:
                raise rebuild_error(message.json(), f"graph server {self.rank}")
        status = self.process.exit_status()
        if status != _ENDED_WELL:
            raise PartitionUnavailableError(
                f"graph server {self.rank} (pid {self.process.pid}) {status}: start it again, its "
                "clients go on where they were"
            )

    def close(self, wait: bool = True) -> None:
        """End the server."""
        del wait
        self.process.close()
        near = self.addresses.get("ipc")
        if near is not None:  # a server that was killed has left its socket behind
            remove_socket(near.removeprefix("ipc://"))


def init_server(
    num_servers: int,
    server_rank: int,
    dataset: DistDataset,
    master_addr: str,
    master_port: int | str,
    num_clients: int = 0,
    num_rpc_threads: int = 16,
    request_timeout: float = 180,
    server_group_name: str | None = None,
    is_dynamic: bool = False,
    *,
    key_file: str | Path | None = None,
    insecure: bool = False,
    host: str | None = None,
    methods: Sequence[str] = (),
    lease: float | None = None,
) -> ServerContext:
    """Start a graph server for a dataset, in a child process that ends with this one.

    `khop serve` does the same from the command line, on machines without torch. Call
    `wait_and_shutdown_server` next.

    Args:
        num_servers: number of servers.
        server_rank: rank of this server. Server 0 also has the directory of servers and clients.
        dataset: data to serve: its partition, those of `also_serve`, and its node labels.
        master_addr: address at which server 0 listens.
        master_port: its port.
        num_clients: number of clients. Servers end when all of them have left. 0: any number, that
            come and go; servers do not end.
        num_rpc_threads: accepted, not needed: servers take half of a machine's cores, 2 to 8.
        request_timeout: seconds that a server may wait for another's rows.
        server_group_name: name of the servers' group. If None: 'khop-servers'.
        is_dynamic: as `num_clients=0`.
        key_file: the job's `server.key`, as `khop keygen` wrote it. If None: $KHOP_KEY_FILE.
            Without keys, servers listen at loopback only.
        insecure: listen elsewhere without keys. For closed networks only.
        host: address at which others reach this server. If None: that of the route to
            `master_addr`.
        methods: modules of sampling methods of your own that clients may use: 'my_package.methods';
            or names that installed packages give to theirs (group `khop.methods`).
            The server imports these, and nothing that a client names.
        lease: seconds of silence after which a client counts as lost, 5 to 86,400. If None,
            $KHOP_LEASE; without it 30.

    Returns:
        The context, also returned by `get_context`.

    Raises:
        RuntimeError: this process has a role already, or the dataset holds nothing.
        SecurityError: no keys, or a key file that cannot be used.
        ValueError, TypeError: numbers that contradict each other; no dataset; a module of `methods`
            without methods.
        ImportError: a module of `methods` is not found.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> context = init_server(1, 0, dataset, "127.0.0.1", port, num_clients=1)
        >>> wait_and_shutdown_server()  # its client is another process
    """
    del num_rpc_threads
    return enter(
        lambda: start_server(
            dataset,
            num_servers,
            server_rank,
            address_of(master_addr, master_port),
            0 if is_dynamic else num_clients,
            timeout=request_timeout,
            group_name=server_group_name,
            key_file=key_file,
            insecure=insecure,
            host=host,
            methods=methods,
            lease=None if lease is None else lease_seconds(lease),
        ),
        DistRole.SERVER,
    )


def start_server(
    dataset: DistDataset,
    num_servers: int,
    server_rank: int,
    master: str,
    num_clients: int = 0,
    *,
    timeout: float = 180.0,
    lease: float | None = None,
    group_name: str | None = None,
    key_file: str | Path | None = None,
    insecure: bool = False,
    host: str | None = None,
    methods: Sequence[str] = (),
) -> ServerContext:
    """Start a graph server as `init_server` does, also in a process that has another role.

    Args:
        dataset: data to serve.
        num_servers: number of servers.
        server_rank: rank of this server.
        master: 'HOST:PORT' of server 0.
        num_clients: number of clients; 0: any number.
        timeout: seconds that a server may wait for another's rows.
        lease: seconds of silence after which a client counts as lost. If None, as of `init_server`.
        group_name: name of the servers' group.
        key_file: the job's `server.key`.
        insecure: listen at other addresses than loopback without keys.
        host: address at which others reach this server.
        methods: modules of users' sampling methods.
    """
    check_dataset(dataset, "dataset")
    check_place(num_servers, num_clients, "server", server_rank)
    keys = read_server_keys(key_file)
    for address in (master.rpartition(":")[0], host):
        if address is not None:
            check_secured(address, keys, insecure, f"graph server {server_rank}")
    config = {
        "root": str(dataset.opened.root),
        "parts": dataset.parts,
        "rank": server_rank,
        "num_servers": num_servers,
        "num_clients": num_clients,
        "master": master,
        "host": host,
        "methods": _modules(methods),
        "keys": None if keys is None else keys.to_json(),
        "key_file": key_file_path(key_file),
        "insecure": insecure,
        "timeout": timeout,
        "lease": lease,
        "graph_mode": dataset.graph_mode,
        "feature_mode": dataset.feature_mode,
        "has_labels": bool(dataset.node_labels),
    }
    types = [t.name for t in dataset.meta.node_types]
    labels = {str(types.index(t)): values.numpy() for t, values in dataset.node_labels.items()}
    return ServerContext(config, labels, group_name or _DEFAULT_GROUP)


def _modules(methods: Sequence[str]) -> list[str]:
    if isinstance(methods, str) or not all(isinstance(module, str) for module in methods):
        raise TypeError(f"methods must be a list of names of modules (got {methods!r})")
    return list(methods)


def wait_and_shutdown_server() -> None:
    """Wait until all clients have left, which ends the server, and leave the job.

    With `num_clients=0`, wait until interrupted.

    Raises:
        RuntimeError: this process runs no server.
        PartitionUnavailableError: the server was killed, or failed.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> context = init_server(1, 0, dataset, "127.0.0.1", port, num_clients=1)
        >>> wait_and_shutdown_server()  # until its client, another process, has left
    """
    context = get_context()
    if not isinstance(context, ServerContext):
        raise RuntimeError("this process runs no graph server: call init_server first")
    try:
        context.wait()
    finally:
        leave(DistRole.SERVER)
