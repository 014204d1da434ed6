"""Memory for a sampler's batches: slots of its arena, or separate memory. Run by samplers."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from khop.channel.arena import ArenaWriter, create_memory, map_memory
from khop.channel.layout import Layout, Record

Announce = Callable[[Layout], None]


class Slot:
    """Memory of one batch: a slot of the arena, or separate memory if the arena is full.

    Args:
        arena: the arena.
        announce: called with the batch's layout before anything is written.

    Attributes:
        record: the batch, once there is memory for it.
        offset: offset of the slot.
        nbytes: size of the batch.
        own_memory: descriptor of the batch's separate memory, if it is not in the arena.
    """

    def __init__(self, arena: ArenaWriter, announce: Announce) -> None:
        self._arena = arena
        self._announce = announce
        self.record: Record | None = None
        self.offset = 0
        self.nbytes = 0
        self.own_memory: int | None = None
        self._is_taken = False

    @property
    def header(self) -> bytes:
        """Bytes added to the batch's control message. Empty for a slot in the host's memory."""
        return b""

    def allocate(self, record: Record) -> Mapping[str, Any]:
        """Allocate memory for a batch, write the arrays' sizes, and return the arrays to fill."""
        return record.write(self._take(record))

    def finish(self) -> None:
        """Wait until the batch's arrays are written. Nothing to do in the host's memory."""

    def _take(self, record: Record) -> memoryview:
        self._announce(record.layout)
        self.record = record
        self.nbytes = record.nbytes
        slot = self._arena.allocate(record.nbytes)
        if slot is not None:
            self.offset, memory = slot
            self._is_taken = True
            return memory
        self.own_memory = create_memory(record.nbytes, "khop-batch")
        mapped: mmap.mmap = map_memory(self.own_memory)
        return memoryview(mapped)[: record.nbytes]

    def abandon(self) -> None:
        """Free the memory: the batch failed or is no longer needed."""
        if self._is_taken:
            self._arena.free(self.offset)
            self._is_taken = False
        if self.own_memory is not None:
            os.close(self.own_memory)
            self.own_memory = None


class Slots(Protocol):
    """Type of the memory to which a sampler writes batches: an arena on the host or a device."""

    def new(self, announce: Announce) -> Slot:
        """Return a slot for a batch. Its memory is allocated when its size is known.

        `announce` is called with the batch's layout before the batch is written.
        """

    def free(self, offset: int) -> None:
        """Free the slot at `offset`, which the trainer no longer uses."""


class HostSlots:
    """Slots of an arena of the host.

    Args:
        arena: descriptor of the arena's memory. It stays open.
    """

    def __init__(self, arena: int) -> None:
        self._arena = ArenaWriter(arena)

    def new(self, announce: Announce) -> Slot:
        """Return a slot for a batch. Its memory is allocated when its size is known.

        `announce` is called with the batch's layout before the batch is written.
        """
        return Slot(self._arena, announce)

    def free(self, offset: int) -> None:
        """Free the arena's slot at `offset`, which the trainer no longer uses."""
        self._arena.free(offset)
