"""Picture of a comparison of partitioning methods."""

from __future__ import annotations

import os
from typing import Any

from khop.partition.report.comparison import Compared, Comparison
from khop.plot.figures import COLORS, require_matplotlib, styled


def comparison(found: Comparison, path: str | os.PathLike[str] | None = None) -> Any:
    """Draw cut, remote rows, balances and seconds of each method in one figure.

    Args:
        found: what `khop.partition.compare_methods` returned.
        path: file to write; its suffix selects the format. If None, none is written.

    Returns:
        The figure.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: matplotlib does not support the format.

    Example:
        >>> from khop.partition import compare_methods
        >>> found = compare_methods(data, 2, ["random", "stream"], num_neighbors=[2], batch_size=2)
        >>> len(khop.plot.comparison(found, f"{path}.png").axes)
        4
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(11, 2.2 + 0.9 * len(found.methods)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, 2)
        parts = len(found.methods[0].report.nodes)
        figure.suptitle(
            f"{found.nodes:,} nodes, {found.edges:,} edges in {parts} parts", fontsize=12
        )
        _bars(axes[0, 0], found, "Edges between parts", _cuts, "{:.1%}")
        _bars(axes[0, 1], found, "Rows of a batch from other parts", _remote, "{:.1%}")
        _bars(axes[1, 0], found, "Largest part over the mean", _balances, "{:.2f}")
        _bars(axes[1, 1], found, "Seconds", lambda of: {"": of.seconds}, "{:.2g}")
        if path is not None:
            figure.savefig(path, dpi=130)
    return figure


def _cuts(of: Compared) -> dict[str, float]:
    return {"": of.report.edge_cut}


def _remote(of: Compared) -> dict[str, float]:
    shares = {
        "with copies": of.report.remote,
        "without": of.report.remote_without_copies,
    }
    return {name: share for name, share in shares.items() if share is not None}


def _balances(of: Compared) -> dict[str, float]:
    return of.report.balances


def _bars(axes: Any, found: Comparison, title: str, values_of: Any, text: str) -> None:
    """Draw a group of horizontal bars for each method, the first on top."""
    values = [values_of(of) for of in found.methods]
    names = list(values[0])
    height = 0.8 / max(1, len(names))
    for i, name in enumerate(names):
        places = [row + (i - (len(names) - 1) / 2) * height for row in range(len(values))]
        widths = [of_method[name] for of_method in values]
        bars = axes.barh(places, widths, height, color=COLORS[i], label=name)
        axes.bar_label(bars, [text.format(width) for width in widths], padding=3, fontsize=8)
    axes.set(title=title, yticks=range(len(values)))
    axes.set_yticklabels([of.method for of in found.methods])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    if len(names) > 1:
        axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, -0.02))
