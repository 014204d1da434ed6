#!/usr/bin/env python3
"""Bus traffic of batches if a GPU draws the home part's rows of a graph with several partitions.

    python benchmarks/device_partitions.py                       # half a minute
    python benchmarks/device_partitions.py --graph debian        # a real graph, which has clusters

The *home* part of a trainer is the part that its sampler reads from its own folder. At present, a
sampler of a partitioned graph draws on the CPU, and a GPU gathers. A GPU could also draw the home
part's rows and build the batch. At each hop, ids of other parts' rows would then go to the host.
The replies of the other parts would go to the GPU.

The program compares both designs. It counts bytes over the bus and waits of the host, for 2 and 4
partitions. Partitions are random, or by hotness, which is the best method of khop for this purpose.
No GPU is needed. khop's own engine draws the batches from the partition folder, and the program
counts the requests to other parts. Features of the home part take the same path in both designs and
are left out.

The batch size is 1024 x the scale of the graph. A batch then has the same share of repeated nodes
as 1024 seeds in the whole graph. The printed figures are converted to 1024 seeds. Columns::

    home        share of a hop's rows that are in the home part (all rows of seeds are)
    waits       times that the host waits for the device
    up, down    copies to and from the device, and megabytes
    own CPU     milliseconds in which the sampler's core draws the home rows, splits and merges
    others      milliseconds in which servers of other parts draw, on one core
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
_ID = 8  # bytes of an id on the bus, and of an id in a batch
_FEATURE = 400  # bytes of a row of ogbn-products


@dataclass
class Traffic:
    """Sizes of batches, and their requests to other parts.

    Attributes:
        frontier: number of rows per hop.
        elsewhere: number of rows of other parts per hop.
        reply_bytes: bytes of counts and neighbours that other parts sent.
        nodes: number of nodes in all batches.
        nodes_elsewhere: number of nodes with features in other parts.
        edges: number of edges in all batches.
        seconds: time of the engine, without the time of other parts.
        seconds_elsewhere: time in which other parts drew.
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
    """A request with its reply."""

    done = True

    def __init__(self, arrays: list[Any]) -> None:
        self._arrays = arrays

    def result(self) -> list[Any]:
        """Return the arrays of the reply."""
        return self._arrays


class Neighbours:
    """The other partitions, which reply at once. Requests are counted.

    Args:
        folder: the partition folder.
        traffic: counts of the requests.
    """

    def __init__(self, folder: PartitionFolder, traffic: Traffic) -> None:
        self._csrs = [Part(folder, part).csrs for part in range(folder.num_parts)]
        self._traffic = traffic

    def sample(self, part: int, relation: int, rows: RowSet, request: HopRequest) -> Answered:
        """Draw neighbours in another part, as `RemoteParts.sample` does."""
        began = time.perf_counter()
        drawn = rows.draw(self._csrs[part][relation], request)
        self._traffic.seconds_elsewhere += time.perf_counter() - began
        self._traffic.elsewhere[FANOUTS.index(request.fanout)] += len(rows.ids)
        arrays = [array for array in drawn if array is not None]
        self._traffic.reply_bytes += sum(array.nbytes for array in arrays)
        return Answered(arrays)


def measure(folder: PartitionFolder, batch_size: int, batches: int) -> Traffic:
    """Draw `batches` batches for the trainer of each part, after one that does not count."""
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
    """Draw the batches of these numbers for the trainer of a part."""
    node_type = folder.meta.node_types[0]
    low, high = node_type.bounds[part], node_type.bounds[part + 1]
    held = np.asarray(folder.split(node_type.name, "train_mask"), np.int64)
    seeds = np.random.default_rng(part).permutation(held[(held >= low) & (held < high)])
    engine: Any = Engine(GraphView.of_part(Part(folder, part)), spec, Neighbours(folder, traffic))
    key = _native.run_key(1, 0, part)
    for index in numbers:
        begin = index * batch_size % max(1, len(seeds) - batch_size)
        before, began = traffic.seconds_elsewhere, time.perf_counter()
        steps = engine.sample([SeedSet(0, seeds[begin : begin + batch_size])], key, index)
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
    """Run an engine whose requests have replies at once, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


@dataclass(frozen=True)
class Cost:
    """Bus traffic of a batch.

    Attributes:
        waits: number of waits of the host.
        up: number of copies to the device.
        up_bytes: bytes of these copies.
        down: number of copies from the device.
        down_bytes: bytes of these copies.
    """

    waits: int
    up: int
    up_bytes: float
    down: int
    down_bytes: float

    def __str__(self) -> str:
        """Return the cells of a table's line."""
        return (
            f"{self.waits:3d}   {self.up:3d} {self.up_bytes / 1e6:6.1f}"
            f"   {self.down:3d} {self.down_bytes / 1e6:6.2f}"
        )


def on_host(traffic: Traffic, parts: int, per_batch: float) -> Cost:
    """Return the traffic if the CPU draws.

    Edges, ids, staged positions and sources of rows, and features of other parts go to the device.
    """
    home = traffic.nodes - traffic.nodes_elsewhere
    features = _FEATURE * traffic.nodes_elsewhere
    nbytes = 2 * _ID * traffic.edges + 2 * _ID * traffic.nodes + _ID * home + features
    return Cost(1, 4 + parts - 1, nbytes * per_batch, 0, 0.0)


def on_device(traffic: Traffic, parts: int, per_batch: float) -> Cost:
    """Return the traffic if the device draws.

    Seeds and replies go to the device. Ids of other parts' rows and nodes go to the host.
    """
    hops, others = len(FANOUTS), parts - 1
    up = _ID * traffic.frontier[0] + traffic.reply_bytes + _FEATURE * traffic.nodes_elsewhere
    down = _ID * (sum(traffic.elsewhere) + traffic.nodes_elsewhere)
    # Per hop: counts and neighbours of each other part. The sizes come with the last ids.
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
    """Print the table."""
    hops = "  ".join(f"hop {hop + 1}" for hop in range(len(FANOUTS)))
    costs = "waits  up    MB  down    MB"
    print(
        f"{'':17s} {'home, %':24s}   {'drawn on the host':27s}   {'drawn on the device':27s}   "
        "ms on one core"
    )
    print(f"{'':17s} {hops}    all   {costs}   {costs}   own CPU  others")
    for parts in PARTS:
        for method, make in METHODS.items():
            with tempfile.TemporaryDirectory(prefix="khop-device-partitions-") as temporary:
                root = Path(temporary) / "parts"
                make(data, root, parts, batch_size)
                traffic = measure(PartitionFolder(root), batch_size, batches)
            per_batch = BATCH_SIZE / (batch_size * batches * parts)
            shares = [
                100 * (1 - away / rows)
                for away, rows in zip(
                    [*traffic.elsewhere, sum(traffic.elsewhere)],
                    [*traffic.frontier, sum(traffic.frontier)],
                    strict=True,
                )
            ]
            print(
                f"{parts} {method:15s} {_shown(shares)}   {on_host(traffic, parts, per_batch)}   "
                f"{on_device(traffic, parts, per_batch)}   "
                f"{1e3 * traffic.seconds * per_batch:7.1f} "
                f"{1e3 * traffic.seconds_elsewhere * per_batch:7.1f}",
                flush=True,
            )


def _shown(shares: Sequence[float]) -> str:
    return " ".join(f"{share:6.1f}" for share in shares)


def graph_of(name: str, scale: float) -> tuple[Data, int]:
    """Return a graph without features, and the size of its batches."""
    if name == "debian":
        whole: Any = DebianPackages(undirected=True)[0]
        return Data(
            edge_index=whole.edge_index, train_mask=whole.train_mask, num_nodes=whole.num_nodes
        ), 32
    graph = PowerLaw.products(scale, num_features=0, num_classes=0)
    return graph.data(), round(BATCH_SIZE * scale)


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graph", choices=["products", "debian"], default="products")
    parser.add_argument(
        "--scale", type=float, default=0.2, help="scale of the products-shaped graph"
    )
    parser.add_argument("--batches", type=int, default=12, help="batches per part")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data, batch_size = graph_of(arguments.graph, arguments.scale)
    print(
        f"{arguments.graph}: {data.num_nodes:,} nodes, {data.num_edges:,} edges, batches of "
        f"{batch_size} seeds, figures for {BATCH_SIZE} seeds, fan-outs {FANOUTS}"
    )
    report(data, batch_size, arguments.batches)
    return 0


if __name__ == "__main__":
    sys.exit(main())
