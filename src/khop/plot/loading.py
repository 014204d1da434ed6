"""Pictures of loading: time by phase, and reads of the hottest rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from khop.metrics.loader_stats import LoaderStats
from khop.plot.figures import COLORS, axes_or_new, write_note
from khop.typing import ArrayLike, NodeType

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def time(stats: LoaderStats, axes: Axes | None = None) -> Axes:
    """Draw the share of time that the trainer and the samplers of a loader spend in each phase.

    Args:
        stats: result of `loader.stats()`.
        axes: axes of matplotlib. If None, a new figure's.

    Raises:
        TypeError: `stats` are no `LoaderStats`.

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
            if round(share, 2) > 0:
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


def hotness(
    probabilities: ArrayLike | Mapping[NodeType, ArrayLike], axes: Axes | None = None
) -> Axes:
    """Draw the share of row reads that go to the hottest rows, which a cache could serve.

    Args:
        probabilities: [num_nodes] expected reads of each row, in any unit. With several node types,
            {node type: array}. `NeighborSampler.sample_prob` estimates them.
        axes: axes of matplotlib. If None, a new figure's.

    Raises:
        TypeError: something else than numbers.
        ValueError: a negative number, NaN, or more than one dimension.

    Example:
        >>> axes = hotness([8.0, 1.0, 1.0, 0.0])  # a quarter of the rows answers 80 % of reads
        >>> axes.lines[0].get_ydata().tolist()
        [0.0, 80.0, 90.0, 100.0, 100.0]
    """
    axes = axes_or_new(axes)
    by_type = probabilities if isinstance(probabilities, Mapping) else {"": probabilities}
    for node_type, expected in by_type.items():
        try:
            reads = np.asarray(expected, np.float64)
        except (TypeError, ValueError):
            raise TypeError(
                f"hotness must be one number for each node (got {type(expected)}): "
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
    axes.text(55, 50, "equal reads of all rows: a cache is of no use", fontsize=8, color="0.4")
    axes.set(
        title="Reads that a cache of the hottest rows saves",
        xlabel="% of the rows, hottest first",
        ylabel="% of all reads",
        xlim=(0, 100),
        ylim=(0, 102),
    )
    axes.grid(alpha=0.25)
    if len(by_type) > 1:
        axes.legend(frameon=False, fontsize=9)
    return axes
