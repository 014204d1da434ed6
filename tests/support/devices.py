"""Devices on which kernels are tested: emulated ones, and a GPU if there is one.

An extension built with fake_cuda also runs the sources for GPUs on the CPU.
"""

from __future__ import annotations

import ctypes
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

TORCH_KINDS = ["emulated", "threads", pytest.param("cuda", marks=gpu)]
"""Items in random orders on one thread, on several at the same time, and on a GPU."""

KINDS = TORCH_KINDS + ["fake"] * HAS_FAKE
"""The same, and what runs on GPUs on the tests' own CUDA runtime, where the extension has it."""


class _DlTensor(ctypes.Structure):
    """Beginning of the structure in a DLPack capsule, up to the strides."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("num_axes", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    )


class FakeArray:
    """An array in the memory of a device of the tests' own runtime, unknown to torch.

    Args:
        memory: the memory that holds it.
        offset: its first byte there.
        shape: its axes.
        dtype: its NumPy dtype.
        step: distance of its rows, in rows.
    """

    def __init__(self, memory, offset, shape, dtype, step=1):
        self.memory = memory
        self.offset = offset
        self.shape = shape
        self.dtype = dtype
        self.step = step

    @classmethod
    def put(cls, device, array):
        """Return a copy, on the device, of an array of the host."""
        memory = _native.DeviceMemory.allocate(device, max(1, array.nbytes))
        memory.upload(0, array)
        device.synchronize()
        return cls(memory, 0, array.shape, array.dtype)

    def get(self):
        """Return a copy in the host's memory."""
        assert self.step == 1
        array = np.empty(self.shape, self.dtype)
        self.memory.download(self.offset, array)
        return array

    def reshape(self, *shape):
        """Return a view of the same entries with other axes."""
        return FakeArray(self.memory, self.offset, shape, self.dtype)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, rows):
        assert self.step == 1
        begin, end, step = rows.indices(self.shape[0])
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        shape = (len(range(begin, end, step)), *self.shape[1:])
        return FakeArray(self.memory, self.offset + begin * row_bytes, shape, self.dtype, step)

    def __dlpack__(self, **options):
        capsule = self._view().__dlpack__()
        if self.step != 1:
            address = ctypes.pythonapi.PyCapsule_GetPointer
            address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
            tensor = _DlTensor.from_address(address(capsule, b"dltensor"))
            tensor.strides[0] *= self.step
        return capsule

    def __dlpack_device__(self):
        return self._view().__dlpack_device__()

    def _view(self):
        return self.memory.view(self.offset, self.shape, self.dtype.name, self)


def open_device(kind, seed=0):
    """Open a device of one of `KINDS`."""
    if kind in ("cuda", "fake"):
        return _native.cuda_device(0)
    return _native.emulated_device(seed, 4 if kind == "threads" else 1)


def put(device, array):
    """Copy a NumPy array or CPU tensor to the device's memory, and return the copy."""
    if device.is_cuda and HAS_FAKE:
        return FakeArray.put(device, np.ascontiguousarray(array))
    if device.is_cuda:
        # Torch knows no negative strides.
        host = array if isinstance(array, torch.Tensor) else np.ascontiguousarray(array)
        tensor = torch.as_tensor(host).cuda()
        torch.cuda.synchronize()  # the device has a stream of its own
        return tensor
    return np.ascontiguousarray(array)


def empty(device, shape, dtype):
    """Return an uninitialised array of a NumPy dtype in the device's memory."""
    array = np.full(shape, 77, dtype)
    return put(device, array)


def get(array):
    """Copy an array of a device to a NumPy array."""
    if isinstance(array, FakeArray):
        return array.get()
    return array.cpu().numpy() if isinstance(array, torch.Tensor) else array


def torch_place(device):
    """Return torch's device for tensors that a device may use. Skips the test if it has none."""
    if device.is_cuda and HAS_FAKE:
        pytest.skip("torch has no tensors in the memory of this device")
    return "cuda" if device.is_cuda else "cpu"


def address_of(array):
    """Return the address of an array in a device's memory."""
    if isinstance(array, FakeArray):
        return array.memory.address + array.offset
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data
