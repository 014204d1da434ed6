"""Figures and axes of matplotlib, and what all pictures have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

COLORS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c")
# Pictures of more parts carry no number and no name for each.
MOST_NAMES = 10
_STYLE = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10}


def require_matplotlib() -> Any:
    """Return matplotlib.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "pictures need package matplotlib: pip install matplotlib"
        ) from None
    return matplotlib


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Draw in khop's style within the block.

    matplotlib's own `rc_context` also takes back what a backend sets that is loaded meanwhile, at
    the first figure: that pictures are shown in a notebook.
    """
    import matplotlib

    before = {name: matplotlib.rcParams[name] for name in _STYLE}
    matplotlib.rcParams.update(_STYLE)
    try:
        yield
    finally:
        matplotlib.rcParams.update(before)


def axes_or_new(axes: Any) -> Any:
    """Return the axes, or those of a new figure of pyplot if they are None."""
    require_matplotlib()
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    with styled():
        return plt.subplots(layout="constrained")[1]


def write_note(axes: Any, text: str) -> None:
    """Write why there is nothing to draw."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="0.4")
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[], xlabel="", ylabel="")
