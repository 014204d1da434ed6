"""Pool of reused memory for large arrays of one process, such as batches made in the trainer.

Used by trainers, samplers and servers. Imports no torch.

In fresh memory, page faults take longer than filling a large array. So the pool reuses memory. An
array's memory returns to the pool when the last array or tensor over it has been collected.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
from collections import defaultdict, deque
from typing import Any

import numpy as np

from khop.channel.arena import Lease
from khop.data.files import advise_huge_pages
from khop.typing import Array

# Below this size in bytes, malloc reuses memory as well as the pool.
_MIN_POOLED = 256 << 10


# Parameters of glibc's mallopt, and their values. Memory that is freed at the top of a heap is kept
# up to the second, and blocks up to the third come from heaps.
_HEAPS = ((-1, 128 << 20), (-2, 64 << 20), (-3, 32 << 20))  # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_


@functools.cache
def reuse_heaps() -> None:
    """Have malloc of this process keep up to 64 MiB of freed memory per heap. Done once.

    ZeroMQ allocates each frame of a message. By default, glibc returns the frames of each batch to
    the system. The page faults of the next ones then take longer than to receive them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have none
        for parameter, value in _HEAPS:
            mallopt(parameter, value)


class _Block:
    """Block of anonymous memory, which the pool lends to one array at a time.

    Its size is one of `_size_classes`.
    """

    __slots__ = ("address", "mapping", "nbytes", "view")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        # Private: forked processes have the pool, too, and must not share batches.
        self.mapping = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        advise_huge_pages(self.mapping)
        self.view = np.frombuffer(self.mapping, np.uint8)
        self.address = int(self.view.ctypes.data)


class BufferPool:
    """Pool of reused memory for arrays. Safe to use from several threads.

    Args:
        max_idle: bytes of unused memory to keep. The rest is returned to the system.
    """

    def __init__(self, max_idle: int = 2 << 30) -> None:
        self._max_idle = max_idle
        # Appending to and popping from a deque is atomic, also inside a destructor.
        self._idle: defaultdict[int, deque[_Block]] = defaultdict(deque)

    @property
    def idle_bytes(self) -> int:
        """Bytes of the pool that no array uses."""
        return sum(size * len(blocks) for size, blocks in list(self._idle.items()))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an uninitialised array in memory of the pool."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < _MIN_POOLED:
            return np.empty(shape, dtype)
        block = self._take(nbytes)

        def release() -> None:
            if self.idle_bytes + block.nbytes <= self._max_idle:
                self._idle[block.nbytes].append(block)

        raw = np.asarray(Lease(block, block.address, nbytes, release))
        return raw.view(dtype).reshape(shape)

    def _take(self, nbytes: int) -> _Block:
        """Return a block of at least `nbytes` bytes: an idle one if possible, else a new one."""
        sizes = _size_classes(nbytes)
        for size in sizes:
            with contextlib.suppress(IndexError):
                return self._idle[size].pop()
        return _Block(sizes[0])


def _size_classes(nbytes: int) -> range:
    """Return the block sizes usable for `nbytes`: it rounded up to a step, and the next two.

    The step is an eighth of the largest power of two up to `nbytes`, at least a page. So batches of
    similar size share blocks, also if one is just below a multiple and another just above.
    """
    step = max(1 << (nbytes.bit_length() - 4), mmap.PAGESIZE)
    least = -(-nbytes // step) * step
    return range(least, least + 3 * step, step)
