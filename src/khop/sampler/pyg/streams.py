"""CUDA streams of khop's own. Run in trainers."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from khop import _native


class StreamPool:
    """Pool of CUDA streams of khop's own: each has one user at a time, and none is destroyed.

    Torch hands out 32 streams of a GPU in turn. Other libraries, such as NCCL, use some of them. If
    a loader records a CUDA graph on such a stream, other work on it is recorded and not run. So a
    stream here has one user at a time. It is never destroyed, because torch's allocator can refer
    to it as long as a tensor lives that was used on it. The next loader takes it instead.

    Streams have a higher priority than others: the kernels of a batch are small and depend on one
    another, and each of them would wait for the trainer's large ones.
    """

    def __init__(self) -> None:
        # Without a lock: streams come back whenever Python collects garbage, also in `lease`.
        self._free: dict[int, list[int]] = {}

    def lease(self, index: int) -> torch.cuda.Stream:
        """Return a stream of a GPU, which is free again when the returned object is gone.

        Args:
            index: number of the GPU.

        Returns:
            A `torch.cuda.ExternalStream`, or one of torch's streams if khop was built without CUDA.

        Raises:
            RuntimeError: CUDA cannot create a stream. The message names the call.
        """
        if not _native.cuda_status()["compiled"]:  # nothing is recorded: batches are copied alone
            return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
        free = self._free.setdefault(index, [])
        try:
            address = free.pop()
        except IndexError:
            address = _native.cuda_stream(index)
        make: Any = torch.cuda.ExternalStream
        stream: torch.cuda.Stream = make(address, torch.device("cuda", index))
        vars(stream)["_lease"] = _Lease(address, free)
        return stream


class _Lease:
    """Attribute of a leased stream. When both are gone, the address returns to the list `free`.

    No weak reference to the stream itself does this: torch 2.11 frees streams without clearing
    those. The callback then never runs, and the garbage collector reads freed memory.
    """

    def __init__(self, address: int, free: list[int]) -> None:
        weakref.finalize(self, free.append, address).atexit = False


STREAMS = StreamPool()
"""Streams of this process."""
