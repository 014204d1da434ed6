"""Pauses between looks at a job's store, torch.distributed's. Runs in trainers. No torch.

Trainers wait for values by looking for them (`Store.check`), with pauses in Python. A store's own
`wait` is a call in C++ that no signal handler can end before its timeout. SIGTERM and Ctrl-C would
have no effect for a minute. `wait` also writes a warning to standard error when its time is over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from khop.interrupts import raise_dropped

_SHORTEST, _LONGEST, _GROWTH = 0.005, 0.1, 1.5


def pauses(timeout: float) -> Iterator[None]:
    """Iterate with a sleep between, longer each time up to 0.1 s, until the time is over.

    The first iteration begins at once. One more follows when the time is over.

    Args:
        timeout: seconds until the end.
    """
    end, pause = time.monotonic() + timeout, _SHORTEST
    while True:
        raise_dropped()
        yield
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause = min(_GROWTH * pause, _LONGEST)
