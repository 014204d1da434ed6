"""Comparison of methods on a graph, or on a sample: cut, balance, remote rows and seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from khop.data import Feature, RowStore
from khop.partition.base import PartitionerBase
from khop.partition.batches import SeedNodes, seeds_of, trained_type
from khop.partition.cut import base_of, check_num_parts, of_method, options_of
from khop.partition.options import MethodOptions
from khop.partition.report.cut_graph import CutGraph
from khop.partition.report.cut_report import FANOUTS, CutReport
from khop.partition.source import EdgeSource, GraphSource, NodeSource, no_progress
from khop.partition.writing.undirected import RowBlock, split_by_type, undirected
from khop.tables import grid
from khop.typing import EdgeDir, Int64Array, IntArray, NodeType, Progress

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData
    from typing_extensions import Unpack


_BALL = 100  # nodes of a sample per start node


@dataclass(frozen=True)
class Compared:
    """One method's result in `compare_methods`: a report of its cut, and its time.

    Attributes:
        method: name of the method.
        seconds: seconds to assign all nodes and to choose copies.
        report: edges between parts, sizes of parts and remote rows.

    Example:
        >>> compared = compare_methods(data, 2, ["random"], num_neighbors=[2], batch_size=2)
        >>> compared.methods[0].method, compared.methods[0].seconds > 0
        ('random', True)
    """

    method: str
    seconds: float
    report: CutReport


@dataclass(frozen=True)
class Comparison:
    """Result of `compare_methods`: cuts of one graph by several methods.

    Attributes:
        nodes: nodes of the graph, or of the sample.
        edges: edges of the graph, or of the sample.
        methods: the cut of each method.

    Example:
        >>> compared = compare_methods(data, 2, ["random"], num_neighbors=[2], batch_size=2)
        >>> compared.nodes, len(compared.methods)
        (6, 1)
    """

    nodes: int
    edges: int
    methods: list[Compared]

    def to_dict(self) -> dict[str, Any]:
        """Return all methods' reports as values that can be written as JSON."""
        return {
            "nodes": self.nodes,
            "edges": self.edges,
            "methods": [
                {"method": of.method, "seconds": of.seconds, **of.report.to_dict()}
                for of in self.methods
            ],
        }

    def __str__(self) -> str:
        """Return a table as text, with a line of figures for each method."""
        names = list(self.methods[0].report.balances)
        head = ["method", "cut", *(f"{name} max/mean" for name in names)]
        table = [[*head, "halo", "remote", "without copies", "seconds"]]
        for of in self.methods:
            report = of.report
            shares = report.remote, report.remote_without_copies
            cells = [f"{report.edge_cut:.3f}", *(f"{b:.3f}" for b in report.balances.values())]
            cells += [f"x {report.replication:.2f}"]
            cells += ["-" if share is None else f"{share:.3f}" for share in shares]
            table.append([of.method, *cells, f"{of.seconds:.2f}"])
        return grid(table)


def compare_methods(
    data: Data | HeteroData | GraphSource,
    num_parts: int,
    methods: Sequence[str],
    *,
    edge_dir: EdgeDir = "in",
    sample: int | None = None,
    seed: int = 0,
    batches: int = 8,
    progress: Progress = no_progress,
    **options: Unpack[MethodOptions],
) -> Comparison:
    """Cut a graph by several methods and compare the cuts. Nothing is written.

    Args:
        data: a PyG `Data` or `HeteroData`, or a `GraphSource`.
        num_parts: number of parts.
        methods: names of methods as for `partition_graph`. 'frequency+metis' (or '+stream',
            '+cluster-metis') is 'frequency' with this option `base`.
        edge_dir: 'in' (neighbours are drawn against the edges' direction) or 'out' (along it).
        sample: approximate number of nodes of a sample: balls around random nodes, with the edges
            among them. If None, the whole graph is cut.
        seed: seed of random choices.
        batches: number of batches that are drawn from each part's seeds, to count remote rows.
        progress: called as progress(method, done, total).
        **options: options of the methods. Each method gets its own options. Batches are drawn with
            `num_neighbors`, `batch_size` and `seeds`.

    Returns:
        The comparison, which prints as a table.

    Raises:
        ValueError, TypeError: unknown methods, options that no method has, or bad arguments.

    Example:
        >>> options = {"num_neighbors": [2], "batch_size": 2}
        >>> compared = compare_methods(data, 2, ["random", "stream"], **options)
        >>> [of.method for of in compared.methods]
        ['random', 'stream']
    """
    source = data if isinstance(data, GraphSource) else GraphSource.from_data(data)
    chosen: dict[str, Any] = {**options}
    resolved = _resolved(methods, chosen)
    seeds = options.get("seeds")
    if sample is not None:
        if seeds is not None and not (
            isinstance(seeds, tuple) and len(seeds) == 2 and seeds[1] is None
        ):
            raise ValueError("a sample has other seeds: leave seeds out, or name their node type")
        source = sampled(source, sample, seed)
    check_num_parts(num_parts, source.num_nodes)
    compared = []
    for i, (name, (method, base)) in enumerate(zip(methods, resolved, strict=True)):
        progress(name, i, len(methods))
        own = {key: value for key, value in chosen.items() if key in options_of(method)}
        own |= {} if base is None else {"base": base}
        own |= {"edge_dir": edge_dir, "seed": seed}
        begun = time.perf_counter()
        partitioner = of_method(source, "unused", num_parts, method, own)
        partitioner.number_nodes()
        for node_type, known in partitioner.numbering.items():
            for part in range(num_parts):
                partitioner.cached_nodes(node_type, part, known.owners)
        seconds = time.perf_counter() - begun
        report = CutReport.of_cut(
            CutGraph.of_partitioner(partitioner),
            _new_seeds(partitioner, seeds),
            options.get("num_neighbors", FANOUTS),
            options.get("batch_size", 1024),
            batches,
        )
        compared.append(Compared(name, seconds, report))
    return Comparison(source.num_nodes, source.num_edges, compared)


def _resolved(methods: Sequence[str], options: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Split each name such as 'frequency+metis' into method and option `base` (None without '+').

    Raises:
        ValueError, TypeError: a method is unknown, or no method has one of the options.
    """
    if not methods:
        raise ValueError("methods must name at least one method (got none)")
    resolved, known = [], {"num_neighbors", "batch_size", "seeds"}
    for name in methods:
        method, _, base = name.partition("+")
        if method == "assigned" or (base and method != "frequency"):
            raise ValueError(
                f"no method '{name}' to compare: frequency alone has a base, frequency+BASE, and "
                "an assignment is not compared"
            )
        known |= options_of(method)
        if base:
            base_of(base)
        resolved.append((method, base or None))
    unknown = sorted(options.keys() - known)
    if unknown:
        raise TypeError(f"none of the methods has options {unknown}: there are {sorted(known)}")
    return resolved


def _new_seeds(partitioner: PartitionerBase, seeds: SeedNodes) -> tuple[int, Int64Array] | None:
    """Return the training seeds in new ids: (index of their node type, [n] new ids).

    `seeds` is the user's argument. If None and the trained type is not known, return None.
    """
    source = partitioner.source
    if seeds is None and source.heterogeneous:
        try:
            trained_type(source)
        except ValueError:
            return None
    node_type, ids = seeds_of(source, seeds)
    new_ids = partitioner.numbering[node_type].new_of_old[ids].astype(np.int64)
    return list(source.nodes).index(node_type), new_ids


def sampled(source: GraphSource, count: int, seed: int) -> GraphSource:
    """Return a subgraph of about `count` nodes of `source`, in balls around random nodes."""
    if count < 1:
        raise ValueError(f"sample must be a number of nodes above 0 (got {count})")
    graph = undirected(source).whole()
    num_nodes = len(graph.indptr) - 1
    if count >= num_nodes:
        return source
    order = np.random.default_rng(seed).permutation(num_nodes)
    starts = max(1, count // _BALL)
    kept = np.zeros(num_nodes, bool)
    frontier, used, left = order[:0], 0, count
    while left > 0:
        if len(frontier) == 0:  # no neighbours are left: take further start nodes
            frontier, used = order[used : used + starts], used + starts
        frontier = np.unique(frontier[~kept[frontier]])
        frontier = np.random.default_rng(seed).permutation(frontier)[:left]
        kept[frontier], left = True, left - len(frontier)
        frontier = _neighbors(graph, frontier)
    by_type = {t: np.flatnonzero(of_type) for t, of_type in split_by_type(source, kept).items()}
    return _induced(source, by_type)


def _neighbors(graph: RowBlock, nodes: Int64Array) -> Int64Array:
    counts = np.diff(graph.indptr)[nodes]
    first = np.repeat(graph.indptr[nodes] - (np.cumsum(counts) - counts), counts)
    return graph.indices[first + np.arange(len(first))].astype(np.int64)


def _induced(source: GraphSource, kept: dict[NodeType, Int64Array]) -> GraphSource:
    nodes, new_ids = {}, {}
    for node_type, ids in kept.items():
        node = source.nodes[node_type]
        new_ids[node_type] = np.full(node.count, -1, np.int64)
        new_ids[node_type][ids] = np.arange(len(ids))
        nodes[node_type] = NodeSource(len(ids), _rows(node.attrs, ids))
    edges = {}
    for edge_type, edge in source.edges.items():
        src, dst = new_ids[edge_type[0]][edge.src], new_ids[edge_type[2]][edge.dst]
        ids = np.flatnonzero((src >= 0) & (dst >= 0))
        edges[edge_type] = EdgeSource(src[ids], dst[ids], _rows(edge.attrs, ids))
    return GraphSource(nodes, edges, source.heterogeneous)


def _rows(attrs: dict[str, RowStore], ids: IntArray) -> dict[str, RowStore]:
    return {name: Feature(f.gather(ids), f.dtype) for name, f in attrs.items()}
