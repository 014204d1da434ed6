"""Calls of the tests' own CUDA runtime, through ctypes."""

import ctypes

import numpy as np

from fake_cuda import control

cuda = control.runtime()
TO_DEVICE, TO_HOST = 1, 2
INVALID_VALUE, OUT_OF_MEMORY, NOT_READY = 1, 2, 600
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_IMPLICIT = 900, 901, 906


def pointer(address):
    return ctypes.c_void_p(address)


def new_stream(mode="lazy"):
    control.set_mode(mode)
    stream = ctypes.c_void_p()
    assert cuda.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
    return stream


def allocate(nbytes, stream=None):
    """From the stream's pool, or by cudaMalloc."""
    memory = ctypes.c_void_p()
    size = ctypes.c_size_t(nbytes)
    if stream is None:
        assert cuda.cudaMalloc(ctypes.byref(memory), size) == 0
    else:
        assert cuda.cudaMallocAsync(ctypes.byref(memory), size, stream) == 0
    return memory.value


def pinned(nbytes):
    """An array of page-locked memory."""
    memory = ctypes.c_void_p()
    assert cuda.cudaHostAlloc(ctypes.byref(memory), ctypes.c_size_t(nbytes), 0) == 0
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(memory.value))


def own_pages(num_pages):
    """An array on pages of its own."""
    whole = np.zeros((num_pages + 1) * 4096, np.uint8)
    first = -whole.ctypes.data % 4096
    return whole[first : first + num_pages * 4096]


def address(array, offset=0):
    return pointer(array.ctypes.data + offset)


def copy(to, source, nbytes, kind, stream):
    """The error of a copy; addresses or arrays."""
    ends = [pointer(end) if isinstance(end, int) else address(end) for end in (to, source)]
    return cuda.cudaMemcpyAsync(*ends, ctypes.c_size_t(nbytes), kind, stream)


def download(memory, nbytes, stream):
    array = np.zeros(nbytes, np.uint8)
    assert copy(array, memory, nbytes, TO_HOST, stream) == 0
    return array
