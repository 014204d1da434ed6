#!/usr/bin/env python3
"""Whether a GPU should draw the home part's rows where a graph has several partitions.

    python benchmarks/device_partitions.py                       # half a minute
    python benchmarks/device_partitions.py --graph debian        # a real graph, which has clusters

Of several partitions samplers draw on the CPU today, and a GPU gathers. It could draw the rows of
the part at hand and put hops together, too, if the ids of the other rows came down at each hop and
the other parts' replies went up. This counts what would cross the bus then, and how often the host
would wait, against today; for 2 and 4 partitions, random ones and those by hotness, the best that
khop makes. No GPU is needed: batches are drawn by khop's own engine from the partition folder, and
what it asks of other parts is counted. Features of the part at hand take the same way in both cases
and are left out.

Batches are smaller by the scale of the graph, so that they meet themselves as often as batches of
1024 seeds do in the whole graph, and the figures are those of 1024 seeds.

    home        share of a hop's rows that lie in the part of the trainer; rows of the seeds all do
    waits       how often the host waits for the device
    up, down    copies to and from the device, and megabytes
    own CPU     milliseconds that the sampler's own core draws the home rows, splits and merges
    others      milliseconds that other parts' servers draw, on one core
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from khop import _native
from khop.datasets import DebianPackages, PowerLaw
from khop.partition import PartitionFolder, RandomPartitioner, frequency_partition
from khop.sampler.drawing.engine import Engine
from khop.sampler.drawing.view import GraphView
from khop.sampler.requests import HopRequest, RowSet, SeedSet
from khop.sampler.spec import SamplingSpec
from khop.storage.part import Part

FANOUTS = (15, 10, 5)
BATCH_SIZE = 1024
PARTS = (2, 4)
_ID = 8  # bytes of an id on its way down, and of what batches hold
_FEATURE = 400  # bytes of a row of ogbn-products


@dataclass
class Traffic:
    """What batches were, and what they asked of other parts.

    Attributes:
        frontier: rows of each hop.
        elsewhere: of them, those of other parts.
        reply_bytes: counts and neighbours that other parts sent.
        nodes: nodes of the batches.
        nodes_elsewhere: of them, those whose features are elsewhere.
        edges: edges of the batches.
        seconds: time of the engine, without that of the other parts.
        seconds_elsewhere: time that other parts drew.
    """

    frontier: list[int] = field(default_factory=lambda: [0] * len(FANOUTS))
    elsewhere: list[int] = field(default_factory=lambda: [0] * len(FANOUTS))
    reply_bytes: int = 0
    nodes: int = 0
    nodes_elsewhere: int = 0
    edges: int = 0
    seconds: float = 0.0
    seconds_elsewhere: float = 0.0


class Answered:
    """A request that has been answered."""

    done = True

    def __init__(self, arrays: list[Any]) -> None:
        self._arrays = arrays

    def result(self) -> list[Any]:
        """The reply."""
        return self._arrays


class Neighbours:
    """The other partitions, which answer at once; what is asked of them is counted.

    Args:
        folder: the partition folder.
        traffic: where to.
    """

    def __init__(self, folder: PartitionFolder, traffic: Traffic) -> None:
        self._csrs = [Part(folder, part).csrs for part in range(folder.num_parts)]
        self._traffic = traffic

    def sample(self, part: int, relation: int, rows: RowSet, request: HopRequest) -> Answered:
        """See `RemoteParts`."""
        began = time.perf_counter()
        drawn = rows.draw(self._csrs[part][relation], request)
        self._traffic.seconds_elsewhere += time.perf_counter() - began
        self._traffic.elsewhere[FANOUTS.index(request.fanout)] += len(rows.ids)
        arrays = [array for array in drawn if array is not None]
        self._traffic.reply_bytes += sum(array.nbytes for array in arrays)
        return Answered(arrays)


def measure(folder: PartitionFolder, batch_size: int, batches: int) -> Traffic:
    """Draws so many batches for the trainer of each part, after one that does not count."""
    spec = SamplingSpec.create(
        list(FANOUTS), [t.name for t in folder.meta.edge_types], False, False
    )
    total = Traffic()
    for part in range(folder.num_parts):
        draw_batches(folder, part, spec, batch_size, range(1), Traffic())
        draw_batches(folder, part, spec, batch_size, range(1, 1 + batches), total)
    return total


def draw_batches(
    folder: PartitionFolder,
    part: int,
    spec: SamplingSpec,
    batch_size: int,
    numbers: range,
    traffic: Traffic,
) -> None:
    """Draws the batches of these numbers for the trainer of a part."""
    node_type = folder.meta.node_types[0]
    low, high = node_type.bounds[part], node_type.bounds[part + 1]
    held = np.asarray(folder.split(node_type.name, "train_mask"), np.int64)
    seeds = np.random.default_rng(part).permutation(held[(held >= low) & (held < high)])
    engine: Any = Engine(GraphView.of_part(Part(folder, part)), spec, Neighbours(folder, traffic))
    key = _native.run_key(1, 0, part)
    for number in numbers:
        begin = number * batch_size % max(1, len(seeds) - batch_size)
        before, began = traffic.seconds_elsewhere, time.perf_counter()
        steps = engine.sample([SeedSet(0, seeds[begin : begin + batch_size])], key, number)
        subgraph = finish(steps)
        spent = time.perf_counter() - began
        traffic.seconds += spent - (traffic.seconds_elsewhere - before)
        hops = subgraph.nodes_per_hop(0)
        for hop in range(len(FANOUTS)):
            traffic.frontier[hop] += hops[hop]
        nodes = np.empty(subgraph.num_nodes(0), np.int64)
        subgraph.write_nodes(0, nodes)
        traffic.nodes += len(nodes)
        traffic.nodes_elsewhere += int(np.count_nonzero((nodes < low) | (nodes >= high)))
        traffic.edges += subgraph.num_edges(0)
        engine.release(subgraph)


def finish(steps: Any) -> Any:
    """Runs an engine whose requests are answered at once."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


@dataclass(frozen=True)
class Cost:
    """What a batch asks of the bus.

    Attributes:
        waits: how often the host waits.
        up: copies to the device.
        up_bytes: their bytes.
        down: copies from the device.
        down_bytes: their bytes.
    """

    waits: int
    up: int
    up_bytes: float
    down: int
    down_bytes: float

    def __str__(self) -> str:
        """As a part of a table's line."""
        return (
            f"{self.waits:3d}   {self.up:3d} {self.up_bytes / 1e6:6.1f}"
            f"   {self.down:3d} {self.down_bytes / 1e6:6.2f}"
        )


def today(of: Traffic, parts: int, per_batch: float) -> Cost:
    """The CPU draws: edges, ids, where each row is staged and comes from, others' features."""
    home = of.nodes - of.nodes_elsewhere
    features = _FEATURE * of.nodes_elsewhere
    nbytes = 2 * _ID * of.edges + 2 * _ID * of.nodes + _ID * home + features
    return Cost(1, 4 + parts - 1, nbytes * per_batch, 0, 0.0)


def on_device(of: Traffic, parts: int, per_batch: float) -> Cost:
    """The device draws: seeds and replies go up, ids of others' rows and nodes come down."""
    hops, others = len(FANOUTS), parts - 1
    up = _ID * of.frontier[0] + of.reply_bytes + _FEATURE * of.nodes_elsewhere
    down = _ID * (sum(of.elsewhere) + of.nodes_elsewhere)
    # Counts and neighbours of each other part, a hop; the sizes come with the last ids.
    return Cost(
        hops + 1, 1 + hops * 2 * others + others, up * per_batch, hops + 1, down * per_batch
    )


Make = Callable[[Data, Path, int, int], object]
METHODS: dict[str, Make] = {
    "random": lambda data, root, parts, size: RandomPartitioner.from_data(
        data, root, parts
    ).partition(),
    "hotness": lambda data, root, parts, size: frequency_partition(
        data, root, parts, list(FANOUTS), batch_size=size
    ),
}


def report(data: Data, batch_size: int, batches: int) -> None:
    """Prints the table."""
    hops = "  ".join(f"hop {hop + 1}" for hop in range(len(FANOUTS)))
    costs = "waits  up    MB  down    MB"
    print(
        f"{'':17s} {'home, %':24s}   {'today':27s}   {'drawn on the device':27s}   ms on one core"
    )
    print(f"{'':17s} {hops}    all   {costs}   {costs}   own CPU  others")
    for parts in PARTS:
        for method, make in METHODS.items():
            with tempfile.TemporaryDirectory(prefix="khop-device-partitions-") as place:
                root = Path(place) / "parts"
                make(data, root, parts, batch_size)
                found = measure(PartitionFolder(root), batch_size, batches)
            per_batch = BATCH_SIZE / (batch_size * batches * parts)
            shares = [
                100 * (1 - away / rows)
                for away, rows in zip(
                    [*found.elsewhere, sum(found.elsewhere)],
                    [*found.frontier, sum(found.frontier)],
                    strict=True,
                )
            ]
            print(
                f"{parts} {method:15s} {_shown(shares)}   {today(found, parts, per_batch)}   "
                f"{on_device(found, parts, per_batch)}   {1e3 * found.seconds * per_batch:7.1f} "
                f"{1e3 * found.seconds_elsewhere * per_batch:7.1f}",
                flush=True,
            )


def _shown(shares: Sequence[float]) -> str:
    return " ".join(f"{share:6.1f}" for share in shares)


def graph_of(name: str, scale: float) -> tuple[Data, int]:
    """A graph without features, and the size of its batches."""
    if name == "debian":
        whole: Any = DebianPackages(undirected=True)[0]
        return Data(
            edge_index=whole.edge_index, train_mask=whole.train_mask, num_nodes=whole.num_nodes
        ), 32
    graph = PowerLaw.products(scale, num_features=0, num_classes=0)
    return graph.data(), round(BATCH_SIZE * scale)


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graph", choices=["products", "debian"], default="products")
    parser.add_argument("--scale", type=float, default=0.2, help="of the products shape")
    parser.add_argument("--batches", type=int, default=12, help="of each part")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data, batch_size = graph_of(arguments.graph, arguments.scale)
    print(
        f"{arguments.graph}: {data.num_nodes:,} nodes, {data.num_edges:,} edges; batches of "
        f"{batch_size}, figures of {BATCH_SIZE} seeds, fan-outs {FANOUTS}"
    )
    report(data, batch_size, arguments.batches)
    return 0


if __name__ == "__main__":
    sys.exit(main())
