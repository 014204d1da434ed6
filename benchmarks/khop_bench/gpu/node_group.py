"""A table that the GPUs of several trainers hold together: equality, counts and rates.

    python -m khop_bench.gpu.node_group --device cuda --trainers 2 --output FILE

Trainer r uses GPU r, or the only one there is, whose handles other processes open as well. Each
gathers rows of its own memory, of peers' and of the host's, compares them with NumPy's, and
measures the rates, which `khop.data.row_division.Rates` assumes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from khop import _native
from khop.data import Feature
from khop.data.device_feature import DeviceFeature
from khop.data.node_rows import NodeGroup
from khop.data.row_division import Rates
from khop.distributed import init_worker_group, shutdown_worker_group
from khop.sampler.pyg.device import TorchDevice
from khop_bench.gpu.trainers import run_trainers

WIDTH = 100
ROW_BYTES = 4 * WIDTH
_REPLICATED_SHARE = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trainers, or as one of them. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", choices=("cuda", "emulated"))
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the table")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    if "RANK" in os.environ:
        print(json.dumps(_train(options.device, options.rows)))
        return 0
    words = ["--device", options.device, "--rows", str(options.rows)]
    results = run_trainers("node_group", options.trainers, words)
    print(json.dumps(results, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1))
    return 0


def _train(device: str, num_rows: int) -> dict[str, Any]:
    context = init_worker_group()
    if device == "cuda":
        device = f"cuda:{context.rank % _native.cuda_status()['devices']}"
        torch.cuda.set_device(torch.device(device))
    gpu = TorchDevice(device)
    array = np.random.default_rng(0).standard_normal((num_rows, WIDTH), np.float32)
    heat = np.arange(num_rows, 0.0, -1.0) ** 40  # so that the plan has rows in all memories
    budget = int(num_rows * (4 + _REPLICATED_SHARE * ROW_BYTES))
    feature = DeviceFeature(
        Feature(array), gpu.native, budget=budget, hotness=heat, group=NodeGroup()
    )
    results: dict[str, Any] = {"name": device, "shards": feature.shards._asdict()}
    results["assumed, GB/s"] = Rates()._asdict()
    for memory, rows in _rows_by_memory(feature, context.rank, num_rows).items():
        if len(rows):
            results[memory] = _gather(gpu, feature, array, rows, memory)
    del feature
    shutdown_worker_group()
    return results


def _rows_by_memory(
    feature: DeviceFeature, rank: int, num_rows: int
) -> dict[str, npt.NDArray[np.int64]]:
    """Return ids of rows, many times each, by the memory that this trainer reads them from."""
    shards, hot = feature.shards, feature.hot_rows
    hot = np.arange(num_rows) if hot is None else hot
    positions = np.arange(len(hot))
    owners = (positions - shards.replicated) % len(shards.device_bytes)
    is_own = (positions < shards.replicated) | (owners == rank)
    rows = {"device": hot[is_own], "peer": hot[~is_own], "host": np.setdiff1d(range(num_rows), hot)}
    rng, count = np.random.default_rng(rank), min(num_rows, 400_000)
    return {memory: rng.choice(ids, count) if len(ids) else ids for memory, ids in rows.items()}


def _gather(
    gpu: TorchDevice,
    feature: DeviceFeature,
    array: npt.NDArray[np.float32],
    rows: npt.NDArray[np.int64],
    memory: str,
) -> dict[str, Any]:
    """Gather rows several times. Return the rate, and whether rows and counts are right."""
    feature.reset_served()
    with gpu.scope():
        ids = torch.from_numpy(rows).to(gpu.torch_device)
        out = gpu.empty((len(rows), WIDTH), torch.float32)
        feature.gather(ids, out)
        equal = bool((out.cpu().numpy() == array[rows]).all())
        device, host = feature.served
        peers, times = feature.served_by_peers, []
        for _ in range(5):
            gpu.native.synchronize()
            began = time.perf_counter()
            feature.gather(ids, out, wait=False)
            gpu.native.synchronize()
            times.append(time.perf_counter() - began)
    served = {"device": device - peers, "peer": peers, "host": host}
    if not equal or served[memory] != len(rows):
        raise RuntimeError(f"rows from memory '{memory}' are wrong: {equal=}, {served=}")
    return {"rows": len(rows), "GB/s": len(rows) * ROW_BYTES / min(times) / 1e9}


if __name__ == "__main__":
    sys.exit(main())
