"""Runner of generators that yield the tickets (requests in flight) that they wait for."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol, TypeVar

from khop.data.tickets import Ticket
from khop.data.waiter import TIMEOUT, Sockets, waiter

_T = TypeVar("_T")


class Clock(Protocol):
    """Clock that counts the time spent in each phase: a `khop.trace.clock.PhaseClock`."""

    phase: int

    def enter(self, phase: int) -> object: ...


def run(
    steps: Generator[Sequence[Ticket] | None, None, _T],
    sockets: Sockets | None = None,
    timeout: float = TIMEOUT,
    clock: Clock | None = None,
    phase: int = 0,
) -> _T:
    """Run a generator to its end, wait for the tickets that it yields, and return its result.

    Args:
        steps: generator that yields the tickets to wait for, or None between slices of work.
        sockets: the client of requests to other partitions. If None, there are no requests.
        timeout: seconds after which a read fails.
        clock: clock that counts the time of waits. If None, the time is not counted.
        phase: phase of the clock during waits.
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
        result: _T = stop.value
        return result
