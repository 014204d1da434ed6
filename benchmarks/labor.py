#!/usr/bin/env python3
"""LABOR compared with uniform sampling: nodes per batch, LABOR-i, time of hubs, accuracy.

    python benchmarks/labor.py nodes       # seconds: Debian's packages, and a graph of heavy tails
    python benchmarks/labor.py importance  # a minute: LABOR-i on Debian's packages
    python benchmarks/labor.py hubs        # seconds
    python benchmarks/labor.py accuracy    # minutes: GraphSAGE on Debian's packages
    python benchmarks/labor.py blocks      # a minute: nodes in the form of DGL's blocks
    python benchmarks/labor.py products    # minutes, --scale 0.1: batches with features, end to end
    python benchmarks/labor.py cache       # minutes: misses of a cache, by batch_dependency
    python benchmarks/labor.py parts       # minutes: cost of a second partition

Everything runs in memory and in this process.

- `nodes` prints the nodes and edges of batches of 1024 seeds, and their ratios.
- `importance` prints nodes, edges and processor time per batch for LABOR-0, -1, -3 and -*. Draws
  are sequential or Poisson.
- `hubs` prints the processor time of a batch whose seeds have the most neighbours. LABOR reads
  whole rows. Uniform sampling reads as many entries as it draws. Cases take turns. The result is
  the median ratio, with the smallest and the largest.
- `accuracy` trains the quickstart's model with one trainer. Both methods have the same fan-outs. It
  prints accuracy on the test nodes.
- The last four cases are in `labor_costs.py`. Except for `blocks`, they run on graphs with the
  shape of ogbn-products. --scale 1 has 2.4 million nodes and 124 million entries.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from khop.datasets import DebianPackages, PowerLaw
from khop.loader import NeighborLoader
from khop.sampler import Labor
from labor_costs import compare_blocks, compare_caches, compare_parts, compare_products

_METHODS = {
    "uniform": lambda fanouts: fanouts,
    "LABOR, hops apart": lambda fanouts: Labor(fanouts, layer_dependency=False),
    "LABOR": Labor,
}
_BATCH, _BATCHES = 1024, 10


def graphs() -> dict[str, Data]:
    """Return the graphs without attributes, by name."""
    debian = DebianPackages(undirected=True)[0]
    return {
        "Debian": Data(edge_index=debian.edge_index, num_nodes=debian.num_nodes),
        "PowerLaw(100,000, 5,000,000)": PowerLaw(100_000, 5_000_000, undirected=True).data(),
    }


def count(data: Data, method: Any) -> tuple[float, float]:
    """Return the mean nodes and edges per batch."""
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0))
    loader = NeighborLoader(data, method, order[: _BATCH * _BATCHES], batch_size=_BATCH, seed=1)
    for _ in loader:
        pass
    stats = loader.stats()
    return stats.nodes / stats.batches, stats.edges / stats.batches


def compare_nodes() -> None:
    """Print nodes and edges per batch by graph, fan-outs and method."""
    print("| graph | fan-outs | method | nodes | ratio | edges | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, data in graphs().items():
        for fanouts in ([5, 5], [10, 10], [20, 20], [15, 10, 5], [10, 10, 10]):
            counts = {m: count(data, make(fanouts)) for m, make in _METHODS.items()}
            nodes, edges = counts["uniform"]
            for method, (n, e) in counts.items():
                print(
                    f"| {name} | {', '.join(map(str, fanouts))} | {method} | {n:,.0f} | "
                    f"{n / nodes:.2f} | {e:,.0f} | {e / edges:.2f} |",
                    flush=True,
                )


def seconds(loader: NeighborLoader) -> float:
    """Return the seconds per batch of an epoch."""
    begun = time.process_time()
    batches = sum(1 for _ in loader)
    return (time.process_time() - begun) / batches


def compare_importance() -> None:
    """Print nodes, edges and time per batch by fan-outs, form of draws and iterations."""
    data = graphs()["Debian"]
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0))
    print("| fan-outs | method | nodes | edges | ms |")
    print("|---|---|---|---|---|")
    forms = [
        ("LABOR", {}),
        ("LABOR, hops apart", {"layer_dependency": False}),
        ("Poisson", {"sequential": False}),
        ("Poisson, hops apart", {"sequential": False, "layer_dependency": False}),
    ]
    for fanouts in ([10, 10, 10], [15, 10, 5]):
        methods: dict[str, Any] = {"uniform": fanouts}
        for form, options in forms:
            for i in (0, 1, 3, -1):
                method = Labor(fanouts, importance=i, **options)
                methods[f"{form}, importance={i}"] = method
        for name, method in methods.items():
            seeds = order[: _BATCH * _BATCHES]
            loader = NeighborLoader(data, method, seeds, batch_size=_BATCH, seed=1)
            time_per_batch = seconds(loader)
            stats = loader.stats()
            print(
                f"| {', '.join(map(str, fanouts))} | {name} | {stats.nodes / stats.batches:,.0f} | "
                f"{stats.edges / stats.batches:,.0f} | {1000 * time_per_batch:.0f} |",
                flush=True,
            )


def compare_hubs(turns: int) -> None:
    """Print the time of batches whose seeds have the most neighbours, and of random seeds."""
    data = PowerLaw(200_000, 10_000_000, max_degree=50_000, exponent=2.2).data()
    degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    hubs = degree.argsort(descending=True)[:_BATCH]
    generator = torch.Generator().manual_seed(0)
    random_seeds = torch.randperm(data.num_nodes, generator=generator)[:_BATCH]
    for name, seeds in (("hubs", hubs), ("random seeds", random_seeds)):
        loaders = [
            NeighborLoader(data, method, seeds.repeat(8), batch_size=_BATCH)
            for method in ([10], Labor([10]))
        ]
        pairs = [[seconds(loader) for loader in loaders] for _ in range(turns + 1)][1:]
        ratios = sorted(labor / uniform for uniform, labor in pairs)
        uniform, labor = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"{name} ({degree[seeds].float().mean():,.0f} neighbours): uniform {uniform:.2f} ms, "
            f"LABOR {labor:.2f} ms, {statistics.median(ratios):.1f} times "
            f"({ratios[0]:.1f} to {ratios[-1]:.1f})",
            flush=True,
        )


def train(data: Data, method: Any, seed: int, epochs: int) -> tuple[float, float]:
    """Return test accuracy after some epochs, and the mean nodes per training batch."""
    torch.manual_seed(seed)
    model = GraphSAGE(data.num_features, 128, 2, int(data.y.max()) + 1, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    loader = NeighborLoader(
        data, method, data.train_mask, batch_size=512, shuffle=True, seed=seed, num_workers=1
    )
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():  # over all neighbours, so that methods differ in training only
        right = model(data.x, data.edge_index).argmax(1) == data.y
    stats = loader.stats()
    return float(right[data.test_mask].float().mean()), stats.nodes / stats.batches


def compare_accuracy(epochs: int, runs: int) -> None:
    """Print test accuracy by method, over several seeds."""
    data = DebianPackages(undirected=True)[0]
    for name in ("uniform", "LABOR"):
        results = [train(data, _METHODS[name]([10, 10]), seed, epochs) for seed in range(runs)]
        accuracies = [accuracy for accuracy, _ in results]
        nodes = statistics.mean(n for _, n in results)
        print(
            f"{name}: {statistics.mean(accuracies):.3f} "
            f"({', '.join(f'{a:.3f}' for a in accuracies)}), {nodes:,.0f} nodes per batch",
            flush=True,
        )


def main() -> None:
    """Run the case that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cases = ("nodes", "importance", "hubs", "accuracy", "blocks", "products", "cache", "parts")
    parser.add_argument("case", choices=cases)
    parser.add_argument("--scale", type=float, default=0.1, help="scale of products-shaped graphs")
    parser.add_argument(
        "--batches", type=int, default=8, help="batches per turn, on products-shaped graphs"
    )
    parser.add_argument("--features", type=int, default=100, help="features of `products`")
    parser.add_argument("--seeds", type=int, default=96, help="seeds per batch of `cache`")
    parser.add_argument(
        "--cached", type=float, default=0.2, help="share of nodes in the cache of `cache`"
    )
    parser.add_argument("--epochs", type=int, default=3, help="epochs of `accuracy`")
    parser.add_argument("--runs", type=int, default=3, help="number of seeds of `accuracy`")
    parser.add_argument("--turns", type=int, default=7, help="turns of each case")
    args = parser.parse_args()
    if args.case == "nodes":
        compare_nodes()
    elif args.case == "importance":
        compare_importance()
    elif args.case == "hubs":
        compare_hubs(args.turns)
    elif args.case == "accuracy":
        compare_accuracy(args.epochs, args.runs)
    elif args.case == "blocks":
        compare_blocks(args.turns)
    elif args.case == "products":
        compare_products(args.scale, args.turns, args.batches, args.features)
    elif args.case == "cache":
        compare_caches(args.scale, args.batches, args.cached, args.seeds)
    else:
        compare_parts(args.scale, args.turns, args.batches)


if __name__ == "__main__":
    main()
