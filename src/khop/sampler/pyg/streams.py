"""CUDA streams of khop's own, for torch: leased, reused and never destroyed. Runs in trainers.

Torch hands out 32 streams of a GPU in turn, to everybody: process groups of NCCL have some of them.
Work that another library puts on a loader's stream while the loader records a CUDA graph would be
recorded instead of run. A stream of khop's own has one user at a time. It is never destroyed,
because torch's allocator may refer to it as long as a tensor lives that was used on it. The next
loader takes it instead.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from khop import _native


class StreamPool:
    """Process-wide list of CUDA streams that nobody uses at present.

    Streams have a higher priority than others: the kernels of a batch are small and depend on one
    another, and each of them would wait for the trainer's large ones.
    """

    def __init__(self) -> None:
        # Without a lock: streams come back whenever Python collects garbage, also in `lease`.
        self._free: dict[int, list[int]] = {}

    def lease(self, index: int) -> Any:
        """Return a stream of a GPU, which is free again when the returned object is gone.

        Args:
            index: number of the GPU.

        Returns:
            A `torch.cuda.ExternalStream`. Where khop was built without CUDA, one of torch's.

        Raises:
            RuntimeError: CUDA cannot create a stream. Names the call.
        """
        if not _native.cuda_status()["compiled"]:  # nothing is recorded: batches are copied alone
            return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
        free = self._free.setdefault(index, [])
        try:
            address = free.pop()
        except IndexError:
            address = _native.cuda_stream(index)
        make: Any = torch.cuda.ExternalStream
        stream = make(address, torch.device("cuda", index))
        weakref.finalize(stream, free.append, address).atexit = False
        return stream


STREAMS = StreamPool()
"""The streams of this process."""
