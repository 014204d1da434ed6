"""Batches made ahead by threads: the kernels release the interpreter lock, nothing is copied."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from khop.forks import check_process

Task = TypeVar("Task")
Batch = TypeVar("Batch")


class _Made(NamedTuple):
    """What became of a task: a batch, or an exception."""

    batch: Any
    error: BaseException | None


class _Order(NamedTuple):
    """What a thread shall make, and where to put it."""

    make: Callable[[Any], Any]
    task: Any
    made: SimpleQueue[_Made]


class BackgroundIterator(Generic[Batch]):
    """Makes batches in threads and hands them out in order.

    Each task has a queue of its own for what becomes of it. These queues are written in C: with two
    threads, batches of 32 seeds take 350 us instead of the 410 us with the futures of an executor.

    Args:
        make: makes a batch; called in the threads.
        tasks: what to make, in order.
        num_threads: threads to use.
        num_ahead: batches to make ahead of the consumer.
        timeout: seconds to wait for a batch; 0: for ever.
    """

    def __init__(
        self,
        make: Callable[[Task], Batch],
        tasks: Iterable[Task],
        num_threads: int,
        num_ahead: int,
        timeout: float = 0,
    ) -> None:
        self._make = make
        self._tasks: Iterator[Task] = iter(tasks)
        self._num_threads = num_threads
        self._num_ahead = max(1, num_ahead)
        self._timeout = timeout or None
        self._owner = os.getpid()
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._due: deque[SimpleQueue[_Made]] = deque()
        _iterators.add(self)
        for i in range(num_threads):
            thread = threading.Thread(
                target=_work, args=(self._orders,), name=f"khop-sampler_{i}", daemon=True
            )
            thread.start()
            _threads.add(thread)
        self._top_up()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch; an exception of its thread is raised here.

        Raises:
            RuntimeError: in a fork, which has no such threads.
        """
        check_process(self._owner, "loader's iterator", "call iter(loader) there")
        if not self._due:
            self.close()
            raise StopIteration
        try:
            made = self._due[0].get(timeout=self._timeout)
        except Empty:
            self.close()
            raise RuntimeError(f"no batch within timeout={self._timeout} seconds") from None
        except BaseException:
            self.close()
            raise
        if made.error is not None:
            self.close()
            try:
                raise made.error
            finally:
                del made  # else the traceback would hold itself
        self._due.popleft()
        self._top_up()
        batch: Batch = made.batch
        return batch

    def _top_up(self) -> None:
        while len(self._due) < self._num_ahead:
            try:
                task = next(self._tasks)
            except StopIteration:
                return
            order = _Order(self._make, task, SimpleQueue())
            self._due.append(order.made)
            self._orders.put(order)

    def close(self) -> None:
        """Drops what has not been handed out; threads end after the batch that they are making."""
        self._due.clear()
        with contextlib.suppress(Empty):
            while True:
                self._orders.get_nowait()
        for _ in range(self._num_threads):
            self._orders.put(None)

    def __del__(self) -> None:
        if hasattr(self, "_due"):
            self.close()


def _work(orders: SimpleQueue[_Order | None]) -> None:
    """A thread: makes batches until it is told to end."""
    while (order := orders.get()) is not None:
        try:
            order.made.put(_Made(order.make(order.task), None))
        except BaseException as error:
            order.made.put(_Made(None, error))
        del order  # a waiting thread keeps neither a batch nor a loader


# Threads must have left the kernels before the interpreter ends, also those whose iterator is still
# there: Python does not wait for daemons, and for others it would wait before iterators are closed.
_iterators: weakref.WeakSet[BackgroundIterator[Any]] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    for iterator in list(_iterators):
        iterator.close()
    for thread in list(_threads):
        thread.join()
