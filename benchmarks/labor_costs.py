"""Cases of `labor.py` that compare whole batches: blocks, products, cache and parts.

Run `labor.py`. This module is not a program. The cases that are compared take turns in one run.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from khop.datasets import DebianPackages, PowerLaw
from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
)
from khop.loader import NeighborLoader
from khop.partition import RandomPartitioner
from khop.sampler import Labor, NeighborSampling

BATCH, FANOUTS = 1024, [10, 10, 10]


# Blocks -------------------------------------------------------------------------------------------


def compare_blocks(turns: int) -> None:
    """Print nodes and edges of batches with two rules: all nodes draw per hop, or only new nodes.

    With the first rule, batches are DGL's blocks. Peers publish figures for DGL's blocks.
    """
    data = DebianPackages(undirected=True)[0]
    bare = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0))
    train = order[data.train_mask[order]]
    apart: dict[str, Any] = {"layer_dependency": False}
    poisson: dict[str, Any] = {**apart, "sequential": False}
    methods: dict[str, Callable[[bool], Any]] = {
        "uniform": lambda anew: NeighborSampling(FANOUTS, layer_wise=anew),
        "LABOR-0": lambda anew: Labor(FANOUTS, layer_wise=anew, **apart),
        "LABOR-0, layer_dependency": lambda anew: Labor(FANOUTS, layer_wise=anew),
        "LABOR-1, Poisson": lambda anew: Labor(FANOUTS, importance=1, layer_wise=anew, **poisson),
        "LABOR-3, Poisson": lambda anew: Labor(FANOUTS, importance=3, layer_wise=anew, **poisson),
    }
    print("| seeds | method | nodes, all draw | edges | nodes, new ones draw | edges |")
    print("|---|---|---|---|---|---|")
    for name, seeds in (("any nodes", order), ("training nodes", train)):
        for method, make in methods.items():
            counts = []
            for anew in (True, False):
                chosen = seeds[: BATCH * turns]
                loader = NeighborLoader(bare, make(anew), chosen, batch_size=BATCH, seed=1)
                _stream(loader)()
                stats = loader.stats()
                counts += [stats.nodes / stats.batches, stats.edges / stats.batches]
            print(f"| {name} | {method} | {' | '.join(f'{c:,.0f}' for c in counts)} |", flush=True)


# Products' shape ----------------------------------------------------------------------------------


def compare_products(scale: float, turns: int, batches: int, num_features: int) -> None:
    """Print nodes and time of batches with features, for LABOR-0 and uniform sampling."""
    data = PowerLaw.products(scale, num_features=num_features).data()
    print(f"{data.num_nodes:,} nodes, {data.num_edges:,} entries, {data.num_features} features")
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randperm(data.num_nodes, generator=generator)[: BATCH * batches]
    bare = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    for name, graph in (("with features", data), ("drawing alone", bare)):
        loaders = {
            method: NeighborLoader(graph, fanouts, seeds, batch_size=BATCH, seed=1)
            for method, fanouts in (("uniform", FANOUTS), ("LABOR", Labor(FANOUTS)))
        }
        for suffix, clock in (("", time.perf_counter), (", processor time", time.process_time)):
            cases = {m: _stream(loader, clock) for m, loader in loaders.items()}
            _print_ratios(f"{name}{suffix}", cases, turns)
        counts = [loader.stats() for loader in loaders.values()]
        nodes, edges = (
            [getattr(c, name) / c.batches for c in counts] for name in ("nodes", "edges")
        )
        print(
            f"  nodes {nodes[0]:,.0f} and {nodes[1]:,.0f}: {nodes[1] / nodes[0]:.2f}, "
            f"edges {edges[0]:,.0f} and {edges[1]:,.0f}: {edges[1] / edges[0]:.2f}",
            flush=True,
        )


def _stream(loader: Any, clock: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    """Return a function that measures the seconds per batch of an epoch."""

    def turn() -> float:
        begun = clock()
        batches = sum(1 for _ in loader)
        return (clock() - begun) / batches

    return turn


def _print_ratios(name: str, cases: dict[str, Callable[[], float]], turns: int) -> None:
    """Print the median times of two cases that take turns, and their ratio.

    The first turn does not count.
    """
    pairs = [[turn() for turn in cases.values()] for _ in range(turns + 1)][1:]
    ratios = sorted(b / a for a, b in pairs)
    medians = [1000 * statistics.median(column) for column in zip(*pairs, strict=True)]
    print(
        f"{name}: "
        + ", ".join(f"{case} {ms:.1f} ms" for case, ms in zip(cases, medians, strict=True))
        + f", ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )


# Caches -------------------------------------------------------------------------------------------


def compare_caches(scale: float, batches: int, share: float, num_seeds: int) -> None:
    """Print the misses of a cache of the most recently used nodes, by `batch_dependency`."""
    data = PowerLaw.products(scale, num_features=0).data()
    size = int(share * data.num_nodes)
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0))
    num_needed = 2 * batches * num_seeds
    seeds = order.repeat(-(-num_needed // data.num_nodes))[:num_needed]
    print(f"{data.num_nodes:,} nodes, a cache of {size:,} nodes, batches of {num_seeds} seeds")
    print("| method | nodes | missed | share | missed / uniform's |")
    print("|---|---|---|---|---|")
    methods: dict[str, Any] = {"uniform": FANOUTS, "LABOR": Labor(FANOUTS)}
    methods |= {f"LABOR, K={k}": Labor(FANOUTS, batch_dependency=k) for k in (8, 32)}
    first = None
    for name, method in methods.items():
        used = np.full(data.num_nodes, -1)  # the last batch that used each node
        cached = np.zeros(data.num_nodes, bool)
        nodes = missed = 0
        loader = NeighborLoader(data, method, seeds, batch_size=num_seeds, seed=1)
        for index, batch in enumerate(loader):
            ids = batch.n_id.numpy()
            if index >= batches:
                nodes += len(ids)
                missed += len(ids) - int(cached[ids].sum())
            used[ids] = index
            newest = np.argpartition(-used, size - 1)[:size]
            cached[:] = False
            cached[newest[used[newest] >= 0]] = True
        first = first or missed
        print(
            f"| {name} | {nodes / batches:,.0f} | {missed / batches:,.0f} | {missed / nodes:.2f} | "
            f"{missed / first:.2f} |",
            flush=True,
        )


# Partitions ---------------------------------------------------------------------------------------


def compare_parts(scale: float, turns: int, batches: int) -> None:
    """Print the cost of a second partition per batch, for LABOR and for uniform sampling."""
    data = PowerLaw.products(scale).data()
    seeds = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0))
    seeds = seeds[: BATCH * batches]
    with tempfile.TemporaryDirectory(prefix="khop-labor-") as folder:
        roots = [Path(folder) / str(parts) for parts in (1, 2)]
        for parts, root in enumerate(roots, 1):
            RandomPartitioner.from_data(data, root, parts, neighbor_ids=True).partition()
        del data
        for samplers in (0, 1):
            _compare_parts_with(roots, seeds, samplers, turns)


def _compare_parts_with(roots: list[Path], seeds: Any, samplers: int, turns: int) -> None:
    options: Any = CollocatedDistSamplingWorkerOptions()
    if samplers:
        options = MpDistSamplingWorkerOptions(num_workers=samplers)
    with ExitStack() as stack:
        loaders = {
            (name, parts): stack.enter_context(_opened(root, parts, method, seeds, options))
            for name, method in (("uniform", FANOUTS), ("LABOR", Labor(FANOUTS)))
            for parts, root in enumerate(roots, 1)
        }
        rounds = [{c: _stream(x)() for c, x in loaders.items()} for _ in range(turns + 1)][1:]
    medians = {c: 1000 * statistics.median(r[c] for r in rounds) for c in rounds[0]}
    costs = {m: [r[m, 2] / r[m, 1] for r in rounds] for m in ("uniform", "LABOR")}
    ratios = sorted(b / a for a, b in zip(costs["uniform"], costs["LABOR"], strict=True))
    for method, cost in costs.items():
        print(
            f"{samplers or 'no'} sampler, {method}: one part {medians[method, 1]:.1f} ms, "
            f"two parts {medians[method, 2]:.1f} ms, ratio {statistics.median(cost):.2f}",
        )
    print(
        f"  ratio of two parts to one, LABOR / uniform: {statistics.median(ratios):.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )


class _opened:
    """Loader of a folder. This machine serves all parts."""

    def __init__(self, root: Path, parts: int, method: Any, seeds: Any, options: Any) -> None:
        dataset = DistDataset().load(root, 0, also_serve=range(1, parts), same_host_reads=False)
        self._loader = DistNeighborLoader(
            dataset,
            method,
            seeds,
            batch_size=BATCH,
            with_edge=False,
            collect_features=True,
            seed=1,
            worker_options=options,
        )

    def __enter__(self) -> Iterator[Any]:
        return self._loader

    def __exit__(self, *_: object) -> None:
        self._loader.shutdown()
