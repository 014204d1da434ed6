"""Context of a trainer that is a client of graph servers: `init_client`. Runs in trainers.

A client is registered in the directory by its rank for as long as it renews its lease. It reads no
folder. Its loaders take `data=None`, and request the graph's description (`served_graph`) and their
batches (`backend`) from the servers. The directory has its group's values and leases.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from khop.distributed.job.cluster_environment import integer
from khop.distributed.job.context import DistRole, TrainerContext, enter, get_context, leave
from khop.distributed.membership.members import Membership
from khop.distributed.remote.addresses import Servers, address_of, check_rank
from khop.distributed.remote.client.directory_store import DirectoryStore
from khop.distributed.remote.client.served_access import ServedAccess, ServedReads, checked_job
from khop.distributed.remote.client.served_graph import ServedGraph
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.messages import RegisterClient
from khop.distributed.rpc.key_files import read_client_keys
from khop.distributed.rpc.keys import check_secured

_DEFAULT_GROUP = "khop-clients"
_MAX_GROUP_NAME = 48


class ClientContext(TrainerContext):
    """Rank and group of a trainer that is a client of graph servers, from `init_client`.

    Attributes:
        servers: address of the graph servers, and keys.
        remote: connections to the servers and their directory.
        members: membership in the group of clients: values that they share, leases, failures.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)
        >>> context.is_client(), context.num_servers()
        (True, 1)
    """

    def __init__(
        self, servers: Servers, num_servers: int, num_clients: int, rank: int, group_name: str
    ) -> None:
        self.servers = servers
        self._num_servers = num_servers
        self._num_clients = num_clients

        def registration(secret: str) -> RegisterClient:
            name = f"{group_name}_{rank}"
            return RegisterClient(rank, secret, num_servers, num_clients, name, os.getpid())

        self.remote = DirectoryClient(servers, registration)
        store = DirectoryStore(self.remote, group_name)
        members = Membership(store, rank, num_clients, self.remote.timeout)
        super().__init__(DistRole.CLIENT, members, group_name)

    @property
    def global_rank(self) -> int:
        """Rank of this client in a common numbering, in which servers come before clients."""
        return self._num_servers + self.rank

    @cached_property
    def graph(self) -> ServedGraph:
        """The graph that the servers serve. The first access waits until all have registered.

        Raises:
            RendezvousError: a server has not registered in time, or a partition is not served.
            PartitionUnavailableError: a server does not answer.
        """
        return ServedGraph(self, self.remote)

    def store_access(self, job: str | None, clients: Sequence[int] | None) -> ServedAccess:
        """Return this client's access to the store of a job. See `GraphStore`.

        :meta private:
        """
        return ServedAccess(self.graph, self.remote, job, clients)

    def store_reads(self, job: str | None) -> ServedReads:
        """Return this client's access to the tensors of a job. See `GraphStoreReader`.

        :meta private:
        """
        return ServedReads(self.graph, self.remote, checked_job(job, self))

    def close(self, wait: bool = True) -> None:
        """End this client's loaders and unregister from the directory. `wait` is ignored."""
        del wait  # no other process needs a client
        self._close_groups()
        self.members.close()
        self.remote.close()


def init_client(
    num_servers: int | None = None,
    num_clients: int | None = None,
    client_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | str | None = None,
    num_rpc_threads: int = 4,
    client_group_name: str | None = None,
    is_dynamic: bool = False,
    *,
    key_file: str | Path | None = None,
    insecure: bool = False,
    timeout: float = 60.0,
) -> ClientContext:
    """Join a job with graph servers (`khop serve`, `init_server`), as a client.

    Loaders of this process then take `data=None` and `RemoteDistSamplingWorkerOptions`. Trainers of
    `khop run --servers` need no arguments.

    Args:
        num_servers: number of servers, the same as on the servers. If None, $KHOP_NUM_SERVERS.
        num_clients: number of clients, as on the servers. If 0, any number come and go. If None,
            $WORLD_SIZE.
        client_rank: rank of this client. If None, $RANK.
        master_addr: address at which server 0 listens. If None, $KHOP_SERVERS_ADDR.
        master_port: its port. If None, $KHOP_SERVERS_PORT.
        num_rpc_threads: ignored. Requests do not wait for each other.
        client_group_name: name of the clients' group. Clients of one group make loaders and splits
            together. If None: 'khop-clients'.
        is_dynamic: if True, `num_clients` counts as 0.
        key_file: the job's `client.key`, as `khop keygen` wrote it. If None: $KHOP_KEY_FILE.
            Servers at other addresses than loopback require keys.
        insecure: whether to connect to other addresses without keys. For closed networks only.
        timeout: seconds to wait for the servers.

    Returns:
        The context, also returned by `get_context`.

    Raises:
        RuntimeError: this process has a role already.
        SecurityError: no keys, or a key file that cannot be used.
        RendezvousError: the servers do not answer, or refuse this client. Its rank is taken, or
            `num_servers` or `num_clients` differ from the servers'. Or a variable is no number.
        ValueError: the rank or the numbers of processes are out of range. Or an argument is None
            and its variable is not set.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)  # one server, any number of clients
        >>> loader = DistNeighborLoader(None, [2], torch.tensor([0]))
        >>> next(iter(loader)).n_id
        tensor([0, 1, 2])
    """
    del num_rpc_threads
    num_servers = _count_of("num_servers", num_servers, "KHOP_NUM_SERVERS")
    num_clients = 0 if is_dynamic else _count_of("num_clients", num_clients, "WORLD_SIZE")
    client_rank = _count_of("client_rank", client_rank, "RANK")
    if master_addr is None:
        master_addr = os.environ.get("KHOP_SERVERS_ADDR") or _missing("master_addr")
    if master_port is None:
        master_port = os.environ.get("KHOP_SERVERS_PORT") or _missing("master_port")
    check_rank(num_servers, num_clients, "client", client_rank)
    keys = read_client_keys(key_file)
    check_secured(master_addr, keys, insecure, "the graph servers")
    servers = Servers.with_keys(address_of(master_addr, master_port), keys)
    group_name = client_group_name or _DEFAULT_GROUP
    if len(group_name) > _MAX_GROUP_NAME or not group_name.isprintable():
        raise ValueError(
            f"client_group_name must be at most {_MAX_GROUP_NAME} printable characters (got "
            f"{group_name!r:.100})"
        )

    def register() -> ClientContext:
        context = ClientContext(servers, num_servers, num_clients, client_rank, group_name)
        try:
            context.remote.wait_for_table(lambda _: True, "an answer", timeout)
        except BaseException:
            context.close()
            raise
        return context

    return enter(register, DistRole.CLIENT)


def _count_of(name: str, value: int | None, variable: str) -> int:
    """Return an argument, or the number in a variable if it is None."""
    if value is not None:
        return value
    count = integer(os.environ, variable)
    return _missing(name) if count is None else count


def _missing(name: str) -> NoReturn:
    raise ValueError(
        f"{name} is missing: pass it, or start this trainer by khop run --servers, which sets its "
        "variable"
    )


def shutdown_client() -> None:
    """End this client's loaders and leave the job. Called automatically at exit.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)
        >>> shutdown_client()
        >>> get_context() is None
        True
    """
    leave(DistRole.CLIENT)


def require_client() -> ClientContext:
    """Return this client's context.

    Raises:
        RuntimeError: this process is not a client.
    """
    context = get_context()
    if not isinstance(context, ClientContext):
        raise RuntimeError("this process is no client of graph servers: call init_client first")
    return context
