"""Bar chart of a run: a panel for each suite and unit. A shorter bar is a lower cost."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from khop_bench.goals import FLOOR
from khop_bench.measure import Row
from khop_bench.report import format_number

_OURS, _FLOOR, _OTHERS = "#4c72b0", "0.75", "#dd8452"
_PEERS = ("PyG", "pyg-lib", "torch", "NumPy", "GLT", "GraphBolt")
_ROW_INCHES = 0.24


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(rows: Mapping[str, Sequence[Row]], title: str, path: Path) -> None:
    """Draw a bar chart of a run's results, and write it to a file.

    Args:
        rows: {suite: its rows}.
        title: title of the chart.
        path: the file to write, in the format of its suffix.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = [
        (f"{suite}: {unit}", list(some))
        for suite, all_rows in rows.items()
        for unit, some in groupby(sorted(all_rows, key=_unit), key=_unit)
    ]
    heights = [_num_lines(some) + 2 for _, some in panels]
    with plt.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        figure, axes = plt.subplots(
            len(panels),
            1,
            figsize=(9, max(2.5, _ROW_INCHES * sum(heights))),
            height_ratios=heights,
            layout="constrained",
            squeeze=False,
        )
        try:
            figure.suptitle(title, fontsize=11)
            for panel, (name, some) in zip(axes[:, 0], panels, strict=True):
                _draw_panel(panel, name, some)
            figure.savefig(path, dpi=110)
        finally:
            plt.close(figure)


def _unit(row: Row) -> str:
    return row.unit if row.work_unit is None else f"ns/{row.work_unit}"


def _values(row: Row) -> list[float]:
    return row.values if row.work_unit is None else row.per_work


def _num_lines(rows: Sequence[Row]) -> int:
    return len(rows) + len({row.group for row in rows})


def _draw_panel(axes: Any, name: str, rows: Sequence[Row]) -> None:
    height, ticks, labels = 0.0, [], []
    for group, members in groupby(rows, key=lambda row: row.group):
        axes.text(0, height, group, va="center", ha="left", fontweight="bold", fontsize=8)
        for row in members:
            height += 1
            _draw_bar(axes, height, row)
            ticks.append(height)
            labels.append(row.name)
        height += 1
    highest = max(max(_values(row)) for row in rows)
    axes.set_xlim(0, highest * 1.22 or 1)  # room for the figures
    axes.set_ylim(height, -0.8)
    axes.set_yticks(ticks, labels)
    axes.tick_params(axis="y", length=0)
    axes.set_title(name, loc="left", fontsize=10)


def _draw_bar(axes: Any, height: float, row: Row) -> None:
    values = sorted(_values(row))
    middle = values[len(values) // 2]
    axes.barh(height, middle, height=0.8, color=_color(row.name))
    axes.plot([values[0], values[-1]], [height, height], color="0.25", linewidth=1)
    ratio = "" if row.ratio == 1 or math.isnan(row.ratio) else f"  (x {row.ratio:.2f})"
    axes.annotate(
        f"{format_number(middle)}{ratio}",
        (values[-1], height),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
    )


def _color(name: str) -> str:
    if name == FLOOR:
        return _FLOOR
    return _OTHERS if name.startswith(_PEERS) else _OURS
