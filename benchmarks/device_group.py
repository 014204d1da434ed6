#!/usr/bin/env python3
"""Bytes per batch that GPUs read from host memory, with one table over 1, 2 and 4 of them.

    python benchmarks/device_group.py        # half a minute

Each GPU has the same memory for rows. The program draws batches on the CPU, divides the rows by
their hotness, and counts where the rows of each batch lie. The counts stand beside the division's
own expectation (`Shards`), and as a ratio to one GPU alone. No GPU is needed.

The graph has the degrees of ogbn-products at a tenth of its size, and the batch a tenth of 1,024
seeds, so that it has the same share of repeated nodes. Rows have 400 bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from khop.data.row_division import divide_rows, shards_of
from khop.datasets import PowerLaw
from khop.loader import NeighborLoader
from khop.sampler import NeighborSampler

FANOUTS = [15, 10, 5]
NODES, EDGES, SEEDS = 245_000, 12_370_000, 102
ROW_BYTES = 400
SHARES = (0.05, 0.1, 0.25)
"""Memory of a GPU for rows, as a share of the table."""
_TITLE = (
    "memory of a GPU | GPUs | on each | host, counted | expected | peers, counted | expected | "
    "host's bytes, ratio"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--scale", type=float, default=1.0, help="of the graph")
    options = parser.parse_args(arguments)
    nodes = int(NODES * options.scale)
    data = PowerLaw(nodes, int(EDGES * options.scale) // 2 * 2, undirected=True).data()
    seeds = torch.nonzero(data.train_mask).flatten()
    sampler = NeighborSampler(data, FANOUTS)
    heat = np.asarray(sampler.sample_prob(seeds, batch_size=SEEDS))
    loader = NeighborLoader(data, FANOUTS, seeds, batch_size=SEEDS, shuffle=True, seed=0)
    batches = [batch.n_id.numpy() for batch, _ in zip(loader, range(options.batches), strict=False)]
    print(_TITLE)
    for share in SHARES:
        alone = None
        for devices in (1, 2, 4):
            budget = int(share * nodes * ROW_BYTES) + 4 * nodes
            division = divide_rows(nodes, ROW_BYTES, devices, budget=budget, hotness=heat)
            shards = shards_of(division, nodes, ROW_BYTES)
            places = np.full(nodes, -1)
            rows = np.arange(nodes) if division.rows is None else division.rows
            places[rows] = np.arange(len(rows))
            peer, host = counted(batches, places, devices, division.replicated)
            alone = alone or host
            print(
                f"{share:15.0%} | {devices:4} | {shards.replicated:7,} | {host:13.1%} | "
                f"{shards.host:8.1%} | {peer:14.1%} | {shards.peer:8.1%} | {host / alone:.2f}"
            )
    return 0


def counted(
    batches: list[npt.NDArray[np.int64]],
    places: npt.NDArray[np.int64],
    devices: int,
    replicated: int,
) -> tuple[float, float]:
    """Return the shares of rows that come from peers and from the host, over all devices."""
    wanted = places[np.concatenate(batches)]
    is_shared = wanted >= replicated
    peer = is_shared.mean() * (devices - 1) / devices  # each of them draws such batches
    return float(peer), float((wanted < 0).mean())


if __name__ == "__main__":
    sys.exit(main())
