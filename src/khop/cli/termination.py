"""Clean end of a command on SIGTERM. Imports no torch."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Terminated(SystemExit):
    """End of a command on SIGTERM, with the exit code that shells give such processes."""


def _raise(signal_number: int, frame: FrameType | None) -> None:
    raise Terminated(128 + signal_number)


@contextlib.contextmanager
def unwound_when_terminated() -> Iterator[None]:
    """Make SIGTERM raise `Terminated`, so that nothing temporary stays behind.

    A decorator, too. Only on the main thread.
    """
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
