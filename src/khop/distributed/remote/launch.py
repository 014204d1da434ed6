"""Start of a graph server from Python: `init_server`. Runs in the process that starts it.

The server is a child process (`remote.server.main`, which `khop serve` runs, too) and imports no
torch. It ends when its clients have left, or with the process that started it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from khop import codec
from khop.channel.control import Op
from khop.channel.shared import share
from khop.data.hot_rows import parse_bytes
from khop.distributed.dataset import DistDataset, check_dataset
from khop.distributed.job.context import DistContext, DistRole, enter, get_context, leave
from khop.distributed.membership.leases import lease_seconds
from khop.distributed.processes.child import ChildProcess, wait_for_message
from khop.distributed.processes.socket_files import remove_socket
from khop.distributed.remote.addresses import address_of, check_rank
from khop.distributed.remote.server.server_config import ServerConfig
from khop.distributed.rpc.key_files import key_file_path, read_server_keys
from khop.distributed.rpc.keys import check_secured
from khop.distributed.rpc.protocol import rebuild_error, wait_until_ready
from khop.errors import PartitionUnavailableError
from khop.typing import Array

_DEFAULT_GROUP = "khop-servers"
_ENDED_WELL = "exited with status 0"


class ServerContext(DistContext):
    """Context of a process that runs a graph server, as `init_server` returns it.

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

    def __init__(self, config: ServerConfig, labels: Mapping[str, Array], group_name: str) -> None:
        super().__init__(DistRole.SERVER, config.num_servers, config.rank, group_name)
        self.addresses: dict[str, str] = {}
        self._num_servers, self._num_clients = config.num_servers, config.num_clients
        memory = [share(labels)] if labels else []
        try:
            program, content = "khop.distributed.remote.server.main", codec.to_json(config)
            self.process = ChildProcess(program, content, memory)
        finally:
            for descriptor in memory:
                os.close(descriptor)
        try:
            ready = wait_until_ready(self.process, f"graph server {self.rank}")
            self.addresses = ready.json()["addresses"]
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Wait until the server has ended.

        Raises:
            PartitionUnavailableError: the server was killed, or failed.
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
        del wait
        self.process.close()
        ipc = self.addresses.get("ipc")
        if ipc is not None:  # a server that was killed has left its socket behind
            remove_socket(ipc.removeprefix("ipc://"))


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
    tensor_limit: int | str = "8GiB",
    end_with_clients: bool = True,
) -> ServerContext:
    """Start a graph server for a dataset, in a child process that ends with this one.

    `khop serve` does the same from the command line, on machines without torch. Call
    `wait_and_shutdown_server` next.

    Args:
        num_servers: number of servers.
        server_rank: rank of this server. Server 0 also has the directory of servers and clients.
        dataset: data to serve: its partition, the partitions of `also_serve`, and its node labels.
        master_addr: address at which server 0 listens.
        master_port: its port.
        num_clients: number of clients. Servers end when all clients have left. If 0, any number of
            clients come and go, and servers do not end.
        num_rpc_threads: ignored. Servers have one thread per two cores, from 2 to 8.
        request_timeout: seconds that a server may wait for another's rows.
        server_group_name: name of the servers' group. If None: 'khop-servers'.
        is_dynamic: if True, `num_clients` counts as 0.
        key_file: the job's `server.key`, as `khop keygen` wrote it. If None: $KHOP_KEY_FILE.
            Without keys, servers listen at loopback only.
        insecure: whether to listen at other addresses without keys. For closed networks only.
        host: address at which others reach this server. If None, its address on the route to
            `master_addr`.
        methods: your own sampling methods that clients may use. A method is named by its module,
            'my_package.methods', or by an installed package's name in the group `khop.methods`.
            The server imports these modules, and none that a client names.
        lease: seconds of silence after which a client counts as lost, 5 to 86,400. If None,
            $KHOP_LEASE. If that is not set, 30.
        tensor_limit: maximum bytes of all tensors of clients' graph stores. A number, or a text
            such as '64GB'.
        end_with_clients: if False, the server stays when all `num_clients` clients have left or are
            lost, for clients that are restarted. It then ends with this process.

    Returns:
        The context, also returned by `get_context`.

    Raises:
        RuntimeError: this process has a role already, or the dataset holds nothing.
        SecurityError: no keys, or a key file that cannot be used.
        TypeError: `dataset` is not a DistDataset.
        ValueError: numbers contradict each other, or a module of `methods` has no methods.
        ImportError: a module of `methods` is not found.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> context = init_server(1, 0, dataset, "127.0.0.1", port, num_clients=1)
        >>> wait_and_shutdown_server()  # its client is another process
    """
    del num_rpc_threads

    def start() -> ServerContext:
        config = ServerConfig(
            "",
            server_rank,
            num_servers,
            0 if is_dynamic else num_clients,
            address_of(master_addr, master_port),
            host=host,
            key_file=key_file_path(key_file),
            insecure=insecure,
            timeout=request_timeout,
            lease=None if lease is None else lease_seconds(lease),
            tensor_limit=parse_bytes(tensor_limit),
            end_with_clients=end_with_clients,
        )
        return start_server(dataset, config, methods, server_group_name)

    return enter(start, DistRole.SERVER)


def start_server(
    dataset: DistDataset,
    config: ServerConfig,
    methods: Sequence[str] = (),
    group_name: str | None = None,
) -> ServerContext:
    """Start a graph server in a child process, as `init_server` does.

    The calling process may have another role in the job.

    Args:
        dataset: data to serve.
        config: the server's configuration. Its fields about dataset, keys and methods are ignored.
        methods: modules of users' sampling methods.
        group_name: name of the servers' group. If None: 'khop-servers'.
    """
    check_dataset(dataset, "dataset")
    if isinstance(methods, str) or not all(isinstance(module, str) for module in methods):
        raise TypeError(f"methods must be a list of names of modules (got {methods!r})")
    check_rank(config.num_servers, config.num_clients, "server", config.rank)
    keys = read_server_keys(config.key_file)
    for address in (config.master.rpartition(":")[0], config.host):
        if address is not None:
            check_secured(address, keys, config.insecure, f"graph server {config.rank}")
    config = replace(
        config,
        root=str(dataset.opened.root),
        parts=dataset.parts,
        stores=[store.to_json() for store in dataset.opened.stores.values()],
        disk=None if dataset.opened.disk is None else list(dataset.opened.disk),
        keys=None if keys is None else keys.to_json(),
        graph_mode=dataset.graph_mode,
        feature_mode=dataset.feature_mode,
        same_host_reads=dataset.same_host_reads,
        methods=list(methods),
        has_labels=bool(dataset.node_labels),
    )
    types = [t.name for t in dataset.meta.node_types]
    labels = {str(types.index(t)): values.numpy() for t, values in dataset.node_labels.items()}
    return ServerContext(config, labels, group_name or _DEFAULT_GROUP)


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
