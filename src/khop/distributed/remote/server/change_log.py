"""Log of changes that users cause, bounded for each user so that none can fill a disk.

Run by graph servers. Refused requests and those that change nothing are not logged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from khop import log
from khop.distributed.rpc.limits import RateLimiter

# Lines of a user per second, and at once: all trainers of a large job may come in one second.
_RATE, _BURST = 0.2, 512.0


class ChangeLog:
    """Log of a module's changes, with a bound for each user.

    Args:
        logger: the module's logger.
        clock: returns the time in seconds.
    """

    def __init__(
        self, logger: log.EventLogger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._rates = RateLimiter(_RATE, _BURST, clock)
        self._left_out = 0

    def info(self, user: str, event: str, message: str, **fields: Any) -> None:
        """Log a change, if its user has not caused too many; see `khop.log.EventLogger.info`."""
        if self._admits(user):
            self._logger.info(event, message, **fields, **self._counted())

    def warning(self, user: str, event: str, message: str, **fields: Any) -> None:
        """Log a change as a warning; see `info`."""
        if self._admits(user):
            self._logger.warning(event, message, **fields, **self._counted())

    def _admits(self, user: str) -> bool:
        is_admitted = self._rates.admit(user.encode())
        self._left_out += not is_admitted
        return is_admitted

    def _counted(self) -> dict[str, int]:
        """Return the number of lines left out since the last line, if there are any."""
        left_out, self._left_out = self._left_out, 0
        return {"left_out": left_out} if left_out else {}
