"""Steps of training under `torch.compile`: padded batches, dynamic shapes, and eager.

    python benchmarks/compile.py
    python benchmarks/compile.py --model gcn --trim

The graph is a power law with 100 floats per node. Four loaders make the same batches, and take
turns step by step:

- eager: no compiler
- dynamic: `torch.compile(dynamic=True)`
- default: `torch.compile()`, which compiles for the first shape, then again for all
- padded: `torch.compile(dynamic=False)` and `pad="auto"`

The program prints the steps in which the compiler worked, the processor time of the median step
after them, its ratio to eager, and the rows per step. Torch has one thread, so that processor time
is the step's work. `--trim` gives layers only the nodes and edges that they need
(`torch_geometric.utils.trim_to_layer`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import torch
import torch._dynamo.utils
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from khop.datasets import PowerLaw
from khop.loader import NeighborLoader

CONVS = {"sage": SAGEConv, "gcn": GCNConv}
MODES: dict[str, Any] = {
    "eager": None,
    "dynamic": {"dynamic": True},
    "default": {},
    "padded": {"dynamic": False},
}
FEATURES, CLASSES = 100, 16


class Model(torch.nn.Module):
    """Layers of one convolution, with or without trimming."""

    def __init__(self, conv: Any, num_layers: int, hidden: int, trim: bool) -> None:
        super().__init__()
        sizes = [FEATURES, *[hidden] * (num_layers - 1), CLASSES]
        self.convs = torch.nn.ModuleList(conv(a, b) for a, b in pairwise(sizes))
        self.trim = trim

    def forward(self, x: Tensor, ends: Tensor, nodes: list[int], edges: list[int]) -> Tensor:
        """Return [num_nodes, classes] outputs. The first rows are the seeds'."""
        for i, conv in enumerate(self.convs):
            if self.trim:
                x, ends, _ = trim_to_layer(i, nodes, edges, x, ends)
            x = conv(x, ends)
            if i + 1 < len(self.convs):
                x = x.relu()
        return x


def make_step(args: argparse.Namespace, options: Any) -> Callable[[Any], float]:
    """Return a function that takes a training step on a batch, and returns the loss."""
    torch.manual_seed(0)
    model = Model(CONVS[args.model], len(args.fanouts), args.hidden, args.trim)
    optimizer = torch.optim.Adam(model.parameters())

    def loss_of(x: Tensor, ends: Tensor, y: Tensor, nodes: list[int], edges: list[int]) -> Tensor:
        return cross_entropy(model(x, ends, nodes, edges)[: args.batch_size], y[: args.batch_size])

    compiled = loss_of if options is None else torch.compile(loss_of, **options)

    def step(batch: Any) -> float:
        optimizer.zero_grad()
        nodes, edges = batch.num_sampled_nodes, batch.num_sampled_edges
        # Without trimming the counts are not read, and would only be guarded.
        counts = (nodes, edges) if args.trim else ([], [])
        loss = compiled(batch.x, batch.edge_index, batch.y, *counts)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=2_500_000)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 10])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=40, help="steps of the epoch")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--model", choices=CONVS, default="sage")
    parser.add_argument("--trim", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = PowerLaw(args.nodes, args.edges, undirected=True).data()
    data.x = torch.randn(args.nodes, FEATURES)
    data.y = torch.randint(CLASSES, (args.nodes,))
    seeds = torch.randperm(args.nodes)[: args.batch_size * args.steps]
    epochs, steps = {}, {}
    for mode, options in MODES.items():
        pad: Any = "auto" if mode == "padded" else None
        epochs[mode] = iter(
            NeighborLoader(
                data, args.fanouts, seeds, batch_size=args.batch_size, shuffle=True, drop_last=True,
                seed=1, pad=pad,
            )
        )  # fmt: skip
        steps[mode] = make_step(args, options)
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    compiled = dict.fromkeys(MODES, 0)
    rows: dict[str, list[int]] = {mode: [] for mode in MODES}
    counters = torch._dynamo.utils.counters["stats"]
    for _ in range(args.steps):
        losses = {}
        for mode, step in steps.items():
            batch = next(epochs[mode])
            rows[mode].append(batch.num_nodes + batch.num_edges)
            graphs, began = counters["unique_graphs"], time.process_time()
            losses[mode] = step(batch)
            if counters["unique_graphs"] == graphs:
                times[mode].append(time.process_time() - began)
            else:
                compiled[mode] += 1
        spread = max(losses.values()) - min(losses.values())
        assert spread < 1e-3, f"losses differ: {losses}"
    eager = median(times["eager"])
    print(f"{'':9s}{'compiled steps':>15s}{'ms':>9s}{'/ eager':>9s}{'nodes + edges':>15s}")
    for mode in MODES:
        step = median(times[mode])
        print(
            f"{mode:9s}{compiled[mode]:15d}{step * 1e3:9.1f}{step / eager:9.2f}"
            f"{fmean(rows[mode]):15,.0f}"
        )


if __name__ == "__main__":
    main()
