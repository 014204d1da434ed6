"""Picture of a comparison of partitioning methods."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from khop.partition.report.comparison import Comparison
from khop.partition.report.cut_report import CutReport
from khop.plot.figures import COLORS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def comparison(compared: Comparison, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw cut, remote rows, balances and seconds of each method in one figure.

    Args:
        compared: result of `khop.partition.compare_methods`.
        path: file to write, in the format of its suffix. If None, none is written.

    Returns:
        The figure.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: matplotlib does not support the format.

    Example:
        >>> from khop.partition import compare_methods
        >>> result = compare_methods(data, 2, ["random", "stream"], num_neighbors=[2], batch_size=2)
        >>> len(khop.plot.comparison(result, f"{path}.png").axes)
        4
    """
    with new_figure(11, 2.2 + 0.9 * len(compared.methods), path) as figure:
        axes = figure.subplots(2, 2)
        parts = len(compared.methods[0].report.nodes)
        figure.suptitle(
            f"{compared.nodes:,} nodes, {compared.edges:,} edges in {parts} parts", fontsize=12
        )
        methods = [of.method for of in compared.methods]
        reports = [of.report for of in compared.methods]
        cuts = [{"": report.edge_cut} for report in reports]
        _bars(axes[0, 0], "Edges between parts", methods, cuts, "{:.1%}")
        remote = [_remote_rows(report) for report in reports]
        _bars(axes[0, 1], "Rows of a batch from other parts", methods, remote, "{:.1%}")
        balances = [report.balances for report in reports]
        _bars(axes[1, 0], "Largest part over the mean", methods, balances, "{:.2f}")
        seconds = [{"": of.seconds} for of in compared.methods]
        _bars(axes[1, 1], "Seconds", methods, seconds, "{:.2g}")
    return figure


def _remote_rows(report: CutReport) -> dict[str, float]:
    shares = {"with copies": report.remote, "without": report.remote_without_copies}
    return {name: share for name, share in shares.items() if share is not None}


def _bars(
    axes: Axes, title: str, methods: Sequence[str], values: Sequence[dict[str, float]], text: str
) -> None:
    """Draw a group of horizontal bars for each method, the first on top."""
    names = list(values[0])
    height = 0.8 / max(1, len(names))
    for i, name in enumerate(names):
        heights = [row + (i - (len(names) - 1) / 2) * height for row in range(len(values))]
        widths = [of_method[name] for of_method in values]
        bars = axes.barh(heights, widths, height, color=COLORS[i], label=name)
        axes.bar_label(bars, [text.format(width) for width in widths], padding=3, fontsize=8)
    axes.set(title=title, yticks=range(len(values)))
    axes.set_yticklabels(methods)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    if len(names) > 1:
        axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, -0.02))
