"""Devices that thread-parallel kernels are tested on: emulated ones, and a GPU where one is."""

import numpy as np
import pytest
import torch

from khop import _native

HAS_GPU = bool(_native.cuda_status().get("devices"))

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="no usable CUDA device"),
]

KINDS = ["emulated", "threads", pytest.param("cuda", marks=gpu)]
"""Items in random orders on one thread, on several at the same time, and on a GPU."""


def open_device(kind, seed=0):
    """A device of one of `KINDS`."""
    if kind == "cuda":
        return _native.cuda_device(0)
    return _native.emulated_device(seed, 4 if kind == "threads" else 1)


def put(device, array):
    """A NumPy array or CPU tensor in the device's memory."""
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
    return array.cpu().numpy() if isinstance(array, torch.Tensor) else array


def address_of(array):
    """Where an array lies in a device's memory."""
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data
