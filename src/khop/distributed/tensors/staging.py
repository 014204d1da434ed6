"""Staging areas: memory of a part's server that a trainer on its host writes values of pushes to.

The values then need no message. An area belongs to one trainer. Values stay until the end of their
step, or until the server has applied them if they belong to no step. Runs in trainers.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque

import numpy as np

from khop.channel.arena import SlotAllocator
from khop.data.tickets import Ticket
from khop.typing import Array


class StagingArea:
    """Staging area of a trainer at one part. Safe to use from several threads.

    Args:
        memory: the area, mapped.
        index: index of the area at the server.
    """

    def __init__(self, memory: mmap.mmap, index: int) -> None:
        self.index = index
        self._memory = np.frombuffer(memory, np.uint8)
        self._lock = threading.Lock()
        self._slots = SlotAllocator(len(memory))
        self._of_step: list[int] = []
        self._relaxed: deque[tuple[Ticket, int]] = deque()

    def allocate(self, nbytes: int) -> tuple[int, Array] | None:
        """Return offset and memory, [nbytes] uint8, for values. None if the area is full."""
        with self._lock:
            while self._relaxed and self._relaxed[0][0].done:
                self._slots.free(self._relaxed.popleft()[1])
            offset = self._slots.allocate(nbytes)
        if offset is None:
            return None
        return offset, self._memory[offset : offset + nbytes]

    def keep(self, offset: int, ticket: Ticket, is_of_step: bool) -> None:
        """Keep values that are pushed until their step ends, or until their push is done."""
        with self._lock:
            if is_of_step:
                self._of_step.append(offset)
            else:
                self._relaxed.append((ticket, offset))

    def end_step(self) -> None:
        """Free the values of the step, which has ended."""
        with self._lock:
            for offset in self._of_step:
                self._slots.free(offset)
            self._of_step.clear()
