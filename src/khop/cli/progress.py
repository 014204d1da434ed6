"""Progress of a command, on standard error of a terminal. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from khop.log import printable
from khop.typing import Progress


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Progress]:
    """Yield a function that shows progress as one bar. The bar is removed at the end.

    Args:
        quiet: show nothing. Nothing is shown, either, if standard error is no terminal.
    """
    from tqdm import tqdm

    with tqdm(disable=quiet or None, leave=False, bar_format="{l_bar}{bar}| {elapsed}") as bar:

        def show(step: str, done: int, total: int) -> None:
            bar.set_description(printable(step), refresh=False)
            bar.n, bar.total = done, total
            bar.refresh()

        yield show
