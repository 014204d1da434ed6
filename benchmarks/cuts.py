"""Cuts of a graph by each partitioner: share of edges between parts, balance and seconds.

    python benchmarks/cuts.py                   # Debian's packages
    python benchmarks/cuts.py --products 0.1    # time of whole partitionings
    python benchmarks/cuts.py --products 1 --methods random frequency cluster-metis

--products S partitions a graph with communities, of the size of ogbn-products x S. If pymetis
is not installed, METIS is left out. All files are in a temporary folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from khop.datasets import DebianPackages
from khop.partition import (
    ClusterMetisPartitioner,
    MetisPartitioner,
    StreamPartitioner,
    make_partitioner,
)
from khop.partition.methods.structure import Constraints
from khop.partition.source import GraphSource
from khop.partition.summary import FolderSummary
from khop.storage.folder import PartitionFolder

SEVERAL = {"balance": ["nodes", "edges", "train"], "slack": 0.05}


def has_metis() -> bool:
    """Return whether METIS is installed."""
    return importlib.util.find_spec("pymetis") is not None


def rows(clusters: int) -> list[tuple[str, Any, dict[str, Any]]]:
    """Return name, class and options of each partitioner."""
    plain: list[tuple[str, Any, dict[str, Any]]] = [("stream", StreamPartitioner, {})]
    if has_metis():
        plain += [
            ("metis", MetisPartitioner, {}),
            (f"cluster-metis, {clusters:,}", ClusterMetisPartitioner, {"clusters": clusters}),
        ]
    return plain + [(f"{name}; nodes, edges, train", c, {**o, **SEVERAL}) for name, c, o in plain]


def with_communities(scale: float) -> Data:
    """Return a graph of ogbn-products's size x scale, with communities.

    88 % of the edges join nodes of one community. Communities have 200 nodes. Degrees have a heavy
    tail. Ids of nodes are random.
    """
    num_nodes = round(2_449_029 * scale) // 200 * 200
    rng = np.random.default_rng(0)
    names = rng.permutation(num_nodes)
    src, dst = [], []
    for _ in range(16):
        count = round(61_859_140 * scale) // 16
        heads = (num_nodes * rng.random(count) ** 1.7).astype(np.int64)
        near = heads // 200 * 200 + (200 * rng.random(count) ** 1.7).astype(np.int64)
        tails = np.where(rng.random(count) < 0.88, near, rng.integers(num_nodes, size=count))
        src += [names[heads], names[tails]]
        dst += [names[tails], names[heads]]
    edges = np.stack([np.concatenate(src), np.concatenate(dst)])
    data = Data(edge_index=torch.from_numpy(edges), num_nodes=num_nodes)
    data.train_mask = torch.from_numpy(rng.random(num_nodes) < 0.08)
    return data


def compare_times(scale: float, methods: list[str], num_parts: int) -> None:
    """Print the time in which each method writes a partition folder."""
    data = with_communities(scale)
    print(f"{data.num_nodes:,} nodes, {data.num_edges:,} edges, {num_parts} parts\n")
    print("| method | seconds | processor seconds | cut |")
    print("|---|---|---|---|")
    for method in methods:
        with tempfile.TemporaryDirectory() as folder:
            began, before = time.perf_counter(), processor_seconds()
            partitioner = make_partitioner(data, Path(folder) / "parts", num_parts, method=method)
            partitioner.partition()
            seconds, used = time.perf_counter() - began, processor_seconds() - before
            summary = FolderSummary.of(PartitionFolder(partitioner.output_dir))
        print(f"| {method} | {seconds:.0f} | {used:.0f} | {summary.edge_cut:.3f} |", flush=True)


def processor_seconds() -> float:
    """Return the processor time of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--clusters", type=int, default=20_000)
    parser.add_argument(
        "--products", type=float, metavar="SCALE", help="measure times on a graph of this scale"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["random", "frequency", *["cluster-metis", "metis"] * has_metis()],
        help="methods to measure with --products",
    )
    arguments = parser.parse_args()
    if arguments.products is not None:
        compare_times(arguments.products, arguments.methods, 4)
        return
    data = DebianPackages(undirected=True)[0]
    source = GraphSource.from_data(data)
    src, dst = data.edge_index.numpy()
    constraints = Constraints.of(source, SEVERAL["balance"], "in")
    print(f"{source.nodes['node'].count:,} nodes, {len(src):,} edges\n")
    print("| parts | method | cut | largest / mean: nodes | edges | train | seconds |")
    print("|---|---|---|---|---|---|---|")
    for num_parts in arguments.parts:
        for name, partitioner, options in rows(arguments.clusters):
            began = time.perf_counter()
            made = partitioner.from_data(source, "unused", num_parts, **options)
            labels = made.assign_nodes("node")
            seconds = time.perf_counter() - began
            loads = constraints.loads(labels, num_parts)
            largest = (loads / loads.mean(axis=1, keepdims=True)).max(axis=1)
            cells = [f"{value:.3f}" for value in (np.mean(labels[src] != labels[dst]), *largest)]
            print(f"| {num_parts} | {name} | {' | '.join(cells)} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
