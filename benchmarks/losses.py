#!/usr/bin/env python3
"""Losses of five training tasks, each with PyG's loader and with khop's.

    python benchmarks/losses.py                             # ten minutes
    python benchmarks/losses.py --runs 1 --epochs 2 nodes   # one task
    python benchmarks/losses.py --output losses             # and losses.json, losses.svg

Model, loss, optimizer and test are the same. Only the loader differs. Runs have the seeds 0, 1, ...
The two loaders have different orders of training seeds, and different draws. Their curves therefore
differ as much as the curves of two seeds.

If pyg-lib and torch-sparse cannot be imported, NumPy replaces PyG's kernels
(`khop_bench.plain_sampler`). NumPy also replaces a kernel that cannot draw by time.

The program prints the mean loss of the last epoch and the score after it, averaged over runs. The
column `apart` is the difference of both loaders. Its unit is the standard deviation of the
difference of the two means.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from khop_bench.loss_partitions import train_over_partitions
from khop_bench.loss_tasks import (
    Citations,
    Dependencies,
    Sections,
    Task,
    TypedSections,
    train_epoch,
)

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Sections, TypedSections, Dependencies, Citations)
}
OVER_PARTITIONS = "nodes, two trainers"
LIBRARIES = ("PyG", "khop")

Curve = list[tuple[float, float]]
"""Per epoch: the mean loss, and the test score after the epoch."""


def train(task: Task, library: str, seed: int, epochs: int) -> Curve:
    """Train a new model and return its curve."""
    torch.manual_seed(seed)
    model = task.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=task.lr)
    loader = task.loader(library, seed)
    curve = []
    for _ in range(epochs):
        mean = train_epoch(task, model, loader, optimizer)
        model.eval()
        with torch.no_grad():
            curve.append((mean, task.score(model)))
    return curve


def apart(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the difference of two means in standard deviations, or None for a single run."""
    if len(first) < 2:
        return None
    error = (statistics.variance(first) + statistics.variance(second)) / len(first)
    return (statistics.fmean(second) - statistics.fmean(first)) / error**0.5


def table(curves: dict[str, dict[str, list[Curve]]], metrics: dict[str, str]) -> str:
    """Return the results of the last epochs as a table."""
    lines = [
        "| task | loss, PyG | khop | apart | score | PyG | khop | apart |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, by_library in curves.items():
        cells = [name]
        for value in (0, 1):  # loss, score
            values = [[curve[-1][value] for curve in by_library[library]] for library in LIBRARIES]
            cells += [metrics[name]] if value else []
            cells += [f"{statistics.fmean(v):.4f}" for v in values]
            distance = apart(*values)
            cells.append("-" if distance is None else f"{distance:+.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(curves: dict[str, dict[str, list[Curve]]], metrics: dict[str, str], file: Path) -> None:
    """Draw means and ranges over the runs, with losses above scores."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = 2.6 * len(curves), 4.8
    figure, axes = plt.subplots(
        2, len(curves), figsize=size, layout="constrained", sharex=True, squeeze=False
    )
    for column, (name, by_library) in enumerate(curves.items()):
        for library, style, colour in (("PyG", "--", "tab:orange"), ("khop", "-", "tab:blue")):
            for value, axis in enumerate(axes[:, column]):
                by_epoch = list(
                    zip(
                        *([point[value] for point in curve] for curve in by_library[library]),
                        strict=True,
                    )
                )
                epochs = range(1, len(by_epoch) + 1)
                means = [statistics.fmean(values) for values in by_epoch]
                axis.plot(epochs, means, style, color=colour, label=library)
                lows, highs = [min(v) for v in by_epoch], [max(v) for v in by_epoch]
                axis.fill_between(epochs, lows, highs, color=colour, alpha=0.2, linewidth=0)
        axes[0, column].set(title=name, ylabel="" if column else "training loss")
        axes[1, column].set(xlabel="epoch", ylabel=f"test {metrics[name]}")
    axes[0, 0].legend(frameon=False)
    figure.savefig(file)


def main() -> None:
    """Train the tasks, print a table, and write files."""
    names = [*TASKS, OVER_PARTITIONS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="default: all")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--runs", type=int, default=3, help="number of seeds")
    parser.add_argument("--output", type=Path, help="also write NAME.json and NAME.svg")
    args = parser.parse_args()
    unknown = [name for name in args.tasks if name not in names]
    if unknown:
        parser.error(f"unknown tasks {unknown}. The tasks are {', '.join(map(repr, names))}")
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation")
    curves: dict[str, dict[str, list[Curve]]] = {}
    metrics = {OVER_PARTITIONS: Sections.metric, **{n: task.metric for n, task in TASKS.items()}}
    for name in args.tasks or names:
        task: Any = None if name == OVER_PARTITIONS else TASKS[name]()
        curves[name] = {library: [] for library in LIBRARIES}
        for seed in range(args.runs):
            for library, runs in curves[name].items():
                if task is None:
                    runs.append(train_over_partitions(library, seed, args.epochs))
                else:
                    runs.append(train(task, library, seed, args.epochs))
                loss, score = runs[-1][-1]
                print(f"{name}, seed {seed}, {library}: {loss:.4f}, {score:.4f}", file=sys.stderr)
    print(table(curves, metrics))
    if args.output is not None:
        args.output.with_suffix(".json").write_text(json.dumps(curves))
        draw(curves, metrics, args.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
