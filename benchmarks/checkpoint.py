"""A checkpoint of a graph store beside a bare sequential write and read of the same bytes.

    python benchmarks/checkpoint.py                  # 1 GB, two parts, restored under three
    python benchmarks/checkpoint.py --torch          # by torch.distributed.checkpoint

Trainers have a partition each. Rows are 128 float32. The bare loop has one process, which writes
pieces of 8 MiB past the page cache and ends with fsync, or reads them. The loop through the page
cache is shown, too. Cases take turns. Ratios are medians over turns: the faster loop's rate is 1.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from khop import partition_graph
from khop.distributed import DistDataset, GraphStore, init_worker_group

WIDTH = 128
PIECE = 8 << 20


def child(arguments: argparse.Namespace) -> None:
    """Be a trainer: save, or load and compare. Print the seconds."""
    torch.set_num_threads(1)
    context = init_worker_group()
    if arguments.torch:
        torch.distributed.init_process_group("gloo")
    dataset = DistDataset().load(Path(arguments.folder) / f"{context.world_size}", context.rank)
    with GraphStore(dataset) as store:
        rows = store.create_node_tensor("rows", shape=(WIDTH,))
        own = range(context.rank << 16, len(rows), context.world_size << 16)
        wanted = {first: torch.arange(first, min(first + (1 << 16), len(rows))) for first in own}
        if arguments.case == "save":
            for ids in wanted.values():
                rows.push(ids, ids.float()[:, None].expand(-1, WIDTH), relaxed=True)
        store.step()
        path, began = Path(arguments.folder) / "saved", time.perf_counter()
        if arguments.torch:
            import torch.distributed.checkpoint as dcp

            getattr(dcp, arguments.case)({"store": store}, checkpoint_id=path)
        else:
            getattr(store, arguments.case)(path)
        seconds = time.perf_counter() - began
        for ids in wanted.values():
            assert torch.equal(rows.pull(ids), ids.float()[:, None].expand(-1, WIDTH))
    print(json.dumps(seconds))


def run(arguments: argparse.Namespace, case: str, trainers: int) -> float:
    """Run trainers, and return the seconds of the slowest."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--case", case, "--folder", arguments.folder]
    command += ["--torch"] if arguments.torch else []
    started = []
    for rank in range(trainers):
        job = {"RANK": rank, "WORLD_SIZE": trainers, "LOCAL_RANK": rank, "MASTER_PORT": port}
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1"}
        environment |= {name: str(value) for name, value in job.items()}
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"a trainer has failed in '{case}'")
    return max(json.loads(output.splitlines()[-1]) for output in outputs)


def bare(file: Path, nbytes: int, writes: bool, direct: bool) -> float:
    """Write or read a file from begin to end, and return the seconds."""
    memory = mmap.mmap(-1, PIECE)
    memory.write(np.random.default_rng(0).bytes(PIECE))
    flags = os.O_RDWR | os.O_CREAT | (os.O_DIRECT if direct else 0)
    if writes:
        file.unlink(missing_ok=True)
    descriptor = os.open(file, flags)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    began = time.perf_counter()
    if writes:
        os.posix_fallocate(descriptor, 0, nbytes)
    for first in range(0, nbytes, PIECE):
        if writes:
            os.pwrite(descriptor, memory, first)
        else:
            os.preadv(descriptor, [memory], first)
    if writes:
        os.fsync(descriptor)
    seconds = time.perf_counter() - began
    os.close(descriptor)
    return seconds


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--torch", action="store_true", help="by torch.distributed.checkpoint")
    parser.add_argument("--folder", default="/var/tmp")
    parser.add_argument("--case", default="")
    arguments = parser.parse_args()
    if arguments.case:
        child(arguments)
        return
    nodes = int(arguments.gb * 1e9) // (4 * WIDTH)
    nbytes = nodes * (4 * WIDTH + 8)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        arguments.folder = folder
        graph = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=nodes)
        for parts in (2, 3):
            partition_graph(graph, Path(folder) / str(parts), parts)
        times: dict[str, list[list[float]]] = {"save": [], "load": []}
        file = Path(folder) / "bare"
        for _ in range(arguments.turns):
            for case, trainers in (("save", 2), ("load", 3)):
                loops = [bare(file, nbytes, case == "save", direct) for direct in (True, False)]
                times[case].append([run(arguments, case, trainers), *loops])
            shutil.rmtree(Path(folder) / "saved")
    print("| case | MB/s | bare, MB/s | bare by the page cache, MB/s | faster bare = 1 |")
    print("|---|---|---|---|---|")
    for case, measured in times.items():
        seconds = np.array(measured)
        ratio = np.median(seconds[:, 1:].min(1) / seconds[:, 0])
        rates = " | ".join(f"{nbytes / s / 1e6:.0f}" for s in np.median(seconds, 0))
        print(f"| {case} | {rates} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
