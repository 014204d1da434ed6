"""Pictures of how batches are loaded: where time goes, and how few rows are how hot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from khop.metrics.loader_stats import LoaderStats
from khop.plot.figures import COLORS, axes_or_new, write_note
from khop.typing import ArrayLike


def time(stats: LoaderStats, axes: Any = None) -> Any:
    """Draw where the time of trainer and samplers went.

    Args:
        stats: result of `loader.stats()`.
        axes: axes of matplotlib. If None, those of a new figure.

    Returns:
        The axes.

    Raises:
        TypeError: `stats` are not those of a loader.

    Example:
        >>> stats = LoaderStats(batches=1, trainer_seconds={"waiting": 1.0, "consuming": 3.0})
        >>> axes = time(stats)
        >>> [float(bar.get_width()) for bar in axes.patches]
        [0.25, 0.75]
    """
    if not isinstance(stats, LoaderStats):
        raise TypeError(f"expected the result of loader.stats() (got {type(stats)}): pass that")
    axes = axes_or_new(axes)
    bars = {"trainer": stats.trainer_seconds}
    if any(stats.sampler_seconds.values()):
        bars[f"{stats.num_samplers} samplers" if stats.num_samplers else "making"] = (
            stats.sampler_seconds
        )
    if not stats.batches:
        write_note(axes, "no batch has been delivered")
        return axes
    color = 0
    for row, (name, seconds) in enumerate(bars.items()):
        total, left = sum(seconds.values()) or 1.0, 0.0
        for phase, spent in seconds.items():
            share = spent / total
            label = f"{name}: {phase} {share:.0%}"
            axes.barh(row, share, left=left, color=COLORS[color % len(COLORS)], label=label)
            left, color = left + share, color + 1
    axes.set(
        title=f"Where the time of {stats.batches:,} batches went ({stats.elapsed_seconds:.3g} s)",
        xlabel="share of the time",
        xlim=(0, 1),
    )
    axes.set_yticks(range(len(bars)), bars)
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    return axes


def hotness(probabilities: ArrayLike | Mapping[Any, ArrayLike], axes: Any = None) -> Any:
    """Draw which share of all row reads the hottest rows answer: how much a cache is worth.

    Args:
        probabilities: [num_nodes] expected reads of each row, in any unit; by node type if there
            are several: {node type: such an array}. `NeighborSampler.sample_prob` estimates them.
        axes: axes of matplotlib. If None, those of a new figure.

    Returns:
        The axes.

    Raises:
        TypeError: something else than numbers.
        ValueError: a negative or missing (NaN) number, or more than one dimension.

    Example:
        >>> axes = hotness([8.0, 1.0, 1.0, 0.0])  # a quarter of the rows answers 80 % of reads
        >>> axes.lines[0].get_ydata().tolist()
        [0.0, 80.0, 90.0, 100.0, 100.0]
    """
    axes = axes_or_new(axes)
    by_type = probabilities if isinstance(probabilities, Mapping) else {"": probabilities}
    for node_type, given in by_type.items():
        try:
            reads = np.asarray(given, np.float64)
        except (TypeError, ValueError):
            raise TypeError(
                f"hotness must be one number for each node (got {type(given)}): "
                "NeighborSampler.sample_prob estimates them"
            ) from None
        if reads.ndim != 1 or not (reads >= 0).all():
            raise ValueError(
                f"hotness must be one number of 0 or more for each node (got shape {reads.shape})"
            )
        hottest_first = np.sort(reads)[::-1].cumsum()
        if len(reads) == 0 or hottest_first[-1] == 0:
            continue
        share = np.concatenate([[0.0], hottest_first / hottest_first[-1]])
        rows = np.arange(len(share)) / len(reads)
        axes.plot(rows * 100, share * 100, linewidth=1.5, label=str(node_type) or None)
    if not axes.lines:
        write_note(axes, "no row is read")
        return axes
    axes.plot([0, 100], [0, 100], color="0.6", linewidth=0.8, linestyle="--")
    axes.set(
        title="Hotness",
        xlabel="% of the rows, hottest first",
        ylabel="% of all reads",
        xlim=(0, 100),
        ylim=(0, 102),
    )
    axes.grid(alpha=0.25)
    if len(by_type) > 1:
        axes.legend(frameon=False, fontsize=9)
    return axes
