"""What a loader has done so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class LoaderStats:
    """Counts over all epochs of a loader.

    Attributes:
        batches: batches delivered.
        seeds: seeds in them.
        nodes, edges: nodes and edges in them.
        rows: node rows that came from the home partition ('local'), from copies of hot rows
            ('cached') and from other partitions ('remote').
        restarts: samplers that died and were started again.
    """

    batches: int = 0
    seeds: int = 0
    nodes: int = 0
    edges: int = 0
    rows: dict[str, int] = field(default_factory=lambda: {"local": 0, "cached": 0, "remote": 0})
    restarts: int = 0

    def add(self, meta: Mapping[str, Any], num_seeds: int) -> None:
        """Counts a batch, from its header."""
        self.batches += 1
        self.seeds += num_seeds
        self.nodes += meta["nodes"]
        self.edges += meta["edges"]
        for kind, count in meta["rows"].items():
            self.rows[kind] += count

    def shares(self) -> dict[str, float]:
        """Shares of local, cached and remote rows."""
        total = sum(self.rows.values()) or 1
        return {kind: count / total for kind, count in self.rows.items()}
