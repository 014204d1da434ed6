"""Target device of a loader's batches, and their asynchronous transfer to it. Runs in trainers.

Copies to a GPU run on a separate stream, at the same time as the trainer's kernels. The copy of the
next batch starts before a batch is returned. The consumer's stream waits for a batch's copy, the
host does not. The source is kept until the copy is done: the slot of an arena must not go back
to its sampler while it is read. Arenas are registered with CUDA, so that copies need no staging.
Batches in a device arena (`khop.channel.device_arena`) are on the target device already.

Batches that stay on the host are in an arena, or with `pin_memory=True` in torch's page-locked
memory. Torch keeps that memory until asynchronous copies from it are done.
"""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from khop import _native
from khop.channel.arena import ArenaReader
from khop.channel.device_arena import DeviceArenaReader
from khop.data.device import current_gpu, full_name, open_device, parse_device
from khop.distributed.loaders.widening import Widening
from khop.sampler.pyg.device import on_stream, tensors_in, wait_and_record_stream
from khop.sampler.pyg.streams import STREAMS


class TargetDevice:
    """Device to which a loader's batches go, checked when the loader is made.

    Args:
        device: the loader's `device`: None, an argument of `torch.device`, or 'emulated' (for
            tests: batches are tensors on the CPU).
        pin_memory: lock memory for asynchronous copies. Warns if it has no effect.

    Attributes:
        device: full name of the device that samplers may share with the trainer, or None.
        torch_device: device of the batches' tensors, or None if they stay where they were made.
        pins_arenas: whether arenas are registered with CUDA, for copies from them.
        pins_batches: whether batches stay on the host, in torch's page-locked memory.

    Raises:
        RuntimeError: the device cannot be used. The message has the reason.
    """

    def __init__(self, device: Any, pin_memory: bool = False) -> None:
        self.device: str | None = None
        self.torch_device: torch.device | None = None
        if str(device).partition(":")[0] == "emulated":
            self.device = full_name(device)
            self.torch_device = torch.device("cpu")
        elif device is not None:
            self.torch_device = torch.device(device)
            if self.torch_device.type == "cuda":
                index = _cuda_index(device, self.torch_device.index)
                self.torch_device = torch.device("cuda", index)
                self.device = f"cuda:{index}"
        device_type = "cpu" if self.torch_device is None else self.torch_device.type
        has_cuda = pin_memory and torch.cuda.is_available()
        self.pins_arenas = has_cuda and device_type == "cuda"
        self.pins_batches = has_cuda and device_type == "cpu" and not self.is_device
        if pin_memory and not has_cuda:
            warnings.warn("pin_memory=True has no effect: no CUDA device can be used", stacklevel=4)

    @property
    def is_device(self) -> bool:
        """True if batches go to a device that works asynchronously to the host."""
        return self.device is not None


def _cuda_index(device: Any, index: int | None) -> int:
    """Return the index of the GPU, the current one if `index` is None.

    Torch counts the GPUs, as it makes the copies: khop may be built without CUDA.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (index or 0) >= count:
        raise RuntimeError(
            f"device: device '{device}' cannot be used: torch finds {count} CUDA devices"
        )
    return current_gpu() if index is None else index


PendingTransfer: TypeAlias = tuple[Any, Any]
"""Batch on the target device, and the event that completes when its tensors are written.

The event is None if they are written already.
"""


class DeviceTransfer:
    """Copier of a loader's batches to their device, asynchronously if it is a GPU.

    Args:
        target: the target device.
        widening: widens encoded rows there. If None, there are none.
    """

    def __init__(self, target: TargetDevice, widening: Widening | None = None) -> None:
        self.target = target
        self._widening = widening
        self._stream: Any = None
        if target.torch_device is not None and target.torch_device.type == "cuda":
            self._stream = STREAMS.lease(target.torch_device.index)
        # Consumers' streams: their queued work may read any batch.
        self._consumers: dict[int, Any] = {}
        self._copied_from: deque[tuple[Any, list[Tensor]]] = deque()

    def start(self, batch: Any) -> PendingTransfer:
        """Start to copy the tensors of a batch that are not on the target device, and to widen.

        Wait for the copy, unless the target is a GPU.
        """
        target = self.target.torch_device
        if self._stream is None:
            batch = batch if target is None else batch.to(target)
            self._widen(batch)
            return batch.pin_memory() if self.target.pins_batches else batch, None
        while self._copied_from and self._copied_from[0][0].query():
            self._copied_from.popleft()
        sources = tensors_in(batch)
        begun = None
        if any(tensor.is_cuda for tensor in sources):
            # Kernels that computed parts of it on the device (seed indices of links, labels) come
            # first. A batch of the host waits for nothing that the consumer has queued.
            begun = torch.cuda.current_stream(target).record_event()
        with on_stream(self._stream):
            wait_and_record_stream(sources, begun)
            moved = batch.to(target, non_blocking=True)
            self._widen(moved)
            written = self._stream.record_event()
        self._copied_from.append((written, [t for t in sources if not t.is_cuda]))
        return moved, written

    def _widen(self, batch: Any) -> None:
        if self._widening is not None:
            self._widening.apply(batch)

    def finish(self, pending: PendingTransfer) -> Any:
        """Make torch's current stream wait for the copy that `start` began. Return the batch."""
        batch, written = pending
        if written is not None:
            wait_and_record_stream(tensors_in(batch), written)
            stream = torch.cuda.current_stream(self.target.torch_device)
            self._consumers[stream.cuda_stream] = stream
        return batch

    def close(self) -> None:
        """Wait for running copies, whose sources may be freed afterwards."""
        while self._copied_from:
            self._copied_from.popleft()[0].synchronize()

    def mark(self) -> list[Any]:
        """Return events that complete when all work queued so far on the GPU is done.

        A dropped batch's memory may be reused then. The list is empty without a GPU.
        """
        if self._stream is None:
            return []
        current = torch.cuda.current_stream(self.target.torch_device)
        streams = {**self._consumers, current.cuda_stream: current}
        return [stream.record_event() for stream in (*streams.values(), self._stream)]


class DeviceArenaFactory:
    """Factory of device arenas: GPU memory into which samplers on the trainer's GPU write.

    Args:
        transfer: transfer of the trainer's batches. Its `mark` gives the events after which a slot
            is free.
        nbytes: size of each arena, in bytes.
        num_sharing: number of samplers that will have a device arena.
    """

    # All device arenas together take at most 1/8 of a GPU's memory.
    _SHARE = 8

    def __init__(self, transfer: DeviceTransfer, nbytes: int, num_sharing: int) -> None:
        self._device = transfer.target.device
        self._mark = transfer.mark
        self._native: _native.Device | None = None
        self._nbytes = nbytes
        if self._device is not None and num_sharing > 0:
            device_type, index = parse_device(self._device)
            if device_type == "cuda":
                memory = _native.cuda_status()["gpus"][index]["memory"]
                self._nbytes = min(nbytes, memory // self._SHARE // num_sharing)

    def __call__(self, device: str | None) -> DeviceArenaReader | None:
        """Create an arena for a sampler on `device`. None if that is not the target device."""
        if device is None or device != self._device:
            return None
        if self._native is None:
            self._native = open_device(device)
        return DeviceArenaReader(self._native, self._nbytes, self._mark)


def pinning(target: TargetDevice) -> Callable[[ArenaReader], None] | None:
    """Return a function that registers an arena with CUDA. None if `target` is no GPU.

    A slot of an arena is reused when its last tensor is gone, but a copy with `non_blocking=True`
    may run later. Torch keeps a copy's source only if torch has allocated it. So `DeviceTransfer`
    keeps it.
    """
    device = target.torch_device
    if not target.pins_arenas or device is None:
        return None
    return partial(_pin, device)


def _pin(device: torch.device, arena: ArenaReader) -> None:
    """Register an arena with CUDA, for all GPUs, as long as it is mapped."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):  # the call would take half a GB of whichever GPU is current
        error = runtime.cudaHostRegister(arena.address, arena.capacity, 0)
    if int(error) != 0:
        with contextlib.suppress(RuntimeError):  # else CUDA reports it for the user's next kernel
            torch.ones(1, device=device)
        raise RuntimeError(
            f"pin_memory=True: cudaHostRegister failed for {arena.capacity} bytes ({error}); a "
            "smaller buffer_size may do"
        )
    # The arena's memory is unmapped after its finalizers have run.
    unpin = weakref.finalize(arena, _unpin, device, arena.address, os.getpid())
    unpin.atexit = False  # registrations end with the process


def _unpin(device: torch.device, address: int, owner: int) -> None:
    if os.getpid() == owner:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            runtime.cudaHostUnregister(address)
