"""Where a sampler writes its batches: slots of its ring, or memory of their own."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from khop.channel.arena import ArenaWriter, create_memory, map_memory
from khop.channel.layout import Layout, Record

Announce = Callable[[Layout], None]


class Slot:
    """Where a batch is written: a slot of the ring, or own memory if the ring has no room.

    Args:
        ring: the ring.
        announce: called with the batch's layout before anything is written.

    Attributes:
        record: the batch, once there is memory for it.
        offset: the slot's.
        nbytes: its size.
        own_memory: descriptor of the batch's own memory, if it is not in the ring.
        told: what is said of the batch on the control line.
    """

    def __init__(self, ring: ArenaWriter, announce: Announce) -> None:
        self._ring = ring
        self._announce = announce
        self.record: Record | None = None
        self.offset = 0
        self.nbytes = 0
        self.own_memory: int | None = None
        self._is_taken = False

    @property
    def told(self) -> bytes:
        """See above."""
        return b""

    def allocate(self, record: Record) -> Mapping[str, Any]:
        """Takes memory for a batch and writes its numbers; returns the arrays to fill."""
        return record.write(self._take(record))

    def finish(self) -> None:
        """Waits until the arrays are written."""

    def _take(self, record: Record) -> memoryview:
        """Memory of the host for a batch."""
        self._announce(record.layout)
        self.record = record
        self.nbytes = record.nbytes
        slot = self._ring.allocate(record.nbytes)
        if slot is not None:
            self.offset, memory = slot
            self._is_taken = True
            return memory
        self.own_memory = create_memory(record.nbytes, "khop-batch")
        mapped: mmap.mmap = map_memory(self.own_memory)
        return memoryview(mapped)[: record.nbytes]

    def abandon(self) -> None:
        """Gives the memory back: the batch failed or is not wanted any more."""
        if self._is_taken:
            self._ring.free(self.offset)
            self._is_taken = False
        if self.own_memory is not None:
            os.close(self.own_memory)
            self.own_memory = None


class Slots(Protocol):
    """The memory that a sampler writes batches to."""

    def new(self, announce: Announce) -> Slot:
        """A slot for a batch, whose memory is taken when its size is known."""

    def free(self, offset: int) -> None:
        """Takes back a slot that the trainer no longer looks into."""


class HostSlots:
    """Slots of a ring.

    Args:
        ring: descriptor of the ring's memory; left open.
    """

    def __init__(self, ring: int) -> None:
        self._ring = ArenaWriter(ring)

    def new(self, announce: Announce) -> Slot:
        """See `Slots`."""
        return Slot(self._ring, announce)

    def free(self, offset: int) -> None:
        """See `Slots`."""
        self._ring.free(offset)
