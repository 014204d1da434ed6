"""Memory of a device in which a sampler writes batches and the trainer reads them, uncopied.

What a ring (`khop.channel.arena`) is to the host, a slab is to a device that sampler and trainer
share. The trainer allocates it and passes its handle on (CUDA's, for other processes; of an
emulated device the descriptor of a memfd), so that batches outlive the sampler that wrote them.
The sampler divides it into slots; the trainer says when one is free again. A batch's numbers travel
on the control line: the host reads them without asking the device.

A slot is free when the last tensor that looks into it is gone *and* the device has done what it was
asked to do with it until then: kernels run later than the program that launches them.
`DeviceArenaReader` therefore asks for a mark in the device's work when a lease ends, and gives the
slot back when that mark has been passed. Imports no torch.
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
    """An array in the memory of a device, for kernels and, through DLPack, for torch.

    Args:
        memory: the memory that it lies in.
        offset: its first byte there.
        shape: its axes.
        dtype: name of its dtype.
        owner: kept as long as anything looks into the array; default: `memory`.
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
        """Its size."""
        return math.prod(self.shape) * storage_dtype(self.dtype).itemsize

    @property
    def address(self) -> int:
        """Where the device sees it."""
        return self._memory.address + self._offset

    def upload(self, values: Array) -> None:
        """Copies an array of the host here, in the order of what the device was asked for."""
        self._memory.upload(self._offset, np.ascontiguousarray(values))

    def view(self) -> Any:
        """The array for DLPack."""
        return self._memory.view(self._offset, self.shape, self.dtype, self._owner)

    def capsule(self) -> Any:
        """The array as a DLPack capsule. Nobody waits for anything: a batch is complete."""
        return self.view().__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.view().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.view().__dlpack_device__()


class Scratch:
    """Memory of a device for one array at a time, made larger when one needs more.

    Args:
        device: the device.
    """

    def __init__(self, device: _native.Device) -> None:
        self._device = device
        self._memory: _native.DeviceMemory | None = None

    def take(self, nbytes: int) -> _native.DeviceMemory:
        """At least so many bytes; what was here before is gone."""
        if self._memory is None or self._memory.nbytes < nbytes:
            if self._memory is not None:
                self._device.synchronize()  # it may still be reading what is here
            self._memory = None
            self._memory = _native.DeviceMemory.allocate(self._device, nbytes + nbytes // 4)
        return self._memory


def arrays_of(record: Record, memory: _native.DeviceMemory, offset: int) -> dict[str, DeviceArray]:
    """The arrays of a batch whose slot begins at `offset`."""
    return {
        of.name: DeviceArray(memory, offset + begin, shape, of.dtype)
        for of, shape, begin in record.places()
    }


class DeviceArenaWriter:
    """The sampler's side of a slab.

    Args:
        memory: the slab.
    """

    def __init__(self, memory: _native.DeviceMemory) -> None:
        self.memory = memory
        self._slots = SlotAllocator(memory.nbytes)

    def allocate(self, nbytes: int) -> int | None:
        """Offset of a free slot; None if no slot is large enough."""
        return self._slots.allocate(nbytes)

    def free(self, offset: int) -> None:
        """Takes back a slot that the trainer no longer looks into."""
        self._slots.free(offset)


def open_slab(
    device: _native.Device, described: Mapping[str, Any], descriptors: Sequence[int]
) -> DeviceArenaWriter:
    """Opens what a trainer has made.

    Args:
        device: where it lies.
        described: `DeviceArenaReader.described`.
        descriptors: `DeviceArenaReader.descriptors`, as they arrived; left open.
    """
    if descriptors:
        mapped = np.frombuffer(map_memory(descriptors[0]), np.uint8)
        return DeviceArenaWriter(_native.DeviceMemory.over(device, mapped))
    handle = bytes.fromhex(described["handle"])
    return DeviceArenaWriter(_native.DeviceMemory.open(device, handle, described["nbytes"]))


class Mark(Protocol):
    """A moment in the work of a device."""

    def query(self) -> bool:
        """Whether it has passed."""


# A slot: offset, size, marks, and what is called with the offset when they have been passed.
_Ended: TypeAlias = tuple[int, int, Sequence[Mark] | None, Callable[[int], None]]


class _Lease:
    """A slot that arrays look into; `release` is called when the last of them is gone."""

    __slots__ = ("_owner", "_release")

    def __init__(self, owner: object, release: Callable[[], None]) -> None:
        self._owner = owner
        self._release = release

    def __del__(self) -> None:
        self._release()


class DeviceArenaReader:
    """The trainer's side of a slab, and its memory.

    Args:
        device: where it shall lie.
        nbytes: its size. Memory of a GPU is taken at once.
        mark: marks what the device has been asked to do so far, on all streams that may use
            batches. It is called wherever the last reference to a batch dies.

    Attributes:
        described: for the sampler, as JSON object.
        descriptors: to be passed on with it; closed by `passed_on`.
    """

    def __init__(
        self, device: _native.Device, nbytes: int, mark: Callable[[], Sequence[Mark]]
    ) -> None:
        self._mark = mark
        self._owner = os.getpid()
        self.descriptors: list[int] = []
        handle = None
        if device.is_cuda:
            # Smaller allocations share pages of the driver, and whoever opens one sees the others.
            nbytes = -(-nbytes // _GPU_PAGE) * _GPU_PAGE
            self._memory = _native.DeviceMemory.allocate_shared(device, nbytes)
            handle = self._memory.handle.hex()
        else:
            self.descriptors = [create_memory(nbytes, "khop-slab")]
            mapped = np.frombuffer(map_memory(self.descriptors[0]), np.uint8)
            self._memory = _native.DeviceMemory.over(device, mapped)
        self.described = {"nbytes": nbytes, "handle": handle}
        self._leased = 0
        # Slots that nothing looks into any more, and what the device was still doing then; None:
        # it could not be marked.
        self._ended: deque[_Ended] = deque()

    @property
    def capacity(self) -> int:
        """Its size."""
        return self._memory.nbytes

    @property
    def bytes_leased(self) -> int:
        """Bytes of slots that have not been given back."""
        return self._leased

    def passed_on(self) -> None:
        """Closes the descriptors: the sampler has them."""
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
        """Reads a batch.

        Args:
            offset: its slot.
            nbytes: the slot's size.
            head: its numbers, as they came on the line.
            layouts: those that batches may have, by number.
            on_free: called with the offset, by `give_back`, when the slot is free.

        Raises:
            ProtocolError: malformed.
        """
        layout = layout_of(head, layouts)
        if len(head) < layout.head_bytes:
            raise ProtocolError(f"a batch's {len(head)} bytes of numbers have no room for them")
        if not 0 <= offset <= offset + nbytes <= self.capacity:
            raise ProtocolError(f"slot {offset} + {nbytes} lies outside {self.capacity} bytes")
        numbers, begins, shapes = layout.parse(head, nbytes)
        # From half of the slab on, who keeps batches gets copies: samplers must not starve.
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
        """Gives back the slots that the device has done with; called by one thread."""
        for _ in range(len(self._ended)):
            offset, nbytes, marks, on_free = self._ended.popleft()
            try:
                is_done = marks is not None and all(mark.query() for mark in marks)
            except Exception:  # of a graph that the user was recording: its events never pass
                is_done, marks = False, None
            if is_done:
                self._leased -= nbytes
                on_free(offset)
            else:
                marks = self._marks() if marks is None else marks
                self._ended.append((offset, nbytes, marks, on_free))

    def _marks(self) -> Sequence[Mark] | None:
        """Marks what the device was asked to do so far; a later mark does as well as none now."""
        try:
            return self._mark()
        except Exception:
            return None
