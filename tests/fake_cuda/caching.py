"""An allocator for tests, as torch's: a block that is released is given again at once.

What comes next in the stream's order may use it, and nothing else. Only with an extension built
with KHOP_CUDA=fake.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict

from fake_cuda import control


class CachingAllocator:
    """Blocks of a device's memory for one stream.

    Args:
        stream: address of a cudaStream_t of the current device.
    """

    PATTERN = 0x9D
    """Bytes of a block that is given again: somebody else has written to it."""

    _ROUNDED = 512

    def __init__(self, stream: int) -> None:
        self._stream = ctypes.c_void_p(stream)
        self._free: dict[int, list[int]] = defaultdict(list)
        self._sizes: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int:
        """Return the address of a block, the one of its size that was released last."""
        size = -(-nbytes // self._ROUNDED) * self._ROUNDED
        cuda = control.runtime()
        if self._free[size]:
            address = self._free[size].pop()
        else:
            memory = ctypes.c_void_p()
            error = cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(size))
            if error != 0 or memory.value is None:
                raise MemoryError(f"cudaMalloc answered {error}")
            address = memory.value
        self._sizes[address] = size
        filled = ctypes.c_void_p(address), self.PATTERN, ctypes.c_size_t(size), self._stream
        if cuda.cudaMemsetAsync(*filled) != 0:
            raise RuntimeError("a block cannot be filled")
        return address

    def release(self, address: int) -> None:
        """Take a block back, whatever the stream still does with it."""
        self._free[self._sizes[address]].append(address)

    def close(self) -> None:
        """Wait for the stream, and free the blocks that nobody has."""
        cuda = control.runtime()
        cuda.cudaStreamSynchronize(self._stream)
        for addresses in self._free.values():
            for address in addresses:
                cuda.cudaFree(ctypes.c_void_p(address))
        self._free.clear()
