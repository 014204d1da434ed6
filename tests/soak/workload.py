"""Workload of a soak: a graph, its folder, each trainer's seeds, and the expected batches."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from khop.partition import RandomPartitioner

_TENSORS = ("n_id", "e_id", "edge_index", "x", "y", "edge_attr", "input_id")


@dataclass(frozen=True)
class Workload:
    """A cycle of epochs that trainers repeat until they are stopped.

    Attributes:
        num_nodes: nodes of the graph, whose feature rows are random.
        num_edges: edges, whose ends are drawn at random. A tenth of the nodes has none.
        num_features: float32 features per node.
        fanouts: fan-out of each hop.
        num_seeds: seeds of each trainer.
        batch_size: seeds per batch.
        num_epochs: epochs of a cycle. At its end the loader is shut down and a new one made.
        seed: seed of the graph, the seeds and the draws.
    """

    num_nodes: int = 20_000
    num_edges: int = 200_000
    num_features: int = 32
    fanouts: tuple[int, ...] = (10, 5)
    num_seeds: int = 8_000
    batch_size: int = 128
    num_epochs: int = 3
    seed: int = 7

    @property
    def num_batches(self) -> int:
        """Batches per epoch."""
        return -(-self.num_seeds // self.batch_size)

    def graph(self) -> Data:
        """Make the whole graph."""
        generator = torch.Generator().manual_seed(self.seed)
        ends = torch.randint(self.num_nodes * 9 // 10, (2, self.num_edges), generator=generator)
        return Data(
            x=torch.randn(self.num_nodes, self.num_features, generator=generator),
            y=torch.arange(self.num_nodes) % 47,
            edge_index=ends,
            edge_attr=torch.arange(self.num_edges, dtype=torch.float32).view(-1, 1),
        )

    def seeds(self, stream: int) -> Tensor:
        """Draw [num_seeds] int64 seeds of a trainer, identified by its stream."""
        generator = torch.Generator().manual_seed(self.seed + 1 + stream)
        return torch.randperm(self.num_nodes, generator=generator)[: self.num_seeds]

    def options(self, stream: int) -> dict[str, Any]:
        """Return the keywords that all loaders of a trainer share, also the in-memory loader."""
        return {
            "num_neighbors": list(self.fanouts),
            "input_nodes": self.seeds(stream),
            "batch_size": self.batch_size,
            "shuffle": True,
            "seed": self.seed,
            "stream": stream,
        }

    def write(self, folder: Path, num_parts: int) -> None:
        """Partition the graph into a folder."""
        RandomPartitioner.from_data(self.graph(), folder, num_parts).partition()

    def expected(self, stream: int) -> list[list[int]]:
        """Compute the checksums of a trainer's batches, by epoch, with the in-memory loader."""
        from khop.loader import NeighborLoader

        loader = NeighborLoader(self.graph(), **self.options(stream))
        return [[checksum(batch) for batch in loader] for _ in range(self.num_epochs)]


def checksum(batch: Data) -> int:
    """Compute the CRC-32 of a batch: all its tensors' bytes, and the numbers drawn in each hop."""
    value = 0
    for piece in _pieces(batch):
        value = zlib.crc32(piece, value)
    return value


def _pieces(batch: Data) -> Iterator[Any]:
    for name in _TENSORS:
        array = batch[name].contiguous().numpy()
        yield f"{name} {array.dtype} {array.shape}".encode()
        yield array.reshape(-1).view("uint8")
    yield repr((batch.batch_size, batch.num_sampled_nodes, batch.num_sampled_edges)).encode()
