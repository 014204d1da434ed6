"""What a loader has done so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from khop.channel.layout import Received
from khop.sampler.collect import ROWS


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
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROWS, 0))
    restarts: int = 0

    def add(self, received: Received, num_seeds: int) -> None:
        """Counts a batch."""
        self.batches += 1
        self.seeds += num_seeds
        self.nodes += received.counter("nodes")[0]
        self.edges += received.counter("edges")[0]
        for kind, count in zip(ROWS, received.counter("rows"), strict=True):
            self.rows[kind] += count

    def shares(self) -> dict[str, float]:
        """Shares of local, cached and remote rows."""
        total = sum(self.rows.values()) or 1
        return {kind: count / total for kind, count in self.rows.items()}
