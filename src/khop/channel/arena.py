"""Shared memory in which a sampler writes batches and the trainer reads them, uncopied.

Each sampler process has a ring of its own: a memfd that the trainer makes and passes on. The
sampler alone allocates (`ArenaWriter`), so no lock is shared between processes and a sampler that
dies holds none; the trainer alone says when a slot is free again, over the control socket, because
a slot is free when the last tensor that looks into it has been collected (`ArenaReader`). Slots may
be freed in any order.

A memfd is not bound by the size of /dev/shm, has no name that could clash or be left behind, and is
gone when its last user is, also after a kill.
"""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Callable

import numpy as np

from khop import _native
from khop.errors import ProtocolError
from khop.typing import Array

_ALIGNMENT = 4096
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def create_memory(nbytes: int, name: str = "khop") -> int:
    """Creates a memfd of fixed size; returns its descriptor. Pages are taken when touched."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, max(nbytes, 1))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def map_memory(descriptor: int) -> mmap.mmap:
    """Maps a memfd, whole. The mapping outlives the descriptor and ends with its last view.

    Raises:
        ProtocolError: not memory of a fixed size. A page that is taken away from a mapping ends the
            process that touches it, so memory that another process can shrink is not mapped.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # a file, a socket, ...
        seals = 0
    if seals & fcntl.F_SEAL_SHRINK == 0 or os.fstat(descriptor).st_size == 0:
        raise ProtocolError("a process passed on memory that is empty or can be made smaller")
    mapping = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    # Batches are large and random-access; huge pages spare page faults where the kernel has them.
    advise_huge_pages(mapping)
    return mapping


def advise_huge_pages(mapping: mmap.mmap) -> None:
    """Asks for huge pages; kernels without them are left alone."""
    with contextlib.suppress(OSError):
        mapping.madvise(mmap.MADV_HUGEPAGE)


class SlotAllocator:
    """First-fit allocation in a range of bytes. Low places are reused first: they are touched.

    Args:
        capacity: bytes to divide.
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
        """Offset of a free slot of at least `nbytes`; None if there is none."""
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
        """Gives a slot back; KeyError if it is not in use."""
        begin, end = offset, offset + self._taken.pop(offset)
        i = bisect.bisect(self._free, (begin, end))
        if i < len(self._free) and self._free[i][0] == end:
            end = self._free.pop(i)[1]
        if i > 0 and self._free[i - 1][1] == begin:
            i -= 1
            begin = self._free.pop(i)[0]
        self._free.insert(i, (begin, end))


class ArenaWriter:
    """The sampler's side of a ring.

    Args:
        descriptor: the ring's memfd.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = memoryview(map_memory(descriptor))
        self._slots = SlotAllocator(len(self._memory))

    def allocate(self, nbytes: int) -> tuple[int, memoryview] | None:
        """A free slot: its offset and memory; None if no slot is large enough."""
        offset = self._slots.allocate(nbytes)
        if offset is None:
            return None
        return offset, self._memory[offset : offset + nbytes]

    def free(self, offset: int) -> None:
        """Takes back a slot that the trainer no longer looks into."""
        self._slots.free(offset)

    def lock_pages(self, device: _native.Device) -> _native.LockedPages:
        """Locks the ring's pages for copies from a device, as long as what is returned lives."""
        return _native.LockedPages(device, np.frombuffer(self._memory, np.uint8))


class Lease:
    """Bytes that arrays look into; calls `release` once the last of them has been collected."""

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
    """The trainer's side of a memfd that a sampler writes to.

    Args:
        descriptor: the memfd.
    """

    def __init__(self, descriptor: int) -> None:
        self._mapping = map_memory(descriptor)
        self._view = np.frombuffer(self._mapping, np.uint8)
        self._address = int(self._view.ctypes.data)
        self.capacity = len(self._view)
        self._leased = 0
        # Leases end in whatever thread drops them: appending is atomic, adding is not.
        self._returned: deque[int] = deque()

    @property
    def bytes_leased(self) -> int:
        """Bytes that arrays still look into."""
        while self._returned:
            self._leased -= self._returned.popleft()
        return self._leased

    @property
    def address(self) -> int:
        """Where the memory is mapped."""
        return self._address

    def lease(self, offset: int, nbytes: int, on_free: Callable[[int], None] | None) -> Array:
        """[nbytes] uint8 over a slot; `on_free(offset)` is called when nothing looks into it.

        `on_free` runs wherever the last reference dies, so it must neither block nor raise.
        """
        if not 0 <= offset <= offset + nbytes <= self.capacity:
            raise ProtocolError(f"slot {offset} + {nbytes} lies outside a ring of {self.capacity}")
        self._leased += nbytes

        def release() -> None:
            self._returned.append(nbytes)
            if on_free is not None:
                on_free(offset)

        return np.asarray(Lease(self, self._address + offset, nbytes, release))
