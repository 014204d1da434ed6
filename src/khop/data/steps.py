"""Runner of generators that yield the tickets that they wait for. Any process; imports no torch."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from khop.data.waiter import TIMEOUT, waiter

Steps = Generator["list[Any] | None", None, Any]
"""A generator that yields the tickets that it waits for. If None, it waits for none."""


def run(
    steps: Steps,
    sockets: Any = None,
    timeout: float = TIMEOUT,
    clock: Any = None,
    phase: int = 0,
) -> Any:
    """Run a generator to its end, and return its result.

    Args:
        steps: yields the tickets that it waits for.
        sockets: the client of requests to other partitions. If None, there are none.
        timeout: seconds that a read may take.
        clock: a `khop.trace.clock.PhaseClock` that counts the waits.
        phase: the phase that it counts them for.
    """
    own = waiter()
    try:
        while True:
            tickets = next(steps)
            if clock is not None:
                before = clock.phase
                clock.enter(phase)
            own.wait(tickets or (), sockets, timeout)
            if clock is not None:
                clock.enter(before)
    except StopIteration as stop:
        return stop.value
