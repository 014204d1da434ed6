"""Report of a run's figures as a table and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from khop_bench.goals import Standing
from khop_bench.measure import Row

SCHEMA = 1
"""Version of the JSON report's layout."""

_COLUMNS = ("", "median", "min - max", "per", "ratio")


def row_lines(rows: Sequence[Row]) -> list[str]:
    """Return a Markdown table of rows, aligned: a line each, below one for each group."""
    cells: list[Sequence[str]] = [_COLUMNS]
    for group, members in groupby(rows, key=lambda row: row.group):
        cells.append((f"**{group}**", "", "", "", ""))
        cells += [_cells(row) for row in members]
    return table_lines(cells)


def _cells(row: Row) -> tuple[str, ...]:
    spread = f"{format_number(min(row.values))} - {format_number(max(row.values))}"
    per = ""
    if row.work_unit is not None:
        middle = sorted(row.per_work)[len(row.per_work) // 2]
        per = f"{format_number(middle)} ns/{row.work_unit}"
    return (row.name, f"{format_number(row.median)} {row.unit}", spread, per, _ratio(row))


def _ratio(row: Row) -> str:
    return "" if math.isnan(row.ratio) else f"{row.ratio:.2f}"


def goal_lines(goal_standings: Sequence[Standing]) -> list[str]:
    """Return a Markdown table of goals, aligned."""
    cells: list[Sequence[str]] = [("goal", "bound", "measured", "")]
    for standing in goal_standings:
        measured = "" if standing.measured is None else format_number(standing.measured)
        goal = standing.goal
        cells.append((goal.text(), goal.bound_text(), measured, standing.verdict))
    return table_lines(cells)


def table_lines(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table whose columns are also aligned as plain text.

    Args:
        cells: rows of the same length. The first is the heading. All columns but the first are
            aligned to the right.
    """
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        padded = [row[0].ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return "| " + " | ".join(padded) + " |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return [line(cells[0]), "| " + " | ".join(rule) + " |", *map(line, cells[1:])]


def format_number(value: float) -> str:
    """Format a figure with three significant digits, or as an integer."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def to_json(
    about: Mapping[str, Any],
    rows: Mapping[str, Sequence[Row]],
    goal_standings: Sequence[Standing],
    notes: Sequence[str],
    left_out: Sequence[str],
) -> dict[str, Any]:
    """Return the JSON report.

    Args:
        about: settings, machine and software, each under its name.
        rows: by suite.
        goal_standings: the goals with their measured values.
        notes: remarks that a reader needs.
        left_out: cases that were not measured.

    Returns:
        `schema`, what `about` has, `suites` ({suite: rows}), `goals`, `notes` and `left_out`. A
        row has group, name, unit, median, min, max, ratio (or null) and values. Where work is
        counted it also has work_unit, work and per_work.
    """
    return {
        "schema": SCHEMA,
        **about,
        "suites": {suite: [row.to_json() for row in some] for suite, some in rows.items()},
        "goals": [standing.to_json() for standing in goal_standings],
        "notes": list(notes),
        "left_out": list(left_out),
    }


def to_markdown(
    about: Mapping[str, Any],
    rows: Mapping[str, Sequence[Row]],
    goal_standings: Sequence[Standing],
    notes: Sequence[str],
    left_out: Sequence[str],
) -> str:
    """Return the report as Markdown, with arguments as for `to_json`."""
    lines = [f"# khop benchmarks, scale {about['settings']['scale']:g}", ""]
    for section in ("settings", "machine", "software"):
        content = ", ".join(f"{k} {v}" for k, v in about[section].items() if v is not None)
        lines += [f"{section.capitalize()}: {content}.", ""]
    for suite, some in rows.items():
        lines += [f"## {suite}", "", *row_lines(some), ""]
    if goal_standings:
        lines += ["## Goals", "", *goal_lines(goal_standings), ""]
    if notes or left_out:
        lines += ["## Notes", "", *(f"- {line}" for line in [*notes, *left_out]), ""]
    return "\n".join(lines)


def write(folder: Path, name: str, content: Mapping[str, Any], markdown: str) -> list[Path]:
    """Write the report as JSON and as Markdown, and return its files.

    Earlier files of the name are replaced at once. A killed process leaves the old or the new file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.json", folder / f"{name}.md"]
    for file, text in zip(files, (json.dumps(content, indent=1) + "\n", markdown), strict=True):
        unfinished = file.with_name(f".{file.name}")
        unfinished.write_text(text)
        unfinished.replace(file)
    return files
