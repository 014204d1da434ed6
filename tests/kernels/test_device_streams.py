"""Devices of torch on streams of khop's own, on the tests' own CUDA runtime: torch's part faked."""

import ctypes
import gc

import numpy as np
import pytest
import torch

from fake_cuda import control
from khop import _native
from khop.sampler.pyg.device import TorchDevice
from khop.sampler.pyg.streams import StreamPool
from support.devices import fake

pytestmark = fake


class Stream:
    """Torch's stream at an address, to which weak references do not work."""

    __slots__ = ("__dict__",)

    def __init__(self, address, device):
        self.cuda_stream = address
        self.device = device


@pytest.fixture
def cuda(monkeypatch):
    """CUDA's runtime; torch's allocator takes memory from it, and no stream is left of others."""
    gc.collect()  # devices of other tests, whose streams are their own
    runtime = control.runtime()

    def allocate(nbytes, device, stream):
        memory = ctypes.c_void_p()
        assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(nbytes)) == 0
        return memory.value

    def release(address):
        runtime.cudaDeviceSynchronize()
        assert runtime.cudaFree(ctypes.c_void_p(address)) == 0

    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", allocate)
    monkeypatch.setattr(torch.cuda, "caching_allocator_delete", release)
    monkeypatch.setattr(torch.cuda, "ExternalStream", Stream)
    monkeypatch.setattr("khop.sampler.pyg.device.STREAMS", StreamPool())
    return runtime


def stream_of(device):
    return ctypes.c_void_p(device._stream.cuda_stream)


def test_streams_are_lent_until_nothing_of_their_device_is_left(cuda):
    """A table waits on its device's stream when it goes, long after its loader."""
    destroyed = control.calls("cudaStreamDestroy")
    device = TorchDevice("cuda:0")
    first = device._stream.cuda_stream
    table = _native.DeviceTable(device.native, np.arange(100), "CUDA")
    del device
    gc.collect()
    other = TorchDevice("cuda:0")
    assert other._stream.cuda_stream != first
    del table
    gc.collect()
    assert TorchDevice("cuda:0")._stream.cuda_stream == first
    assert control.calls("cudaStreamDestroy") == destroyed


def test_nobody_waits_on_a_stream_that_another_loader_records(cuda):
    """That would end the recording. Torch's streams would be shared from the 33rd on."""
    devices = [TorchDevice("cuda:0") for _ in range(33)]
    graph = ctypes.c_void_p()
    assert cuda.cudaStreamBeginCapture(stream_of(devices[0]), 1) == 0
    devices[-1].native.synchronize()
    assert cuda.cudaStreamEndCapture(stream_of(devices[0]), ctypes.byref(graph)) == 0
    assert cuda.cudaGraphDestroy(graph) == 0


def test_batches_come_before_the_trainers_kernels(cuda):
    """Streams have a higher priority, which is a lower number, than torch's default one."""
    priority = ctypes.c_int()
    stream = stream_of(TorchDevice("cuda:0"))
    assert cuda.cudaStreamGetPriority(stream, ctypes.byref(priority)) == 0
    assert priority.value < 0
