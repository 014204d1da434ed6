"""Pictures of partition folders, and of comparisons of partitioning methods.

A folder's pictures show balance, cut, degrees, and remote rows by cache size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from khop.partition.summary import FolderSummary, balance as largest_over_mean
from khop.plot.figures import COLORS, MOST_NAMES, axes_or_new, new_figure, write_note
from khop.storage.folder import PartitionFolder, edge_path
from khop.typing import Int64Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from khop.partition.report.comparison import Comparison
    from khop.partition.report.cut_report import CutReport

Folder: TypeAlias = "PartitionFolder | str | os.PathLike[str]"
"""A partition folder, or its path."""


def folder(folder: Folder, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw balance, cut, degrees and remote rows by cache size in one figure.

    Args:
        folder: the folder. Degrees come from the parts that are on this machine.
        path: file to write, in the format of its suffix. If None, none is written.

    Returns:
        The figure.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: matplotlib does not support the format.

    Example:
        >>> figure = khop.plot.folder(folder, f"{path}.png")
        >>> len(figure.axes)  # four pictures and a colour bar
        5
    """
    with new_figure(11, 8.2, path, padding=0.12) as figure:
        opened = _opened(folder)
        summary = FolderSummary.of(opened)
        axes = figure.subplots(2, 2)
        nodes, edges = sum(summary.nodes), sum(summary.edges)
        figure.suptitle(
            f"{Path(summary.root).name}: {nodes:,} nodes, {edges:,} edges, {len(summary.nodes)} "
            f"parts by {summary.method.get('name', 'an unknown partitioner')}",
            fontsize=12,
        )
        balance(opened, axes[0, 0])
        edges_between_parts(opened, axes[0, 1])
        degrees(opened, axes[1, 0])
        cache_curve(opened, axes[1, 1])
    return figure


def _opened(folder: Folder) -> PartitionFolder:
    if isinstance(folder, PartitionFolder):
        return folder
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(
            f"expected a partition folder or its path (got {type(folder)}): khop.partition writes "
            "one of a graph"
        )
    return PartitionFolder(folder)


def balance(folder: Folder, axes: Axes | None = None) -> Axes:
    """Draw the nodes, edges and training seeds of each part as bars, divided by the parts' mean.

    `folder` is a `PartitionFolder` or its path. If `axes` is None, a new figure is made.

    Example:
        >>> axes = balance(folder)  # of a single part
        >>> [float(bar.get_height()) for bar in axes.patches]
        [1.0, 1.0, 1.0]
    """
    summary = FolderSummary.of(_opened(folder))
    axes = axes_or_new(axes)
    sizes = {"nodes": summary.nodes, "edges": summary.edges}
    if summary.train_seeds is not None:
        sizes["training seeds"] = summary.train_seeds
    parts = np.arange(len(summary.nodes))
    width = 0.8 / len(sizes)
    highest = 1.0
    for i, (name, counts) in enumerate(sizes.items()):
        relative = np.array(counts) * len(parts) / max(1, sum(counts))
        highest = max(highest, float(relative.max()))
        axes.bar(
            parts + (i - (len(sizes) - 1) / 2) * width,
            relative,
            width,
            color=COLORS[i],
            label=f"{name} {largest_over_mean(counts):.2f}",
        )
    axes.axhline(1, color="0.3", linewidth=0.8, linestyle="--")
    axes.set_ylim(0, highest * 1.35)  # room for the legend
    axes.legend(
        loc="upper center",
        ncols=len(sizes),
        frameon=False,
        fontsize=9,
        columnspacing=1.2,
        handlelength=1,
        title="largest part over the mean",
        title_fontsize=9,
    )
    axes.set(title="Balance", xlabel="part", ylabel="size over the mean of all parts")
    axes.locator_params("x", integer=True)
    return axes


def edges_between_parts(folder: Folder, axes: Axes | None = None) -> Axes:
    """Draw a matrix of shares: of the edges of each part (row), the share to each part (column).

    `folder` is a `PartitionFolder` or its path. If `axes` is None, a new figure is made.

    Example:
        >>> axes = edges_between_parts(folder)  # of a single part
        >>> axes.images[0].get_array().tolist()
        [[1.0]]
    """
    summary = FolderSummary.of(_opened(folder))
    axes = axes_or_new(axes)
    between = np.array(summary.edges_between_parts, np.float64)
    share = between / np.maximum(1, between.sum(axis=1, keepdims=True))
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=max(0.01, share.max()))
    if len(share) <= MOST_NAMES:
        for (row, column), value in np.ndenumerate(share):
            color = "white" if value > 0.6 * share.max() else "0.2"
            axes.text(
                column, row, f"{value:.0%}", ha="center", va="center", color=color, fontsize=9
            )
    axes.set(
        title=f"Edges between parts ({summary.edge_cut:.1%} are cut)",
        xlabel="part of the neighbour",
        ylabel="part that holds the edge",
    )
    axes.locator_params(integer=True)
    axes.spines[:].set_visible(False)
    axes.figure.colorbar(
        image, ax=axes, shrink=0.85, label="share of the part's edges", format="{x:.0%}"
    )
    return axes


def degrees(folder: Folder, axes: Axes | None = None) -> Axes:
    """Draw the distribution of the nodes' degrees in each part that is on this machine.

    `folder` is a `PartitionFolder` or its path. If `axes` is None, a new figure is made.

    Example:
        >>> axes = degrees(folder)  # every node has two in-neighbours
        >>> [int(degree) for degree in axes.lines[0].get_xdata()]
        [2]
    """
    folder = _opened(folder)
    axes = axes_or_new(axes)
    for part in range(folder.num_parts):
        of_part = _degrees(folder, part)
        of_part = of_part[of_part > 0]
        if len(of_part) == 0:
            continue
        values, counts = np.unique(of_part, return_counts=True)
        at_least = counts[::-1].cumsum()[::-1]
        label = f"part {part}" if folder.num_parts <= MOST_NAMES else None
        axes.loglog(values, at_least, drawstyle="steps-mid", linewidth=1.3, alpha=0.8, label=label)
    way = "in" if folder.meta.edge_dir == "in" else "out"
    axes.set(title="Degrees", xlabel=f"{way}-degree", ylabel=f"nodes of at least this {way}-degree")
    if not axes.lines:
        write_note(axes, "no edges")
    elif folder.num_parts <= MOST_NAMES:
        axes.legend(frameon=False, fontsize=9)
    axes.grid(alpha=0.25)
    return axes


def _degrees(folder: PartitionFolder, part: int) -> Int64Array:
    """Return the number of neighbours of each node of a part, [n], edge type after edge type."""
    if not folder.has_part(part):
        return np.empty(0, np.int64)
    pointers = [folder.open(edge_path(part, t.name, "indptr")) for t in folder.meta.edge_types]
    return np.concatenate([np.empty(0, np.int64), *(np.diff(p) for p in pointers)])


def cache_curve(folder: Folder, axes: Axes | None = None) -> Axes:
    """Draw the expected share of rows that are remote, by the number of rows that a part caches.

    `folder` is a `PartitionFolder` or its path. If `axes` is None, a new figure is made.

    Example:
        >>> axes = cache_curve(folder)  # partitioned without hotness: says so
        >>> axes.texts[0].get_text().split(":")[0]
        'hotness is not known'
    """
    summary = FolderSummary.of(_opened(folder))
    axes = axes_or_new(axes)
    axes.set(
        title="Expected remote rows of a batch",
        xlabel="cached rows of other parts",
        ylabel="share of a batch's rows",
    )
    if summary.cache_curve is None:
        write_note(axes, "hotness is not known:\npartition with --method frequency")
        return axes
    rows = summary.cache_curve["rows"]
    remote = np.array(summary.cache_curve["remote"]) * 100
    for part, curve in enumerate(remote):
        label = f"part {part}" if len(remote) <= MOST_NAMES else None
        axes.plot(rows, curve, linewidth=1.3, alpha=0.8, label=label)
    axes.set_xscale("symlog", linthresh=10)
    axes.set_ylim(0, max(1.0, float(remote.max()) * 1.08))
    axes.set_xlim(0, rows[-1])
    if any(summary.cached):
        kept = int(np.mean(summary.cached))
        axes.axvline(kept, color="0.3", linewidth=0.8, linestyle="--", label=f"kept: {kept:,}")
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if len(remote) <= MOST_NAMES or any(summary.cached):
        axes.legend(frameon=False, fontsize=9)
    axes.grid(alpha=0.25)
    return axes


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
