"""How batches come to where the trainer wants them, and who waits for whom.

To a GPU they are copied on a stream of their own, beside what the trainer computes, and the copy of
the next batch is under way before one is handed out. The consumer's stream then waits for a batch's
copy, the host does not. What is copied from stays as it is until the copy is done: the slot of a
ring must not go back to its sampler while it is read. Batches that lie in a slab
(`khop.channel.device_arena`) are where they belong already.

Batches that stay on the host lie in a ring, or on request (`pin_memory=True`) in page-locked memory
of torch's, which keeps what a copy reads that nobody waits for.
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
from khop.sampler.device import on_stream, tensors_in, wait_and_record_stream


class TargetDevice:
    """Where a loader's batches shall be.

    Args:
        to_device: as for `DistNeighborLoader`: None, anything that `torch.device` takes, or
            'emulated' (for tests: batches are tensors on the CPU).
        pin_memory: as for `MpDistSamplingWorkerOptions`; a warning says if it has no effect.

    Attributes:
        device: the device that samplers may share with the trainer, by its full name; None: none.
        torch_device: of the batches' tensors; None: they stay where they were made.
        pins_rings: whether rings are registered with CUDA, to be copied from.
        pins_batches: whether batches stay on the host, in page-locked memory of torch's.

    Raises:
        RuntimeError: the device cannot be used; says why.
    """

    def __init__(self, to_device: Any, pin_memory: bool = False) -> None:
        self.device: str | None = None
        self.torch_device: torch.device | None = None
        self._resolve(to_device)
        place = "cpu" if self.torch_device is None else self.torch_device.type
        has_cuda = pin_memory and torch.cuda.is_available()
        self.pins_rings = has_cuda and place == "cuda"
        self.pins_batches = has_cuda and place == "cpu" and not self.is_device
        if pin_memory and not has_cuda:
            warnings.warn("pin_memory=True has no effect: no CUDA device can be used", stacklevel=4)

    def _resolve(self, to_device: Any) -> None:
        if to_device is None:
            return
        if str(to_device).partition(":")[0] == "emulated":
            self.device = full_name(to_device)
            self.torch_device = torch.device("cpu")
            return
        self.torch_device = torch.device(to_device)
        if self.torch_device.type == "cuda":
            index = _cuda_index(to_device, self.torch_device.index)
            self.torch_device = torch.device("cuda", index)
            self.device = f"cuda:{index}"

    @property
    def is_device(self) -> bool:
        """Whether batches go to a device that works beside the host."""
        return self.device is not None


def _cuda_index(to_device: Any, index: int | None) -> int:
    """The GPU that is meant. Copies to it are torch's: khop itself may be built without CUDA."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (index or 0) >= count:
        raise RuntimeError(
            f"to_device: device '{to_device}' cannot be used: torch finds {count} CUDA devices"
        )
    return current_gpu() if index is None else index


class PendingTransfer(NamedTuple):
    """A batch on its way.

    Attributes:
        batch: its tensors are where they shall be, but perhaps not written yet.
        written: when they will have been.
    """

    batch: Any
    written: Any


class DeviceTransfer:
    """Takes batches to a destination.

    Args:
        destination: where to.
    """

    def __init__(self, destination: TargetDevice) -> None:
        self._to = destination
        self._stream: Any = None
        if destination.torch_device is not None and destination.torch_device.type == "cuda":
            self._stream = torch.cuda.Stream(destination.torch_device)  # type: ignore[no-untyped-call]
        # Consumers' streams: what they were asked to do may concern any batch.
        self._consumers: dict[int, Any] = {}
        self._copied_from: deque[tuple[Any, list[Tensor]]] = deque()

    def start(self, batch: Any) -> PendingTransfer:
        """Begins to copy a batch; what is at its destination stays there.

        Waits for the copy, unless it is to a device.
        """
        target = self._to.torch_device
        if self._stream is None:
            batch = batch if target is None else batch.to(target)
            return PendingTransfer(batch.pin_memory() if self._to.pins_batches else batch, None)
        self._forget_copied()
        sources = tensors_in(batch)
        if any(tensor.is_cuda for tensor in sources):
            # What was computed of it on the device (trees of links, labels) comes first. A batch of
            # the host waits for nothing that the consumer has asked for.
            self._stream.wait_stream(torch.cuda.current_stream(target))
        with on_stream(self._stream):
            moved = batch.to(target, non_blocking=True)
            written = self._stream.record_event()
        self._copied_from.append((written, [t for t in sources if not t.is_cuda]))
        return PendingTransfer(moved, written)

    def finish(self, pending: PendingTransfer) -> Any:
        """Hands a batch over to torch's current stream, which waits for the copy."""
        if pending.written is not None:
            wait_and_record_stream(tensors_in(pending.batch), pending.written)
            stream = torch.cuda.current_stream(self._to.torch_device)
            self._consumers[stream.cuda_stream] = stream
        return pending.batch

    def _forget_copied(self) -> None:
        while self._copied_from and self._copied_from[0][0].query():
            self._copied_from.popleft()

    def close(self) -> None:
        """Waits for copies that are under way: what they read may be gone then."""
        while self._copied_from:
            self._copied_from.popleft()[0].synchronize()

    def mark(self) -> list[Any]:
        """The moment when all is done that may concern a batch which the host has dropped now."""
        if self._stream is None:
            return []
        current = torch.cuda.current_stream(self._to.torch_device)
        streams = {**self._consumers, current.cuda_stream: current}
        return [stream.record_event() for stream in (*streams.values(), self._stream)]


class DeviceArenaFactory:
    """Makes the memory that samplers share with their trainer, of those on the trainer's device.

    Args:
        destination: where the trainer wants its batches.
        nbytes: of each sampler.
        num_sharing: how many samplers will have one.
        mover: knows what the device is doing.
    """

    # All slabs together take no more of a GPU's memory than this share.
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
        """A slab, if a sampler works where batches shall be."""
        if device is None or device != self._destination.device:
            return None
        if self._native is None:
            self._native = open_device(device)
        return DeviceArenaReader(self._native, self._nbytes, self._mark)
