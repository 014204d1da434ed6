"""The task `Sections` with two DDP trainers.

With PyG's loader, each trainer has the whole graph. With khop's loader, each trainer has a
partition, and the loader requests missing rows from the partition of the other trainer.
"""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.loader import NodeLoader

from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    init_worker_group,
    node_split,
    shutdown_worker_group,
)
from khop.partition import partition_graph
from khop_bench.loss_tasks import Sections, train_epoch
from khop_bench.plain_sampler import pyg_sampler

TRAINERS = 2


def train_over_partitions(library: str, seed: int, epochs: int) -> list[tuple[float, float]]:
    """Train with two trainers. Return the first one's curve, with mean losses of both."""
    with tempfile.TemporaryDirectory() as folder:
        if library == "khop":
            partition_graph(
                Sections().data, f"{folder}/parts", TRAINERS, method="stream", seed=seed
            )
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        spawn(  # type: ignore[no-untyped-call]
            _trainer, (library, seed, epochs, folder, address), nprocs=TRAINERS
        )
        curve: list[tuple[float, float]] = torch.load(f"{folder}/curve.pt")
    return curve


def _trainer(
    rank: int, library: str, seed: int, epochs: int, folder: str, address: dict[str, str]
) -> None:
    size = {"RANK": str(rank), "WORLD_SIZE": str(TRAINERS), "LOCAL_RANK": str(rank)}
    os.environ.update(address, **size, LOCAL_WORLD_SIZE=str(TRAINERS))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    task = Sections()
    model = task.model()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(parallel.parameters(), lr=task.lr)
    torch.manual_seed(TRAINERS * seed + rank)
    loader = (
        _khop_loader(task, rank, seed, folder) if library == "khop" else _pyg_loader(task, rank)
    )
    curve = []
    for _ in range(epochs):
        mean = torch.tensor(train_epoch(task, parallel, loader, optimizer))
        dist.all_reduce(mean)
        model.eval()
        with torch.no_grad():
            score = task.score(model) if rank == 0 else 0.0
        curve.append((float(mean) / TRAINERS, score))
    if rank == 0:
        torch.save(curve, Path(folder) / "curve.pt")
    if library == "khop":
        loader.shutdown()
        shutdown_worker_group()
    dist.destroy_process_group()


def _pyg_loader(task: Sections, rank: int) -> Any:
    """Return PyG's loader over every other training package, of equal length on both trainers."""
    seeds = task.data.train_mask.nonzero().flatten()[rank::TRAINERS]
    seeds = seeds[: int(task.data.train_mask.sum()) // TRAINERS]
    sampler = pyg_sampler(task.data, list(task.fan_outs))
    return NodeLoader(
        task.data, sampler, seeds, batch_size=task.batch_size // TRAINERS, shuffle=True
    )


def _khop_loader(task: Sections, rank: int, seed: int, folder: str) -> Any:
    init_worker_group()
    dataset = DistDataset().load(f"{folder}/parts", partition_idx=rank)
    return DistNeighborLoader(
        dataset,
        task.fan_outs,
        node_split("train_mask", dataset),
        batch_size=task.batch_size // TRAINERS,
        shuffle=True,
        with_edge=False,
        collect_features=True,
        seed=seed,
        worker_options=MpDistSamplingWorkerOptions(num_workers=1),
    )
