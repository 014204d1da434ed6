"""Report of a cut: edges and nodes between parts, balances, and rows of batches by location.

All figures are exact counts, except rows of batches, which are means over some batches. Batches are
drawn from the seeds of each part. Each row is local, copied or remote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from khop.data.hot_rows import parse_bytes
from khop.partition.report.cache_hits import PredictedCaches
from khop.partition.report.cut_graph import CutGraph
from khop.partition.summary import TRAIN_MASK, balance
from khop.partition.writing.row_sort import neighbors_by_part
from khop.sampler.drawing.hotness import Seeds, random_batches
from khop.sampler.spec import SamplingSpec
from khop.storage.folder import PartitionFolder
from khop.tables import grid, human_bytes
from khop.typing import Int64Array, NodeType, NumNeighbors

if TYPE_CHECKING:
    from khop.sampler.methods import SamplingMethod

FANOUTS = (15, 10, 5)
_MATRIX_PARTS = 16  # a larger matrix is not printed


@dataclass(frozen=True)
class BatchRows:
    """Mean numbers of node rows per batch of a part, by location.

    Attributes:
        batches: number of batches that were drawn, 0 if the part has no seeds.
        local: rows of the part itself.
        cached: rows that the part keeps copies of.
        remote: rows that come from other parts.

    Example:
        >>> report = CutReport.of(PartitionFolder(folder), [2], batch_size=2)
        >>> report.rows[0].remote, report.rows[0].batches > 0
        (0.0, True)
    """

    batches: int
    local: float
    cached: float
    remote: float

    @property
    def total(self) -> float:
        """Mean number of rows per batch: local, cached and remote."""
        return self.local + self.cached + self.remote


@dataclass(frozen=True)
class CacheHits:
    """Predicted hits of caches of one part's samplers: shares of the rows that they are asked for.

    Attributes:
        remote: of rows of other parts (`cache_memory` of loaders). None if there are none.
        disk: of the part's own rows on disk (`features_on_disk`). None if none was drawn.

    Example:
        >>> folder_of_parts = PartitionFolder(folder)
        >>> CutReport.of(folder_of_parts, [2], batch_size=2, cache_memory="1GB").hits[0].remote
    """

    remote: float | None
    disk: float | None


@dataclass(frozen=True)
class CutReport:
    """Figures of a cut: sizes of parts, edges between parts, and rows of batches.

    Attributes:
        nodes: nodes of each part, all types together.
        edges: edges of each part.
        seeds: seeds of each part, or None if it is not known which nodes are trained on.
        bytes: bytes of each part's rows, edges and copies.
        halo: for each part, number of nodes of other parts that are neighbours of its nodes.
        cut: {edge type, joined by spaces: share of its edges between parts}.
        edge_cut: share of all edges that are between parts.
        edges_between_parts: [part][part of the neighbour] number of edges.
        batch_size: seeds in a batch that was drawn.
        rows: rows of the batches of each part, or None if `seeds` is None.
        hits: predicted hits of caches of each part, or None if no `cache_memory` is passed.

    Example:
        >>> report = CutReport.of(PartitionFolder(folder), [2], batch_size=2)
        >>> report.edge_cut, report.rows[0].remote
        (0.0, 0.0)
    """

    nodes: list[int]
    edges: list[int]
    seeds: list[int] | None
    bytes: list[int]
    halo: list[int]
    cut: dict[str, float]
    edge_cut: float
    edges_between_parts: list[list[int]]
    batch_size: int
    rows: list[BatchRows] | None
    hits: list[CacheHits] | None = None

    @classmethod
    def of(
        cls,
        folder: PartitionFolder,
        num_neighbors: NumNeighbors = FANOUTS,
        *,
        batch_size: int = 1024,
        seed_type: NodeType | None = None,
        batches: int = 8,
        cache_memory: int | str | None = None,
    ) -> CutReport:
        """Count the edges between parts of a folder, and rows of batches.

        All parts are on this machine.

        Args:
            folder: the folder.
            num_neighbors: fan-out of each hop, or {edge type: fan-outs}. Draws are uniform, without
                times and weights.
            batch_size: seeds in a batch.
            seed_type: node type of the seeds: nodes of its `train_mask`, or all if it has no mask.
                If None, the only type that has a mask, or the only type.
            batches: number of batches that are drawn from each part's seeds.
            cache_memory: bytes of a cache of node rows, a number or a text such as '2GB', whose
                hits are predicted from these batches: as `cache_memory` of a loader with one
                sampler, and as `disk_memory`. The first half of the batches fills the cache. If
                None, nothing is predicted.

        Raises:
            FolderError, IndexError: a part is missing or damaged.
            ValueError: an argument is out of range.
        """
        trained = _seeds_of_folder(folder, seed_type)
        nbytes = None if cache_memory is None else parse_bytes(cache_memory)
        graph = CutGraph.of_folder(folder)
        return cls.of_cut(graph, trained, num_neighbors, batch_size, batches, nbytes)

    @classmethod
    def of_cut(
        cls,
        graph: CutGraph,
        seeds: tuple[int, Int64Array] | None,
        num_neighbors: NumNeighbors | SamplingMethod = FANOUTS,
        batch_size: int = 1024,
        batches: int = 8,
        cache_bytes: int | None = None,
    ) -> CutReport:
        """Count the edges between parts of a cut graph, and rows of batches.

        Args:
            graph: the cut graph.
            seeds: (index of the node type, [n] new ids). If None, no batches are drawn.
            num_neighbors: fan-out of each hop, or {edge type: fan-outs}, or a sampling method.
            batch_size: seeds per batch.
            batches: number of batches that are drawn from each part's seeds.
            cache_bytes: bytes of a cache whose hits are predicted. If None, none are.

        :meta private:
        """
        for name, value in (("batch_size", batch_size), ("batches", batches)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1 (got {value})")
        edge_types = [edges.edge_type for edges in graph.edges]
        if isinstance(num_neighbors, tuple):
            num_neighbors = list(num_neighbors)
        fanouts = SamplingSpec.create(num_neighbors, edge_types).fanouts[: len(edge_types)]
        parts = range(graph.num_parts)
        between = np.zeros((len(edge_types), len(parts), len(parts)), np.int64)
        for i, edges in enumerate(graph.edges):
            for part in parts:
                bounds = graph.nodes[edges.neighbors].bounds
                between[i, part] = neighbors_by_part(graph.neighbors(edges, part), bounds)
        of_part = None if seeds is None else _by_part(graph, *seeds)
        rows, hits = None, None
        if seeds is not None and of_part is not None:
            rows, predicted = _batch_rows(
                graph, seeds[0], of_part, fanouts, batch_size, batches, cache_bytes
            )
            hits = None if cache_bytes is None else predicted
        return cls(
            nodes=[sum(n.bounds[p + 1] - n.bounds[p] for n in graph.nodes) for p in parts],
            edges=between.sum(axis=(0, 2)).tolist(),
            seeds=None if of_part is None else [len(ids) for ids in of_part],
            bytes=[graph.bytes_of(p) for p in parts],
            halo=[_halo(graph, p) for p in parts],
            cut={
                " ".join(t): _cut(of_type) for t, of_type in zip(edge_types, between, strict=True)
            },
            edge_cut=_cut(between.sum(axis=0)),
            edges_between_parts=between.sum(axis=0).tolist(),
            batch_size=batch_size,
            rows=rows,
            hits=hits,
        )

    @property
    def remote(self) -> float | None:
        """Share of a batch's node rows that come from other parts, as a mean over parts with seeds.

        None if no batches were drawn.
        """
        return self._share(lambda rows: rows.remote)

    @property
    def remote_without_copies(self) -> float | None:
        """Share of a batch's node rows that would be remote without copies.

        None without batches.
        """
        return self._share(lambda rows: rows.remote + rows.cached)

    def _share(self, count: Callable[[BatchRows], float]) -> float | None:
        drawn = [rows for rows in self.rows or () if rows.batches]
        return float(np.mean([count(rows) / rows.total for rows in drawn])) if drawn else None

    @property
    def balances(self) -> dict[str, float]:
        """Largest part divided by the mean part (1.0 is even), of nodes, edges, seeds and bytes."""
        parts = {"nodes": self.nodes, "edges": self.edges, "seeds": self.seeds, "bytes": self.bytes}
        return {name: balance(counts) for name, counts in parts.items() if counts is not None}

    @property
    def replication(self) -> float:
        """Nodes of all parts and of their halos, divided by the number of nodes in the graph.

        The halo of a part is the nodes of other parts that are neighbours of its nodes.
        """
        total = sum(self.nodes)
        return (total + sum(self.halo)) / total if total else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes and properties, as values that can be written as JSON."""
        return {
            **asdict(self),
            "balances": self.balances,
            "replication": self.replication,
            "remote": self.remote,
            "remote_without_copies": self.remote_without_copies,
        }

    def __str__(self) -> str:
        """Return tables of parts, edge types and edges between parts."""
        tables = [grid(self._part_rows())]
        if self.hits is not None:
            head = ["predicted hits of part", "rows of other parts", "rows on disk"]
            shares = [
                ("-" if s is None else _pct(s) for s in (h.remote, h.disk)) for h in self.hits
            ]
            tables.append(grid([head, *([str(p), *line] for p, line in enumerate(shares))]))
        if len(self.cut) > 1:
            cuts = ((edge_type, _pct(cut)) for edge_type, cut in self.cut.items())
            tables.append(grid([("edge type", "cut"), *cuts]))
        if 1 < len(self.nodes) <= _MATRIX_PARTS:
            names = ["edges to part", *(str(p) for p in range(len(self.nodes)))]
            matrix = [
                [f"of part {p}", *(f"{n:,}" for n in row)]
                for p, row in enumerate(self.edges_between_parts)
            ]
            tables.append(grid([names, *matrix]))
        return "\n\n".join(tables)

    def _part_rows(self) -> list[list[str]]:
        """Return the lines of the printed table of parts, as texts, with the header first."""
        head = ["part", "nodes", "edges", "seeds", "bytes", "halo"]
        head += ["rows per batch", "local", "copied", "remote", "without copies"]
        table = [head]
        for part, count in enumerate(self.nodes):
            rows = None if self.rows is None else self.rows[part]
            line = [str(part), f"{count:,}", f"{self.edges[part]:,}"]
            seeds = "-" if self.seeds is None else f"{self.seeds[part]:,}"
            line += [seeds, human_bytes(self.bytes[part])]
            table.append([*line, f"{self.halo[part]:,}", *_row_cells(rows)])
        balances = [f"{value:.3f}" for value in self.balances.values()]
        if self.seeds is None:
            balances.insert(2, "-")
        shares = [self.remote, self.remote_without_copies]
        cells = ["-" if share is None else _pct(share) for share in shares]
        replicated = f"x {self.replication:.2f}"
        return [*table, ["largest / mean", *balances, replicated, "", "", "", *cells]]


def _row_cells(rows: BatchRows | None) -> list[str]:
    if rows is None or not rows.batches:
        return ["-"] * 5
    counts = rows.local, rows.cached, rows.remote, rows.remote + rows.cached
    return [f"{rows.total:,.0f}", *(_pct(count / rows.total) for count in counts)]


def _pct(share: float) -> str:
    return f"{share:.1%}"


def _cut(between: Int64Array) -> float:
    total = int(between.sum())
    return float(1 - np.trace(between) / total) if total else 0.0


def _halo(graph: CutGraph, part: int) -> int:
    """Return the number of nodes of other parts that are neighbours of a part's nodes."""
    total = 0
    for i, nodes in enumerate(graph.nodes):
        touched = np.zeros(nodes.bounds[-1], bool)
        for edges in graph.edges:
            if edges.neighbors == i:
                touched[graph.neighbors(edges, part)] = True
        touched[nodes.bounds[part] : nodes.bounds[part + 1]] = False
        total += int(np.count_nonzero(touched))
    return total


def _by_part(graph: CutGraph, seed_type: int, ids: Int64Array) -> list[Int64Array]:
    """Return the new ids of each part's seeds, sorted by original id."""
    nodes = graph.nodes[seed_type]
    ids = ids[np.argsort(nodes.originals[ids], kind="stable")]
    owners = np.searchsorted(nodes.bounds, ids, side="right") - 1
    return [ids[owners == part] for part in range(graph.num_parts)]


def _batch_rows(
    graph: CutGraph,
    seed_type: int,
    seeds: Sequence[Int64Array],
    fanouts: Sequence[Sequence[int]],
    batch_size: int,
    batches: int,
    cache_bytes: int | None,
) -> tuple[list[BatchRows], list[CacheHits]]:
    """Draw batches of each part's seeds.

    `seeds` has new ids for each part, of the type with index `seed_type`. `fanouts` has the
    fan-outs of each edge type.

    Returns:
        The mean numbers of rows by location, and predicted hits of caches of `cache_bytes`.
    """
    rows, of_parts, hits = graph.typed_rows(), [], []
    for part, ids in enumerate(seeds):
        held = [np.zeros(nodes.bounds[-1], bool) for nodes in graph.nodes]
        for mask, nodes in zip(held, graph.nodes, strict=True):
            mask[nodes.copies[part]] = True
        counts, drawn = np.zeros(3), 0
        remote_rows, own_rows = PredictedCaches.of_part(graph, part, cache_bytes or 0)
        for batch in random_batches(rows, fanouts, Seeds(seed_type, ids, batch_size), batches):
            for i, (touched, mask, nodes) in enumerate(zip(batch, held, graph.nodes, strict=True)):
                own = (touched >= nodes.bounds[part]) & (touched < nodes.bounds[part + 1])
                local, cached = np.count_nonzero(own), np.count_nonzero(mask[touched])
                counts += local, cached, len(touched) - local - cached
                if cache_bytes is not None:
                    remote_rows.add(i, touched[~own & ~mask[touched]])
                    own_rows.add(i, touched[own])
            drawn += 1
        of_parts.append(BatchRows(drawn, *(counts / max(1, drawn)).tolist()))
        hits.append(CacheHits(remote_rows.share(), own_rows.share()))
    return of_parts, hits


def _seeds_of_folder(
    folder: PartitionFolder, seed_type: NodeType | None
) -> tuple[int, Int64Array] | None:
    """Return the training seeds of a folder: (index of their node type, [n] new ids).

    If `seed_type` is None and the trained type is not known, return None.
    """
    types = folder.meta.node_types
    trained = [t for t in types if TRAIN_MASK in t.splits and len(folder.split(t.name, TRAIN_MASK))]
    chosen = trained if len(trained) == 1 else list(types) if len(types) == 1 else []
    if seed_type is not None:
        chosen = [folder.meta.node_type(seed_type)]
    if not chosen:
        return None
    (only,) = chosen
    ids = folder.split(only.name, TRAIN_MASK) if only in trained else np.arange(only.count)
    return types.index(only), ids.astype(np.int64)
