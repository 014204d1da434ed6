"""The place where a thread waits: for sockets, for descriptors and for other threads.

A thread has one waiter, which a fork does not share. What threads complete, and descriptors of
reads, are joined in one descriptor, which lies in the poller that is there: that of the sockets to
other partitions (`khop.distributed.rpc.partition_client`), or that of a server's loop. Without
other partitions it is polled itself, and no ZeroMQ is imported. Any process; imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from khop.data.tickets import Event, ReadTicket, Ticket, TicketGroup
from khop.errors import RowStoreError

TIMEOUT = 180.0
"""Seconds that a read may take, unless `timeout` of a loader differs."""

# Interval at which lost connections and deadlines are checked while waiting.
_TICK_MS = 250
_threads = threading.local()


class Waiter:
    """Waiter for tickets of any kind; for one thread of one process.

    Args:
        clock: source of time, in seconds.

    Attributes:
        descriptor: readable when a ticket may be done, or after `wake`.
        wake: makes the descriptor readable; any thread may call it.
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
        """Look after tickets until they are done. Those of sockets are left to their client.

        Args:
            tickets: the tickets.
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
        """Complete what is done and fail what is late; returns at once."""
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
                ticket.fail(_late(now - deadline + timeout, timeout))
            if ticket.done:
                del self._reads[ticket]
                self._forget(ticket.descriptor)

    def _forget(self, descriptor: int | None) -> None:
        if descriptor is None or any(t.descriptor == descriptor for t in self._reads):
            return
        with contextlib.suppress(OSError):  # its store has closed it
            self._epoll.unregister(descriptor)

    def wait(
        self, tickets: Iterable[Ticket], sockets: Any = None, timeout: float = TIMEOUT
    ) -> None:
        """Wait until all tickets are done.

        Args:
            tickets: the tickets.
            sockets: the client of those that are requests to other partitions: its `poller` is
                polled, and `pump` called. If None, there are none.
            timeout: seconds after which a read fails.

        Raises:
            RuntimeError: nobody will complete a ticket: it is one of sockets.
        """
        tickets = list(tickets)
        reads = [ticket for ticket in tickets if isinstance(ticket, (ReadTicket, TicketGroup))]
        if reads:
            self.add(reads, timeout)
        poller = self._epoll if sockets is None else sockets.poller
        is_watched = sockets is not None and bool(self._reads)
        if is_watched:
            poller.register(self.descriptor, select.POLLIN)
        try:
            while not all(ticket.done for ticket in tickets):
                if sockets is None and not self._reads:
                    raise RuntimeError("a batch of a whole graph waits for another partition")
                poller.poll(_TICK_MS if sockets is not None else _TICK_MS / 1000)
                if sockets is not None:
                    sockets.pump()
                if is_watched or sockets is None:
                    self.collect()
        finally:
            if is_watched:
                poller.unregister(self.descriptor)


def _late(waited: float, limit: float) -> RowStoreError:
    return RowStoreError(
        f"a row store gave no rows in {waited:.1f} s, more than the {limit:g} s that a request may "
        "take (timeout): it is stuck, or has too much to do"
    )


def waiter() -> Waiter:
    """Return the waiter of this thread."""
    own: Waiter | None = getattr(_threads, "waiter", None)
    if own is None or own.owner != os.getpid():
        own = _threads.waiter = Waiter()
    return own
