"""Memory and threads of a partitioner: sizes of the pieces that it works on. Imports no torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from khop.cores import available_cores

Item = TypeVar("Item")
Result = TypeVar("Result")

# Beyond some cores the disk, or the one thread that writes, is what takes time.
_MOST_JOBS = 8
# In memory, the edges of a block are sorted within a cache; a larger block costs a miss an edge.
_CACHED_EDGES = 1 << 19
_CACHED_BYTES = 64 << 20
_PIECE_EDGES = 1 << 20
# On disk, a piece adds to every block: few and large blocks make large writes.
_STAGED_EDGES = 1 << 22
_MOST_BLOCKS = 512
# Of the memory that is left for buffers: allocators and Python need some, too. With 0.75 a run of
# 24 MB took 24 to more than 28 MB, as freed memory happened to lie.
_USED = 0.6


class Resources:
    """Memory and threads that a partitioner may use.

    Args:
        memory: bytes for buffers. If None, edges are kept in memory, all of them.
        jobs: threads. If None, one for each core, at most 8.

    Raises:
        ValueError: not a positive number.
    """

    def __init__(self, memory: int | None = None, jobs: int | None = None) -> None:
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs must be at least 1 (got {jobs})")
        self.memory = memory
        self.jobs = jobs or min(_MOST_JOBS, available_cores())

    @property
    def in_flight(self) -> int:
        """Number of pieces at a time: those that are worked on, and one that is written."""
        return 1 if self.jobs == 1 else self.jobs + 1

    @property
    def counters(self) -> int:
        """Number of threads that count edges, each with counters of its own."""
        return self.jobs if self.memory is None else 1

    def share(self) -> int:
        """Return the bytes that each piece in flight may take."""
        if self.memory is None:
            return _CACHED_BYTES
        return int(_USED * self.memory) // self.in_flight

    def piece_edges(self, bytes_each: int) -> int:
        """Return how many edges are read and split at a time."""
        if self.memory is None:
            return _PIECE_EDGES
        return max(1, min(_STAGED_EDGES, self.share() // bytes_each))

    def pieces(self, num_edges: int, bytes_each: int) -> list[tuple[int, int]]:
        """Return first edge and number of edges of each piece of an edge list."""
        step = self.piece_edges(bytes_each)
        return [(first, min(step, num_edges - first)) for first in range(0, num_edges, step)]

    def block_edges(self, bytes_each: int, num_edges: int) -> int:
        """Return how many edges are sorted at a time."""
        fitting = max(1, self.share() // bytes_each)
        if self.memory is None:
            return min(_CACHED_EDGES, fitting)
        return min(max(_STAGED_EDGES, num_edges // _MOST_BLOCKS), fitting)

    def in_order(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[Result]:
        """Yield the results of a function, in the order of items; threads work ahead."""
        if self.jobs == 1 or len(items) == 1:
            yield from map(function, items)
            return
        waiting: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(self.jobs, "khop-partition") as pool:
            try:
                for item in items:
                    waiting.append(pool.submit(function, item))
                    if len(waiting) == self.jobs:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
