"""Context of a run for its suites: settings, graphs, peers, and output of progress."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

from khop_bench.floor import Floor, FloorError, load_floor
from khop_bench.goals import FLOOR
from khop_bench.graphs import Graphs
from khop_bench.measure import Case, Row, Turn, Unit, take_joint_turns, take_turns
from khop_bench.peers import Peers
from khop_bench.report import format_number
from khop_bench.settings import Settings


@dataclass
class Bench:
    """Context of a run of the benchmarks: settings, inputs, output of progress. Suites get it.

    Attributes:
        settings: options of the run.
        graphs: the graphs of its scale.
        peers: the other libraries that can be measured here.
        print_line: prints a line.
        keep: writes the report with the rows that a suite has so far.
        notes: remarks that a reader of the figures needs.
        left_out: cases that could not be measured, one line each.
        failed: failures, one line each.
    """

    settings: Settings
    graphs: Graphs
    peers: Peers
    print_line: Callable[[str], None] = print
    keep: Callable[[list[Row]], None] = lambda rows: None
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        """Print, once, a remark that a reader of the figures needs."""
        if line not in self.notes:
            self.notes.append(line)
            self.print_line(line)

    def leave_out(self, line: str) -> None:
        """Print, once, which case is not measured, and why."""
        if line not in self.left_out:
            self.left_out.append(line)
            self.print_line(line)

    @cached_property
    def floor(self) -> Floor | None:
        """Module that measures the least time possible.

        None, with a line why, if it cannot be built.
        """
        try:
            return load_floor()
        except FloorError as error:
            self.leave_out(f"{FLOOR} is left out: {error}")
            return None

    @contextmanager
    def survives(self, part: str) -> Iterator[None]:
        """Run a part of a suite in the block.

        If it fails, keep the results, and fail at the run's end.
        """
        try:
            yield
        except Exception as error:
            self.print_line(traceback.format_exc())
            self.failed.append(f"{part} failed: {type(error).__name__}: {error}")
            self.leave_out(self.failed[-1])

    def take_turns(
        self, group: str, cases: Sequence[Case], unit: Unit = "ms", work_unit: str | None = None
    ) -> list[Row]:
        """Measure cases in turns, `settings.repeat` times. Arguments: see `measure.take_turns`."""
        rows = take_turns(group, cases, self.settings.repeat, unit, work_unit)
        self._print_rows(rows)
        return rows

    def take_joint_turns(
        self, rows: list[Row], measure: Callable[[int], Sequence[Turn]]
    ) -> list[Row]:
        """Measure several values per call, in turns. Arguments: see `measure.take_joint_turns`."""
        take_joint_turns(rows, measure, self.settings.repeat)
        self._print_rows(rows)
        return rows

    def _print_rows(self, rows: Sequence[Row]) -> None:
        """Print a line for each group: its medians so far."""
        for group, members in groupby(rows, key=lambda row: row.group):
            medians = ", ".join(
                f"{row.name} {format_number(row.median)} {row.unit}" for row in members
            )
            self.print_line(f"{group}: {medians}")
