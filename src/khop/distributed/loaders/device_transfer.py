"""Asynchronous transfer of batches to the target device, one batch ahead, on a side stream.

Runs in trainers. Copies to a GPU run on a separate stream, at the same time as the trainer's
kernels, and the copy of the next batch starts before a batch is returned. The consumer's stream
waits for a batch's copy, the host does not. The source is kept until the copy is done: the slot of
an arena must not go back to its sampler while it is read. Batches in a device arena
(`khop.channel.device_arena`) are on the target device already.

Batches that stay on the host are in an arena, or with `pin_memory=True` in torch's page-locked
memory. Torch keeps that memory until asynchronous copies from it are done.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from khop import _native
from khop.channel.device_arena import DeviceArenaReader
from khop.data.device import current_gpu, full_name, open_device, parse_device
from khop.sampler.pyg.device import STREAMS, on_stream, tensors_in, wait_and_record_stream


class TargetDevice:
    """Target device of a loader's batches.

    Args:
        device: as for `DistNeighborLoader`: None, anything that `torch.device` takes, or
            'emulated' (for tests: batches are tensors on the CPU).
        pin_memory: as for `MpDistSamplingWorkerOptions`; warns if it has no effect.

    Attributes:
        device: full name of the device that samplers may share with the trainer; None if there is
            none.
        torch_device: device of the batches' tensors; None if they stay where they were made.
        pins_rings: whether arenas are registered with CUDA, for copies from them.
        pins_batches: whether batches stay on the host, in torch's page-locked memory.

    Raises:
        RuntimeError: the device cannot be used; the message has the reason.
    """

    def __init__(self, device: Any, pin_memory: bool = False) -> None:
        self.device: str | None = None
        self.torch_device: torch.device | None = None
        self._resolve(device)
        place = "cpu" if self.torch_device is None else self.torch_device.type
        has_cuda = pin_memory and torch.cuda.is_available()
        self.pins_rings = has_cuda and place == "cuda"
        self.pins_batches = has_cuda and place == "cpu" and not self.is_device
        if pin_memory and not has_cuda:
            warnings.warn("pin_memory=True has no effect: no CUDA device can be used", stacklevel=4)

    def _resolve(self, device: Any) -> None:
        if device is None:
            return
        if str(device).partition(":")[0] == "emulated":
            self.device = full_name(device)
            self.torch_device = torch.device("cpu")
            return
        self.torch_device = torch.device(device)
        if self.torch_device.type == "cuda":
            index = _cuda_index(device, self.torch_device.index)
            self.torch_device = torch.device("cuda", index)
            self.device = f"cuda:{index}"

    @property
    def is_device(self) -> bool:
        """True if batches go to a device that works asynchronously to the host."""
        return self.device is not None


def _cuda_index(device: Any, index: int | None) -> int:
    """Return the index of the GPU; `index` is None for the current one.

    Torch makes the copies to it, so torch counts the GPUs: khop may be built without CUDA.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (index or 0) >= count:
        raise RuntimeError(
            f"device: device '{device}' cannot be used: torch finds {count} CUDA devices"
        )
    return current_gpu() if index is None else index


class PendingTransfer(NamedTuple):
    """Batch whose transfer has started.

    Attributes:
        batch: the batch on the target device; its tensors may not be written yet.
        written: event that completes when they are. None if they are written already.
    """

    batch: Any
    written: Any


class DeviceTransfer:
    """Transfer of batches to a target device.

    Args:
        destination: the target device.
    """

    def __init__(self, destination: TargetDevice) -> None:
        self._to = destination
        self._stream: Any = None
        if destination.torch_device is not None and destination.torch_device.type == "cuda":
            self._stream = STREAMS.lease(destination.torch_device.index)
        # Consumers' streams: their queued work may read any batch.
        self._consumers: dict[int, Any] = {}
        self._copied_from: deque[tuple[Any, list[Tensor]]] = deque()

    def start(self, batch: Any) -> PendingTransfer:
        """Start to copy a batch; tensors on the target device are not copied.

        Wait for the copy, unless it is to a GPU.
        """
        target = self._to.torch_device
        if self._stream is None:
            batch = batch if target is None else batch.to(target)
            return PendingTransfer(batch.pin_memory() if self._to.pins_batches else batch, None)
        self._forget_copied()
        sources = tensors_in(batch)
        if any(tensor.is_cuda for tensor in sources):
            # Kernels that computed parts of it on the device (seed indices of links, labels) come
            # first. A batch of the host waits for nothing that the consumer has queued.
            self._stream.wait_stream(torch.cuda.current_stream(target))
        with on_stream(self._stream):
            moved = batch.to(target, non_blocking=True)
            written = self._stream.record_event()
        self._copied_from.append((written, [t for t in sources if not t.is_cuda]))
        return PendingTransfer(moved, written)

    def finish(self, pending: PendingTransfer) -> Any:
        """Make torch's current stream wait for the copy, and return the batch."""
        if pending.written is not None:
            wait_and_record_stream(tensors_in(pending.batch), pending.written)
            stream = torch.cuda.current_stream(self._to.torch_device)
            self._consumers[stream.cuda_stream] = stream
        return pending.batch

    def _forget_copied(self) -> None:
        while self._copied_from and self._copied_from[0][0].query():
            self._copied_from.popleft()

    def close(self) -> None:
        """Wait for running copies; their sources may be freed afterwards."""
        while self._copied_from:
            self._copied_from.popleft()[0].synchronize()

    def mark(self) -> list[Any]:
        """Return events that complete when all queued work that may use a dropped batch is done."""
        if self._stream is None:
            return []
        current = torch.cuda.current_stream(self._to.torch_device)
        streams = {**self._consumers, current.cuda_stream: current}
        return [stream.record_event() for stream in (*streams.values(), self._stream)]


class DeviceArenaFactory:
    """Factory of device arenas, for samplers on the trainer's target device.

    Args:
        destination: target device of the trainer's batches.
        nbytes: size of each arena, in bytes.
        num_sharing: number of samplers that will have one.
        transfer: its `mark` gives the events after which a slot is free.
    """

    # All device arenas together take at most 1/8 of a GPU's memory.
    _SHARE = 8

    def __init__(
        self, destination: TargetDevice, nbytes: int, num_sharing: int, transfer: DeviceTransfer
    ) -> None:
        self._destination = destination
        self._mark = transfer.mark
        self._native: _native.Device | None = None
        self._nbytes = nbytes
        if destination.device is not None and num_sharing > 0:
            kind, index = parse_device(destination.device)
            if kind == "cuda":
                memory = _native.cuda_status()["gpus"][index]["memory"]
                self._nbytes = min(nbytes, memory // self._SHARE // num_sharing)

    def __call__(self, device: str | None) -> DeviceArenaReader | None:
        """Create an arena for a sampler on `device`; None if that is not the target device."""
        if device is None or device != self._destination.device:
            return None
        if self._native is None:
            self._native = open_device(device)
        return DeviceArenaReader(self._native, self._nbytes, self._mark)
