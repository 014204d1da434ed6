#!/usr/bin/env python3
"""Sampling methods against one another, and against PyG's where it can be imported.

    python benchmarks/methods.py subgraphs    # a minute: loaders that choose nodes
    python benchmarks/methods.py layers       # a minute: errors of layers by importance
    python benchmarks/methods.py variance     # a minute: a picture of errors against nodes
    python benchmarks/methods.py cooperative  # a minute: one batch of all trainers against one each
    python benchmarks/methods.py walks        # five minutes: walks at once against step by step

All in memory and in this process, on Debian's packages, undirected, without attributes.
`subgraphs` prints, for each loader, what a batch has, the time of a batch and of an epoch, and how
many times as long PyG's loader of the same name takes, where it works without torch-sparse or can
import it. Loaders take turns; times are medians, ratios are formed turn by turn. `layers` prints
how far means over the drawn neighbours of 512 nodes are from those over all, for normal attributes:
bias and mean squared error, and nodes, edges and time of a batch; `variance` draws the error
against the nodes, for several sizes (`--output`). Times are of the processor, in one thread.

`cooperative` prints, for P trainers of 1,024 seeds each, what a trainer reads and computes of one
batch of all (`khop.distributed.CooperativeLoader`) as shares of what it does of its own batch, and
how many activations it gets from others, with parts at random and by METIS.

`walks` prints millions of steps a second: of one call of the kernels, of the steps taken one after
the other that walks over partitions take (the same walks, which is checked), and of torch-cluster's
`random_walk` if it can be imported; its rows are sorted by destination. Walks have 20 steps, from
random nodes of Debian's packages and of a graph with more and larger hubs.
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
from khop.datasets import DebianPackages, PowerLaw
from khop.sampler import FastGcn, Hgt, Labor, Ladies, PoissonLadies, RippleWalk, SaintNodes
from khop.sampler.drawing.batch_draw import BatchDraw
from khop.sampler.drawing.engine import finish
from khop.sampler.drawing.graph_rows import GraphRows
from khop.sampler.drawing.view import GraphView
from khop.sampler.methods.walk import WalkPlan, acceptance, walks

_PARTS = 64


def graph() -> Data:
    """Debian's packages without attributes."""
    data = DebianPackages(undirected=True)[0]
    return Data(edge_index=data.edge_index, num_nodes=data.num_nodes)


def timed(loader: Any) -> tuple[float, int, int, int]:
    """Seconds of processor of an epoch, its batches, and their nodes and edges."""
    begun, batches, nodes, edges = time.process_time(), 0, 0, 0
    for batch in loader:
        batches += 1
        nodes += batch.num_nodes
        edges += batch.num_edges
    return time.process_time() - begun, batches, nodes, edges


# Subgraphs ----------------------------------------------------------------------------------------


def clusters_of(data: Data) -> ours.ClusterData:
    """METIS's clusters, or random ones where METIS cannot be imported."""
    try:
        begun = time.perf_counter()
        clusters = ours.ClusterData(data, _PARTS, log=False)
        print(f"METIS: {time.perf_counter() - begun:.2f} s for {_PARTS} clusters\n")
    except ImportError:
        random = torch.randint(
            _PARTS, (data.num_nodes,), generator=torch.Generator().manual_seed(0)
        )
        clusters = ours.ClusterData(data, _PARTS, assignment=random)
        print("METIS cannot be imported: clusters are random\n")
    return clusters


def pygs_clusters(data: Data, clusters: ours.ClusterData) -> Any:
    """PyG's `ClusterData` of the same clusters."""
    partition = clusters.partition
    sizes = partition.partptr.diff()
    assignment = torch.empty(data.num_nodes, dtype=torch.long)
    assignment[partition.node_perm] = torch.arange(_PARTS).repeat_interleave(sizes)

    class Given(PygClusterData):  # type: ignore[misc]
        def _metis(self, *_: Any) -> torch.Tensor:
            return assignment

    return Given(data, _PARTS, log=False)


Pair = tuple[Callable[[], Any], "Callable[[], Any] | None"]
"""What makes khop's loader, and PyG's."""


def subgraph_loaders(data: Data) -> dict[str, Pair]:
    """The loaders, by name."""
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
    """Prints nodes, edges and times of the loaders that choose nodes."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loaders = subgraph_loaders(graph())
    print("| loader | nodes | edges | ms a batch | epoch, s | PyG, times as long |")
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
    """One layer over 512 nodes, and what a method's draws of it are compared with."""

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
        """Nodes, edges, bias, mean squared error and milliseconds of a method's batches.

        Args:
            method: the method.
            by_degree: its sums are of whole neighbourhoods, not of the drawn ones.
            turns: batches, in twenties.
        """
        found, nodes, edges, seconds = [], 0, 0, 0.0
        for turn in range(20 * turns):
            loader = ours.NeighborLoader(self.data, method, self.rows, batch_size=512, seed=turn)
            spent, _, num_nodes, num_edges = timed(loader)
            (batch,) = loader
            counts = torch.bincount(batch.edge_index[1])[:512]
            counts = self.degrees[self.rows] if by_degree else counts
            counts = torch.nn.functional.pad(counts, (0, 512 - len(counts))).clamp(min=1)
            found.append(row_sums(batch, self.x) / counts.view(-1, 1))
            nodes, edges, seconds = nodes + num_nodes, edges + num_edges, seconds + spent
        error, count = torch.stack(found) - self.exact, len(found)
        return {
            "nodes": nodes / count,
            "edges": edges / count,
            "bias": float(error.mean(0).abs().mean()),
            "error": float(error.square().mean()),
            "ms": 1000 * seconds / count,
        }


def compare_layers(turns: int) -> None:
    """Prints errors of one layer's means, of methods with about as many nodes."""
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
    print("| method | nodes | edges | bias | mean squared error | ms a batch |")
    print("|---|---|---|---|---|---|")
    for name, (method, by_degree) in methods.items():
        found = layer.errors(method, by_degree, turns)
        print(
            f"| {name} | {found['nodes']:,.0f} | {found['edges']:,.0f} | {found['bias']:.4f} | "
            f"{found['error']:.4f} | {found['ms']:.1f} |",
            flush=True,
        )


def draw_variance(turns: int, file: Path) -> None:
    """Draws the mean squared error of one layer's means against its nodes, by method and size."""
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
        found = [layer.errors(make(size), False, turns) for size in sizes]
        for size, point in zip(sizes, found, strict=True):
            print(
                f"| {name} | {size:,} | {point['nodes']:,.0f} | {point['error']:.4f} |", flush=True
            )
        axes.plot([f["nodes"] for f in found], [f["error"] for f in found], "o-", label=name)
    axes.set(xlabel="nodes of a batch of 512 rows, these included", ylabel="mean squared error")
    axes.set(yscale="log", title="One layer's means against those over all neighbours")
    axes.legend(frameon=False)
    figure.savefig(file)


def row_sums(batch: Any, x: torch.Tensor) -> torch.Tensor:
    """Sums over the drawn neighbours of a batch's first 512 nodes, weighted if it has weights."""
    src, dst = batch.edge_index
    values = x[batch.n_id[src]]
    if "edge_norm" in batch:
        values = values * batch.edge_norm.double().view(-1, 1)
    sums = torch.zeros(batch.num_nodes, x.size(1)).double()
    return sums.index_add_(0, dst, values)[:512]


# Cooperative batches ------------------------------------------------------------------------------


def compare_cooperative(turns: int) -> None:
    """Prints shares of rows and edges, and activations that travel, for 2, 4 and 8 trainers."""
    data = graph()
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0))
    clusters: dict[str, Any] = {"random": lambda p: order % p}
    if importlib.util.find_spec("pymetis") is not None:
        clusters["METIS"] = lambda p: metis_parts(data, p)
    print("| trainers | parts | rows read | edges computed | activations got, of rows |")
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
            got = torch.unique(torch.stack([src[far], owners[dst[far]]]), dim=1).size(1)
            rows, edges = (
                getattr(together, what) / (trainers * getattr(alone, what))
                for what in ("num_nodes", "num_edges")
            )
            print(
                f"| {trainers} | {name} | {rows:.2f} | {edges:.2f} | "
                f"{got / together.num_nodes:.2f} |",
                flush=True,
            )
    del turns


def metis_parts(data: Data, num_parts: int) -> torch.Tensor:
    """The part of each node, by METIS."""
    partition = ours.ClusterData(data, num_parts, log=False).partition
    owners = torch.empty(data.num_nodes, dtype=torch.long)
    parts = torch.arange(num_parts).repeat_interleave(partition.partptr.diff())
    owners[partition.node_perm] = parts
    return owners


# Walks --------------------------------------------------------------------------------------------


def compare_walks(turns: int) -> None:
    """Prints steps a second of walks at once, step by step, and of torch-cluster's."""
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
            some = starts if (p, q) == (1, 1) else starts[:4_000]
            ways = {
                "at once": walks_of(view, some, p, q, True),
                "step by step": walks_of(view, some, p, q, False),
                "torch-cluster": torch_clusters(data, some, p, q),
            }
            found: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(turns):
                for way, walk in ways.items():
                    if walk is not None:
                        begun = time.process_time()
                        nodes = walk()
                        steps = int((nodes[:, 1:] >= 0).sum())
                        found[way].append(steps / (time.process_time() - begun) / 1e6)
            print(f"| {name} | {p:g}, {q:g} | {speeds(found)} |", flush=True)


def speeds(found: dict[str, list[float]]) -> str:
    """Medians of steps a second, and their ratios turn by turn."""
    first, *others = found.values()
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
    """What walks 20 steps from starts, at once or step by step."""
    plan = WalkPlan((0,) * 20, (0,) * 20, *acceptance(p, q))

    def walk() -> torch.Tensor:
        subgraph = _native.Subgraph(view.num_nodes, view.relations, False)
        draw = BatchDraw(GraphRows(view, None), subgraph, (), (), (1, 0), False)
        if not at_once:
            draw.whole_rows = None
        return torch.from_numpy(finish(walks(draw, starts, plan, False))[0])

    if at_once and not torch.equal(walk(), walks_of(view, starts, p, q, False)()):
        raise AssertionError("walks at once are not those step by step")
    return walk


def torch_clusters(data: Data, starts: Any, p: float, q: float) -> Callable[[], Any] | None:
    """The same by torch-cluster, without its compression of the graph in each call."""
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
    """Runs a comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    comparisons: dict[str, Callable[[int], None]] = {
        "subgraphs": compare_subgraphs,
        "layers": compare_layers,
        "walks": compare_walks,
        "cooperative": compare_cooperative,
    }
    parser.add_argument("what", choices=[*comparisons, "variance"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("variance.svg"), help="of `variance`")
    options = parser.parse_args()
    if options.what == "variance":
        draw_variance(options.turns, options.output)
    else:
        comparisons[options.what](options.turns)


if __name__ == "__main__":
    main()
