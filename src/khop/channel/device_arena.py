"""Device arena: a sampler writes batches into device memory, the trainer reads them without a copy.

The sampler process runs the writer, the trainer the reader. Imports no torch.

It works as the arena in host memory (`khop.channel.arena`), on a device that both processes share.
The trainer allocates the memory and passes on its handle: CUDA's IPC handle, or a memfd for an
emulated device. So batches outlive the sampler that wrote them. The sampler divides the memory into
slots, and the trainer reports when a slot is free again. A batch's sizes and counters are sent on
the control line: the host reads them without access to the device.

A slot is free when the last tensor that uses it is gone *and* the device has finished the work that
was queued until then: kernels run later than the program that launches them. When a slot's last
tensor is gone, `DeviceArenaReader` therefore records a mark in the device's work queue. It frees
the slot when the device has passed the mark.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from khop import _native
from khop.channel.arena import SlotAllocator, create_memory, map_memory
from khop.channel.layout import Received, Record, layout_of
from khop.data.arrays import storage_dtype
from khop.errors import ProtocolError
from khop.typing import Array

_GPU_PAGE = 2 << 20


class DeviceArray:
    """Array in the memory of a device. Kernels take it, and torch through DLPack.

    Args:
        memory: the memory that holds it.
        offset: its first byte in `memory`.
        shape: its axes.
        dtype: name of its dtype.
        owner: object kept as long as the array is used. If None, `memory`.
    """

    __slots__ = ("_memory", "_offset", "_owner", "dtype", "shape")

    def __init__(
        self,
        memory: _native.DeviceMemory,
        offset: int,
        shape: tuple[int, ...],
        dtype: str,
        owner: object = None,
    ) -> None:
        self._memory = memory
        self._offset = offset
        self._owner = memory if owner is None else owner
        self.shape = shape
        self.dtype = dtype

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return math.prod(self.shape) * storage_dtype(self.dtype).itemsize

    @property
    def address(self) -> int:
        """Address of the array in the device's memory."""
        return self._memory.address + self._offset

    def upload(self, values: Array) -> None:
        """Copy values from the host to this array, in order with the work queued on the device."""
        self._memory.upload(self._offset, np.ascontiguousarray(values))

    def view(self) -> Any:
        """Return the array as an object that other libraries, such as torch, import by DLPack."""
        return self._memory.view(self._offset, self.shape, self.dtype, self._owner)

    def capsule(self) -> Any:
        """Return a DLPack capsule of the array.

        No stream has to wait for it: the array's batch is complete.
        """
        return self.view().__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.view().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.view().__dlpack_device__()


class Scratch:
    """Buffer in device memory for one array at a time, enlarged when an array needs more.

    Args:
        device: the device.
    """

    def __init__(self, device: _native.Device) -> None:
        self._device = device
        self._memory: _native.DeviceMemory | None = None

    def take(self, nbytes: int) -> _native.DeviceMemory:
        """Return memory of at least `nbytes` bytes, the same as in the last call if it is enough.

        Its previous content is lost.
        """
        if self._memory is None or self._memory.nbytes < nbytes:
            if self._memory is not None:
                self._device.synchronize()  # kernels may still read the old memory
            self._memory = None
            self._memory = _native.DeviceMemory.allocate(self._device, nbytes + nbytes // 4)
        return self._memory


def arrays_of(record: Record, memory: _native.DeviceMemory, offset: int) -> dict[str, DeviceArray]:
    """Return the arrays, by name, of the batch of this `record`, at `offset` in device memory."""
    return {
        of.name: DeviceArray(memory, offset + begin, shape, of.dtype)
        for of, shape, begin in record.positions()
    }


class DeviceArenaWriter(SlotAllocator):
    """Writer side of a device arena. Runs in the sampler.

    Args:
        memory: the arena's memory.
    """

    def __init__(self, memory: _native.DeviceMemory) -> None:
        super().__init__(memory.nbytes)
        self.memory = memory


def open_device_arena(
    device: _native.Device, described: Mapping[str, Any], descriptors: Sequence[int]
) -> DeviceArenaWriter:
    """Open the device arena that a trainer created.

    Args:
        device: the device that holds it.
        described: `DeviceArenaReader.described`.
        descriptors: `DeviceArenaReader.descriptors`, as received. They stay open.
    """
    if descriptors:
        mapped = np.frombuffer(map_memory(descriptors[0]), np.uint8)
        return DeviceArenaWriter(_native.DeviceMemory.over(device, mapped))
    handle = bytes.fromhex(described["handle"])
    return DeviceArenaWriter(_native.DeviceMemory.open(device, handle, described["nbytes"]))


class Mark(Protocol):
    """Point in the work queue of a device, such as a CUDA event, that may have been passed."""

    def query(self) -> bool:
        """Return True if the device has done all work that was queued before the mark."""

    def synchronize(self) -> None:
        """Wait for all work that was queued before the mark."""


# A slot: offset, size, marks, and the function to call with the offset when they have passed.
_Ended: TypeAlias = tuple[int, int, Sequence[Mark] | None, Callable[[int], None]]


_UNMARKED: list[_native.DeviceMemory] = []
"""Memory that is never freed: work may use it for which no mark could be recorded."""


class _Lease:
    """Owner of a slot while arrays use it. `release` is called after the last array."""

    __slots__ = ("_owner", "_release")

    def __init__(self, owner: object, release: Callable[[], None]) -> None:
        self._owner = owner
        self._release = release

    def __del__(self) -> None:
        self._release()


class DeviceArenaReader:
    """Reader side of a device arena, and owner of its memory. Runs in the trainer.

    Args:
        device: the device to allocate it on.
        nbytes: its size in bytes. GPU memory is allocated at once.
        mark: function that marks the work queued so far, on all CUDA streams that may use batches.
            It is called in the thread that drops the last reference to a batch.

    Attributes:
        described: description for the sampler, as a JSON object.
        descriptors: descriptors to pass on with `described`. `passed_on` closes them.
    """

    def __init__(
        self, device: _native.Device, nbytes: int, mark: Callable[[], Sequence[Mark]]
    ) -> None:
        self._mark = mark
        self._owner = os.getpid()
        # Slots that are no longer used, with marks of the device's work at that time, or None if
        # no mark could be set.
        self._ended: deque[_Ended] = deque()
        self.descriptors: list[int] = []
        handle = None
        if device.is_cuda:
            # Smaller allocations share the driver's pages: to open one would expose the others.
            nbytes = -(-nbytes // _GPU_PAGE) * _GPU_PAGE
            self._memory = _native.DeviceMemory.allocate_shared(device, nbytes)
            handle = self._memory.handle.hex()
        else:
            self.descriptors = [create_memory(nbytes, "khop-device-arena")]
            mapped = np.frombuffer(map_memory(self.descriptors[0]), np.uint8)
            self._memory = _native.DeviceMemory.over(device, mapped)
        self.described = {"nbytes": nbytes, "handle": handle}
        self._leased = 0

    def __del__(self) -> None:
        # The last batch is gone. CUDA may free memory that queued work still reads.
        if os.getpid() != self._owner:
            return
        try:
            for _, _, marks, _ in self._ended:
                for mark in self._mark() if marks is None else marks:
                    mark.synchronize()
        except Exception:  # a CUDA graph is being captured
            _UNMARKED.append(self._memory)

    @property
    def capacity(self) -> int:
        """Size of the arena in bytes."""
        return self._memory.nbytes

    @property
    def bytes_leased(self) -> int:
        """Bytes of the slots used by arrays, or by work that the device has not done."""
        return self._leased

    def passed_on(self) -> None:
        """Close the descriptors, once the sampler has its own copies of them."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def lease(
        self,
        offset: int,
        nbytes: int,
        head: bytes,
        layouts: Mapping[int, Any],
        on_free: Callable[[int], None],
    ) -> Received:
        """Read a batch.

        Args:
            offset: offset of its slot.
            nbytes: size of the slot in bytes.
            head: its sizes and counters, as received on the control line.
            layouts: known layouts, by id.
            on_free: called with the offset, by `give_back`, when the slot is free.

        Raises:
            ProtocolError: the batch is malformed.
        """
        layout = layout_of(head, layouts)
        if len(head) < layout.head_bytes:
            raise ProtocolError(f"a batch's numbers have {len(head)} bytes, too few for its layout")
        if not 0 <= offset <= offset + nbytes <= self.capacity:
            raise ProtocolError(f"slot {offset} + {nbytes} lies outside {self.capacity} bytes")
        numbers, begins, shapes = layout.parse(head, nbytes)
        # More than half of the arena is leased: copy batches, so that samplers do not run out.
        hoards = self._leased > self.capacity // 2
        self._leased += nbytes

        def release() -> None:
            if os.getpid() != self._owner:  # a fork drops copies, not the batch
                return
            self._ended.append((offset, nbytes, self._marks(), on_free))

        lease = _Lease(self, release)
        arrays = [
            DeviceArray(self._memory, offset + begin, shape, of.dtype, lease)
            for of, begin, shape in zip(layout.arrays, begins, shapes, strict=True)
        ]
        return Received(layout, arrays, numbers, must_copy=hoards)

    def give_back(self) -> None:
        """Free the slots whose arrays are gone and whose work the device has done.

        Called by one thread, from time to time.
        """
        for _ in range(len(self._ended)):
            offset, nbytes, marks, on_free = self._ended.popleft()
            try:
                is_done = marks is not None and all(mark.query() for mark in marks)
            except Exception:  # a CUDA graph was being captured: its events never pass
                is_done, marks = False, None
            if is_done:
                self._leased -= nbytes
                on_free(offset)
            else:
                marks = self._marks() if marks is None else marks
                self._ended.append((offset, nbytes, marks, on_free))

    def _marks(self) -> Sequence[Mark] | None:
        """Mark the work queued so far, on each stream. Return None if that fails.

        A later mark serves as well.
        """
        try:
            return self._mark()
        except Exception:
            return None
