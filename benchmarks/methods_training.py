#!/usr/bin/env python3
"""Accuracy of each sampling method in equal training time: GraphSAGE on Debian's packages.

    python benchmarks/methods_training.py                     # all methods: half an hour
    python benchmarks/methods_training.py uniform labor       # ratios are to the first one
    python benchmarks/methods_training.py --output methods    # and methods.json, methods.svg

The model, the methods and the loss come from `examples/methods.py`. Loaders draw in one thread of
the trainer's process. The time of an epoch is therefore the time of sampling plus the time of the
model. Sampling is the time in `next(loader)`.

Methods take turns of one epoch. A method ends after `--epochs` epochs, or later, when it has
trained as long as the first method's `--epochs` epochs. Test accuracy is measured every `--every`
batches, outside of the measured time.

The program prints means over `--runs` seeds:

- nodes, edges and time per batch, and the share of sampling
- accuracy after `--epochs` epochs
- accuracy in the time of the first method's `--epochs` epochs
- time to a test accuracy of `--goal`, as a multiple of the first method's time
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import methods as example
from khop.datasets import DebianPackages


@dataclass
class Run:
    """Training of one method.

    Attributes:
        curve: (seconds of training so far, batches so far, test accuracy), ascending.
        epoch_ends: (seconds of training, test accuracy) at the end of each epoch.
    """

    name: str
    loader: Any
    model: Any
    optimizer: Any
    sampling: float = 0.0
    training: float = 0.0
    batches: int = 0
    nodes: int = 0
    edges: int = 0
    curve: list[tuple[float, int, float]] = field(default_factory=list)
    epoch_ends: list[tuple[float, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds of training so far, without tests."""
        return self.sampling + self.training

    def epoch(self, data: Data, every: int) -> None:
        """Train for an epoch."""
        for batch in self._timed(iter(self.loader)):
            begun = time.perf_counter()
            self.model.train()
            self.optimizer.zero_grad()
            example.batch_loss(self.model, batch).backward()
            self.optimizer.step()
            self.training += time.perf_counter() - begun
            self.batches += 1
            self.nodes += batch.num_nodes
            adjs = batch.get("adjs")
            ends = [batch.edge_index] if adjs is None else [adj.edge_index for adj in adjs]
            self.edges += sum(edge_index.size(1) for edge_index in ends)
            if self.batches % every == 0:
                self.test(data)
        self.test(data)
        self.epoch_ends.append((self.seconds, self.curve[-1][2]))

    def _timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            begun = time.perf_counter()
            batch = next(batches, None)
            self.sampling += time.perf_counter() - begun
            if batch is None:
                return
            yield batch

    def test(self, data: Data) -> None:
        """Add the present test accuracy to the curve."""
        accuracy = example.accuracy(self.model, data, data.test_mask, self.name)
        self.curve.append((self.seconds, self.batches, accuracy))

    def accuracy_at(self, seconds: float) -> float:
        """Return the last test accuracy within a time of training."""
        return [a for s, _, a in self.curve if s <= seconds or s == self.curve[0][0]][-1]

    def time_to(self, goal: float) -> float | None:
        """Return the seconds of training to a test accuracy of `goal`, or None."""
        return next((s for s, _, a in self.curve if a >= goal), None)


def train_all(data: Data, names: list[str], seed: int, args: argparse.Namespace) -> list[Run]:
    """Train all methods in turns of one epoch."""
    runs = []
    for name in names:
        options = example.parse_arguments(["--method", name, "--seed", str(seed)])
        loader = example.METHODS[name](data, options)
        runs.append(Run(name, loader, *example.make_model(data, options)))
    waiting = list(runs)
    while waiting:
        for run in waiting:
            run.epoch(data, args.every)
            print(
                f"seed {seed}, epoch {len(run.epoch_ends)}, {run.name}: {run.seconds:.1f} s, "
                f"{run.curve[-1][2]:.3f}",
                file=sys.stderr,
                flush=True,
            )
        budget = runs[0].seconds
        waiting = [r for r in runs if len(r.epoch_ends) < args.epochs or r.seconds < budget]
    return runs


def mean(values: list[float | None]) -> float | None:
    """Return the mean, or None if a value is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def table(seeds: list[list[Run]], args: argparse.Namespace) -> str:
    """Return the results as a table."""
    lines = [
        "| method | nodes | edges | ms per batch | sampling | accuracy, equal epochs | "
        f"equal time | time to {args.goal:g} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    budgets = [runs[0].epoch_ends[args.epochs - 1][0] for runs in seeds]
    first = mean([runs[0].time_to(args.goal) for runs in seeds])
    for column in zip(*seeds, strict=True):
        reached = mean([run.time_to(args.goal) for run in column])
        ratio = "not reached" if reached is None or first is None else f"{reached / first:.2f}"
        batches = sum(run.batches for run in column)
        seconds = sum(run.seconds for run in column)
        equal_epochs = mean([run.epoch_ends[args.epochs - 1][1] for run in column])
        pairs = zip(column, budgets, strict=True)
        equal_time = mean([run.accuracy_at(budget) for run, budget in pairs])
        lines.append(
            f"| {column[0].name} | {sum(run.nodes for run in column) / batches:,.0f} | "
            f"{sum(run.edges for run in column) / batches:,.0f} | "
            f"{1000 * seconds / batches:.0f} | "
            f"{sum(run.sampling for run in column) / seconds:.0%} | "
            f"{equal_epochs:.3f} | {equal_time:.3f} | {ratio} |"
        )
    return "\n".join(lines)


def draw(runs: list[Run], file: Path) -> None:
    """Draw test accuracy against time of training, and against batches."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained", sharey=True)
    styles = ["-", "--", ":"]
    for index, run in enumerate(runs):
        seconds, batches, accuracies = zip(*run.curve, strict=True)
        style = styles[index // 10 % len(styles)]
        axes[0].plot(seconds, accuracies, style, label=run.name)
        axes[1].plot(batches, accuracies, style)
    axes[0].set(xlabel="seconds of training", ylabel="test accuracy", ylim=(0.6, None))
    axes[1].set(xlabel="batches", xscale="log")
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(file)


def main() -> None:
    """Train, print a table, and write files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("methods", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--every", type=int, default=10, help="batches between tests")
    parser.add_argument("--goal", type=float, default=0.74, help="test accuracy to reach")
    parser.add_argument("--runs", type=int, default=1, help="number of seeds")
    parser.add_argument("--output", type=Path, help="also write NAME.json and NAME.svg")
    args = parser.parse_args()
    unknown = [name for name in args.methods if name not in example.METHODS]
    if unknown:
        parser.error(f"unknown methods {unknown}. The methods are {', '.join(example.METHODS)}")
    torch.set_num_threads(1)
    data = DebianPackages(undirected=True)[0]
    names = args.methods or list(example.METHODS)
    seeds = [train_all(data, names, seed, args) for seed in range(args.runs)]
    print(table(seeds, args))
    if args.output is not None:
        curves = {run.name: run.curve for run in seeds[0]}
        args.output.with_suffix(".json").write_text(json.dumps(curves))
        draw(seeds[0], args.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
