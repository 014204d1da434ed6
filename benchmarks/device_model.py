#!/usr/bin/env python3
"""Predicted time of a batch on a GPU: the table of docs/device-model.md.

    python benchmarks/device_model.py                # products at scale 0.05, and 20 edge types
    python benchmarks/device_model.py --scale 1      # the size of ogbn-products: minutes, 8 GB

The program draws one batch on the emulated device. It counts rows, edges, nodes and sectors of the
batch, and prints the prediction of `khop_bench.device_model`. `benchmarks/run.py --device cuda`
prints the same predictions next to measured times.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from khop import _native
from khop.data import Topology
from khop_bench.device_model import H100, Batch, Counts, Prediction, count, gather, predict
from khop_bench.graphs import Graphs, SeedOrder
from khop_bench.report import format_number, table_lines
from khop_bench.settings import BATCH_SIZE, FANOUTS, default_cache

_TYPES = 5  # node types of the second graph, with an edge type for each of 20 pairs
_NODES = 400_000  # nodes per type
_DEGREE = 20
_TYPED_FANOUTS = (5, 3, 2)
_FEATURES = 400  # bytes per row


def draw(
    topologies: Sequence[Topology],
    relations: Sequence[tuple[int, int]],
    num_nodes: Sequence[int],
    fanouts: Sequence[int],
    seeds: np.ndarray,
) -> tuple[Counts, int]:
    """Draw one batch on the emulated device, and return its counts and the number of launches."""
    device = _native.emulated_device(0)
    csrs = [_native.Csr(t.indptr, t.indices) for t in topologies]
    graphs = [_native.DeviceGraph(device, csr) for csr in csrs]
    subgraph = _native.DeviceSubgraph(device, list(num_nodes), list(relations), True)
    hops = [[_native.HopOptions(k) for k in fanouts]] * len(relations)
    before = device.num_launches
    subgraph.add_seeds(0, seeds)
    subgraph.sample(graphs, hops, 1, 0)
    node_types, edge_types = range(len(num_nodes)), range(len(relations))
    nodes = [np.empty(subgraph.num_nodes(t), np.int64) for t in node_types]
    edges = [np.empty(subgraph.num_edges(r), np.int64) for r in edge_types]
    ends = [np.empty(2 * len(e), np.int64) for e in edges]
    written = [[array.ctypes.data for array in arrays] for arrays in (nodes, ends, edges)]
    subgraph.write(*written, [], [])
    batch = Batch(
        nodes,
        [subgraph.nodes_per_hop(t) for t in node_types],
        edges,
        [subgraph.edges_per_hop(r) for r in edge_types],
        list(relations),
        [t.indptr.itemsize for t in topologies],
        [t.indices.itemsize for t in topologies],
        [fanouts] * len(relations),
    )
    return count(batch), device.num_launches - before


def products(cache: Path, scale: float) -> tuple[Counts, int]:
    """Draw one batch of the products-shaped graph."""
    data = Graphs(cache, scale).products(with_features=False)
    topology = Topology(data.edge_index, num_src=data.num_nodes, num_dst=data.num_nodes)
    order = SeedOrder(data.train_mask.nonzero().view(-1), BATCH_SIZE)
    _, seeds = order.of_turn(0, 1)[0]
    return draw([topology], [(0, 0)], [data.num_nodes], FANOUTS, seeds.numpy())


def typed() -> tuple[Counts, int]:
    """Draw one batch of a random graph of 20 edge types."""
    rng = np.random.default_rng(0)
    relations = [(s, d) for d in range(_TYPES) for s in range(_TYPES) if s != d]
    topologies = []
    for _ in relations:
        pair = rng.integers(0, _NODES, (2, _NODES * _DEGREE))
        topologies.append(Topology(pair, num_src=_NODES, num_dst=_NODES))
    seeds = rng.permutation(_NODES)[:BATCH_SIZE]
    return draw(topologies, relations, [_NODES] * _TYPES, _TYPED_FANOUTS, seeds)


def lines(counts: Counts, prediction: Prediction) -> list[str]:
    """Return a table of the steps, and a line of totals."""
    cells = [("step", "launches", "MB", "sectors, k", "words, k", "atomics, k", "us")]
    for work in [*prediction.drawn, *prediction.written]:
        moved = (work.sectors, work.words, work.atomics)
        cells.append(
            (
                work.step,
                str(work.launches),
                format_number(work.streamed * 1e-6),
                *(format_number(value * 1e-3) for value in moved),
                format_number(work.seconds(prediction.gpu) * 1e6),
            )
        )
    cells.append(
        ("batch", str(prediction.launches), *[""] * 4, format_number(prediction.seconds * 1e6))
    )
    from_device, from_host = (gather(counts.nodes, _FEATURES, host) for host in (False, True))
    recorded = predict(counts, prediction.gpu, as_graph=True).seconds
    return [
        *table_lines(cells),
        "",
        f"{counts.seeds:,} seeds, {counts.edges:,} edges, {counts.nodes:,} nodes. As a CUDA graph: "
        f"{recorded * 1e6:.0f} us. Gather of rows of {_FEATURES} bytes: {from_device * 1e6:.0f} us "
        f"from device memory, {from_host * 1e6:,.0f} us from host memory.",
    ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--scale", type=float, default=0.05, help="scale of products (default: 0.05)"
    )
    parser.add_argument(
        "--cache", type=Path, default=default_cache(), help="folder of cached graphs"
    )
    arguments = parser.parse_args()
    cases = {
        f"products, scale {arguments.scale:g}, fan-outs {FANOUTS}": lambda: products(
            arguments.cache, arguments.scale
        ),
        f"20 edge types, fan-outs {_TYPED_FANOUTS}": typed,
    }
    for name, draws in cases.items():
        counts, launches = draws()
        print(f"\n{name}, on an {H100.name} (launches on the emulated device: {launches})\n")
        print("\n".join(lines(counts, predict(counts))))


if __name__ == "__main__":
    main()
