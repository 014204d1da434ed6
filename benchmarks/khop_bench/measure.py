"""Measurement of cases in turns, so that a slow minute affects all of them."""

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
    """Result of a case in one turn.

    Attributes:
        value: seconds, bytes, a share, a rate or a count, per batch if the case has batches.
        work: amount of work that `value` was spent on, such as edges drawn. If 1, values are
            compared as they are.
    """

    value: float
    work: float = 1.0


@dataclass(frozen=True)
class Case:
    """Case to measure.

    Attributes:
        name: library or method.
        turn: function that measures once. Its argument is the number of the turn.
    """

    name: str
    turn: Callable[[int], Turn]


@dataclass
class Row:
    """Results of a case in all turns.

    Attributes:
        group: cases of a group do the same work. The first is the reference.
        name: name of the case.
        unit: unit of `values`.
        work_unit: unit of `work`. If None, work is not counted.
        values: value of each turn.
        work: work of each turn.
        ratio: this case's cost per unit of work over the first case's: the median over turns.
            NaN if the first case cost nothing, or if the row is not compared.
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
        """Value per unit of work in each turn. Times are in nanoseconds."""
        factor = _TIMES["ns"] / _TIMES[self.unit] if self.unit in _TIMES else 1.0
        return [v * factor / w for v, w in zip(self.values, self.work, strict=True)]

    def add(self, turn: Turn) -> None:
        """Add the result of a turn, in the units of `Turn`."""
        self.values.append(turn.value * _FACTORS[self.unit])
        self.work.append(max(turn.work, 1.0))

    def to_json(self) -> dict[str, Any]:
        """Return the row for the JSON report."""
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
    """Measure cases in turns.

    Each case has one turn that does not count, so that code, tables and memory are warm.

    Args:
        group: name of the group.
        cases: the cases, of which the first is the reference.
        repeat: number of turns that count.
        unit: to report in.
        work_unit: unit of the cases' `Turn.work`.

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
    """Measure several values at a time, in turns.

    Args:
        rows: empty rows, of which the first of each group is the reference.
        measure: function of a turn's number that returns a value per row. Called once to warm up.
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
    """Return a row's cost per unit of work over another's: the median of all turns' ratios."""
    pairs = zip(row.per_work, base.per_work, strict=True)
    return statistics.median(_quotient(a, b) for a, b in pairs)


def _quotient(value: float, base: float) -> float:
    return value / base if base else float("nan")
