"""Partitioning in bounded memory: seconds and bytes per edge, and peak memory, at growing sizes.

    python benchmarks/partitioning.py                          # up to 32 million edges
    python benchmarks/partitioning.py --edges 400e6 --nodes 28e6 --memory 2GB
    python benchmarks/partitioning.py --edges 100e6 --memory 1GB --method stream

Each size runs in a separate process. RLIMIT_AS limits the growth of its address space to --memory
plus 20 bytes per node. The interpreter, its libraries and the mapped input do not count. Graphs are
random, with a heavy tail of degrees. The program removes its graphs and partition folders at the
end.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

STEP = 1 << 22


def make(folder: Path, num_nodes: int, num_edges: int) -> None:
    """Write edge_index.npy, int32: sources uniform, destinations with a heavy tail."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = (2, num_edges)
    mapped = np.lib.format.open_memmap(
        folder / "edge_index.npy", mode="w+", dtype=np.int32, shape=shape
    )
    generator = np.random.default_rng(0)
    nodes = generator.permutation(num_nodes).astype(np.int32)
    for first in range(0, num_edges, STEP):
        count = min(STEP, num_edges - first)
        mapped[0, first : first + count] = generator.integers(num_nodes, size=count)
        rank = generator.random(count) ** 3 * num_nodes
        mapped[1, first : first + count] = nodes[rank.astype(np.int64)]
    mapped.flush()


def read_proc(path: str) -> dict[str, int]:
    """Return the values of a file in /proc, in bytes or kilobytes."""
    values = {}
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdecimal():
            values[name] = int(words[0])
    return values


def measure(folder: Path, out: Path, num_nodes: int, options: dict[str, Any]) -> dict[str, Any]:
    """Partition a graph in this process, under the limit, and return its costs."""
    from khop.data.hot_rows import parse_bytes
    from khop.partition import GraphSource, make_partitioner

    edges = np.load(folder / "edge_index.npy", mmap_mode="r")
    source = GraphSource.from_arrays(num_nodes, edges)
    partitioner = make_partitioner(source, out, 2, **options)
    before = read_proc("/proc/self/status")
    if options["memory"] is not None:
        allowed = parse_bytes(options["memory"]) + 20 * num_nodes
        limit = before["VmSize"] * 1024 + allowed
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    moved = read_proc("/proc/self/io")
    steps: dict[str, float] = {}
    last = began = time.perf_counter()

    def progress(step: str, done: int, total: int) -> None:
        nonlocal last
        now = time.perf_counter()
        name = step.split(maxsplit=1)[0]
        steps[name] = steps.get(name, 0.0) + now - last
        last = now

    partitioner.progress = progress
    partitioner.partition()
    seconds = time.perf_counter() - began
    after, io = read_proc("/proc/self/status"), read_proc("/proc/self/io")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": seconds,
        "cpu": usage.ru_utime + usage.ru_stime,
        "read": io["rchar"]
        - moved["rchar"]
        + 2 * edges.nbytes,  # the mapped input counts as read twice
        "written": io["wchar"] - moved["wchar"],
        "peak": (after["VmHWM"] - before["VmRSS"]) * 1024,
        "address": (after["VmPeak"] - before["VmSize"]) * 1024,
        "steps": steps,
    }


def run(arguments: argparse.Namespace, num_nodes: int, num_edges: int) -> dict[str, Any]:
    """Measure one size in a separate process."""
    root = Path(tempfile.mkdtemp(prefix="khop-partitioning-", dir=arguments.folder))
    try:
        graph = root if arguments.graph is None else Path(arguments.graph)
        if arguments.graph is None:
            make(root, num_nodes, num_edges)
        words = ["--child", str(graph), str(root / "parts"), str(num_nodes)]
        options = ["--memory", arguments.memory, "--jobs", str(arguments.jobs)]
        options += ["--method", arguments.method]
        command = [sys.executable, __file__, *words, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        costs: dict[str, Any] = json.loads(done.stdout)
        return costs
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=float, nargs="+", default=[2e6, 8e6, 32e6])
    parser.add_argument("--nodes", type=float, help="default: a fourteenth of the edges")
    parser.add_argument("--memory", default="128MB", help="limit, or 'none' to partition in memory")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--method", default="random")
    parser.add_argument("--folder", help="folder of files (default: the system's)")
    parser.add_argument("--graph", help="folder of an existing edge_index.npy")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        graph, out, nodes = arguments.child
        memory = None if arguments.memory == "none" else arguments.memory
        options = {"memory": memory, "jobs": arguments.jobs, "method": arguments.method}
        print(json.dumps(measure(Path(graph), Path(out), int(nodes), options)))
        return
    print(
        "| edges | nodes | memory | s | ns per edge | CPU ns | B read | B written | peak | steps |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for edges in map(int, arguments.edges):
        nodes = int(arguments.nodes or edges // 14)
        costs = run(arguments, nodes, edges)
        each = [costs[name] / edges for name in ("seconds", "cpu")]
        moved = [f"{costs[name] / edges:.0f}" for name in ("read", "written")]
        steps = ", ".join(f"{name} {seconds:.0f}" for name, seconds in costs["steps"].items())
        cells = [
            *(f"{edges:,}", f"{nodes:,}", arguments.memory, f"{costs['seconds']:.1f}"),
            *(f"{value * 1e9:.0f}" for value in each),
            *moved,
            f"{costs['peak'] / 2**20:.0f} MB",
            steps,
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
