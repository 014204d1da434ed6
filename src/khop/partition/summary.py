"""Summary of a partition folder: size, cut and balance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from khop.errors import FolderError
from khop.storage.folder import PartitionFolder
from khop.tables import html_table, human_bytes, text_table

TRAIN_MASK = "train_mask"


@dataclass(frozen=True)
class FolderSummary:
    """Size, cut and balance of a partition folder, as `khop inspect` prints them.

    Computed from meta.json and the masks.

    Attributes:
        root: path of the folder.
        method: name and arguments of the partitioner.
        edge_dir: 'in' if in-neighbours are drawn, 'out' if out-neighbours are drawn.
        nodes: nodes of each part, all types together.
        edges: edges of each part.
        train_seeds: training nodes of each part, or None if there is no `train_mask`.
        cached: number of rows of other parts that each part keeps copies of.
        edge_cut: share of all edges that lead to another part.
        edges_between_parts: [part][part of the neighbour] number of edges.
        times: {'attr': attribute of times, 'level': 'node' or 'edge'}, or None.
        weights: the edge attribute that holds weights, or None.
        neighbor_ids: True if the folder has original ids of neighbours, for `khop.sampler.Labor`.
        edge_ids: True if the folder has original ids of edges. If False, it has new ids alone.
        version: format version of the folder.
        node_types: node type -> number of nodes.
        edge_types: edge type, joined by spaces -> number of edges.
        bytes: size of all files.
        expected_shares: for each part, shares of a batch's rows that are local, cached and remote,
            or None if the partitioning method did not compute them.
        cache_curve: expected share of remote rows by number of cached rows, or None.
        left_out: attributes of the graph that the folder does not have -> reasons.

    Raises:
        FolderError: the summary in meta.json is malformed (from `of`).

    Example:
        >>> summary = FolderSummary.of(PartitionFolder(folder))
        >>> summary.nodes, summary.edges, summary.edge_cut
        ([6], [12], 0.0)
    """

    root: str
    method: dict[str, Any]
    edge_dir: str
    nodes: list[int]
    edges: list[int]
    train_seeds: list[int] | None
    cached: list[int]
    edge_cut: float
    edges_between_parts: list[list[int]]
    times: dict[str, str] | None
    weights: str | None
    neighbor_ids: bool
    edge_ids: bool
    version: int
    node_types: dict[str, int]
    edge_types: dict[str, int]
    bytes: int
    expected_shares: list[dict[str, float]] | None
    cache_curve: dict[str, Any] | None
    left_out: dict[str, str]

    @classmethod
    def of(cls, folder: PartitionFolder) -> FolderSummary:
        """Read the summary of a folder. Parts need not be on this machine."""
        meta, time = folder.meta, folder.meta.time_attr
        try:
            between = np.array(meta.summary["edges_between_parts"], np.int64)
            between = between.reshape(meta.num_parts, meta.num_parts)
        except (KeyError, ValueError, TypeError, OverflowError):
            raise FolderError(f"'{folder.root}': the summary in meta.json is malformed") from None
        parts = range(meta.num_parts)
        return cls(
            root=str(folder.root),
            method=meta.method,
            edge_dir=meta.edge_dir,
            nodes=[sum(t.book.size(p) for t in meta.node_types) for p in parts],
            edges=[sum(t.bounds[p + 1] - t.bounds[p] for t in meta.edge_types) for p in parts],
            train_seeds=_train_seeds(folder),
            cached=[sum(t.cached[p] for t in meta.node_types if t.cached) for p in parts],
            edge_cut=float(1 - np.trace(between) / between.sum()) if between.sum() else 0.0,
            edges_between_parts=between.tolist(),
            times=None if time is None else {"attr": time.name, "level": time.level},
            weights=meta.weight_attr,
            neighbor_ids=all(t.neighbor_ids for t in meta.edge_types),
            edge_ids=all(t.edge_ids for t in meta.edge_types),
            version=folder.version,
            node_types={t.name: t.count for t in meta.node_types},
            edge_types={" ".join(t.name): t.count for t in meta.edge_types},
            bytes=sum(known.bytes for known in folder.files.values()),
            expected_shares=meta.summary.get("expected_shares"),
            cache_curve=meta.summary.get("cache_curve"),
            left_out=meta.left_out,
        )

    @property
    def mean_shares(self) -> dict[str, float] | None:
        """Shares of a batch's rows that are local, cached and remote: means over parts, or None."""
        if not self.expected_shares:
            return None
        return {
            rows: float(np.mean([part[rows] for part in self.expected_shares]))
            for rows in ("local", "cached", "remote")
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return names and values of the table that `khop inspect` prints."""
        lines = [
            ("folder", self.root),
            ("size", f"{human_bytes(self.bytes)}, format version {self.version}"),
            ("method", _method(self.method)),
            ("parts", f"{len(self.nodes)}, neighbours drawn '{self.edge_dir}'"),
            ("nodes", _counts(self.node_types) + _spread(self.nodes)),
            ("edges", _counts(self.edge_types) + _spread(self.edges)),
        ]
        if self.times is not None:
            lines.append(
                ("times", "'{attr}' of {level}s, rows sorted by them".format(**self.times))
            )
        if self.weights is not None:
            lines.append(("weights", f"'{self.weights}' of edges"))
        if self.neighbor_ids:
            lines.append(("neighbour ids", "original ones beside the new"))
        if not self.edge_ids:
            lines.append(("edge ids", "the folder's numbering; original ones are not kept"))
        lines.append(("training seeds", self._seeds()))
        if any(self.cached):
            lines.append(("cached rows", f"{max(self.cached):,} in the part with most"))
        lines.append(("edge cut", f"{self.edge_cut:.1%} of the edges lead to another part"))
        shares = self.mean_shares
        if shares is None:
            lines.append(("expected rows", "not counted: khop inspect --report draws batches"))
        else:
            text = ", ".join(f"{share:.1%} {rows}" for rows, share in shares.items())
            lines.append(("expected rows", text))
        lines += [("left out", f"{name}: it {why}") for name, why in self.left_out.items()]
        return lines

    def _seeds(self) -> str:
        if self.train_seeds is not None:
            return f"{sum(self.train_seeds):,}" + _spread(self.train_seeds)
        if self.method.get("num_seeds") in self.node_types.values():
            return f"no '{TRAIN_MASK}': all nodes count as seeds"
        return f"no '{TRAIN_MASK}' among the attributes of nodes"

    def __str__(self) -> str:
        """Return the summary as text, a table of a few lines."""
        return text_table(self.lines())

    def _repr_html_(self) -> str:
        return html_table("Partition folder", self.lines())

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, balances and mean shares, as values for a JSON file."""
        return {
            **asdict(self),
            "node_balance": balance(self.nodes),
            "edge_balance": balance(self.edges),
            "train_seed_balance": None if self.train_seeds is None else balance(self.train_seeds),
            "mean_shares": self.mean_shares,
        }


def balance(counts: Sequence[int]) -> float:
    """Return the largest count divided by the mean: 1.0 is even, `len(counts)` is the worst."""
    total = sum(counts)
    return max(counts) * len(counts) / total if total else 1.0


def _train_seeds(folder: PartitionFolder) -> list[int] | None:
    types = [t for t in folder.meta.node_types if TRAIN_MASK in t.splits]
    if not types:
        return None
    ends = [np.searchsorted(folder.split(t.name, TRAIN_MASK), t.bounds) for t in types]
    seeds: list[int] = np.sum([np.diff(of_type) for of_type in ends], axis=0).tolist()
    return seeds


def _method(method: Mapping[str, Any]) -> str:
    options = [f"{k}={v}" for k, v in method.items() if k != "name" and v is not None]
    return f"{method.get('name', 'unknown')}({', '.join(options)})"


def _counts(types: dict[str, int]) -> str:
    total = f"{sum(types.values()):,}"
    return total if len(types) == 1 else f"{total} of {len(types)} types"


def _spread(counts: Sequence[int]) -> str:
    if len(counts) == 1:
        return ""
    return f"; {min(counts):,} to {max(counts):,} per part (largest / mean = {balance(counts):.3f})"
