"""Where a sampler that works on a device writes its batches. Imports no torch.

The device writes each batch into its own memory. Where the trainer wants batches on that device
this is a slot of the slab that both share, and nothing is copied. Otherwise, or where the slab has
no room, it is memory that the next batch is written to again, and the batch is copied from there to
a slot of the ring, all arrays at once, for it looks the same in both places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from khop import _native
from khop.channel.arena import ArenaWriter
from khop.channel.control import MAX_PAYLOAD, ON_DEVICE, ONE
from khop.channel.device_arena import DeviceArenaWriter, Scratch, arrays_of, open_slab
from khop.channel.layout import Record
from khop.distributed.sampling.slots import Announce, Slot

# Numbers of a batch travel with its message, if they leave room for what else is to say.
_MAX_HEAD = MAX_PAYLOAD // 2


class DeviceOfSampler(NamedTuple):
    """What a sampler works on.

    Attributes:
        native: the device.
        graph_mode: where the graph lies: 'CUDA' or 'ZERO_COPY'.
        feature_mode: where attributes lie: 'CUDA', 'ZERO_COPY' or 'CPU'.
    """

    native: _native.Device
    graph_mode: str
    feature_mode: str


class DeviceSlots:
    """Slots in the memory of a device, and of the host.

    Args:
        ring: descriptor of the ring's memory; left open.
        device: who writes.
        slab: what the trainer says of the slab; None: it wants batches elsewhere.
        descriptors: those that came with the slab; left open.
        pinned: lock the ring's pages: copies to it need no detour then. All of them are taken.
    """

    def __init__(
        self,
        ring: int,
        device: _native.Device,
        slab: Mapping[str, Any] | None,
        descriptors: Sequence[int],
        pinned: bool,
    ) -> None:
        self.device = device
        self.ring = ArenaWriter(ring)
        self.slab = None if slab is None else open_slab(device, slab, descriptors)
        self.scratch = Scratch(device)
        # A driver that refuses makes copies slower, no more.
        self._locked = self.ring.lock_pages(device) if pinned else None

    def new(self, announce: Announce) -> Slot:
        """See `khop.distributed.sampling.slots.Slots`."""
        return DeviceSlot(self, announce)

    def free(self, offset: int) -> None:
        """See `khop.distributed.sampling.slots.Slots`."""
        if offset & ON_DEVICE:
            assert self.slab is not None
            self.slab.free(offset - ON_DEVICE)
        else:
            self.ring.free(offset)


class DeviceSlot(Slot):
    """Where a device writes a batch. One batch at a time: the next may have the same memory.

    Args:
        slots: whose it is.
        announce: called with the batch's layout before anything is written.
    """

    def __init__(self, slots: DeviceSlots, announce: Announce) -> None:
        super().__init__(slots.ring, announce)
        self._slots = slots
        self._slab: DeviceArenaWriter | None = None
        self._head = bytearray()
        self._host: memoryview | None = None

    @property
    def told(self) -> bytes:
        """The numbers of a batch in the slab."""
        return b"" if self._slab is None else ONE.pack(len(self._head)) + self._head

    def allocate(self, record: Record) -> Mapping[str, Any]:
        """Takes memory for a batch and writes its numbers; returns the arrays to fill."""
        slab, head_bytes = self._slots.slab, record.layout.head_bytes
        offset = None
        if slab is not None and head_bytes <= _MAX_HEAD:
            offset = slab.allocate(record.nbytes)
        if slab is None or offset is None:
            self._host = self._take(record)
            record.write_head(self._host)
            return arrays_of(record, self._slots.scratch.take(record.nbytes), 0)
        self._slab, self.record, self.nbytes = slab, record, record.nbytes
        self.offset = offset | ON_DEVICE
        self._announce(record.layout)
        self._head = bytearray(head_bytes)
        record.write_head(memoryview(self._head))
        return arrays_of(record, slab.memory, offset)

    def finish(self) -> None:
        """Waits until the arrays are written, and copies them to the host where they belong there.

        Raises:
            RuntimeError: a CUDA call failed; names the call.
        """
        if self._host is None or self.record is None:
            self._slots.device.synchronize()
            return
        begin = self.record.layout.head_bytes
        arrays = np.frombuffer(self._host, np.uint8)[begin:]
        if len(arrays):
            self._slots.scratch.take(self.nbytes).download(begin, arrays)

    def abandon(self) -> None:
        """Gives the memory back: the batch failed or is not wanted any more."""
        super().abandon()
        if self._slab is not None:
            self._slab.free(self.offset - ON_DEVICE)
            self._slab = None
