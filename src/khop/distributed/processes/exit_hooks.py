"""Functions called when a process ends, however it was started. Any process with a job context.

`atexit` is enough for a script. Processes that multiprocessing has forked skip `atexit`, and run
only finalizers of multiprocessing. So a function is registered with both. Imports no torch.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from multiprocessing.util import Finalize
from types import TracebackType

_has_failed = False
_previous_hook = sys.excepthook


def _note_failure(
    error_type: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    global _has_failed  # noqa: PLW0603
    _has_failed = True
    _previous_hook(error_type, error, trace)


sys.excepthook = _note_failure


def call_at_end(leave: Callable[[bool], None]) -> None:
    """Call a function when this process ends: once or twice, and never if it is killed.

    Processes of multiprocessing call the function before they wait for their own children.

    Args:
        leave: the function. Its argument is True if the process ends because of an exception.
    """

    def end() -> None:
        # Processes of multiprocessing run finalizers while the exception is on its way.
        error = sys.exc_info()[1]
        is_failing = error is not None and not (isinstance(error, SystemExit) and not error.code)
        leave(_has_failed or is_failing)

    Finalize(None, end, exitpriority=100)
    atexit.register(end)
