"""Devices that thread-parallel kernels are tested on: emulated ones, and a GPU where one is.

With an extension built for it, also the sources for GPUs on the CUDA runtime of fake_cuda.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fake_cuda import control
from khop import _native

HAS_FAKE = control.IS_FAKE

HAS_GPU = not HAS_FAKE and bool(_native.cuda_status().get("devices"))

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="no usable CUDA device"),
]

fake = pytest.mark.skipif(not HAS_FAKE, reason="the extension was not built with KHOP_CUDA=fake")

KINDS = ["emulated", "threads", pytest.param("cuda", marks=gpu)] + ["fake"] * HAS_FAKE
"""Items in random orders on one thread, on several at the same time, and on a GPU; or what runs on
GPUs, on the tests' own CUDA runtime."""


class FakeArray:
    """An array in the memory of a device of the tests' own runtime, which torch knows nothing of.

    Args:
        memory: where it lies.
        offset: its first byte there.
        shape: its axes.
        dtype: its NumPy dtype.
    """

    def __init__(self, memory, offset, shape, dtype):
        self.memory = memory
        self.offset = offset
        self.shape = shape
        self.dtype = dtype

    @classmethod
    def put(cls, device, array):
        """A copy of an array of the host."""
        memory = _native.DeviceMemory.allocate(device, max(1, array.nbytes))
        memory.upload(0, array)
        device.synchronize()
        return cls(memory, 0, array.shape, array.dtype)

    def get(self):
        """A copy for the host."""
        array = np.empty(self.shape, self.dtype)
        self.memory.download(self.offset, array)
        return array

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, rows):
        begin, end, step = rows.indices(self.shape[0])
        if step != 1:
            raise TypeError("rows of a FakeArray are next to each other")
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        shape = (max(0, end - begin), *self.shape[1:])
        return FakeArray(self.memory, self.offset + begin * row_bytes, shape, self.dtype)

    def _view(self):
        return self.memory.view(self.offset, self.shape, self.dtype.name, self)

    def __dlpack__(self, **options):
        return self._view().__dlpack__(**options)

    def __dlpack_device__(self):
        return self._view().__dlpack_device__()


def open_device(kind, seed=0):
    """A device of one of `KINDS`."""
    if kind in ("cuda", "fake"):
        return _native.cuda_device(0)
    return _native.emulated_device(seed, 4 if kind == "threads" else 1)


def put(device, array):
    """A NumPy array or CPU tensor in the device's memory."""
    if device.is_cuda and HAS_FAKE:
        return FakeArray.put(device, np.ascontiguousarray(array))
    if device.is_cuda:
        tensor = torch.as_tensor(array).cuda()
        torch.cuda.synchronize()  # the device has a stream of its own
        return tensor
    return np.ascontiguousarray(array)


def empty(device, shape, dtype):
    """Memory of the device, of a NumPy dtype, that was never written."""
    array = np.full(shape, 77, dtype)
    return put(device, array)


def get(array):
    """What lies in a device's memory, as NumPy array."""
    if isinstance(array, FakeArray):
        return array.get()
    return array.cpu().numpy() if isinstance(array, torch.Tensor) else array


def address_of(array):
    """Where an array lies in a device's memory."""
    if isinstance(array, FakeArray):
        return array.memory.address + array.offset
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data
