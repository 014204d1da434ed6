#!/usr/bin/env python3
"""VR-GCN with two neighbours per node, beside neighbour sampling of ten by ten.

    python benchmarks/vrgcn.py                      # 3 seeds: 15 minutes
    python benchmarks/vrgcn.py --runs 1 --epochs 3

The graph is Debian's packages, undirected, in one partition with one trainer. The model is that of
`examples/vrgcn.py`: layers over rows of nodes and means over their neighbours. Neighbour sampling
trains the same layers on drawn neighbours alone, of both layers. Test accuracy is over all
neighbours for all methods.

The program prints means over seeds: the test accuracy, its difference from neighbour sampling, and
the edges of training as a share of neighbour sampling's. `with propagation` adds the edges of
`update_all`, which reads each edge once per refresh, and once at the beginning.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import scatter

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import vrgcn as example
from khop import partition_graph
from khop.datasets import DebianPackages
from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    GraphStore,
    node_split,
    shutdown_worker_group,
)

# Fan-outs, and epochs between refreshes of VR-GCN. If negative, of the activations of training.
METHODS: dict[str, tuple[list[int], int]] = {
    "neighbour sampling, 10,10": ([10, 10], 0),
    "neighbour sampling, 2,2": ([2, 2], 0),
    "VR-GCN, 2, exact every 2": ([2], 2),
    "VR-GCN, 1, exact every 2": ([1], 2),
    "VR-GCN, 2, last every 1": ([2], -1),
}


class Sampled(example.VrGcn):
    """The same layers, over drawn neighbours alone."""

    def forward(self, batch: Any) -> Tensor:
        """Return logits of the seeds."""
        h = batch.x
        for i in range(len(self.layers)):
            hops = len(self.layers) - i
            count = sum(batch.num_sampled_nodes[:hops])
            source, target = batch.edge_index[:, : sum(batch.num_sampled_edges[:hops])]
            mean = scatter(h[source], target, dim_size=count, reduce="mean")
            h = self.layer(i, example.with_own(mean, h[:count]))
        return h


def run(name: str, parts: Path, seed: int, args: argparse.Namespace) -> tuple[float, int, float]:
    """Train one method. Return test accuracy, edges of all epochs, and seconds of training."""
    dataset = DistDataset.from_folder(parts)
    fanouts, every = METHODS[name]
    torch.manual_seed(seed)
    with GraphStore(dataset) as store:
        width = example.make_inputs(dataset, store)
        is_sampled = every == 0
        sizes = [width, args.hidden, 58]
        model = (Sampled if is_sampled else example.VrGcn)(sizes, store)
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        loader = DistNeighborLoader(
            dataset,
            fanouts,
            "train_mask",
            batch_size=args.batch_size,
            shuffle=True,
            seed=seed,
            collect_features=is_sampled,
        )
        edges, seconds = 0, 0.0
        nodes = torch.arange(dataset.num_nodes)
        test = node_split("test_mask", dataset)
        y = dataset.get_tensor("node", "y", index=test)
        for epoch in range(1, args.epochs + 1):
            begun = time.perf_counter()
            _, drawn = example.train_epoch(model, store, loader, optimizer)
            if every and epoch % every == 0:
                model.refresh(nodes if every > 0 else None)
            seconds += time.perf_counter() - begun
            edges += drawn
        accuracy = float((model.exact(nodes, test).argmax(1) == y).float().mean())
    shutdown_worker_group()
    print(f"{name}, seed {seed}: {accuracy:.4f}, {seconds:.1f} s", file=sys.stderr, flush=True)
    return accuracy, edges, seconds


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="number of seeds")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = DebianPackages(undirected=True)[0]
        partition_graph(data, Path(folder) / "parts", 1)
        rows = {
            name: [run(name, Path(folder) / "parts", seed, args) for seed in range(args.runs)]
            for name in args.methods
        }
    first = rows[args.methods[0]]
    print("| method | test accuracy | difference | edges | with propagation | time |")
    print("|---|---|---|---|---|---|")
    for name, runs in rows.items():
        accuracy = [r[0] for r in runs]
        differences = [r[0] - f[0] for r, f in zip(runs, first, strict=True)]
        every = abs(METHODS[name][1])
        propagated = data.num_edges * (1 + args.epochs // every) if every else 0
        edges, base = (sum(r[1] for r in column) for column in (runs, first))
        print(
            f"| {name} | {sum(accuracy) / len(runs):.4f} "
            f"| {min(differences):+.4f} to {max(differences):+.4f} | {edges / base:.2f} "
            f"| {(edges + propagated * len(runs)) / base:.2f} "
            f"| {sum(r[2] for r in runs) / sum(r[2] for r in first):.2f} |"
        )


if __name__ == "__main__":
    main()
