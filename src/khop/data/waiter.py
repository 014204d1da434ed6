"""Waiter, by which a thread waits for sockets, file descriptors and other threads together.

A thread has one waiter, which a fork does not share. The waiter has one descriptor, which becomes
readable when another thread completes a read, or when a read's own descriptor does. A client of
other partitions (`khop.distributed.rpc.partition_client`) and a server's loop poll this descriptor
with their sockets. Without other partitions the waiter polls it itself, and imports no ZeroMQ.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from khop.data.tickets import Event, ReadTicket, Ticket, TicketGroup
from khop.errors import RowStoreError

TIMEOUT = 180.0
"""Seconds after which a read fails, unless a loader has another `timeout`."""

# Interval at which lost connections and deadlines are checked while waiting.
_TICK_MS = 250
_threads = threading.local()


class Poller(Protocol):
    """Type of objects that wait for sockets and descriptors: `zmq.Poller`, `select.epoll`."""

    def register(self, socket: int, flags: int, /) -> object: ...

    def unregister(self, socket: int, /) -> object: ...

    def poll(self, timeout: int, /) -> object: ...


class Sockets(Protocol):
    """Type of a client of other partitions, whose requests a waiter waits for.

    `poller` waits for its sockets, and `pump` takes replies.
    """

    @property
    def poller(self) -> Poller: ...

    def pump(self) -> object: ...


class Waiter:
    """Waiter for all tickets of one thread of one process.

    Args:
        clock: source of time, in seconds.

    Attributes:
        descriptor: readable when a ticket may be done, or after `wake`.
        wake: makes the descriptor readable. Any thread may call it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.owner = os.getpid()
        self._clock = clock
        self._event = Event()
        self.wake = self._event.set
        self._epoll = select.epoll()
        self.descriptor = self._epoll.fileno()
        self._epoll.register(self._event.descriptor, select.EPOLLIN)
        self._reads: dict[ReadTicket, tuple[float, float]] = {}

    def add(self, tickets: Iterable[Ticket], timeout: float = TIMEOUT) -> None:
        """Watch reads until they are done.

        Requests to partitions are ignored: their client has them.

        Args:
            tickets: handles of the reads.
            timeout: seconds after which a read fails.
        """
        for ticket in tickets:
            if isinstance(ticket, TicketGroup):
                self.add(ticket.parts, timeout)
            elif isinstance(ticket, ReadTicket) and ticket not in self._reads:
                self._reads[ticket] = self._clock() + timeout, timeout
                if ticket.descriptor is not None:
                    with contextlib.suppress(FileExistsError):
                        self._epoll.register(ticket.descriptor, select.EPOLLIN)
                ticket.notify(self.wake)

    def collect(self) -> None:
        """Complete the watched reads that are done, and fail those after their timeout.

        Never waits.
        """
        ready = {descriptor for descriptor, _ in self._epoll.poll(0)}
        if self._event.descriptor in ready:
            self._event.clear()
        now = self._clock()
        for ticket, (deadline, timeout) in list(self._reads.items()):
            if ticket.descriptor in ready:
                try:
                    ticket.reap()
                except Exception as error:  # its batch fails, and no other
                    ticket.fail(error)
            if now > deadline:
                late = f"a row store gave no rows in {now - deadline + timeout:.1f} s"
                ticket.fail(
                    RowStoreError(
                        f"{late}, more than the {timeout:g} s that a request may take (timeout): "
                        "it is stuck, or has too much to do"
                    )
                )
            if ticket.done:
                del self._reads[ticket]
                self._forget(ticket.descriptor)

    def _forget(self, descriptor: int | None) -> None:
        if descriptor is None or any(t.descriptor == descriptor for t in self._reads):
            return
        with contextlib.suppress(OSError):  # its store has closed it
            self._epoll.unregister(descriptor)

    def wait(
        self, tickets: Iterable[Ticket], sockets: Sockets | None = None, timeout: float = TIMEOUT
    ) -> None:
        """Wait until all tickets are done.

        Args:
            tickets: handles of reads, and of requests to other partitions.
            sockets: the client of requests to other partitions. If None, there are no requests.
            timeout: seconds after which a read fails.

        Raises:
            RuntimeError: a ticket is a request to another partition, but `sockets` is None.
        """
        tickets = list(tickets)
        reads = [ticket for ticket in tickets if isinstance(ticket, (ReadTicket, TicketGroup))]
        if reads:
            self.add(reads, timeout)
        poller = None if sockets is None else sockets.poller
        watched = poller if self._reads else None
        if watched is not None:
            watched.register(self.descriptor, select.POLLIN)
        try:
            while not all(ticket.done for ticket in tickets):
                if sockets is not None and poller is not None:
                    poller.poll(_TICK_MS)
                    sockets.pump()
                elif self._reads:
                    self._epoll.poll(_TICK_MS / 1000)
                else:
                    raise RuntimeError("a batch of a whole graph waits for another partition")
                if sockets is None or watched is not None:
                    self.collect()
        finally:
            if watched is not None:
                watched.unregister(self.descriptor)


def waiter() -> Waiter:
    """Return the waiter of this thread, made by the first call."""
    own: Waiter | None = getattr(_threads, "waiter", None)
    if own is None or own.owner != os.getpid():
        own = _threads.waiter = Waiter()
    return own
