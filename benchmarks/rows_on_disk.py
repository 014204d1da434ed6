"""Embeddings whose rows and Adagrad's sums are on disk, beside the same in memory.

    python benchmarks/rows_on_disk.py               # 4 M x 64 float32, some minutes, as root
    python benchmarks/rows_on_disk.py --nodes 20000000 --memory 4.0

One trainer serves two partitions. Trainer and servers run in a memory cgroup (version 1), with
`--memory` GB for all of them. Ids have Zipf's law with exponent 1, in random order. Cases take
turns. The floor is the slower of the case in memory and the disk: the blocks that the servers read
and wrote in the same steps, counted by the kernel, at the rate of a bare loop that reads and writes
as many single blocks at random.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from khop import partition_graph
from khop.data import RowFormat
from khop.distributed import DistDataset, GraphStore
from khop.distributed.tensors.disk_rows import FOLDER_VARIABLE, DiskRows
from khop.nn import DistEmbedding
from khop.optim import SparseAdagrad

CGROUPS = Path("/sys/fs/cgroup/memory")
READ, WRITTEN = 4096, 512  # bytes that a block of 512 bytes takes of the kernel's counters


def zipf(rng: np.random.Generator, nodes: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Draw ids whose frequencies fall as 1 / rank. A rank's id is far from the next rank's."""
    ranks = np.minimum(np.exp(rng.random(count) * np.log(nodes)).astype(np.int64), nodes - 1)
    return ranks * 2_654_435_761 % nodes


def blocks_of(processes: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the blocks that processes have read and written so far."""
    total = np.zeros(2)
    for process in processes:
        lines = Path(f"/proc/{process}/io").read_text().split()
        total += int(lines[lines.index("read_bytes:") + 1]) / READ, 0
        total += 0, int(lines[lines.index("write_bytes:") + 1]) / WRITTEN
    return total


def child(options: argparse.Namespace) -> None:
    """Train, and print the seconds and blocks of a step."""
    (Path(options.cgroup) / "cgroup.procs").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    store = GraphStore(DistDataset().load(Path(options.folder) / "parts", 0, also_serve=[1]))
    cache = int(options.memory * 1e9 * options.share / 4) if options.case == "on disk" else None
    embedding = DistEmbedding(options.nodes, 64, store, "e", on_disk=cache)
    optimizer = SparseAdagrad([embedding], lr=0.1)
    servers = store._client.access.service.endpoint_registry.supervisor.servers.values()
    processes = [server.process.pid for server in servers]
    rng, seconds = np.random.default_rng(0), []
    before, began = blocks_of(processes), time.monotonic()
    while len(seconds) < options.steps or time.monotonic() - began < options.warm:
        if seconds and time.monotonic() - began < options.warm:
            seconds, before = [], blocks_of(processes)
        ids = torch.from_numpy(zipf(rng, options.nodes, options.ids))
        start = time.perf_counter()
        (embedding(ids) - 1).square().sum().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    read, written = (blocks_of(processes) - before) / len(seconds)
    print(json.dumps({"seconds": np.median(seconds), "read": read, "written": written}))
    os._exit(0)  # the cgroup ends with its processes


def run(options: argparse.Namespace, case: str) -> dict[str, float]:
    """Run a case in a cgroup, and return its figures with the peak of its memory in GB."""
    path = CGROUPS / f"khop-rows-{os.getpid()}"
    path.mkdir()
    try:
        if case == "on disk":
            (path / "memory.limit_in_bytes").write_text(str(int(options.memory * 1e9)))
        command = [sys.executable, __file__, "--case", case, "--cgroup", str(path)]
        for name in ("folder", "nodes", "ids", "steps", "warm", "memory", "share"):
            command += [f"--{name}", str(getattr(options, name))]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(ended.stderr[-2000:])
        result: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
        result["peak"] = int((path / "memory.max_usage_in_bytes").read_text()) / 1e9
        return result
    finally:
        while (path / "cgroup.procs").read_text():  # servers end after their trainer
            time.sleep(0.1)
        (path / "memory.force_empty").write_text("0")
        path.rmdir()


def rate_of_disk(nodes: int) -> float:
    """Return the single blocks per second that a bare loop reads and writes, one for one."""
    rows = DiskRows(nodes // 2, RowFormat("float32", (128,)), 1 << 24)
    rng, count, done = np.random.default_rng(1), rows.most_rows, 0
    for first in range(0, len(rows), count):  # what was never written is not read
        piece = np.arange(first, min(first + count, len(rows)))
        rows.write(piece, np.ones((len(piece), 128), np.float32))
    began = time.perf_counter()
    while time.perf_counter() - began < 3:
        slots = np.arange(count)
        blocks = np.unique(rng.integers(0, len(rows), count))
        other = np.unique(rng.integers(0, len(rows), count))
        rows._exchange(blocks, slots[: len(blocks)], other, slots[: len(other)])
        done += len(blocks) + len(other)
    rate = done / (time.perf_counter() - began)
    rows.close()
    return rate


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4_000_000)
    parser.add_argument("--ids", type=int, default=20_000, help="ids of a step")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm", type=float, default=20.0, help="seconds before the steps count")
    parser.add_argument("--memory", type=float, default=1.4, help="GB of the cgroup")
    parser.add_argument("--share", type=float, default=0.5, help="of the memory, for caches")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--folder", default="")
    parser.add_argument("--case", default="")
    parser.add_argument("--cgroup", default="")
    options = parser.parse_args()
    if options.case:
        child(options)
    with tempfile.TemporaryDirectory(dir=os.environ.get(FOLDER_VARIABLE, "/var/tmp")) as folder:
        options.folder = folder
        graph = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=options.nodes)
        partition_graph(graph, Path(folder) / "parts", 2)
        print("| turn | in memory, ms | on disk, ms | blocks per step | disk, ms | ", end="")
        print("rate, floor = 1 | peak, GB |")
        print("|---|---|---|---|---|---|---|")
        for turn in range(options.turns):
            memory, rate = run(options, "in memory"), rate_of_disk(options.nodes)
            disk = run(options, "on disk")
            blocks = disk["read"] + disk["written"]
            floor = max(memory["seconds"], blocks / rate)
            print(
                f"| {turn} | {1e3 * memory['seconds']:.1f} | {1e3 * disk['seconds']:.1f} ", end=""
            )
            print(f"| {blocks:.0f} | {1e3 * blocks / rate:.1f} ", end="")
            print(f"| {floor / disk['seconds']:.2f} | {disk['peak']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
