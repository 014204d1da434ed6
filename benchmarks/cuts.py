"""Cuts of a graph: share of edges between parts, balance and seconds, for each partitioner.

    python benchmarks/cuts.py    Debian's packages, undirected, in 2, 4, 8 parts

METIS is left out where pymetis is not installed. Nothing is written but to a temporary folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from typing import Any

import numpy as np

from khop.datasets import DebianPackages
from khop.partition import ClusterMetisPartitioner, MetisPartitioner, StreamPartitioner
from khop.partition.constraints import Constraints
from khop.partition.source import GraphSource

SEVERAL = {"balance": ["nodes", "edges", "train"], "slack": 0.05}


def rows(clusters: int) -> list[tuple[str, Any, dict[str, Any]]]:
    """Name, class and options of what is measured."""
    found: list[tuple[str, Any, dict[str, Any]]] = [("stream", StreamPartitioner, {})]
    if importlib.util.find_spec("pymetis") is not None:
        found += [
            ("metis", MetisPartitioner, {}),
            (f"cluster-metis, {clusters:,}", ClusterMetisPartitioner, {"clusters": clusters}),
        ]
    return found + [(f"{name}; nodes, edges, train", c, {**o, **SEVERAL}) for name, c, o in found]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--clusters", type=int, default=20_000)
    arguments = parser.parse_args()
    data = DebianPackages(undirected=True)[0]
    source = GraphSource.from_data(data)
    src, dst = data.edge_index.numpy()
    judged = Constraints.of(source, SEVERAL["balance"], "in")
    print(f"{source.nodes['node'].count:,} nodes, {len(src):,} edges\n")
    print("| parts | method | cut | largest / mean: nodes | edges | train | seconds |")
    print("|---|---|---|---|---|---|---|")
    for num_parts in arguments.parts:
        for name, kind, options in rows(arguments.clusters):
            began = time.perf_counter()
            labels = kind.from_data(source, "unused", num_parts, **options).assign_nodes("node")
            seconds = time.perf_counter() - began
            loads = judged.loads(labels, num_parts)
            largest = (loads / loads.mean(axis=1, keepdims=True)).max(axis=1)
            cells = [f"{value:.3f}" for value in (np.mean(labels[src] != labels[dst]), *largest)]
            print(f"| {num_parts} | {name} | {' | '.join(cells)} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
