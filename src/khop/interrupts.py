"""Exceptions of signal handlers that Python drops. Runs in trainers, imports no torch.

A signal handler that raises an exception (`sys.exit` on SIGTERM, Ctrl-C) runs between any two lines
of the main thread, also in destructors. Python drops exceptions of destructors: the program would
go on as if there had been no signal. This module keeps the last such exception. The next call that
delivers a batch, or waits for other trainers, raises the exception.
"""

from __future__ import annotations

import sys
import threading

_dropped: BaseException | None = None
_previous_hook = sys.unraisablehook


def keep_dropped(unraisable: sys.UnraisableHookArgs) -> None:
    """Hook of `sys.unraisablehook`: keep a signal handler's exception, pass others on."""
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
    """Raise the exception of a signal handler that Python dropped in a destructor, if any."""
    global _dropped
    if _dropped is not None:
        error, _dropped = _dropped, None
        raise error


sys.unraisablehook = keep_dropped
