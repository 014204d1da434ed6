"""GLT's `DistFeature`: feature rows of all trainers, read by id."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from khop.distributed.dataset import DistDataset
from khop.glt.arguments import by_type
from khop.glt.data import Feature
from khop.glt.distributed.job import all_gather, get_context
from khop.glt.partition.books import Book, owners_of
from khop.glt.partition.part_writer import EdgePart, GraphPart, NodePart
from khop.glt.partition.parts import FEATURES
from khop.glt.typing import Device, EdgeType, NodeType, as_str
from khop.typing import NODE

PartialFeature: TypeAlias = tuple[Tensor, Tensor]
"""Rows, and the positions of their ids among the requested ids."""


class RpcDataPartitionRouter:
    """Round-robin choice among the trainers that have a partition.

    Args:
        partition2workers: names of each partition's trainers (`rpc_sync_data_partitions`).

    Raises:
        ValueError: a partition has no trainer.

    Example:
        >>> router = RpcDataPartitionRouter([["trainer-0"], ["trainer-1", "trainer-2"]])
        >>> router.get_to_worker(1), router.get_to_worker(1)
        ('trainer-1', 'trainer-2')
    """

    def __init__(self, partition2workers: list[list[str]]) -> None:
        for partition, workers in enumerate(partition2workers):
            if not workers:
                raise ValueError(f"partition {partition} is no trainer's")
        self.partition2workers = partition2workers
        self._turns = [itertools.cycle(workers) for workers in partition2workers]

    def get_to_worker(self, data_partition_idx: int) -> str:
        """Return the name of a trainer that has a partition. Its trainers are returned in turn."""
        return next(self._turns[data_partition_idx])


def rpc_sync_data_partitions(
    num_data_partitions: int, current_partition_idx: int
) -> list[list[str]]:
    """Return the names of the trainers that have each partition. All trainers must call it.

    Args:
        num_data_partitions: number of partitions, the same for all.
        current_partition_idx: partition of this trainer.

    Raises:
        ValueError: trainers pass different numbers, or a partition does not exist.
    """
    partitions: list[list[str]] = [[] for _ in range(num_data_partitions)]
    for name, (count, own) in all_gather([num_data_partitions, current_partition_idx]).items():
        if count != num_data_partitions or not 0 <= own < count:
            raise ValueError(f"{name} has partition {own} of {count}, here are {len(partitions)}")
        partitions[own].append(name)
    return partitions


class DistFeature:
    """Features of all partitions, read by id. Other partitions' rows come from their trainers.

    Each trainer writes its rows to its machine's temporary directory, to serve them to other
    trainers. They are removed with the object. The first lookup of other partitions' rows connects
    the trainers, so every trainer must make such a lookup.

    Args:
        num_partitions: number of partitions. Each must have a trainer.
        partition_idx: partition of this trainer.
        local_feature: rows of this partition, or {node or edge type: rows}.
        feature_pb: partition of each id, as a tensor or a book, or {type: book}.
        local_only: look up own rows only, without other trainers.
        rpc_router: accepted, not needed.
        device: device of the results. If None, the CPU.

    Raises:
        ValueError: features and books are of different types.
    """

    def __init__(
        self,
        num_partitions: int,
        partition_idx: int,
        local_feature: Feature | Mapping[NodeType | EdgeType, Feature],
        feature_pb: Book | Mapping[NodeType | EdgeType, Book],
        local_only: bool = False,
        rpc_router: RpcDataPartitionRouter | None = None,
        device: Device = None,
    ) -> None:
        del rpc_router
        self.num_partitions, self.partition_idx = num_partitions, partition_idx
        self.local_feature, self.feature_pb = local_feature, feature_pb
        has_device = device is not None and torch.cuda.is_available()
        self.device = torch.device(device if has_device and device is not None else "cpu")
        self._local: dict[Any, Feature] = by_type(local_feature, NODE)
        self._owners = {t: owners_of(book) for t, book in by_type(feature_pb, NODE).items()}
        if self._local.keys() - self._owners.keys():
            raise ValueError(
                f"features of {list(self._local)}, but books of {list(self._owners)}: give a book "
                "for each"
            )
        self._all: DistDataset | None = None
        if not local_only and num_partitions > 1:
            self._all = self._written()

    def __getitem__(self, ids: Tensor | tuple[NodeType | EdgeType, Tensor]) -> Tensor:
        """Return the rows of ids, or of (type, ids): [n, ...]."""
        return self._lookup(*ids) if isinstance(ids, tuple) else self._lookup(NODE, ids)

    def async_get(
        self, ids: Tensor, input_type: NodeType | EdgeType | None = None
    ) -> torch.futures.Future[Tensor]:
        """Look up the rows of ids (of a type) at once, and return them as a completed future."""
        answer: torch.futures.Future[Tensor] = torch.futures.Future()
        answer.set_result(self._lookup(NODE if input_type is None else input_type, ids))
        return answer

    def cpu_get(self, ids: Tensor, input_type: NodeType | EdgeType | None = None) -> Tensor:
        """Return this trainer's rows by id, [n, ...], on the CPU. IndexError if one is absent."""
        return self._local[NODE if input_type is None else input_type].cpu_get(ids)

    local_get = cpu_get

    def _lookup(self, input_type: NodeType | EdgeType, ids: Tensor) -> Tensor:
        ids = torch.as_tensor(ids, dtype=torch.int64).cpu()
        if self._all is None:
            return self._local[input_type].cpu_get(ids).to(self.device)
        rows = self._all.get_tensor(group_name=as_str(input_type), attr_name=FEATURES, index=ids)
        return torch.as_tensor(rows).to(self.device)

    def _written(self) -> DistDataset:
        """Write this trainer's rows, and return a data set with all trainers' as attributes."""
        if get_context() is None:
            raise RuntimeError("other trainers are not known: call init_worker_group first")
        part, count = self.partition_idx, self.num_partitions
        nodes = {}
        for input_type, feature in self._local.items():
            own = (self._owners[input_type] == part).nonzero().view(-1)
            owners = self._owners[input_type].numpy().astype(np.int64)
            nodes[as_str(input_type)] = NodePart(owners, {FEATURES: feature.cpu_get(own)})
        none = np.empty(0, np.int64)
        first = next(iter(nodes))
        edges = {(first, "to", first): EdgePart(none, none, none, [0] * count)}
        graph = GraphPart(part, count, "out", set(nodes) != {NODE}, nodes, edges)
        return DistDataset().load(graph.write_temporary(self), part)
