"""Tickets, each of which stands for a read or request in flight, and threads that read.

`khop.data.waiter` waits for tickets.
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

_Job = tuple["ReadTicket", Callable[..., object], tuple[object, ...]]


class Ticket(Protocol):
    """Handle of a request in flight, returned at once by the function that begins the request.

    Example:
        >>> ticket: Ticket = ReadTicket()
        >>> ticket.done
        False
    """

    @property
    def done(self) -> bool:
        """True if the request is complete, so that `result` may be called."""

    def result(self) -> Any:
        """Return the request's result, or raise its error."""


class ReadTicket:
    """Handle of a read of rows in flight. Any thread may complete the read, once.

    The code that writes the rows must keep a reference to their memory: khop drops its own if it
    gives up the batch.

    Args:
        descriptor: file descriptor that becomes readable when `reap` should be called, such as an
            eventfd that the kernel writes to. If None, only `succeed` and `fail` complete the read.

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
        """Raise the error of the read, if it failed. Otherwise its rows are in memory."""
        if self._error is not None:
            raise self._error

    def succeed(self) -> None:
        """Complete the read: its rows are in memory. No effect if it is complete."""
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
        """Register a function for the thread that completes the read. If done, call it now."""
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def reap(self) -> None:
        """Read from `descriptor`, which is readable, and complete the reads that are done.

        Subclasses with a descriptor override this method.
        """


class TicketGroup:
    """Group of requests with one result, and a function that finishes their work.

    Args:
        parts: tickets of the requests.
        finish: called once, by the first call of `result`, if all requests have succeeded.

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
        """True if all requests are done."""
        return all(part.done for part in self.parts)

    def result(self) -> None:
        """Call `finish`, or raise the error of the first request that failed."""
        for part in self.parts:
            part.result()
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


class Event:
    """Wrapper of an eventfd, which a thread sets to wake another. Closed with its last reference.

    Attributes:
        descriptor: file descriptor, readable from a call of `set` to the next call of `clear`.
    """

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        """Make the descriptor readable. Any thread may call it."""
        os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Make the descriptor unreadable."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def __del__(self) -> None:
        os.close(self.descriptor)


class ReadThreads:
    """Pool of threads that read for a row store. They start with the first read of a process.

    A fork, or a process that unpickles the object, starts its own threads. The threads do not keep
    a process from ending.

    Args:
        num_threads: number of threads, which is the most reads at the same time.

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
        return ReadThreads, (self._num_threads,)

    def submit(self, read: Callable[..., object], *arguments: object) -> ReadTicket:
        """Let a thread call `read(*arguments)`.

        Returns:
            The ticket. If the function raises an error, the ticket fails with it.

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
