"""Progress of a command, on standard error of a terminal. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from khop.log import printable
from khop.typing import Progress


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Progress]:
    """Context that yields a function, which shows progress as one bar on standard error.

    The bar is removed at the end. Nothing is shown if standard error is no terminal.

    Args:
        quiet: show nothing.
    """
    from tqdm import tqdm

    with tqdm(disable=quiet or None, leave=False, bar_format="{l_bar}{bar}| {elapsed}") as bar:

        def show(step: str, done: int, total: int) -> None:
            bar.set_description(printable(step), refresh=False)
            bar.n, bar.total = done, total
            bar.refresh()

        yield show
