"""Figures and axes of matplotlib, in the style of all pictures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c")
MOST_NAMES = 10
"""Most parts that a picture names."""

_STYLE = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10}


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "pictures need package matplotlib: pip install matplotlib"
        ) from None


@contextlib.contextmanager
def _styled() -> Iterator[None]:
    """Context in which matplotlib draws in khop's style.

    matplotlib's own `rc_context` would also undo the settings of a backend that is loaded
    meanwhile, such as a notebook's to show pictures.
    """
    import matplotlib

    before = {name: matplotlib.rcParams[name] for name in _STYLE}
    matplotlib.rcParams.update(_STYLE)
    try:
        yield
    finally:
        matplotlib.rcParams.update(before)


@contextlib.contextmanager
def new_figure(
    width: float, height: float, path: str | os.PathLike[str] | None, padding: float | None = None
) -> Iterator[Figure]:
    """Create a figure, as a context. When it ends, the figure is written to a file.

    Args:
        width: width in inches.
        height: height in inches.
        path: file to write, in the format of its suffix. If None, none is written.
        padding: space around axes in inches. If None, matplotlib's.
    """
    _require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with _styled():
        layout = ConstrainedLayoutEngine(w_pad=padding, h_pad=padding)
        figure = Figure(figsize=(width, height), layout=layout)
        FigureCanvasAgg(figure)
        yield figure
        if path is not None:
            figure.savefig(path, dpi=130)


def axes_or_new(axes: Axes | None) -> Axes:
    """Return `axes`. If None, return the axes of a new figure."""
    _require_matplotlib()
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    with _styled():
        created: Axes = plt.figure(layout="constrained").add_subplot()
        return created


def write_note(axes: Axes, text: str) -> None:
    """Write a text into axes without data, which states why there are none."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="0.4")
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[], xlabel="", ylabel="")
