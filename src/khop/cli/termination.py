"""Clean end of a command on SIGTERM. Imports no torch."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def unwound_when_terminated() -> Iterator[None]:
    """Make SIGTERM raise SystemExit(143), so that nothing temporary stays behind.

    A decorator, too. Only on the main thread.
    """
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
