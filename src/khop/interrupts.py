"""Signals in trainers: a request to stop, and exceptions that Python drops. Imports no torch.

`stopping` is for scripts that write a checkpoint before they end.

A signal handler that raises an exception (`sys.exit` on SIGTERM, Ctrl-C) runs between any two lines
of the main thread, also in destructors. Python drops exceptions of destructors: the program would
go on as if there had been no signal. This module keeps the last such exception. The next call that
delivers a batch, or waits for other trainers, raises the exception.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

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


_STOPS = (signal.SIGTERM, signal.SIGUSR1)
_is_watching = _is_stopping = False


def stopping() -> bool:
    """Return True once SIGTERM or SIGUSR1 has asked this process to stop. The flag stays.

    Schedulers send one of them before they end a job: Slurm with `--signal=USR1@60`, Kubernetes,
    and `khop run`. The first call installs the signals' handlers, so call it before training. A
    second SIGTERM has the effect that it had before.

    Raises:
        ValueError: the first call is not in the main thread.

    Example:
        >>> for batch in loader:
        ...     if khop.stopping():
        ...         state = loader.state_dict()  # save it, and leave the loop
        ...         break
    """
    global _is_watching  # noqa: PLW0603
    if not _is_watching:
        before = signal.getsignal(signal.SIGTERM)

        def note(signal_number: int, _: FrameType | None) -> None:
            global _is_stopping  # noqa: PLW0603
            _is_stopping = True
            if signal_number == signal.SIGTERM:
                signal.signal(signal.SIGTERM, before)

        for stop in _STOPS:
            signal.signal(stop, note)
        _is_watching = True
    return _is_stopping
