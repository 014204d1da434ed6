"""Access of clients of graph servers to the store of their job. Runs in trainers.

A job is a group of clients. Each server has a store per job, which ends when all clients of the job
have left or are lost. The clients share the work that the trainers with partitions do in worker
mode: client i of n ends steps, computes and saves for partitions i, i + n, and so on.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from khop.data.arrays import narrowest_int
from khop.distributed.job.context import DistContext, DistRole
from khop.distributed.membership.members import Membership
from khop.distributed.processes.hosts import host_identity
from khop.distributed.remote.addresses import Servers, endpoint_of
from khop.distributed.remote.client.directory_store import DirectoryStore
from khop.distributed.remote.client.served_graph import ServedGraph
from khop.distributed.remote.client.served_part import ServedPart, fetched_rows
from khop.distributed.remote.directory_client import DirectoryClient
from khop.distributed.remote.messages import ServerEntry, Table, incarnation_of, new_secret
from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.tensors.store_access import LOST_SECONDS, ReadAccess, StoreAccess
from khop.distributed.tensors.tensor_requests import (
    CloseStore,
    JobMember,
    OpenStore,
    Sender,
    TensorSpec,
)
from khop.errors import ProtocolError
from khop.typing import Int64Array, IntArray

# Seconds to wait for the end of an earlier job of the same name, and between two looks.
_EARLIER_JOB, _EARLIER_LOOK = 10.0, 0.25
# Seconds for the notice to servers that this client leaves the store.
_CLOSING_SECONDS = 1.0


class ServedReads(ReadAccess):
    """Access of a process to the tensors of a job at graph servers, for reading.

    The process needs no rank among the clients. A pickled object connects anew.

    Args:
        graph: the servers' graph.
        remote: connections to the servers and their directory.
        job: name of the job.
    """

    graph: ServedGraph

    def __init__(self, graph: ServedGraph, remote: DirectoryClient, job: str) -> None:
        self.graph, self._remote = graph, remote
        self._job = job
        self.sender = Sender(job)
        self._servers = primaries(remote.wait_for_servers())
        self._positions: dict[int, IntArray] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle address, keys and job."""
        return _connect, (self._remote.servers, self._remote.timeout, self._job)

    @property
    def endpoints(self) -> dict[int, Endpoint]:
        key = self._remote.servers.server_key
        return {part: endpoint_of(entry, key) for part, (_, entry) in self._servers.items()}

    @property
    def credentials(self) -> KeyPair | None:
        return self._remote.servers.credentials

    def give_up_if_lost(self, client: PartitionClient, part: int, since: float) -> None:
        rank, entry = self._servers[part]
        table = self._remote.table
        now = entry if table is None else table.servers.get(rank, entry)
        if now.incarnation != entry.incarnation:
            client.give_up(part, f"was started again: graph server {rank} has lost its tensors")
        super().give_up_if_lost(client, part, since)

    def server_of(self, part: int) -> str:
        return f"graph server {self._servers[part][0]}"

    def positions(self, client: PartitionClient, spec: TensorSpec, ids: Int64Array) -> Int64Array:
        meta, index = self.graph.meta, spec.type_index
        if spec.element == "node":
            return self.graph._new_ids_of(ids, meta.node_types[index].name, LOST_SECONDS)
        if not meta.edge_types[index].edge_ids:
            return ids
        if index not in self._positions:
            self._positions[index] = self._all_positions(client, index)
        return self._positions[index][ids].astype(np.int64)

    def _all_positions(self, client: PartitionClient, index: int) -> IntArray:
        """Request the original ids of all edges of a type. Return their positions, by id."""
        meta, edge_type = self.graph.meta, self.graph.meta.edge_types[index]
        table = np.full(edge_type.count, -1, narrowest_int(edge_type.count))
        for part, (first, last) in enumerate(itertools.pairwise(edge_type.bounds)):
            every = np.arange(first, last)
            table[fetched_rows(client, meta, part, "edge", index, "edge_id", every)] = every
        if len(table) and int(table.min()) < 0:
            raise ProtocolError(f"servers sent some ids of edges {edge_type.name} twice")
        return table


def _connect(servers: Servers, timeout: float, job: str) -> ServedReads:
    """Connect a process that is no client to graph servers."""
    remote = DirectoryClient(servers, timeout=timeout)
    context = DistContext(DistRole.CLIENT, 1, 0, "readers")
    context._num_servers = remote.wait_for_servers().num_servers
    reads = ServedReads(ServedGraph(context, remote), remote, job)
    weakref.finalize(reads, remote.close, goodbye=False)
    return reads


class ServedAccess(ServedReads, StoreAccess):
    """Access of a client to the store of its job at graph servers.

    Args:
        graph: the servers' graph.
        remote: connections to the servers and their directory.
        job: name of the job. If None, the name of the clients' group.
        clients: ranks of the job's clients. If None, all clients.

    Raises:
        ValueError: ranks that do not exist, or without this client, or a name that is too long.
    """

    def __init__(
        self,
        graph: ServedGraph,
        remote: DirectoryClient,
        job: str | None,
        clients: Sequence[int] | None,
    ) -> None:
        context = graph.context
        job = checked_job(job, context)
        super().__init__(graph, remote, job)
        ranks = _checked(clients, context.rank, context.num_clients())
        store = DirectoryStore(remote, f"{context.group_name}/{job}", LOST_SECONDS)
        self.members = Membership(store, context.rank, len(ranks), remote.timeout, ranks=ranks)
        self.rank = ranks.index(context.rank)
        self.name = context.next_name(f"store {job}")
        self.sender = Sender(job, new_secret())
        self.own_parts = list(range(graph.num_partitions)[self.rank :: len(ranks)])

    def for_readers(self) -> ServedReads:
        return ServedReads(self.graph, self._remote, self._job)

    def check(self, client: PartitionClient) -> None:
        for part, since in client.lost().items():
            self.give_up_if_lost(client, part, since)

    def is_near(self, part: int) -> bool:
        return self._servers[part][1].host == host_identity()

    def begin(self, client: PartitionClient) -> None:
        """Open the store of the job at the servers of own parts.

        Raises:
            ProtocolError: other clients have a job of this name, or servers have too many jobs.
        """
        assert self.sender is not None
        own = [incarnation_of(self._remote.secret), incarnation_of(self.sender.token)]
        self.members.publish(f"{self.name}/tokens", own)
        gathered = self.members.all_gather(f"{self.name}/tokens", "make the store")
        members = [
            JobMember(rank, *secrets)
            for rank, secrets in zip(self.members.ranks, gathered, strict=True)
        ]
        end = time.monotonic() + _EARLIER_JOB
        for part in self.own_parts:
            while True:
                ticket = client.write(part, OpenStore(self.sender, members))
                client.wait([ticket])
                try:
                    ticket.result()
                    break
                except ProtocolError:  # an earlier job, whose end servers notice in a moment
                    if time.monotonic() > end:
                        raise
                    time.sleep(_EARLIER_LOOK)

    def original_ids(
        self, client: PartitionClient, spec: TensorSpec, part: int, positions: Int64Array
    ) -> Int64Array:
        meta, index = self.graph.meta, spec.type_index
        if spec.element == "node":
            name = meta.node_types[index].name
            return self.graph.to_original_ids(positions, name, LOST_SECONDS)
        return fetched_rows(client, meta, part, "edge", index, "edge_id", positions)

    def part(self, client: PartitionClient, index: int) -> ServedPart:
        return ServedPart(self.graph.meta, index, client)

    def close(self, client: PartitionClient) -> None:
        """Notify all servers that this client leaves the store. Takes a second at most."""
        assert self.sender is not None
        with contextlib.suppress(Exception):  # their leases end without it
            tickets = [client.write(part, CloseStore(self.sender)) for part in self._servers]
            end = time.monotonic() + _CLOSING_SECONDS
            while not all(ticket.done for ticket in tickets) and time.monotonic() < end:
                client.poller.poll(50)
                client.pump()
        self.members.close()


def checked_job(job: str | None, context: DistContext) -> str:
    """Return the name of a job. If `job` is None, the name of the clients' group."""
    name = context.group_name if job is None else job
    if not 0 < len(name) <= 128 or not name.isprintable():
        raise ValueError(f"job must be 1 to 128 printable characters (got {job!r:.200})")
    return name


def primaries(table: Table) -> dict[int, tuple[int, ServerEntry]]:
    """Return rank and entry of the server with the state of each partition."""
    ranks = {part: table.primary(part) for part in range(table.num_parts)}
    return {p: (rank, table.servers[rank]) for p, rank in ranks.items() if rank is not None}


def _checked(clients: Sequence[int] | None, own: int, num_clients: int) -> list[int]:
    """Return the ranks of a job's clients. ValueError if they are not possible."""
    if clients is None:
        if num_clients == 0:
            raise ValueError(
                "where clients come and go (num_clients=0), name the ranks of those that make the "
                "store together: GraphStore(None, clients=[0, 1])"
            )
        return list(range(num_clients))
    ranks = [int(rank) for rank in clients]
    in_range = all(0 <= rank < (num_clients or rank + 1) for rank in ranks)
    if sorted(set(ranks)) != ranks or own not in ranks or not in_range:
        raise ValueError(
            f"clients must be ascending ranks with this client's, {own} (got {list(clients)} of "
            f"{num_clients or 'any number of'} clients)"
        )
    return ranks
