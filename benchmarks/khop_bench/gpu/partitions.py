"""Partitions that the trainers' devices draw together: equality, calls, bytes and times.

    python -m khop_bench.gpu.partitions --device cuda --trainers 2 --scale 0.2
    python -m khop_bench.gpu.partitions --device emulated --trainers 2 --scale 0.01

Trainer r uses GPU r and NCCL. With fewer GPUs than trainers, all use the first one, and rows go
over the host by gloo: NCCL refuses several trainers of one GPU. Each trainer compares its batches
with the CPU's. Then loaders take turns: devices draw, or the CPU draws with the same calls and
copies batches to the device. Bytes are of one trainer and batch, and `attributes` of the rows of
other partitions alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from khop.datasets import PowerLaw
from khop.distributed import DistDataset, DistNeighborLoader
from khop.partition import RandomPartitioner
from khop_bench.gpu.trainers import run_trainers
from khop_bench.settings import FANOUTS

_COMPARED, _TURNS, _BATCHES = 3, 3, 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trainers, or as one of them. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", choices=("cuda", "emulated"))
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--scale", type=float, default=0.1, help="of the products-shaped graph")
    parser.add_argument("--cache", type=Path, help="not used")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if "RANK" in os.environ:
        print(json.dumps(_train(options.device, options.folder, options.scale)))
        return 0
    with tempfile.TemporaryDirectory(prefix="khop-partitions-") as temporary:
        folder = Path(temporary) / "parts"
        data = PowerLaw.products(options.scale).data()
        RandomPartitioner.from_data(data, folder, options.trainers).partition()
        words = ["--device", options.device, "--scale", str(options.scale)]
        results = run_trainers("partitions", options.trainers, [*words, "--folder", str(folder)])
    print(json.dumps(results, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1))
    return int(any(result["batches that differ"] for result in results))


def _train(device: str, folder: Path, scale: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    gpus = torch.cuda.device_count() if device == "cuda" else 0
    backend = "nccl" if gpus >= size else "gloo"
    name = f"emulated:{rank}" if device == "emulated" else f"cuda:{rank if gpus >= size else 0}"
    if device == "cuda":
        torch.cuda.set_device(torch.device(name))
    group = dist.new_group(backend="nccl") if backend == "nccl" else None
    modes: dict[str, dict[str, Any]] = {
        "device draws": {"graph_mode": "CUDA", "feature_with_gpu": True},
        "CPU draws": {"graph_mode": "CPU"},
    }
    common: dict[str, Any] = {
        **{"batch_size": max(8, round(1024 * scale)), "shuffle": True, "seed": 3},
        "collect_features": True,
    }
    exchange: dict[str, Any] = {"exchange": "all_to_all", "exchange_group": group, "device": name}
    loaders, twin = {}, None
    for mode, load in modes.items():
        dataset = DistDataset().load(folder, rank, same_host_reads=False, **load)
        loaders[mode] = DistNeighborLoader(dataset, FANOUTS, "train_mask", **common, **exchange)
    dataset = DistDataset().load(folder, rank, same_host_reads=True)
    twin = DistNeighborLoader(dataset, FANOUTS, "train_mask", **common)
    drawn = loaders["device draws"]
    different = sum(
        _differ(batch, expected)
        for _, batch, expected in zip(range(_COMPARED), drawn, twin, strict=False)
    )
    dist.barrier()
    results: dict[str, Any] = {"name": name, "backend": backend, "trainers": size}
    results |= {"batch size": common["batch_size"], "batches that differ": different}
    results |= _traffic(drawn)
    times: dict[str, list[float]] = {mode: [] for mode in loaders}
    for _ in range(_TURNS):
        for mode, loader in loaders.items():
            times[mode].append(_milliseconds(loader, device))
    results["ms per batch"] = {mode: min(of_mode) for mode, of_mode in times.items()}
    ratios = [a / b for a, b in zip(*times.values(), strict=True)]
    results["ratio"] = statistics.median(ratios)
    for loader in loaders.values():
        loader.shutdown()
    dist.barrier()
    dist.destroy_process_group()
    return results


def _differ(batch: Any, expected: Any) -> bool:
    batch = batch.clone().to("cpu")
    return any(
        not torch.equal(batch[key], value)
        for key, value in expected.items()
        if isinstance(value, torch.Tensor)
    ) or set(batch.keys()) != set(expected.keys())


def _traffic(loader: Any) -> dict[str, Any]:
    """Return calls and bytes of one batch of the loader's epochs."""
    exchange = loader._backend._exchange
    before = exchange.num_calls, exchange.bytes_received
    loader.reset_stats()
    count = sum(1 for _, _ in zip(range(_BATCHES), loader, strict=False))
    calls, received = exchange.num_calls - before[0], exchange.bytes_received - before[1]
    row_bytes = sum(attr.row_bytes for attr in loader.data.meta.node_types[0].attrs.values())
    attributes = loader.stats().rows["remote"] * row_bytes
    per_batch = {"calls": calls, "MB received": received / 1e6, "attributes, MB": attributes / 1e6}
    return {name: value / count for name, value in per_batch.items()}


def _milliseconds(loader: Any, device: str) -> float:
    """Return the time of a batch, without the first one."""
    with contextlib.closing(iter(loader)) as batches:
        next(batches)
        began = time.perf_counter()
        for _ in range(_BATCHES):
            next(batches)
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / _BATCHES * 1e3


if __name__ == "__main__":
    sys.exit(main())
