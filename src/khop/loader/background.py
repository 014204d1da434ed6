"""Batches made ahead by threads: the kernels release the interpreter lock, nothing is copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Generic, TypeVar

Task = TypeVar("Task")
Batch = TypeVar("Batch")


class BackgroundIterator(Generic[Batch]):
    """Makes batches in threads and hands them out in order.

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
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="khop-sampler")
        self._due: deque[Future[Batch]] = deque()
        self._num_ahead = max(1, num_ahead)
        self._timeout = timeout or None
        self._top_up()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch; an exception of its thread is raised here."""
        if not self._due:
            self.close()
            raise StopIteration
        try:
            batch = self._due[0].result(self._timeout)
        except FutureTimeoutError:
            self.close()
            raise RuntimeError(f"no batch within timeout={self._timeout} seconds") from None
        except BaseException:
            self.close()
            raise
        self._due.popleft()
        self._top_up()
        return batch

    def _top_up(self) -> None:
        while len(self._due) < self._num_ahead:
            try:
                task = next(self._tasks)
            except StopIteration:
                return
            self._due.append(self._executor.submit(self._make, task))

    def close(self) -> None:
        """Drops what has not been handed out; threads end after the batch that they are making."""
        for future in self._due:
            future.cancel()
        self._due.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def __del__(self) -> None:
        if hasattr(self, "_due"):
            self.close()
