"""Cost of edge ids and edge attributes in batches from partitions.

    python benchmarks/edge_attrs.py

The graph is a power law with 100 floats per node. It is partitioned without edge attributes, and
with 4 floats per edge. Loaders with `with_edge=False` and `with_edge=True` take turns. They make
the same batches in the trainer's process.

The program prints processor time and bytes per batch. The time includes the trainer and its
partition servers. The ratio is to the time without edge ids.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from khop.datasets import PowerLaw
from khop.distributed import DistDataset, DistNeighborLoader
from khop.partition import RandomPartitioner

CASES = {
    "no edge ids": (False, {"with_edge": False}),
    "edge ids": (False, {"with_edge": True}),
    "edge ids and attributes": (True, {"with_edge": True}),
}


def folders(root: Path, nodes: int, edges: int, num_parts: int) -> dict[bool, Path]:
    """Partition a graph, and return the folders without (False) and with edge attributes (True)."""
    data = PowerLaw(nodes, edges, undirected=True).data()
    data.x = torch.rand(nodes, 100)
    roots = {}
    for has_attrs in (False, True):
        if has_attrs:
            data.edge_attr = torch.rand(data.num_edges, 4)
        roots[has_attrs] = root / f"{num_parts}-{has_attrs}"
        RandomPartitioner.from_data(data, roots[has_attrs], num_parts).partition()
    return roots


def processor_time(loader: DistNeighborLoader) -> float:
    """Return the processor time of this process and its partition servers so far, in seconds."""
    seconds = time.process_time()
    for server in loader.data.service().endpoint_registry.supervisor.servers.values():
        stat = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        seconds += (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def num_bytes(batch: Any) -> int:
    """Return the bytes of a batch's tensors."""
    return sum(v.nbytes for v in batch.to_dict().values() if isinstance(v, torch.Tensor))


def measure(
    loaders: dict[str, DistNeighborLoader], turns: int, batches: int
) -> Iterator[tuple[str, float, int]]:
    """Yield name, median processor seconds per batch, and bytes per batch of each loader."""
    taken: dict[str, list[float]] = {name: [] for name in loaders}
    sizes = {}
    for _ in range(turns + 1):  # the first one reads the files
        for name, loader in loaders.items():
            begin = processor_time(loader)
            for batch in islice(loader, batches):
                sizes[name] = num_bytes(batch)
            taken[name].append((processor_time(loader) - begin) / batches)
    for name, seconds in taken.items():
        yield name, float(np.median(seconds[1:])), sizes[name]


def main() -> None:
    """Measure, and print a table for each number of parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=8_000_000)
    parser.add_argument("--batches", type=int, default=5, help="batches per turn")
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    for num_parts in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            roots = folders(Path(folder), arguments.nodes, arguments.edges, num_parts)
            loaders = {
                name: DistNeighborLoader(
                    DistDataset().load(
                        roots[has_attrs],
                        0,
                        also_serve=range(1, num_parts),
                        same_host_reads=False,
                    ),
                    [15, 10, 5],
                    batch_size=1024,
                    shuffle=True,
                    seed=1,
                    collect_features=True,
                    **options,
                )
                for name, (has_attrs, options) in CASES.items()
            }
            print(f"{num_parts} part(s), processor time and bytes per batch:")
            first = None
            for name, seconds, size in measure(loaders, arguments.turns, arguments.batches):
                first = seconds if first is None else first
                line = f"{1000 * seconds:7.1f} ms, {seconds / first:.2f}, {size / 1e6:6.1f} MB"
                print(f"  {name:24} {line}", flush=True)
            for loader in loaders.values():
                loader.shutdown()


if __name__ == "__main__":
    main()
