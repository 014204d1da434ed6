"""Goals of khop's speed, in one table, and the results of a run for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from khop_bench.measure import Row, ratio


@dataclass(frozen=True)
class Goal:
    """Goal: a bound on a row's value, or on the ratio of two rows.

    Attributes:
        suite: suite of the rows.
        group: their group.
        khop_row: khop's row.
        against: the row it is compared with: the ratio is that row's cost per unit of work over
            khop's. If None, the bound is on the value of khop's row.
        bound: the bound.
        at_least: True if the bound is a minimum, False if it is a maximum.
        unit: unit of the bound, if it is on a value.
    """

    suite: str
    group: str
    khop_row: str
    against: str | None
    bound: float
    at_least: bool = True
    unit: str = "x"

    def text(self) -> str:
        """Return the goal as text, without its bound."""
        versus = "" if self.against is None else f" against {self.against}"
        return f"{self.suite}, {self.group}: {self.khop_row}{versus}"

    def bound_text(self) -> str:
        """Return the bound as text."""
        return f"{'>=' if self.at_least else '<='} {self.bound:g} {self.unit}"

    def is_met(self, value: float) -> bool:
        """Return whether a measured value meets the goal."""
        return value >= self.bound if self.at_least else value <= self.bound


FLOOR = "floor"
KHOP = "khop"
PYG_LIB = "pyg-lib"
TORCH_SPARSE = "torch-sparse"
DEVICE = "khop, device"
ONE_CORE = "khop, one core"
COPY = "copy"
REPEATED = "one batch again and again"

GOALS = (
    Goal("kernels", "uniform", KHOP, PYG_LIB, 10),
    Goal("kernels", "uniform", KHOP, TORCH_SPARSE, 40),
    Goal("kernels", "uniform", KHOP, FLOOR, 0.5),
    Goal("kernels", "heterogeneous", KHOP, PYG_LIB, 7),
    Goal("kernels", "weighted", KHOP, PYG_LIB, 20),
    Goal("kernels", "temporal", KHOP, PYG_LIB, 4),
    Goal("gather", "rows of a batch", KHOP, FLOOR, 0.85),
    Goal("loaders", "end to end", "khop, in process", "PyG, pyg-lib, in process", 7),
    Goal("loaders", "end to end", "khop, 2 samplers", "PyG, pyg-lib, 2 workers", 7),
    Goal("loaders", "end to end", "khop, 2 samplers, 2 partitions", "PyG, pyg-lib, 2 workers", 3),
    Goal("small", "in process", "overhead", None, 150, False, "us"),
    Goal("small", "1 sampler", "trainer's time", None, 60, False, "us"),
    Goal("startup", "first batch", KHOP, None, 1.0, False, "s"),
    Goal("startup", "private memory", "sampler", None, 150, False, "MB"),
    Goal("growth", "sampling", "edges", "edges x 10", 1.6, False),
    Goal("growth", "gather", "edges", "edges x 10", 1.6, False),
    Goal("growth", "in process", "edges", "edges x 10", 1.6, False),
    Goal("growth", "2 samplers", "edges", "edges x 10", 1.6, False),
    Goal("growth", "first batch", "edges", "edges x 10", 1.25, False),
    Goal("growth", "private memory", "edges", "edges x 10", 1.25, False),
    Goal("device", "sampling", DEVICE, None, 0.35, False, "ms"),
    Goal("device", "sampled edges", DEVICE, None, 2, True, "G/s"),
    Goal("device", "sampling", DEVICE, ONE_CORE, 60),
    Goal("device", "sampling", DEVICE, "GraphBolt", 3),
    Goal("device", "sampling", DEVICE, "cuGraph", 3),
    Goal("device", "gather, device memory", DEVICE, COPY, 0.75),
    Goal("device", "gather, host memory", DEVICE, COPY, 0.85),
    Goal("device", "hot cache", "apart", None, 2, False, "points"),
    Goal("device", "training", REPEATED, "with the loader", 1.1, False),
    Goal("device", "batch equality", "different", None, 0, False, "batches"),
)
"""All goals. Ratios are of costs in one run."""


@dataclass(frozen=True)
class Standing:
    """A goal of khop's speed, and the result of a run for it.

    Attributes:
        goal: the goal.
        measured: the value, or None if a row is missing.
    """

    goal: Goal
    measured: float | None

    @property
    def verdict(self) -> str:
        """'met', 'missed' or 'not measured'."""
        if self.measured is None:
            return "not measured"
        return "met" if self.goal.is_met(self.measured) else "missed"

    def to_json(self) -> dict[str, Any]:
        """Return the result for the JSON report."""
        return {**asdict(self.goal), "measured": self.measured, "verdict": self.verdict}


def standings(rows: Mapping[str, Sequence[Row]]) -> list[Standing]:
    """Compare a run with the goals of its suites.

    Args:
        rows: {suite: its rows}.
    """
    return [
        Standing(goal, _measured(goal, rows[goal.suite])) for goal in GOALS if goal.suite in rows
    ]


def _measured(goal: Goal, rows: Sequence[Row]) -> float | None:
    result = {row.name: row for row in rows if row.group == goal.group}
    khop_row = result.get(goal.khop_row)
    if khop_row is None:
        return None
    if goal.against is None:
        return khop_row.median
    other = result.get(goal.against)
    return None if other is None else ratio(other, khop_row)
