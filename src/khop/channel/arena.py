"""Shared-memory arena: a sampler writes batches into slots, the trainer reads them without a copy.

The sampler process runs the writer, the trainer the reader. In server-client mode the pairs are
sampler and graph server, and receiver and trainer. Imports no torch.

Each sampler process has one arena: a memfd that the trainer creates and passes on. Only the sampler
allocates slots (`ArenaWriter`), so no lock is shared between processes and a sampler that dies
holds none. Only the trainer decides when a slot is free again: when the last tensor that uses it
has been collected (`ArenaReader`). It reports this over the control socket. Slots may be freed in
any order.

A memfd is not limited by the size of /dev/shm. It has no name that could clash or be left behind,
and is released with its last user, also after a kill.
"""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Callable

import numpy as np

from khop import _native
from khop.data.files import advise_huge_pages
from khop.errors import ProtocolError
from khop.typing import Array

_ALIGNMENT = 4096
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def create_memory(nbytes: int, name: str = "khop") -> int:
    """Return the descriptor of a new memfd of `nbytes` bytes. Its pages are allocated on use."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, max(nbytes, 1))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_memory(descriptor: int) -> mmap.mmap:
    """Map all of a memfd. The mapping outlives the descriptor and ends with its last view.

    Raises:
        ProtocolError: the memory is not of a fixed size. Access to a page that was removed from a
            mapping kills the process, so memory that another process can shrink is not mapped.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # no memfd but a file or a socket
        seals = 0
    if seals & fcntl.F_SEAL_SHRINK == 0 or os.fstat(descriptor).st_size == 0:
        raise ProtocolError("a process passed on memory that is empty or can be made smaller")
    mapping = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    # Batches are large and random-access, so huge pages save page faults.
    advise_huge_pages(mapping)
    return mapping


class SlotAllocator:
    """First-fit allocator of slots in a range of bytes.

    Low offsets come first: the system has allocated their pages already.

    Args:
        capacity: size of the range in bytes.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free: list[tuple[int, int]] = [(0, capacity)] if capacity > 0 else []
        self._taken: dict[int, int] = {}

    @property
    def num_taken(self) -> int:
        """Number of slots in use."""
        return len(self._taken)

    def allocate(self, nbytes: int) -> int | None:
        """Return the offset of a new slot of at least `nbytes`, or None if none fits."""
        size = max(-(-nbytes // _ALIGNMENT) * _ALIGNMENT, _ALIGNMENT)
        for i, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                if end - begin == size:
                    del self._free[i]
                else:
                    self._free[i] = (begin + size, end)
                self._taken[begin] = size
                return begin
        return None

    def free(self, offset: int) -> None:
        """Free the slot at `offset`.

        Raises:
            KeyError: no slot in use begins there.
        """
        begin, end = offset, offset + self._taken.pop(offset)
        i = bisect.bisect(self._free, (begin, end))
        if i < len(self._free) and self._free[i][0] == end:
            end = self._free.pop(i)[1]
        if i > 0 and self._free[i - 1][1] == begin:
            i -= 1
            begin = self._free.pop(i)[0]
        self._free.insert(i, (begin, end))


class ArenaWriter:
    """Writer side of an arena (shared memory with a slot per batch). Runs in the sampler.

    Args:
        descriptor: the arena's memfd.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = memoryview(map_memory(descriptor))
        self._slots = SlotAllocator(len(self._memory))

    def allocate(self, nbytes: int) -> tuple[int, memoryview] | None:
        """Return offset and memory of a new slot of `nbytes` bytes.

        None if no free range is large enough.
        """
        offset = self._slots.allocate(nbytes)
        if offset is None:
            return None
        return offset, self._memory[offset : offset + nbytes]

    def free(self, offset: int) -> None:
        """Free the slot at `offset`, which the trainer no longer uses."""
        self._slots.free(offset)

    def lock_pages(self, device: _native.Device) -> _native.LockedPages:
        """Lock the arena's pages for copies from a device, as long as the returned object lives."""
        return _native.LockedPages(device, np.frombuffer(self._memory, np.uint8))


class Lease:
    """Owner of `nbytes` bytes at `address`. `release` is called after the last array of them."""

    _release: Callable[[], None] | None = None

    def __init__(
        self, owner: object, address: int, nbytes: int, release: Callable[[], None] | None
    ) -> None:
        self._owner = owner  # keeps the memory mapped
        self._release = release
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        if self._release is not None:
            self._release()


class ArenaReader:
    """Reader side of an arena (shared memory with a slot per batch). Runs in the trainer.

    Args:
        descriptor: the arena's memfd.

    Attributes:
        address: address at which the memory is mapped.
        capacity: size in bytes.
    """

    def __init__(self, descriptor: int) -> None:
        self._mapping = map_memory(descriptor)
        self._view = np.frombuffer(self._mapping, np.uint8)
        self.address = int(self._view.ctypes.data)
        self.capacity = len(self._view)
        self._leased = 0
        # Leases end in any thread that drops them: appending is atomic, adding is not.
        self._returned: deque[int] = deque()

    @property
    def bytes_leased(self) -> int:
        """Bytes of the slots that arrays still use, so that they cannot be freed."""
        while self._returned:
            self._leased -= self._returned.popleft()
        return self._leased

    def lease(self, offset: int, nbytes: int, on_free: Callable[[int], None] | None) -> Array:
        """Return the bytes of a slot as an array, [nbytes] uint8, without a copy.

        `on_free(offset)` is called when no array uses the slot, in the thread that drops the last
        reference. It must neither block nor raise.
        """
        if not 0 <= offset <= offset + nbytes <= self.capacity:
            raise ProtocolError(f"slot {offset} + {nbytes} exceeds an arena of {self.capacity}")
        self._leased += nbytes

        def release() -> None:
            self._returned.append(nbytes)
            if on_free is not None:
                on_free(offset)

        return np.asarray(Lease(self, self.address + offset, nbytes, release))
