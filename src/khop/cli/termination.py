"""Clean end of a command on SIGTERM. Imports no torch."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Terminated(SystemExit):
    """Exit of a command on SIGTERM, with exit code 143 (128 + SIGTERM, as in shells)."""


def _raise(signal_number: int, frame: FrameType | None) -> None:
    raise Terminated(128 + signal_number)


@contextlib.contextmanager
def unwound_when_terminated() -> Iterator[None]:
    """Make SIGTERM raise `Terminated`, so that temporary files are removed.

    Use it as a context manager or as a decorator, on the main thread only.
    """
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
