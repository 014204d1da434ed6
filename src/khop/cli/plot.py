"""Plot of a partition folder: balance, cut, degrees, and remote rows by cache size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from khop.partition.summary import FolderSummary, balance
from khop.storage.folder import PartitionFolder, edge_path
from khop.typing import Int64Array

_KINDS = {"nodes": "#4c72b0", "edges": "#dd8452", "training seeds": "#55a868"}
# Matrices of more parts carry no numbers in their cells, and their axes fewer labels.
_MOST_NUMBERS = 10


def draw_folder(folder: PartitionFolder, summary: FolderSummary, path: str) -> None:
    """Draw a folder.

    Args:
        folder: the folder; degrees come from the parts that are on this machine.
        summary: its summary.
        path: the file to write; its suffix selects the format.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: matplotlib does not support the format.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "--plot needs package matplotlib: pip install 'khop[plot]'"
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10}):
        figure, axes = plt.subplots(2, 2, figsize=(11, 8.2), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
        try:
            figure.suptitle(_title(summary), fontsize=12)
            _draw_balance(axes[0, 0], summary)
            _draw_cut(figure, axes[0, 1], summary)
            _draw_degrees(axes[1, 0], folder)
            _draw_cache(axes[1, 1], summary)
            figure.savefig(path, dpi=130)
        finally:
            plt.close(figure)


def _title(summary: FolderSummary) -> str:
    return (
        f"{Path(summary.root).name}: {sum(summary.nodes):,} nodes, {sum(summary.edges):,} edges, "
        f"{len(summary.nodes)} parts by {summary.method.get('name', 'an unknown partitioner')}"
    )


def _draw_balance(axes: Any, summary: FolderSummary) -> None:
    kinds = {"nodes": summary.nodes, "edges": summary.edges}
    if summary.train_seeds is not None:
        kinds["training seeds"] = summary.train_seeds
    parts = np.arange(len(summary.nodes))
    width = 0.8 / len(kinds)
    highest = 1.0
    for i, (kind, counts) in enumerate(kinds.items()):
        relative = np.array(counts) * len(parts) / max(1, sum(counts))
        highest = max(highest, float(relative.max()))
        axes.bar(
            parts + (i - (len(kinds) - 1) / 2) * width,
            relative,
            width,
            color=_KINDS[kind],
            label=f"{kind} {balance(counts):.2f}",
        )
    axes.axhline(1, color="0.3", linewidth=0.8, linestyle="--")
    axes.set_ylim(0, highest * 1.35)  # room for the legend
    axes.legend(
        loc="upper center",
        ncols=len(kinds),
        frameon=False,
        fontsize=9,
        columnspacing=1.2,
        handlelength=1,
        title="largest part over the mean",
        title_fontsize=9,
    )
    axes.set(title="Balance", xlabel="part", ylabel="size over the mean of all parts")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _draw_cut(figure: Any, axes: Any, summary: FolderSummary) -> None:
    between = np.array(summary.edges_between_parts, np.float64)
    share = between / np.maximum(1, between.sum(axis=1, keepdims=True))
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=max(0.01, share.max()))
    if len(share) <= _MOST_NUMBERS:
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
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    axes.spines[:].set_visible(False)
    figure.colorbar(
        image, ax=axes, shrink=0.85, label="share of the part's edges", format="{x:.0%}"
    )


def _draw_degrees(axes: Any, folder: PartitionFolder) -> None:
    drawn = False
    for part in range(folder.num_parts):
        degrees = _degrees(folder, part)
        degrees = degrees[degrees > 0]
        if len(degrees) == 0:
            continue
        values, counts = np.unique(degrees, return_counts=True)
        at_least = counts[::-1].cumsum()[::-1]
        label = f"part {part}" if folder.num_parts <= _MOST_NUMBERS else None
        axes.loglog(values, at_least, drawstyle="steps-mid", linewidth=1.3, alpha=0.8, label=label)
        drawn = True
    way = "in" if folder.meta.edge_dir == "in" else "out"
    axes.set(title="Degrees", xlabel=f"{way}-degree", ylabel=f"nodes of at least this {way}-degree")
    if not drawn:
        _say(axes, "no edges")
    elif folder.num_parts <= _MOST_NUMBERS:
        axes.legend(frameon=False, fontsize=9)
    axes.grid(alpha=0.25)


def _degrees(folder: PartitionFolder, part: int) -> Int64Array:
    """Return the degree of each row of a part, all edge types one after the other."""
    if not folder.has_part(part):
        return np.empty(0, np.int64)
    pointers = [folder.open(edge_path(part, t.name, "indptr")) for t in folder.meta.edge_types]
    return np.concatenate([np.empty(0, np.int64), *(np.diff(p) for p in pointers)])


def _draw_cache(axes: Any, summary: FolderSummary) -> None:
    axes.set(
        title="Expected remote rows of a batch",
        xlabel="cached rows of other parts",
        ylabel="share of a batch's rows",
    )
    if summary.cache_curve is None:
        _say(axes, "hotness is not known:\npartition with --method frequency")
        return
    rows = summary.cache_curve["rows"]
    remote = np.array(summary.cache_curve["remote"]) * 100
    for part, curve in enumerate(remote):
        label = f"part {part}" if len(remote) <= _MOST_NUMBERS else None
        axes.plot(rows, curve, linewidth=1.3, alpha=0.8, label=label)
    axes.set_xscale("symlog", linthresh=10)
    axes.set_ylim(0, max(1.0, float(remote.max()) * 1.08))
    axes.set_xlim(0, rows[-1])
    if any(summary.cached):
        kept = int(np.mean(summary.cached))
        axes.axvline(kept, color="0.3", linewidth=0.8, linestyle="--", label=f"kept: {kept:,}")
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if len(remote) <= _MOST_NUMBERS or any(summary.cached):
        axes.legend(frameon=False, fontsize=9)
    axes.grid(alpha=0.25)


def _say(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="0.4")
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[], xlabel="", ylabel="")
