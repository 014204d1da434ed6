#!/usr/bin/env python3
"""Time to draw a batch, of each sampling method and of the steps that methods share.

    python benchmarks/methods_drawing.py    # a minute

Methods and batches are those of `methods_training.py`: 512 seeds of Debian's packages, with
attributes. The first table has the processor time in `next(loader)`, and the ratio to uniform
sampling. Methods take turns of eight batches. The second table has the times of steps, as kernels
and in NumPy, for all neighbours of a batch's first hop.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import methods as example
from khop import _native
from khop.datasets import DebianPackages
from khop.loader import NeighborLoader

_METHODS = (
    *("uniform", "labor", "labor-1", "labor-*", "labor-dependent"),
    *("poisson-ladies", "ladies", "hgt", "ppr", "pinsage"),
)


def compare(turns: int) -> None:
    """Print the time of batches in `next(loader)`, and of steps of methods."""
    torch.set_num_threads(1)
    data = DebianPackages(undirected=True)[0]
    options = example.parse_arguments([])
    loaders = {name: example.METHODS[name](data, options) for name in _METHODS}
    times: dict[str, list[float]] = {name: [] for name in _METHODS}
    for _ in range(turns + 1):
        for name, loader in loaders.items():
            begun = time.process_time()
            batches = sum(1 for _ in itertools.islice(loader, 8))
            times[name].append(1000 * (time.process_time() - begun) / batches)
    first = times["uniform"][1:]
    print("| method | ms per batch | uniform = 1 |\n|---|---|---|")
    for name, of_method in times.items():
        ratios = sorted(a / b for a, b in zip(of_method[1:], first, strict=True))
        print(
            f"| {name} | {statistics.median(of_method[1:]):.1f} | "
            f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f}) |"
        )
    print("\n| step | ms | NumPy, ms |\n|---|---|---|")
    for name, (kernel, numpys) in steps_of(data).items():
        pairs = [(spent(kernel), spent(numpys)) for _ in range(10 * turns)]
        medians = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"| {name} | {' | '.join(f'{median:.2f}' for median in medians)} |")


def spent(step: Callable[[], Any]) -> float:
    """Return the processor seconds of a step."""
    begun = time.process_time()
    step()
    return time.process_time() - begun


def steps_of(data: Data) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Return steps over the whole rows of a first hop: as kernels, and the same in NumPy."""
    (drawn,) = NeighborLoader(data, [10], torch.arange(0, data.num_nodes, 125), batch_size=512)
    (batch,) = NeighborLoader(data, [-1], drawn.n_id, batch_size=drawn.num_nodes)
    num_rows = drawn.num_nodes
    row = batch.edge_index[1].numpy()
    neighbors = batch.n_id[batch.edge_index[0]].numpy()
    counts, most = np.bincount(row, minlength=num_rows), np.full(num_rows, 10)
    values = (_native.draw_words(1, neighbors) >> np.uint64(11)) * 2.0**-53
    masses = np.bincount(neighbors, minlength=data.num_nodes)
    masses = masses[masses > 0]

    def sorted_masses() -> Any:
        largest = np.sort(masses)[::-1]
        left = np.cumsum(largest[::-1])[::-1]
        return largest[:4000] < left[:4000] / (4000 - np.arange(4000))

    return {
        "distinct neighbours": (
            lambda: _native.NodeNumbers(data.num_nodes).number(neighbors),
            lambda: np.unique(neighbors, return_inverse=True),
        ),
        "the ten smallest of each row": (
            lambda: _native.smallest_entries(values, counts, most),
            lambda: np.lexsort((values, row)),
        ),
        "common chances of 4,000 nodes": (
            lambda: _native.common_chances(masses, 4000),
            sorted_masses,
        ),
    }


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=5)
    compare(parser.parse_args().turns)


if __name__ == "__main__":
    main()
