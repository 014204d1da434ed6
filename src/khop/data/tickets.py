"""Reads in flight: tickets that threads complete, and threads that make reads.

Any process; imports no torch. `khop.data.waiter` waits for tickets.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from khop.errors import RowStoreError

_Job = tuple["ReadTicket", Callable[..., object], tuple[Any, ...]]


class Ticket(Protocol):
    """A request in flight.

    Example:
        >>> ticket: Ticket = ReadTicket()
        >>> ticket.done
        False
    """

    @property
    def done(self) -> bool:
        """True if `result` can be called."""

    def result(self) -> Any:
        """Return what was asked for; raise if the request failed."""


class ReadTicket:
    """A read of rows in flight; any thread may complete it, once.

    What writes the rows keeps the memory that it writes to: khop drops its own reference when a
    batch is given up.

    Args:
        descriptor: file descriptor that is readable when `reap` may find the read done: an eventfd
            that the kernel writes to. If None, `succeed` or `fail` are called without that.

    Example:
        >>> ticket = ReadTicket()
        >>> ticket.succeed()
        >>> ticket.done
        True
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = descriptor
        self.done = False
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def result(self) -> None:
        """Raise the error of a read that failed; the rows are there otherwise."""
        if self._error is not None:
            raise self._error

    def succeed(self) -> None:
        """Complete the read: the rows are there. No effect if it is complete."""
        self._complete(None)

    def fail(self, error: BaseException) -> None:
        """Complete the read with an error. No effect if it is complete."""
        self._complete(error)

    def _complete(self, error: BaseException | None) -> None:
        with self._lock:
            if self.done:
                return
            self._error, self.done = error, True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def notify(self, callback: Callable[[], object]) -> None:
        """Have a function called once the read is done, by the thread that completes it, or now."""
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def reap(self) -> None:
        """Complete the reads that are done; called when `descriptor` is readable.

        Classes with a descriptor define it. It must read from the descriptor.
        """


class TicketGroup:
    """Requests that are done together, and what is to be done with their results.

    Args:
        parts: their tickets.
        finish: called once, by the thread that takes the result, when all have succeeded.

    Example:
        >>> parts = [ReadTicket(), ReadTicket()]
        >>> group = TicketGroup(parts, finish=lambda: None)
        >>> parts[0].succeed()
        >>> group.done
        False
    """

    def __init__(self, parts: Sequence[Ticket], finish: Callable[[], object]) -> None:
        self.parts = parts
        self._finish: Callable[[], object] | None = finish

    @property
    def done(self) -> bool:
        """True if all of them are done."""
        return all(part.done for part in self.parts)

    def result(self) -> None:
        """Finish; raise the first error of those that failed."""
        for part in self.parts:
            part.result()
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


class Event:
    """An eventfd that is open as long as anything may write to it.

    Attributes:
        descriptor: readable once `set` was called, until `clear` is.
    """

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        """Make the descriptor readable; any thread may call it."""
        os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Make the descriptor unreadable."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def __del__(self) -> None:
        os.close(self.descriptor)


class ReadThreads:
    """Threads that make the reads of a row store. They start with the first read of a process.

    A fork, or a process that gets the object pickled, starts threads of its own. Threads do not
    keep a process from ending.

    Args:
        num_threads: number of threads: of reads at the same time.

    Example:
        >>> threads = ReadThreads(num_threads=2)
        >>> ticket = threads.submit(np.copyto, np.empty(3), np.ones(3))
        >>> threads.close()
    """

    def __init__(self, num_threads: int = 1) -> None:
        self._num_threads = num_threads
        self._owner: int | None = None
        self._is_closed = False

    def __reduce__(self) -> tuple[type[ReadThreads], tuple[int]]:
        """Pickle without threads."""
        return ReadThreads, (self._num_threads,)

    def submit(self, read: Callable[..., object], *arguments: Any) -> ReadTicket:
        """Have a thread call a function; return the ticket, which fails with the error it raises.

        Raises:
            RowStoreError: the threads have been closed.
        """
        if self._is_closed:
            raise RowStoreError("the row store has been closed: open it again to read from it")
        if self._owner != os.getpid():
            self._start()
        ticket = ReadTicket()
        self._jobs.put((ticket, read, arguments))
        return ticket

    def _start(self) -> None:
        self._owner = os.getpid()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        for i in range(self._num_threads):
            name = f"khop-store-{i}"
            threading.Thread(target=_read_all, args=(self._jobs,), daemon=True, name=name).start()
        self._stop = weakref.finalize(self, _stop, self._jobs, self._num_threads)
        self._stop.atexit = False

    def close(self) -> None:
        """End the threads. Reads that no thread has begun fail with RowStoreError."""
        self._is_closed = True
        if self._owner == os.getpid():
            self._stop()


def _read_all(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        ticket, read, arguments = job
        try:
            read(*arguments)
        except BaseException as error:
            ticket.fail(error)
        else:
            ticket.succeed()
        del job, ticket, read, arguments  # the memory of the last rows is free before the next read


def _stop(jobs: SimpleQueue[_Job | None], num_threads: int) -> None:
    while not jobs.empty():
        job = jobs.get()
        if job is not None:
            job[0].fail(RowStoreError("the row store was closed before the rows were read"))
    for _ in range(num_threads):
        jobs.put(None)
