"""Settings and findings of a soak, and the report of both."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from khop_bench.report import table_lines
from soak.ledger import Counts
from soak.watch import Trend
from soak.workload import Workload


@dataclass(frozen=True)
class Settings:
    """Settings of a soak.

    Attributes:
        minutes: duration of the faults.
        mode: 'worker', or 'client': two graph servers, a client that stays, and one that comes and
            goes.
        interval: seconds between two kills on average, without the time that faults wait for
            progress of trainers.
        patience: seconds without a batch that count as a hang.
        seed: seed of faults. The workload has its own seed.
        roles: roles of processes to kill.
        network: True to disturb the network, if the machine allows it.
        workload: the graph and the batches.
    """

    minutes: float = 30.0
    mode: str = "worker"
    interval: float = 1.2
    patience: float = 90.0
    seed: int = 0
    roles: tuple[str, ...] = ("sampler", "server", "receiver")
    network: bool = True
    workload: Workload = field(default_factory=Workload)


@dataclass
class Outcome:
    """Findings of a soak.

    Attributes:
        seconds: duration of the faults.
        trainers: numbers of each trainer's batches by outcome.
        longest_gaps: for each trainer, the longest time between two batches, in seconds.
        faults: number of times that each fault happened.
        trends: memory and descriptors of each trainer and server over time.
        notes: parts that were left out, and other remarks.
        problems: one sentence per problem, empty if the soak passed.
    """

    seconds: float = 0.0
    trainers: list[Counts] = field(default_factory=list)
    longest_gaps: list[float] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    trends: dict[str, dict[str, Trend]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """Processes that were killed."""
        return sum(n for fault, n in self.faults.items() if fault.startswith("killed"))

    def to_json(self) -> dict[str, Any]:
        """Return the findings for a JSON file."""
        trends = {
            name: {measure: {**t._asdict(), "flat": t.is_flat} for measure, t in of.items()}
            for name, of in self.trends.items()
        }
        return {**asdict(self), "kills": self.kills, "trends": trends}

    def lines(self) -> list[str]:
        """Return the findings as Markdown tables."""
        head = ["", *(f"trainer {rank}" for rank in range(len(self.trainers)))]
        rows = [head]
        for result in ("delivered", "lost", "doubled", "changed", "epochs"):
            rows.append([result, *(str(getattr(c, result)) for c in self.trainers)])
        rows.append(["longest gap (s)", *(f"{gap:.2f}" for gap in self.longest_gaps)])
        held = [["mean, growth", "private MiB", "shared MiB", "descriptors"]]
        for name, of in self.trends.items():
            held.append([name, *(f"{t.mean:.0f} {t.growth:+.1f}" for t in of.values())])
        faults = [
            ["fault", "times"],
            *([fault, str(n)] for fault, n in sorted(self.faults.items())),
        ]
        return [*table_lines(rows), "", *table_lines(held), "", *table_lines(faults)]


def write_report(outcome: Outcome, settings: Settings, path: Path) -> None:
    """Write settings and findings as JSON."""
    content = {"settings": asdict(settings), **outcome.to_json()}
    path.write_text(json.dumps(content, indent=1) + "\n")
