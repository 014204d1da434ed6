#!/usr/bin/env python3
"""Sampling methods of khop, compared with one another and with PyG's.

    python benchmarks/methods.py subgraphs    # a minute: loaders that choose nodes
    python benchmarks/methods.py layers       # a minute: errors of layers by importance
    python benchmarks/methods.py variance     # a minute: a chart of errors against nodes
    python benchmarks/methods.py cooperative  # a minute: one common batch against one per trainer
    python benchmarks/methods.py walks        # five minutes: walks in one call, or step by step

Everything runs in memory, in one thread of this process, on the undirected graph of Debian's
packages without attributes. Times are processor times. Cases take turns. Times are medians, and
ratios are computed per turn.

`subgraphs` prints sizes and times of each loader's batches, and the time of an epoch. It also
prints the ratio of the time of PyG's loader of the same name. PyG's loader is left out if it needs
torch-sparse and cannot import it.

`layers` compares means over the drawn neighbours of 512 nodes with means over all neighbours.
Attributes are normal. It prints bias and mean squared error, and nodes, edges and time per batch.
`variance` draws the error against the number of nodes, for several sizes (`--output`).

`cooperative` compares one batch of all P trainers (`khop.distributed.CooperativeLoader`) with
separate batches of 1,024 seeds per trainer. It prints the rows and edges of a trainer as shares of
the same trainer's separate batch. It also prints the activations that a trainer receives. Parts are
random, or by METIS.

`walks` prints millions of steps per second. Walks run in one call of the kernels, or one step at a
time as over partitions. The program checks that both give the same walks. If torch-cluster can be
imported, its `random_walk` also runs, with rows sorted by destination. Walks have 20 steps from
random nodes. The second graph has more and larger hubs than Debian's.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric.loader as pyg
from torch_geometric.data import Data
from torch_geometric.loader.cluster import ClusterData as PygClusterData

from khop import _native, loader as ours
from khop.data import Graph, Topology
from khop.data.steps import run
from khop.datasets import DebianPackages, PowerLaw
from khop.sampler import FastGcn, Hgt, Labor, Ladies, PoissonLadies, RippleWalk, SaintNodes
from khop.sampler.drawing.batch_draw import BatchDraw
from khop.sampler.drawing.graph_rows import GraphRows
from khop.sampler.drawing.view import GraphView
from khop.sampler.methods.walk import WalkPlan, acceptance, walks

_PARTS = 64


def graph() -> Data:
    """Return the graph of Debian's packages without attributes."""
    data = DebianPackages(undirected=True)[0]
    return Data(edge_index=data.edge_index, num_nodes=data.num_nodes)


def timed(loader: Any) -> tuple[float, int, int, int]:
    """Return processor seconds, batches, nodes and edges of an epoch."""
    begun, batches, nodes, edges = time.process_time(), 0, 0, 0
    for batch in loader:
        batches += 1
        nodes += batch.num_nodes
        edges += batch.num_edges
    return time.process_time() - begun, batches, nodes, edges


# Subgraphs ----------------------------------------------------------------------------------------


def clusters_of(data: Data) -> ours.ClusterData:
    """Return METIS's clusters, or random clusters without METIS."""
    try:
        begun = time.perf_counter()
        clusters = ours.ClusterData(data, _PARTS, log=False)
        print(f"METIS: {time.perf_counter() - begun:.2f} s for {_PARTS} clusters\n")
    except ImportError:
        random = torch.randint(
            _PARTS, (data.num_nodes,), generator=torch.Generator().manual_seed(0)
        )
        clusters = ours.ClusterData(data, _PARTS, assignment=random)
        print("METIS cannot be imported, so clusters are random\n")
    return clusters


def pygs_clusters(data: Data, clusters: ours.ClusterData) -> Any:
    """Return PyG's `ClusterData` of the same clusters."""
    partition = clusters.partition
    sizes = partition.partptr.diff()
    assignment = torch.empty(data.num_nodes, dtype=torch.long)
    assignment[partition.node_perm] = torch.arange(_PARTS).repeat_interleave(sizes)

    class FixedClusters(PygClusterData):  # type: ignore[misc]
        def _metis(self, *_: Any) -> torch.Tensor:
            return assignment

    return FixedClusters(data, _PARTS, log=False)


Pair = tuple[Callable[[], Any], "Callable[[], Any] | None"]
"""Functions that make khop's loader and PyG's."""


def subgraph_loaders(data: Data) -> dict[str, Pair]:
    """Return the loaders, by name."""
    clusters = clusters_of(data)
    theirs = pygs_clusters(data, clusters)
    roots = torch.arange(0, data.num_nodes, 16)
    saint: dict[str, Any] = {"num_steps": 30}
    shadow: dict[str, Any] = {"depth": 2, "num_neighbors": 10, "node_idx": roots, "batch_size": 256}
    four: dict[str, Any] = {"batch_size": 4, "shuffle": True}

    def saints(name: str, *sizes: int) -> Pair:
        return (
            lambda: getattr(ours, name)(data, *sizes, **saint),
            lambda: getattr(pyg, name)(data, *sizes, **saint),
        )

    def program(method: Any, batch_size: int) -> Pair:
        seeds = torch.arange(0, data.num_nodes, 1 + data.num_nodes // (30 * batch_size))
        return lambda: ours.NeighborLoader(data, method, seeds, batch_size=batch_size), None

    return {
        f"ClusterLoader, 4 of {_PARTS}": (
            lambda: ours.ClusterLoader(clusters, **four),
            lambda: pyg.ClusterLoader(theirs, **four),
        ),
        "GraphSAINTNodeSampler, 6,000": saints("GraphSAINTNodeSampler", 6000),
        "GraphSAINTEdgeSampler, 3,000": saints("GraphSAINTEdgeSampler", 3000),
        "GraphSAINTRandomWalkSampler, 2,000 x 2": saints("GraphSAINTRandomWalkSampler", 2000, 2),
        "ShaDowKHopSampler, 256 roots, 10 x 10": (
            lambda: ours.ShaDowKHopSampler(data, **shadow),
            lambda: pyg.ShaDowKHopSampler(data, **shadow),
        ),
        "RandomNodeLoader, 16 parts": (
            lambda: ours.RandomNodeLoader(data, 16, shuffle=True),
            lambda: pyg.RandomNodeLoader(data, 16, shuffle=True),
        ),
        "SaintNodes(6,000), 1 seed": program(SaintNodes(6000), 1),
        "RippleWalk(4,000), 1 seed": program(RippleWalk(4000), 1),
        "Hgt([2,000, 2,000]), 256 seeds": program(Hgt([2000, 2000]), 256),
    }


def compare_subgraphs(turns: int) -> None:
    """Print nodes, edges and times of the loaders that choose nodes."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loaders = subgraph_loaders(graph())
    print("| loader | nodes | edges | ms per batch | epoch, s | PyG's time / khop's |")
    print("|---|---|---|---|---|---|")
    for name, (make, make_pygs) in loaders.items():
        loader = make()
        try:
            peer = make_pygs() if make_pygs else None
        except ImportError:
            peer = None
        times, ratios = [], []
        for _ in range(turns + 1):
            seconds, batches, nodes, edges = timed(loader)
            times.append(seconds)
            if peer is not None:
                ratios.append(timed(peer)[0] / seconds)
        seconds = statistics.median(times[1:])
        versus = "cannot be imported" if make_pygs else ""
        if ratios:
            rest = sorted(ratios[1:])
            versus = f"{statistics.median(rest):.1f} ({rest[0]:.1f} to {rest[-1]:.1f})"
        print(
            f"| {name} | {nodes / batches:,.0f} | {edges / batches:,.0f} | "
            f"{1000 * seconds / batches:.2f} | {seconds:.3f} | {versus} |",
            flush=True,
        )


# Layers -------------------------------------------------------------------------------------------


class Layer:
    """One layer over 512 nodes, with its exact means over all neighbours."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.data = graph()
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(self.data.num_nodes, 16, generator=generator).double()
        self.degrees = torch.bincount(self.data.edge_index[1], minlength=self.data.num_nodes)
        rows = torch.randperm(self.data.num_nodes, generator=generator)
        self.rows = rows[self.degrees[rows] > 0][:512]
        (whole,) = ours.NeighborLoader(self.data, [-1], self.rows, batch_size=512)
        self.exact = row_sums(whole, self.x) / self.degrees[self.rows].view(-1, 1)

    def errors(self, method: Any, by_degree: bool, turns: int) -> dict[str, float]:
        """Return nodes, edges, bias, mean squared error and milliseconds per batch of a method.

        Args:
            method: the sampling method.
            by_degree: divide sums by the degree instead of the number of drawn neighbours.
            turns: number of batches / 20.
        """
        means, nodes, edges, seconds = [], 0, 0, 0.0
        for turn in range(20 * turns):
            loader = ours.NeighborLoader(self.data, method, self.rows, batch_size=512, seed=turn)
            spent, _, num_nodes, num_edges = timed(loader)
            (batch,) = loader
            counts = torch.bincount(batch.edge_index[1])[:512]
            counts = self.degrees[self.rows] if by_degree else counts
            counts = torch.nn.functional.pad(counts, (0, 512 - len(counts))).clamp(min=1)
            means.append(row_sums(batch, self.x) / counts.view(-1, 1))
            nodes, edges, seconds = nodes + num_nodes, edges + num_edges, seconds + spent
        error, count = torch.stack(means) - self.exact, len(means)
        return {
            "nodes": nodes / count,
            "edges": edges / count,
            "bias": float(error.mean(0).abs().mean()),
            "error": float(error.square().mean()),
            "ms": 1000 * seconds / count,
        }


def compare_layers(turns: int) -> None:
    """Print errors of one layer's means, for methods with about equal numbers of nodes."""
    layer = Layer()
    methods = {
        "PoissonLadies, 2,000, ht": (PoissonLadies([2000], edge_norm="ht"), True),
        "PoissonLadies, 2,000, hajek": (PoissonLadies([2000]), False),
        "Ladies, 2,000": (Ladies([2000]), False),
        "FastGcn, 2,000, ht": (FastGcn([2000], edge_norm="ht"), True),
        "FastGcn, 2,000, hajek": (FastGcn([2000]), False),
        "uniform, fan-out 5": ([5], False),
        "Labor, fan-out 5": (Labor([5]), False),
    }
    print("| method | nodes | edges | bias | mean squared error | ms per batch |")
    print("|---|---|---|---|---|---|")
    for name, (method, by_degree) in methods.items():
        result = layer.errors(method, by_degree, turns)
        print(
            f"| {name} | {result['nodes']:,.0f} | {result['edges']:,.0f} | {result['bias']:.4f} | "
            f"{result['error']:.4f} | {result['ms']:.1f} |",
            flush=True,
        )


def draw_variance(turns: int, file: Path) -> None:
    """Draw the mean squared error of one layer's means against its nodes, by method and size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    poisson: dict[str, Any] = {"sequential": False, "edge_norm": "hajek"}
    families: dict[str, tuple[Callable[[int], Any], tuple[int, ...]]] = {
        "uniform": (lambda k: [k], (1, 2, 3, 5, 10, 20)),
        "Labor": (lambda k: Labor([k]), (1, 2, 3, 5, 10, 20)),
        "Labor, importance=1": (
            lambda k: Labor([k], importance=1, **poisson),
            (1, 2, 3, 5, 10, 20),
        ),
        "PoissonLadies": (lambda n: PoissonLadies([n]), (500, 1000, 1500, 2000, 3000)),
        "Ladies": (lambda n: Ladies([n]), (500, 1000, 2000, 4000, 8000)),
        "FastGcn": (lambda n: FastGcn([n]), (500, 2000, 8000, 32000)),
    }
    layer = Layer()
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    print("| method | size | nodes | mean squared error |\n|---|---|---|---|")
    for name, (make, sizes) in families.items():
        points = [layer.errors(make(size), False, turns) for size in sizes]
        for size, point in zip(sizes, points, strict=True):
            print(
                f"| {name} | {size:,} | {point['nodes']:,.0f} | {point['error']:.4f} |", flush=True
            )
        axes.plot([p["nodes"] for p in points], [p["error"] for p in points], "o-", label=name)
    axes.set(xlabel="nodes of a batch, including its 512 rows", ylabel="mean squared error")
    axes.set(yscale="log", title="Error of one layer's means over drawn neighbours")
    axes.legend(frameon=False)
    figure.savefig(file)


def row_sums(batch: Any, x: torch.Tensor) -> torch.Tensor:
    """Return sums over the drawn neighbours of a batch's first 512 nodes, with weights if any."""
    src, dst = batch.edge_index
    values = x[batch.n_id[src]]
    if "edge_norm" in batch:
        values = values * batch.edge_norm.double().view(-1, 1)
    sums = torch.zeros(batch.num_nodes, x.size(1)).double()
    return sums.index_add_(0, dst, values)[:512]


# Cooperative batches ------------------------------------------------------------------------------


def compare_cooperative(turns: int) -> None:
    """Print shares of rows and edges, and received activations, for 2, 4 and 8 trainers."""
    data = graph()
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0))
    clusters: dict[str, Any] = {"random": lambda p: order % p}
    if importlib.util.find_spec("pymetis") is not None:
        clusters["METIS"] = lambda p: metis_parts(data, p)
    print("| trainers | parts | rows read | edges computed | activations received / rows |")
    print("|---|---|---|---|---|")
    for trainers in (2, 4, 8):
        alone, together = (
            next(iter(ours.NeighborLoader(data, [10, 10], order, batch_size=size, seed=1)))
            for size in (1024, 1024 * trainers)
        )
        for name, make in clusters.items():
            owners = make(trainers)
            src, dst = together.n_id[together.edge_index]
            far = owners[src] != owners[dst]
            received = torch.unique(torch.stack([src[far], owners[dst[far]]]), dim=1).size(1)
            rows, edges = (
                getattr(together, name_of) / (trainers * getattr(alone, name_of))
                for name_of in ("num_nodes", "num_edges")
            )
            print(
                f"| {trainers} | {name} | {rows:.2f} | {edges:.2f} | "
                f"{received / together.num_nodes:.2f} |",
                flush=True,
            )
    del turns


def metis_parts(data: Data, num_parts: int) -> torch.Tensor:
    """Return the part of each node, by METIS."""
    partition = ours.ClusterData(data, num_parts, log=False).partition
    owners = torch.empty(data.num_nodes, dtype=torch.long)
    parts = torch.arange(num_parts).repeat_interleave(partition.partptr.diff())
    owners[partition.node_perm] = parts
    return owners


# Walks --------------------------------------------------------------------------------------------


def compare_walks(turns: int) -> None:
    """Print steps per second of walks at once, step by step, and of torch-cluster."""
    torch.set_num_threads(1)
    graphs = {
        "Debian": graph(),
        "PowerLaw, 10 M edges": PowerLaw(
            200_000, 10_000_000, max_degree=50_000, exponent=2.2
        ).data(),
    }
    print("| graph | p, q | at once | step by step | ratio | torch-cluster | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, data in graphs.items():
        view = GraphView.of_graph(
            Graph(Topology(data.edge_index, num_src=data.num_nodes, edge_dir="out"))
        )
        starts = np.random.default_rng(0).integers(0, data.num_nodes, 200_000)
        for p, q in ((1.0, 1.0), (1.0, 2.0), (4.0, 0.25), (0.25, 4.0)):
            first_nodes = starts if (p, q) == (1, 1) else starts[:4_000]
            ways = {
                "at once": walks_of(view, first_nodes, p, q, True),
                "step by step": walks_of(view, first_nodes, p, q, False),
                "torch-cluster": torch_clusters(data, first_nodes, p, q),
            }
            rates: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(turns):
                for way, walk in ways.items():
                    if walk is not None:
                        begun = time.process_time()
                        nodes = walk()
                        steps = int((nodes[:, 1:] >= 0).sum())
                        rates[way].append(steps / (time.process_time() - begun) / 1e6)
            print(f"| {name} | {p:g}, {q:g} | {speeds(rates)} |", flush=True)


def speeds(rates: dict[str, list[float]]) -> str:
    """Return medians of steps per second, and ratios per turn, as cells of a table."""
    first, *others = rates.values()
    cells = [f"{statistics.median(first):.3g}"]
    for other in others:
        if not other:
            cells += ["", "cannot be imported"]
            continue
        ratios = sorted(a / b for a, b in zip(first, other, strict=True))
        cells.append(f"{statistics.median(other):.3g}")
        cells.append(f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})")
    return " | ".join(cells)


def walks_of(
    view: GraphView, starts: Any, p: float, q: float, at_once: bool
) -> Callable[[], torch.Tensor]:
    """Return a function that walks 20 steps from `starts`, at once or step by step."""
    plan = WalkPlan((0,) * 20, (0,) * 20, *acceptance(p, q))

    def walk() -> torch.Tensor:
        subgraph = _native.Subgraph(view.num_nodes, view.relations, False)
        draw = BatchDraw(GraphRows(view, None), subgraph, (), (), (1, 0), False)
        if not at_once:
            draw.whole_rows = None
        return torch.from_numpy(run(walks(draw, starts, plan, False))[0])

    if at_once and not torch.equal(walk(), walks_of(view, starts, p, q, False)()):
        raise AssertionError("walks at once differ from walks step by step")
    return walk


def torch_clusters(data: Data, starts: Any, p: float, q: float) -> Callable[[], Any] | None:
    """Return a function that walks by torch-cluster, without its compression of the graph."""
    try:
        from torch_cluster import random_walk as _  # type: ignore[import-not-found] # noqa: F401
    except ImportError:
        return None
    order = (data.edge_index[0] * data.num_nodes + data.edge_index[1]).argsort()
    row, col = data.edge_index[:, order]
    indptr = torch.zeros(data.num_nodes + 1, dtype=torch.long)
    indptr[1:] = row.bincount(minlength=data.num_nodes).cumsum(0)
    first = torch.from_numpy(starts)
    return lambda: torch.ops.torch_cluster.random_walk(indptr, col, first, 20, p, q)[0]


def main() -> None:
    """Run a comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    comparisons: dict[str, Callable[[int], None]] = {
        "subgraphs": compare_subgraphs,
        "layers": compare_layers,
        "walks": compare_walks,
        "cooperative": compare_cooperative,
    }
    parser.add_argument("comparison", choices=[*comparisons, "variance"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument(
        "--output", type=Path, default=Path("variance.svg"), help="chart of `variance`"
    )
    options = parser.parse_args()
    if options.comparison == "variance":
        draw_variance(options.turns, options.output)
    else:
        comparisons[options.comparison](options.turns)


if __name__ == "__main__":
    main()
