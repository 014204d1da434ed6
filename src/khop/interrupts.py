"""Exceptions of signal handlers that Python drops. Runs in trainers; imports no torch.

A handler that raises an exception, `sys.exit` on SIGTERM or Ctrl-C, runs between any two lines of
the main thread, those of destructors too. What a destructor raises Python drops: the program would
go on as if there had been no signal. Here the last such exception is kept, and the next call that
delivers a batch, or waits for other trainers, raises it.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

_dropped: BaseException | None = None
_previous_hook = sys.unraisablehook


def keep_dropped(unraisable: Any) -> None:
    """Keep an exception of a signal handler; pass others on. Python's `sys.unraisablehook`.

    Args:
        unraisable: what Python drops.
    """
    global _dropped  # noqa: PLW0603
    error = unraisable.exc_value
    # Handlers run in the main thread. Errors of destructors are of class Exception.
    if (
        error is None
        or isinstance(error, Exception | GeneratorExit)
        or threading.current_thread() is not threading.main_thread()
    ):
        _previous_hook(unraisable)
        return
    _dropped = error.with_traceback(None)  # the traceback would keep what is being destroyed


def raise_dropped() -> None:
    """Raise the exception of a signal handler that Python has dropped, if there is one."""
    global _dropped
    if _dropped is not None:
        error, _dropped = _dropped, None
        raise error


sys.unraisablehook = keep_dropped
