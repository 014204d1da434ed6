"""Graph servers as actors of a Ray cluster. Runs in processes of Ray.

`GraphServers` starts an actor for each server, in a placement group. An actor has the server as a
child process, as `init_server` starts it. Ray restarts an actor whose process or node is lost, also
on another node. Clients find the server at its new address by the directory. Server 0, which keeps
the directory, stays on Ray's head node.

Ray is imported when it is used. Imports torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from khop import log
from khop.distributed import DistDataset, init_client
from khop.distributed.remote.client.client_context import ClientContext
from khop.distributed.remote.launch import init_server
from khop.distributed.rpc.key_files import file_content
from khop.distributed.rpc.keys import JobKeys
from khop.errors import PartitionUnavailableError, RendezvousError
from khop.launcher.host_checks import listen, reserve
from khop.storage.folder import PartitionFolder

_HEAD = "node:__internal_head__"
_log = log.get(__name__)


@dataclass(frozen=True)
class GraphServerAddress:
    """Address and keys of the servers of `GraphServers`, for trainers of the same Ray cluster.

    It can be sent to Ray's tasks, actors and training loops. It has the clients' secret key.

    Attributes:
        num_servers, num_clients: numbers of servers and clients. 0 clients: any number.
        host, port: address of server 0.
        keys: content of the clients' key file.

    Example:
        >>> GraphServerAddress(1, 0, "10.0.0.1", 29500, {})
        GraphServerAddress of 1 graph servers at 10.0.0.1:29500
    """

    num_servers: int
    num_clients: int
    host: str
    port: int
    keys: Mapping[str, Any]

    def __repr__(self) -> str:
        """Return text without keys."""
        return f"GraphServerAddress of {self.num_servers} graph servers at {self.host}:{self.port}"

    def init_client(self, rank: int, **options: Any) -> ClientContext:
        """Join the job as client `rank`. `options` are further ones of `init_client`.

        Call `shutdown_client` at the end of a training loop: workers of Ray outlive it.
        """
        with _key_file(self.keys) as path:
            return init_client(
                self.num_servers,
                self.num_clients,
                rank,
                self.host,
                self.port,
                key_file=path,
                **options,
            )


class GraphServers:
    """Graph servers in a Ray cluster, for clients in the same cluster. A context manager.

    Each node that may run a server needs the partition folder under one path, and khop.

    Args:
        folder: the partition folder.
        num_servers: number of servers. Server r serves the parts r, r + `num_servers` and so on.
        num_clients: number of clients, which divide the seeds among themselves. If 0, any number
            come and go. Servers end with `shutdown`, so clients may be restarted.
        num_cpus: CPUs that Ray reserves for each server.
        timeout: seconds to wait for room in the cluster, and for the servers.
        options: further options of `init_server`, such as `tensor_limit` and `methods`.

    Attributes:
        address: address for trainers, see `GraphServerAddress`.

    Raises:
        RuntimeError: Ray has not been initialised.
        RendezvousError: the cluster has no room, or a server does not start in time.
        FolderError: there is no partition folder at this path.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        num_servers: int = 1,
        *,
        num_clients: int = 0,
        num_cpus: float = 1.0,
        timeout: float = 120.0,
        **options: Any,
    ) -> None:
        import ray
        from ray.util.placement_group import placement_group

        if not ray.is_initialized():
            raise RuntimeError("Ray has not been initialised: call ray.init(address=...) first")
        if num_servers < 1 or num_clients < 0:
            raise ValueError("there must be a server, and no negative number of clients")
        root = str(PartitionFolder(folder).root)
        self._actors: list[Any] = []
        end = time.monotonic() + timeout
        own = {"CPU": num_cpus}
        # Server 0 first: its address must not change, and it is lost with the cluster only.
        bundles = [{**own, _HEAD: 0.001}, *(own for _ in range(num_servers - 1))]
        self._listener = listen()
        self._group = placement_group(bundles, strategy="SPREAD")
        try:
            if not self._group.wait(timeout):
                raise RendezvousError(
                    f"Ray has no room for {num_servers} graph servers of {num_cpus} CPUs, one of "
                    f"them on its head node, in {timeout:.0f} s: pass fewer num_cpus or servers"
                )
            reserve(self._listener)  # on the head node mostly, for restarts of server 0, too
            port = int(self._listener.getsockname()[1])
            host = _head_address(ray.nodes())
            keys = JobKeys.new(["client"])
            client = file_content(keys.for_client("client"))
            self.address = GraphServerAddress(num_servers, num_clients, host, port, client)
            common = (root, self.address, file_content(keys.for_servers()), options)
            self._actors = [self._actor(rank, num_cpus, common) for rank in range(num_servers)]
            for rank, actor in enumerate(self._actors):
                _within(end, actor.ready.remote(), f"graph server {rank}")
        except BaseException:
            self.shutdown()
            raise

    def _placed(self, index: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)

    def _actor(self, rank: int, num_cpus: float, common: tuple[Any, ...]) -> Any:
        import ray

        options = {"num_cpus": num_cpus, "max_restarts": -1, "max_task_retries": -1}
        actor = ray.remote(_ServerActor).options(**options, scheduling_strategy=self._placed(rank))
        return actor.remote(rank, *common)

    def nodes(self) -> list[str]:
        """Return the id of the Ray node of each server. Waits for servers that are restarted."""
        import ray

        ids: list[str] = ray.get([actor.ready.remote() for actor in self._actors])
        return ids

    def shutdown(self) -> None:
        """End the servers, and give the placement group back. Further calls have no effect."""
        import ray
        from ray.util.placement_group import remove_placement_group

        self._listener.close()
        if not ray.is_initialized():
            return
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        self._actors = []
        remove_placement_group(self._group)

    def __enter__(self) -> GraphServers:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()


class _ServerActor:
    """Actor with a graph server as its child. If the server fails, the actor ends, too."""

    def __init__(
        self,
        rank: int,
        root: str,
        address: GraphServerAddress,
        keys: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        count = PartitionFolder(root).num_parts
        home, *others = range(rank % count, count, address.num_servers)
        dataset = DistDataset().load(root, home, also_serve=others)
        self._keys = contextlib.ExitStack()  # the server looks for changes as long as it runs
        self._context = init_server(
            address.num_servers,
            rank,
            dataset,
            address.host,
            address.port,
            address.num_clients,
            key_file=self._keys.enter_context(_key_file(keys)),
            end_with_clients=False,
            **options,
        )
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        try:
            self._context.wait()
        except PartitionUnavailableError as error:
            _log.error("server-lost", str(error))
            os._exit(1)  # Ray restarts the actor

    def ready(self) -> str:
        """Return the id of this actor's node, once its server runs."""
        import ray

        return str(ray.get_runtime_context().get_node_id())


def _head_address(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return the address of the head node."""
    for node in nodes:
        if node["Alive"] and _HEAD in node["Resources"]:
            return str(node["NodeManagerAddress"])
    raise RendezvousError("Ray reports no head node that runs")


def _within(end: float, reference: Any, awaited: str) -> Any:
    import ray
    from ray.exceptions import GetTimeoutError

    try:
        return ray.get(reference, timeout=max(0.0, end - time.monotonic()))
    except GetTimeoutError:
        raise RendezvousError(f"waited in vain for {awaited}") from None


@contextlib.contextmanager
def _key_file(keys: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the path of a key file in memory, which only this user can read."""
    descriptor = os.memfd_create("khop-key")
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, json.dumps(keys).encode())
        yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    finally:
        os.close(descriptor)
