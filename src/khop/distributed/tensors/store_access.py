"""Access of a store's trainers to their graph, their servers and one another. Runs in trainers.

A `GraphStore` works over two kinds of servers. Trainers that load partitions run the servers
themselves (`TrainerAccess`). Clients use graph servers
(`khop.distributed.remote.client.served_access`).
"""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from khop.data import Feature, RowStore
from khop.distributed.dataset import DistDataset, check_dataset
from khop.distributed.graph import PartitionedGraph
from khop.distributed.job.context import get_context
from khop.distributed.membership.members import Membership
from khop.distributed.partitions.service import PartitionService
from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.tensors.tensor_requests import Sender, TensorSpec
from khop.storage.folder import FolderMeta
from khop.storage.part import Part
from khop.typing import Int64Array, IntArray

LOST_SECONDS = 3.0
"""Seconds after which a server whose connection is lost counts as ended, with its tensors."""

# The same for a server that this process has not reached yet.
_STARTING_SECONDS = 20.0

REQUESTS = "khop.distributed.tensors.shard"
"""Module of the requests to tensors, for `users_requests`."""


class StoredPart(Protocol):
    """Structure and attributes of a part, as propagation reads them. `Part` is one."""

    meta: FolderMeta

    def rows(self, index: int) -> tuple[IntArray, Any]:
        """Return row pointers, and what gives slices of the neighbours."""

    def edge_feature(self, index: int, name: str) -> RowStore:
        """Return the rows of an edge attribute."""


class ReadAccess(abc.ABC):
    """Access of a process that reads a store's tensors. Can be pickled for another process.

    Attributes:
        graph: the graph.
        sender: sender of the requests. If None, servers have one store.
    """

    graph: PartitionedGraph
    sender: Sender | None = None

    @property
    @abc.abstractmethod
    def endpoints(self) -> dict[int, Endpoint]:
        """Endpoints of the primaries, by partition."""

    @property
    @abc.abstractmethod
    def credentials(self) -> KeyPair | None:
        """Keys for connections to the primaries. None: without CURVE."""

    def client(self, timeout: float) -> PartitionClient:
        """Connect to the primaries of all partitions.

        A server whose connection is lost for three seconds counts as ended, with its tensors.

        Args:
            timeout: seconds that a request may take.
        """
        client = PartitionClient(self.endpoints, self.credentials, timeout)
        client.on_lost = lambda part, since: self.give_up_if_lost(client, part, since)
        return client

    def give_up_if_lost(self, client: PartitionClient, part: int, since: float) -> None:
        """Fail the requests to a server that has ended. `since`: when its connection was lost."""
        seconds, limit = time.monotonic() - since, _STARTING_SECONDS
        if part in client.lost():
            limit = LOST_SECONDS
        if seconds > limit:
            why = f"is lost: {self.server_of(part)} is unreachable for {seconds:.0f} s"
            client.give_up(part, why)

    @abc.abstractmethod
    def server_of(self, part: int) -> str:
        """Return a name of the server of a partition, for errors."""

    @abc.abstractmethod
    def positions(self, client: PartitionClient, spec: TensorSpec, ids: Int64Array) -> Int64Array:
        """Return the positions of rows in the folder's order, by original ids."""

    def close(self, client: PartitionClient) -> None:  # noqa: B027
        """End the access. `client` is still open."""


class StoreAccess(ReadAccess):
    """Access of a trainer of a store: also to the other trainers.

    Attributes:
        rank: rank of this trainer in the store.
        members: membership in the group of these trainers.
        name: name of the store, unique in the group.
        own_parts: partitions for which this trainer ends steps, and computes.
    """

    rank: int
    members: Membership
    name: str
    own_parts: list[int]

    @property
    def num_trainers(self) -> int:
        """Number of trainers of the store."""
        return len(self.members.ranks)

    @abc.abstractmethod
    def for_readers(self) -> ReadAccess:
        """Return the access of a process that only reads."""

    @abc.abstractmethod
    def is_near(self, part: int) -> bool:
        """Return True if the primary of a partition runs on this host."""

    def begin(self, client: PartitionClient) -> None:
        """Open the store at the servers of own parts. All trainers call it together."""

    def check(self, client: PartitionClient) -> None:
        """Give up servers that have ended, so that `client.ended()` has them."""

    def connect_to_edges(self) -> None:
        """Make the connections that positions of edges need. All trainers call it together."""

    @abc.abstractmethod
    def original_ids(
        self, client: PartitionClient, spec: TensorSpec, part: int, positions: Int64Array
    ) -> Int64Array:
        """Return the original ids of rows of an own part, by their positions in the folder."""

    @abc.abstractmethod
    def part(self, client: PartitionClient, index: int) -> StoredPart:
        """Return an own part, opened."""


@runtime_checkable
class HasStoreAccess(Protocol):
    """Context of a process that is a client of graph servers."""

    def store_access(self, job: str | None, clients: Sequence[int] | None) -> StoreAccess:
        """Return this client's access to the store of a job."""

    def store_reads(self, job: str | None) -> ReadAccess:
        """Return this client's access to the tensors of a job, for reading."""


class FolderReads(ReadAccess):
    """Access of a process of a trainer's machine to the tensors, for reading.

    Args:
        dataset: the trainer's dataset.
        endpoints, credentials: of the primaries.
    """

    def __init__(
        self, dataset: DistDataset, endpoints: dict[int, Endpoint], credentials: KeyPair | None
    ) -> None:
        self.graph = self._dataset = dataset
        self._endpoints, self._credentials = endpoints, credentials

    @property
    def endpoints(self) -> dict[int, Endpoint]:
        return self._endpoints

    @property
    def credentials(self) -> KeyPair | None:
        return self._credentials

    def server_of(self, part: int) -> str:
        return f"the server of partition {part}"

    def positions(self, client: PartitionClient, spec: TensorSpec, ids: Int64Array) -> Int64Array:
        return stored_positions(self._dataset, spec, ids)


class TrainerAccess(StoreAccess):
    """Access of a trainer that loads a partition. Trainers run the servers."""

    def __init__(self, dataset: DistDataset) -> None:
        context = dataset.context
        self.graph = self._dataset = dataset
        self.rank, self.members = context.rank, context.members
        self.service = PartitionService(
            context, dataset.opened, dataset.partition_idx, dataset.parts, [REQUESTS]
        )
        parts = range(dataset.num_partitions)
        self.own_parts = [p for p in parts if self.service.primary(p) == context.rank]
        self.name = context.next_name("store")
        self._new_ids: dict[int, Feature] = {}  # of each node type, by original ids

    def client(self, timeout: float) -> PartitionClient:
        return self.service.state_client(timeout)

    @property
    def endpoints(self) -> dict[int, Endpoint]:
        return self.service.primaries()

    @property
    def credentials(self) -> KeyPair | None:
        return self.service.credentials

    def for_readers(self) -> FolderReads:
        return FolderReads(self._dataset, self.endpoints, self.credentials)

    def server_of(self, part: int) -> str:
        return f"the server of partition {part}, which trainer {self.service.primary(part)} ran,"

    def is_near(self, part: int) -> bool:
        return self.service.is_near(part)

    def connect_to_edges(self) -> None:
        if self._dataset.num_partitions > 1:
            self._dataset.peers()

    def positions(self, client: PartitionClient, spec: TensorSpec, ids: Int64Array) -> Int64Array:
        if spec.element == "edge":
            return stored_positions(self._dataset, spec, ids)
        if spec.type_index not in self._new_ids:
            name = self._dataset.meta.node_types[spec.type_index].name
            self._new_ids[spec.type_index] = Feature(self._dataset.opened.id_map(name))
        return self._new_ids[spec.type_index].gather(ids).astype(np.int64, copy=False)

    def original_ids(
        self, client: PartitionClient, spec: TensorSpec, part: int, positions: Int64Array
    ) -> Int64Array:
        name = "id" if spec.element == "node" else "edge_id"
        feature = self.part(client, part).feature(spec.element, spec.type_index, name)
        first = self._dataset.meta.types(spec.element)[spec.type_index].bounds[part]
        return feature.gather(positions - first).astype(np.int64)

    def part(self, client: PartitionClient, index: int) -> Part:
        return Part(self._dataset.opened, index)


def stored_positions(dataset: DistDataset, spec: TensorSpec, ids: Int64Array) -> Int64Array:
    """Return the positions of rows in the order of a trainer's folder, by original ids."""
    if spec.element == "node":
        return dataset._new_ids_of(ids, dataset.meta.node_types[spec.type_index].name)
    return dataset.reader.positions(spec.type_index, ids, dataset.peers)


def access_of(
    dataset: DistDataset | None, job: str | None, clients: Sequence[int] | None
) -> StoreAccess:
    """Return the access of a process to a store.

    Args:
        dataset: dataset of a trainer, or None of a client.
        job: name of a client's job.
        clients: ranks of the job's clients.

    Raises:
        TypeError: neither a `DistDataset`, nor None in a client.
        ValueError: a trainer passes `job` or `clients`.
    """
    context: object = get_context()
    if dataset is None and isinstance(context, HasStoreAccess):
        return context.store_access(job, clients)
    if dataset is None:
        raise TypeError("without a dataset, this process must be a client: call init_client first")
    if job is not None or clients is not None:
        raise ValueError("job and clients are for clients of graph servers: leave them out")
    return TrainerAccess(check_dataset(dataset, "dataset"))
