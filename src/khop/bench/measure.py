"""Cases that take turns, so that a slow minute hits all of them, and what they yield."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Unit = Literal["s", "ms", "us", "ns", "MB", "%", "points", "G/s", "launches", "batches"]

_TIMES: dict[Unit, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_FACTORS: dict[Unit, float] = {
    **_TIMES,
    "MB": 1e-6,
    "%": 100.0,
    "points": 100.0,
    "G/s": 1e-9,
    "launches": 1.0,
    "batches": 1.0,
}


@dataclass(frozen=True)
class Turn:
    """What a case yields in one turn.

    Attributes:
        value: seconds, bytes, a share, things a second or things, of one batch where there are
            batches.
        work: what was done for it (edges drawn, for example); 1: turns are compared as they are.
    """

    value: float
    work: float = 1.0


@dataclass(frozen=True)
class Case:
    """Something to be measured.

    Attributes:
        name: whose it is or how it is done.
        turn: measures once; called with the number of the turn.
    """

    name: str
    turn: Callable[[int], Turn]


@dataclass
class Row:
    """What a case yielded in all turns.

    Attributes:
        group: cases of a group do the same; the first of them is what the others are compared with.
        name: of the case.
        unit: of `values`.
        work_unit: what `work` counts; None: nothing.
        values: a turn each.
        work: a turn each.
        ratio: of this case's cost, per unit of work, to the first one's: the median over turns;
            NaN if that one cost nothing, or if it is not compared.
    """

    group: str
    name: str
    unit: Unit
    work_unit: str | None = None
    values: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    ratio: float = 1.0

    @property
    def median(self) -> float:
        """Median of the values."""
        return statistics.median(self.values)

    @property
    def per_work(self) -> list[float]:
        """Value for each unit of work, a turn each, in nanoseconds where the value is a time."""
        factor = _TIMES["ns"] / _TIMES[self.unit] if self.unit in _TIMES else 1.0
        return [v * factor / w for v, w in zip(self.values, self.work, strict=True)]

    def add(self, turn: Turn) -> None:
        """Takes in what a turn yielded, in the units that `Turn` has."""
        self.values.append(turn.value * _FACTORS[self.unit])
        self.work.append(max(turn.work, 1.0))

    def to_json(self) -> dict[str, Any]:
        """As in the JSON report."""
        content: dict[str, Any] = {
            "group": self.group,
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "ratio": None if math.isnan(self.ratio) else self.ratio,
            "values": self.values,
        }
        if self.work_unit is not None:
            content["work_unit"] = self.work_unit
            content["work"] = self.work
            content["per_work"] = statistics.median(self.per_work)
        return content


def take_turns(
    group: str,
    cases: Sequence[Case],
    repeat: int,
    unit: Unit = "ms",
    work_unit: str | None = None,
) -> list[Row]:
    """Measures cases in turns.

    Each case has one turn that does not count, so that code, tables and memory are warm.

    Args:
        group: what the cases do.
        cases: the first is what the others are compared with.
        repeat: number of turns that count.
        unit: to report in.
        work_unit: what the cases' `Turn.work` counts.

    Returns:
        A row for each case, in order.
    """
    rows = [Row(group, case.name, unit, work_unit) for case in cases]
    for case in cases:
        case.turn(0)
    for turn in range(repeat):
        for case, row in zip(cases, rows, strict=True):
            row.add(case.turn(turn))
    _compare(rows)
    return rows


def take_joint_turns(
    rows: list[Row], measure: Callable[[int], Sequence[Turn]], repeat: int
) -> list[Row]:
    """Measures what yields several values at a time.

    Args:
        rows: empty ones; the first of each group is what the group's others are compared with.
        measure: called with the number of a turn, once more than counts; returns a value each.
        repeat: number of turns that count.
    """
    measure(0)
    for turn in range(repeat):
        for row, value in zip(rows, measure(turn), strict=True):
            row.add(value)
    _compare(rows)
    return rows


def _compare(rows: Sequence[Row]) -> None:
    first: dict[str, Row] = {}
    for row in rows:
        row.ratio = ratio(row, first.setdefault(row.group, row))


def ratio(row: Row, base: Row) -> float:
    """Cost of a row per unit of work over another's, turn by turn: the median of these ratios."""
    pairs = zip(row.per_work, base.per_work, strict=True)
    return statistics.median(_quotient(a, b) for a, b in pairs)


def _quotient(value: float, base: float) -> float:
    return value / base if base else float("nan")
