"""Memory and threads of a partitioner, and division of edges into portions that fit this memory.

A piece is a range of the edge list. A block is a range of rows of one part. Imports no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from khop.cores import available_cores
from khop.typing import Int64Array, IntArray

Item = TypeVar("Item")
Result = TypeVar("Result")
AnyInt = TypeVar("AnyInt", bound=np.integer[Any])

# With more threads, the disk or the one thread that writes is the bottleneck.
_MOST_JOBS = 8
# In memory, the edges of a block are sorted within a cache: larger blocks cost a miss per edge.
_CACHED_EDGES = 1 << 19
_CACHED_BYTES = 64 << 20
_PIECE_EDGES = 1 << 20
# On disk, each piece adds to every block: few and large blocks make large writes.
_STAGED_EDGES = 1 << 22
_MOST_BLOCKS = 512
# Share of the free memory that buffers take: allocators and Python need the rest. With 0.75, a run
# limited to 24 MB peaked at 24 to 28 MB (fragmentation).
_USED = 0.6
# Most rows of a block per edge: the pointers of empty rows take memory, too.
_ROWS_PER_EDGE = 4


class Resources:
    """Memory and threads that a partitioner may use.

    Args:
        memory: bytes for buffers. If None, all edges are kept in memory.
        jobs: threads. If None, one per core, at most 8.

    Raises:
        ValueError: `jobs` is not positive.
    """

    def __init__(self, memory: int | None = None, jobs: int | None = None) -> None:
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs must be at least 1 (got {jobs})")
        self.memory = memory
        self.jobs = jobs or min(_MOST_JOBS, available_cores())

    @property
    def in_flight(self) -> int:
        """Number of pieces of the edge list in memory: one per thread, and one being written."""
        return 1 if self.jobs == 1 else self.jobs + 1

    @property
    def counters(self) -> int:
        """Number of threads that count edges. Each has an array of counts of its own."""
        return self.jobs if self.memory is None else 1

    def share(self) -> int:
        """Return the bytes of memory that each piece of the edge list in memory may take."""
        if self.memory is None:
            return _CACHED_BYTES
        return int(_USED * self.memory) // self.in_flight

    def pieces(self, num_edges: int, edge_bytes: int) -> list[tuple[int, int]]:
        """Divide an edge list into pieces that fit the memory: first edge and length of each.

        An edge takes `edge_bytes` of memory while its piece is worked on.
        """
        step = _PIECE_EDGES
        if self.memory is not None:
            step = max(1, min(_STAGED_EDGES, self.share() // edge_bytes))
        return [(first, min(step, num_edges - first)) for first in range(0, num_edges, step)]

    def block_edges(self, edge_bytes: int, num_edges: int) -> int:
        """Return the most edges that fit in memory to be sorted, if each takes `edge_bytes`."""
        fitting = max(1, self.share() // edge_bytes)
        if self.memory is None:
            return min(_CACHED_EDGES, fitting)
        return min(max(_STAGED_EDGES, num_edges // _MOST_BLOCKS), fitting)

    def in_order(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[Result]:
        """Call a function on each item in threads, and yield the results in the order of the items.

        Threads work ahead of the consumer by as many items as there are threads.
        """
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


def block_bounds(indptr: IntArray, parts: Sequence[int], most_edges: int) -> Int64Array:
    """Divide rows into blocks of at most `most_edges` edges, each with rows of one part.

    A row with more edges is a block of its own.

    Args:
        indptr: [num_rows + 1] row pointers.
        parts: [num_parts + 1] bounds of the parts' rows.
        most_edges: edges of a block, at least 1.

    Returns:
        [num_blocks + 1] int64 bounds of the blocks' rows.
    """
    bounds, num_edges = [0], int(indptr[-1])
    for last in parts[1:]:
        first = bounds[-1]
        while first < last:
            # In the pointers' own dtype: otherwise NumPy would convert all of them.
            limit = indptr.dtype.type(min(num_edges, int(indptr[first]) + most_edges))
            fitting = int(np.searchsorted(indptr, limit, "right"))
            first = max(first + 1, min(last, fitting - 1, first + _ROWS_PER_EDGE * most_edges))
            bounds.append(first)
    return np.array(bounds if len(bounds) > 1 else [0, 0], np.int64)


def row_pointers(
    counts: Iterable[npt.NDArray[AnyInt]], report: Callable[[int], None]
) -> npt.NDArray[AnyInt]:
    """Add up the numbers of edges per row, and return CSR row pointers [num_rows + 1].

    `counts` yields one array per thread or task: a zero, then the edges of each row. The first
    array is overwritten. `report` is called with the number of arrays added so far.
    """
    indptr: npt.NDArray[AnyInt] | None = None
    for done, more in enumerate(counts, 1):
        if indptr is None:
            indptr = more
        else:
            indptr += more
        report(done)
    assert indptr is not None
    np.cumsum(indptr, out=indptr)
    return indptr
