"""Comparison of methods: cut, balance, remote rows and seconds of each, of a graph or a sample."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from khop.data import Feature, RowStore
from khop.partition.batches import seeds_of, trained_type
from khop.partition.cut import PARTITIONERS, base_of, check_num_parts, of_method, options_of
from khop.partition.report.cut_graph import CutGraph
from khop.partition.report.cut_report import FANOUTS, CutReport
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.partition.writing.both_directions import undirected
from khop.partition.writing.undirected import Rows, split_by_type
from khop.tables import grid
from khop.typing import Array, Int64Array, NodeType, Progress

_BALL = 100  # nodes of a sample that are reached from one start


@dataclass(frozen=True)
class Compared:
    """A method's cut.

    Attributes:
        method: its name.
        seconds: time to assign all nodes, and to choose copies.
        report: what the cut is like.

    Example:
        >>> found = compare_methods(data, 2, ["random"], num_neighbors=[2], batch_size=2)
        >>> found.methods[0].method, found.methods[0].seconds > 0
        ('random', True)
    """

    method: str
    seconds: float
    report: CutReport


@dataclass(frozen=True)
class Comparison:
    """Cuts of one graph by several methods.

    Attributes:
        nodes: nodes of the graph, or of the sample.
        edges: edges of it.
        methods: the cut of each method.

    Example:
        >>> found = compare_methods(data, 2, ["random"], num_neighbors=[2], batch_size=2)
        >>> found.nodes, len(found.methods)
        (6, 1)
    """

    nodes: int
    edges: int
    methods: list[Compared]

    def to_dict(self) -> dict[str, Any]:
        """Return all reports, for JSON."""
        return {
            "nodes": self.nodes,
            "edges": self.edges,
            "methods": [
                {"method": of.method, "seconds": of.seconds, **of.report.to_dict()}
                for of in self.methods
            ],
        }

    def __str__(self) -> str:
        """Return a table with a line for each method."""
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
    data: Any,
    num_parts: int,
    methods: Sequence[str],
    *,
    edge_dir: str = "in",
    sample: int | None = None,
    seed: int = 0,
    batches: int = 8,
    progress: Progress | None = None,
    **options: Any,
) -> Comparison:
    """Cut a graph by several methods and compare the cuts; nothing is written.

    Args:
        data: a PyG `Data` or `HeteroData`, or a `GraphSource`.
        num_parts: number of parts.
        methods: names of methods as `partition_graph` knows them; 'frequency+metis' (or '+stream',
            '+cluster-metis') is 'frequency' with this base.
        edge_dir: 'in' or 'out'.
        sample: about how many nodes to cut: those around some nodes, and the edges among them. If
            None, the whole graph.
        seed: of random choices.
        batches: batches to draw of each part, to count their remote rows.
        progress: called as progress(what, done, total).
        **options: options of any of the methods, for those that have them; `num_neighbors`,
            `batch_size` and `seeds` say which batches are drawn, too.

    Returns:
        The comparison; printed, it is a table.

    Raises:
        ValueError, TypeError: unknown methods, options that none of them has, other arguments.

    Example:
        >>> found = compare_methods(data, 2, ["random", "stream"], num_neighbors=[2], batch_size=2)
        >>> [of.method for of in found.methods]
        ['random', 'stream']
    """
    source = data if isinstance(data, GraphSource) else GraphSource.from_data(data)
    kinds = [_method(name) for name in methods]
    _check(kinds, options)
    if sample is not None:
        if "seeds" in options and not _is_type_alone(options["seeds"]):
            raise ValueError("a sample has other seeds: leave seeds out, or name their node type")
        source = sampled(source, sample, seed)
    check_num_parts(num_parts, sum(node.count for node in source.nodes.values()))
    found = []
    for i, (name, (method, base)) in enumerate(zip(methods, kinds, strict=True)):
        if progress is not None:
            progress(name, i, len(methods))
        own = {key: value for key, value in options.items() if key in options_of(method)}
        own |= {} if base is None else {"base": base}
        own |= {"edge_dir": edge_dir, "seed": seed}
        found.append(_compared(source, num_parts, name, method, own, options, batches))
    nodes = sum(node.count for node in source.nodes.values())
    return Comparison(nodes, sum(len(edge.src) for edge in source.edges.values()), found)


def _compared(
    source: GraphSource,
    num_parts: int,
    name: str,
    method: str,
    own: dict[str, Any],
    options: dict[str, Any],
    batches: int,
) -> Compared:
    begun = time.perf_counter()
    partitioner = of_method(source, "unused", num_parts, method, own)
    partitioner.number()
    for node_type, known in partitioner.numbering.items():
        for part in range(num_parts):
            partitioner.cached_nodes(node_type, part, known.owners)
    seconds = time.perf_counter() - begun
    graph = CutGraph.of_partitioner(partitioner)
    seeds = _seeds(source, options.get("seeds"))
    if seeds is not None:
        node_type, ids = seeds
        new_ids = partitioner.numbering[node_type].new_of_old[ids].astype(np.int64)
        drawn = list(source.nodes).index(node_type), new_ids
    report = CutReport.of_cut(
        graph,
        None if seeds is None else drawn,
        options.get("num_neighbors", FANOUTS),
        options.get("batch_size", 1024),
        batches,
    )
    return Compared(name, seconds, report)


def _method(name: str) -> tuple[str, str | None]:
    """Return a method and its base, if it has one, from 'frequency+metis'."""
    method, _, base = name.partition("+")
    if method == "assigned" or (base and method != "frequency"):
        raise ValueError(
            f"no method '{name}' to compare: frequency alone has a base, frequency+BASE, and an "
            "assignment is not compared"
        )
    PARTITIONERS.resolve(method)
    if base:
        base_of(base)
    return method, base or None


def _check(kinds: Sequence[tuple[str, str | None]], options: dict[str, Any]) -> None:
    if not kinds:
        raise ValueError("methods must name at least one method (got none)")
    known = {"num_neighbors", "batch_size", "seeds"}
    for method, _ in kinds:
        known |= options_of(method)
    unknown = sorted(options.keys() - known)
    if unknown:
        raise TypeError(f"none of the methods has options {unknown}: there are {sorted(known)}")


def _is_type_alone(seeds: Any) -> bool:
    return seeds is None or (isinstance(seeds, tuple) and len(seeds) == 2 and seeds[1] is None)


def _seeds(source: GraphSource, seeds: Any) -> tuple[NodeType, Int64Array] | None:
    """Return the seeds' type and ids; None if several types might be trained on."""
    if seeds is None and source.heterogeneous:
        try:
            trained_type(source)
        except ValueError:
            return None
    return seeds_of(source, seeds)


def sampled(source: GraphSource, count: int, seed: int) -> GraphSource:
    """Return the subgraph of about `count` nodes around nodes drawn at random.

    Args:
        source: the graph.
        count: nodes to keep, at least 1; all, if the graph has no more.
        seed: of the nodes to start from.

    Returns:
        The nodes reached, of all types and with their attributes, and the edges among them.

    Raises:
        ValueError: `count` is not positive.
    """
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
        if len(frontier) == 0:  # nothing more to reach: start anew
            frontier, used = order[used : used + starts], used + starts
        frontier = np.unique(frontier[~kept[frontier]])
        frontier = np.random.default_rng(seed).permutation(frontier)[:left]
        kept[frontier], left = True, left - len(frontier)
        frontier = _neighbors(graph, frontier)
    by_type = {t: np.flatnonzero(of_type) for t, of_type in split_by_type(source, kept).items()}
    return _induced(source, by_type)


def _neighbors(graph: Rows, nodes: Int64Array) -> Int64Array:
    counts = np.diff(graph.indptr)[nodes]
    first = np.repeat(graph.indptr[nodes] - (np.cumsum(counts) - counts), counts)
    return graph.indices[first + np.arange(len(first))].astype(np.int64)


def _induced(source: GraphSource, kept: dict[NodeType, Int64Array]) -> GraphSource:
    nodes, numbers = {}, {}
    for node_type, ids in kept.items():
        node = source.nodes[node_type]
        numbers[node_type] = np.full(node.count, -1, np.int64)
        numbers[node_type][ids] = np.arange(len(ids))
        nodes[node_type] = NodeSource(len(ids), _rows(node.attrs, ids))
    edges = {}
    for edge_type, edge in source.edges.items():
        src, dst = numbers[edge_type[0]][edge.src], numbers[edge_type[2]][edge.dst]
        ids = np.flatnonzero((src >= 0) & (dst >= 0))
        edges[edge_type] = EdgeSource(src[ids], dst[ids], _rows(edge.attrs, ids))
    return GraphSource(nodes, edges, source.heterogeneous)


def _rows(attrs: dict[str, RowStore], ids: Array) -> dict[str, RowStore]:
    return {name: Feature(f.gather(ids), f.dtype) for name, f in attrs.items()}
