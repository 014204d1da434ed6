"""Time and memory of an epoch on power-law graphs of growing size: 100 features, 64 hidden units.

    python benchmarks/sizes.py                          # 1 M and 10 M edges, some minutes
    python benchmarks/sizes.py --edges 1e6 1e7 1e8 1e9  # up to 1 G edges: 45 GB of disk, an hour

For each size, the graph is written to files, partitioned within `--memory`, and read as one
partition. A GraphSAGE model of two layers then trains on batches of 1,024 seeds with fan-outs
10, 10. Of a long epoch `--batches` batches are trained, and the epoch's time is computed from them.

The program prints, for each size:

- the time and peak memory of partitioning
- the time of an epoch with khop from the folder, with one sampler, and the part of it in `next`
- anonymous and shared memory of trainer and sampler, without mapped files, less the memory of a
  trainer that has only imported its packages
- the same for PyG's `NeighborLoader`, if pyg-lib or torch-sparse is there and the graph takes less
  than a third of the memory

Times are seconds of one machine. The last columns are ratios: time per batch and memory, the
smallest graph being 1.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch_geometric.loader import NeighborLoader as PygNeighborLoader
from torch_geometric.nn import GraphSAGE
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from khop.datasets import PowerLaw
from khop.distributed import DistDataset, DistNeighborLoader, MpDistSamplingWorkerOptions

DEGREE, FEATURES, HIDDEN, CLASSES = 50, 100, 64, 47
FANOUTS, BATCH_SIZE, WARM_UP = [10, 10], 1024, 8


def memory_of(pids: list[int]) -> int:
    """Return the bytes of processes that are no pages of files, shared pages counted once."""
    total = 0
    for pid in pids:
        fields = dict[str, int]()
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, value = line.split()[:2]
            fields[name] = int(value) * 1024
        total += fields["Pss_Anon:"] + fields["Pss_Shmem:"]
    return total


def graph_of(edges: int) -> PowerLaw:
    """Return the graph of some number of edges."""
    nodes = edges // DEGREE
    return PowerLaw(nodes, edges, undirected=True, num_features=FEATURES, num_classes=CLASSES)


def loader_of(name: str, folder: str, edges: int) -> tuple[Any, list[int]]:
    """Return a loader of training batches, and the processes that make batches."""
    if name == "khop":
        loader = DistNeighborLoader(
            DistDataset.from_folder(folder),
            FANOUTS,
            "train_mask",
            batch_size=BATCH_SIZE,
            shuffle=True,
            worker_options=MpDistSamplingWorkerOptions(num_workers=1),
        )
        return loader, [worker.pid for worker in loader.workers]
    data = graph_of(edges).data()
    loader = PygNeighborLoader(
        data, FANOUTS, data.train_mask, batch_size=BATCH_SIZE, shuffle=True, num_workers=1
    )
    return loader, []


def train(name: str, folder: str, edges: int, batches: int) -> dict[str, Any]:
    """Train some batches of an epoch. Return times, memory and the number of batches."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GraphSAGE(FEATURES, HIDDEN, 2, CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    base = memory_of([os.getpid()])
    loader, makers = loader_of(name, folder, edges)
    waited, spent = 0.0, 0.0
    count = min(len(loader), batches + WARM_UP)
    warm_up = min(WARM_UP, count // 2)
    iterator = iter(loader)
    for index in range(count):
        began = time.perf_counter()
        batch = next(iterator)
        got = time.perf_counter()
        optimizer.zero_grad()
        output = model(batch.x, batch.edge_index)[: batch.batch_size]
        F.cross_entropy(output, batch.y[: batch.batch_size].long()).backward()
        optimizer.step()
        if index >= warm_up:
            waited += got - began
            spent += time.perf_counter() - began
    memory = memory_of([os.getpid(), *makers]) - base
    timed = count - warm_up
    return {
        "batches": len(loader),
        "seconds": spent / timed * len(loader),
        "waiting": waited / spent,
        "batch": spent / timed,
        "memory": memory,
    }


def partition(graph: PowerLaw, root: Path, memory: str) -> tuple[Path, float, int]:
    """Write and partition a graph. Return the folder, the seconds and the peak memory."""
    files, folder = root / "files", root / "folder"
    graph.write(files)
    began = time.perf_counter()
    command = [sys.executable, "-m", "khop", "partition", files, folder, "--num-parts", "1"]
    subprocess.run([*command, "--memory", memory], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    for file in files.iterdir():
        file.unlink()
    return folder, seconds, peak


def child(name: str, folder: Path, edges: int, batches: int) -> dict[str, Any]:
    """Run `train` in a process of its own."""
    command = [sys.executable, __file__, "--train", name, str(folder), str(edges)]
    command += ["--batches", str(batches)]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    measured: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return measured


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--batches", type=int, default=100, help="batches of an epoch to train")
    parser.add_argument("--memory", default="2GB", help="memory of the partitioner")
    parser.add_argument("--folder", help="folder of graphs (default: temporary)")
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        name, folder, edges = arguments.train
        print(json.dumps(train(name, folder, int(edges), arguments.batches)))
        return
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    print(
        "| edges | nodes | partition | peak | batches | loader | epoch | in `next` | memory |",
        end="",
    )
    print(" batch, smallest = 1 | memory, smallest = 1 |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    first: dict[str, dict[str, Any]] = {}
    for edges in map(int, arguments.edges):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as root:
            folder, seconds, peak = partition(graph_of(edges), Path(root), arguments.memory)
            names = ["khop"]
            if (WITH_PYG_LIB or WITH_TORCH_SPARSE) and 3 * 16 * edges < total:
                names.append("PyG")
            for name in names:
                run = child(name, folder, edges, arguments.batches)
                base = first.setdefault(name, run)
                cells = [
                    f"{edges:,}",
                    f"{edges // DEGREE:,}",
                    f"{seconds:.0f} s",
                    f"{peak / 2**30:.1f} GiB",
                ]
                cells += [f"{run['batches']:,}", name, f"{run['seconds']:.1f} s"]
                cells += [f"{run['waiting']:.0%}", f"{run['memory'] / 2**20:,.0f} MiB"]
                cells += [f"{run['batch'] / base['batch']:.2f}"]
                cells += [f"{run['memory'] / base['memory']:.2f}"]
                print("| " + " | ".join(cells) + " |", flush=True)
    if not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
        print("\nPyG was left out: neither pyg-lib nor torch-sparse can be imported")


if __name__ == "__main__":
    main()
