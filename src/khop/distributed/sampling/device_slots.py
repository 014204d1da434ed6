"""Memory for the batches of a sampler that works on a device. Imports no torch.

The device writes each batch into device memory. If the trainer uses batches on this device, the
memory is a slot of the device arena that both processes share, and nothing is copied. Otherwise, or
if the device arena is full, it is scratch memory that the next batch reuses. The batch is then
copied to a slot of the host's arena, all arrays at once: the layout is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from khop import _native
from khop.channel.arena import ArenaWriter
from khop.channel.control import MAX_PAYLOAD, ON_DEVICE, U64
from khop.channel.device_arena import DeviceArenaWriter, Scratch, arrays_of, open_device_arena
from khop.channel.layout import Record
from khop.distributed.sampling.slots import Announce, Slot

# The numbers of a batch are sent in its message if they fit beside the message's other fields.
_MAX_HEAD = MAX_PAYLOAD // 2


class DeviceOfSampler(NamedTuple):
    """The device of a sampler.

    Attributes:
        native: the device.
        graph_mode: placement of the graph: 'CUDA' or 'ZERO_COPY'.
        feature_mode: placement of the attributes: 'CUDA', 'ZERO_COPY' or 'CPU'.
    """

    native: _native.Device
    graph_mode: str
    feature_mode: str


class DeviceSlots:
    """Memory for a sampler's batches, in a device arena or in the host's.

    Args:
        arena: descriptor of the host arena's memory. It stays open.
        device: the device that writes batches.
        device_arena: the trainer's description of the device arena. If None, the trainer does not
            use batches on this device.
        descriptors: descriptors that came with the device arena. They stay open.
        pinned: lock the host arena's pages, so that copies to it are direct. Allocates all pages.
    """

    def __init__(
        self,
        arena: int,
        device: _native.Device,
        device_arena: Mapping[str, Any] | None,
        descriptors: Sequence[int],
        pinned: bool,
    ) -> None:
        self.device = device
        self.arena = ArenaWriter(arena)
        self.device_arena = (
            None if device_arena is None else open_device_arena(device, device_arena, descriptors)
        )
        self.scratch = Scratch(device)
        # If the driver refuses, copies are slower.
        self._locked = self.arena.lock_pages(device) if pinned else None

    def new(self, announce: Announce) -> Slot:
        """Return a slot for a batch. Its memory is allocated when its size is known."""
        return DeviceSlot(self, announce)

    def free(self, offset: int) -> None:
        """Free the slot at `offset`, in either arena, which the trainer no longer uses."""
        if offset & ON_DEVICE:
            assert self.device_arena is not None
            self.device_arena.free(offset - ON_DEVICE)
        else:
            self.arena.free(offset)


class DeviceSlot(Slot):
    """Slot for a batch that a device writes. One slot at a time: the next may reuse the memory.

    Args:
        slots: the slots to which it belongs.
        announce: called with the batch's layout before anything is written.
    """

    def __init__(self, slots: DeviceSlots, announce: Announce) -> None:
        super().__init__(slots.arena, announce)
        self._slots = slots
        self._device_arena: DeviceArenaWriter | None = None
        self._head = bytearray()
        self._host: memoryview | None = None

    @property
    def header(self) -> bytes:
        """Length of the numbers of a batch in the device arena, and the numbers. Else empty."""
        return b"" if self._device_arena is None else U64.pack(len(self._head)) + self._head

    def allocate(self, record: Record) -> Mapping[str, Any]:
        """Allocate device memory for a batch, and return the arrays to fill."""
        device_arena, head_bytes = self._slots.device_arena, record.layout.head_bytes
        offset = None
        if device_arena is not None and head_bytes <= _MAX_HEAD:
            offset = device_arena.allocate(record.nbytes)
        if device_arena is None or offset is None:
            self._host = self._take(record)
            record.write_head(self._host)
            return arrays_of(record, self._slots.scratch.take(record.nbytes), 0)
        self._device_arena, self.record, self.nbytes = device_arena, record, record.nbytes
        self.offset = offset | ON_DEVICE
        self._announce(record.layout)
        self._head = bytearray(head_bytes)
        record.write_head(memoryview(self._head))
        return arrays_of(record, device_arena.memory, offset)

    def finish(self) -> None:
        """Wait until the arrays are written. Copy them to the host if the batch's slot is there.

        Raises:
            RuntimeError: a CUDA call failed. The message names it.
        """
        if self._host is None or self.record is None:
            self._slots.device.synchronize()
            return
        begin = self.record.layout.head_bytes
        arrays = np.frombuffer(self._host, np.uint8)[begin:]
        if len(arrays):
            self._slots.scratch.take(self.nbytes).download(begin, arrays)

    def abandon(self) -> None:
        """Free the memory: the batch failed or is no longer needed."""
        super().abandon()
        if self._device_arena is not None:
            self._device_arena.free(self.offset - ON_DEVICE)
            self._device_arena = None
