"""What a run hands to its suites: settings, graphs, peers, and somebody to tell."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from khop.bench.graphs import Graphs
from khop.bench.measure import Case, Row, Turn, Unit, take_joint_turns, take_turns
from khop.bench.peers import Peers
from khop.bench.report import number
from khop.bench.settings import Settings


@dataclass
class Bench:
    """A run.

    Attributes:
        settings: what is asked for.
        graphs: those of its scale.
        peers: who can be measured here.
        say: prints a line.
        notes: what a reader of the figures must know.
        left_out: what could not be measured, a line each.
        failed: what went wrong, a line each.
    """

    settings: Settings
    graphs: Graphs
    peers: Peers
    say: Callable[[str], None] = print
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        """Says, once, what a reader of the figures must know."""
        if line not in self.notes:
            self.notes.append(line)
            self.say(line)

    def leave_out(self, line: str) -> None:
        """Says, once, what is not measured, and why."""
        if line not in self.left_out:
            self.left_out.append(line)
            self.say(line)

    @contextmanager
    def survives(self, what: str) -> Iterator[None]:
        """Keeps what is measured after something that fails; the run fails in the end."""
        try:
            yield
        except Exception as error:
            self.say(traceback.format_exc())
            self.failed.append(f"{what} failed: {type(error).__name__}: {error}")
            self.leave_out(self.failed[-1])

    def take_turns(
        self, group: str, cases: Sequence[Case], unit: Unit = "ms", work_unit: str | None = None
    ) -> list[Row]:
        """Measures cases in turns, as often as is asked for; see `measure.take_turns`."""
        rows = take_turns(group, cases, self.settings.repeat, unit, work_unit)
        self._tell(rows)
        return rows

    def take_joint_turns(
        self, rows: list[Row], measure: Callable[[int], Sequence[Turn]]
    ) -> list[Row]:
        """Likewise what yields several values at a time."""
        take_joint_turns(rows, measure, self.settings.repeat)
        self._tell(rows)
        return rows

    def _tell(self, rows: Sequence[Row]) -> None:
        """A line for each group: what has come out so far."""
        for group, members in groupby(rows, key=lambda row: row.group):
            found = ", ".join(f"{row.name} {number(row.median)} {row.unit}" for row in members)
            self.say(f"{group}: {found}")
