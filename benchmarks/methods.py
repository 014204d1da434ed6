#!/usr/bin/env python3
"""Sampling methods against one another, and against PyG's where it can be imported.

    python benchmarks/methods.py subgraphs    # a minute: loaders that choose nodes

All in memory and in this process, on Debian's packages, undirected, without attributes.
`subgraphs` prints, for each loader, what a batch has, the time of a batch and of an epoch, and how
many times as long PyG's loader of the same name takes, where it works without torch-sparse or can
import it. Loaders take turns; times are medians, ratios are formed turn by turn. Times are of the
processor, in one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.loader as pyg
from torch_geometric.data import Data
from torch_geometric.loader.cluster import ClusterData as PygClusterData

from khop import loader as ours
from khop.datasets import DebianPackages

_PARTS = 64


def graph() -> Data:
    """Debian's packages without attributes."""
    data = DebianPackages(undirected=True)[0]
    return Data(edge_index=data.edge_index, num_nodes=data.num_nodes)


def timed(loader: Any) -> tuple[float, int, int, int]:
    """Seconds of processor of an epoch, its batches, and their nodes and edges."""
    begun, batches, nodes, edges = time.process_time(), 0, 0, 0
    for batch in loader:
        batches += 1
        nodes += batch.num_nodes
        edges += batch.num_edges
    return time.process_time() - begun, batches, nodes, edges


# Subgraphs ----------------------------------------------------------------------------------------


def clusters_of(data: Data) -> ours.ClusterData:
    """METIS's clusters, or random ones where METIS cannot be imported."""
    try:
        begun = time.perf_counter()
        clusters = ours.ClusterData(data, _PARTS, log=False)
        print(f"METIS: {time.perf_counter() - begun:.2f} s for {_PARTS} clusters\n")
    except ImportError:
        random = torch.randint(
            _PARTS, (data.num_nodes,), generator=torch.Generator().manual_seed(0)
        )
        clusters = ours.ClusterData(data, _PARTS, assignment=random)
        print("METIS cannot be imported: clusters are random\n")
    return clusters


def pygs_clusters(data: Data, clusters: ours.ClusterData) -> Any:
    """PyG's `ClusterData` of the same clusters."""
    partition = clusters.partition
    sizes = partition.partptr.diff()
    assignment = torch.empty(data.num_nodes, dtype=torch.long)
    assignment[partition.node_perm] = torch.arange(_PARTS).repeat_interleave(sizes)

    class Given(PygClusterData):  # type: ignore[misc]
        def _metis(self, *_: Any) -> torch.Tensor:
            return assignment

    return Given(data, _PARTS, log=False)


def subgraph_loaders(data: Data) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """For each name: what makes khop's loader, and PyG's."""
    clusters = clusters_of(data)
    theirs = pygs_clusters(data, clusters)
    roots = torch.arange(0, data.num_nodes, 16)
    saint: dict[str, Any] = {"num_steps": 30}
    shadow: dict[str, Any] = {"depth": 2, "num_neighbors": 10, "node_idx": roots, "batch_size": 256}
    four: dict[str, Any] = {"batch_size": 4, "shuffle": True}

    def saints(name: str, *sizes: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        return (
            lambda: getattr(ours, name)(data, *sizes, **saint),
            lambda: getattr(pyg, name)(data, *sizes, **saint),
        )

    return {
        f"ClusterLoader, 4 of {_PARTS}": (
            lambda: ours.ClusterLoader(clusters, **four),
            lambda: pyg.ClusterLoader(theirs, **four),
        ),
        "GraphSAINTNodeSampler, 6,000": saints("GraphSAINTNodeSampler", 6000),
        "GraphSAINTEdgeSampler, 3,000": saints("GraphSAINTEdgeSampler", 3000),
        "GraphSAINTRandomWalkSampler, 2,000 x 2": saints("GraphSAINTRandomWalkSampler", 2000, 2),
        "ShaDowKHopSampler, 256 roots, 10 x 10": (
            lambda: ours.ShaDowKHopSampler(data, **shadow),
            lambda: pyg.ShaDowKHopSampler(data, **shadow),
        ),
        "RandomNodeLoader, 16 parts": (
            lambda: ours.RandomNodeLoader(data, 16, shuffle=True),
            lambda: pyg.RandomNodeLoader(data, 16, shuffle=True),
        ),
    }


def compare_subgraphs(turns: int) -> None:
    """Prints nodes, edges and times of the loaders that choose nodes."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loaders = subgraph_loaders(graph())
    print("| loader | nodes | edges | ms a batch | epoch, s | PyG, times as long |")
    print("|---|---|---|---|---|---|")
    for name, (make, make_pygs) in loaders.items():
        loader = make()
        try:
            peer = make_pygs()
        except ImportError:
            peer = None
        times, ratios = [], []
        for _ in range(turns + 1):
            seconds, batches, nodes, edges = timed(loader)
            times.append(seconds)
            if peer is not None:
                ratios.append(timed(peer)[0] / seconds)
        seconds = statistics.median(times[1:])
        versus = "cannot be imported"
        if ratios:
            rest = sorted(ratios[1:])
            versus = f"{statistics.median(rest):.1f} ({rest[0]:.1f} to {rest[-1]:.1f})"
        print(
            f"| {name} | {nodes / batches:,.0f} | {edges / batches:,.0f} | "
            f"{1000 * seconds / batches:.2f} | {seconds:.3f} | {versus} |",
            flush=True,
        )


def main() -> None:
    """Runs a comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["subgraphs"])
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    compare_subgraphs(options.turns)


if __name__ == "__main__":
    main()
