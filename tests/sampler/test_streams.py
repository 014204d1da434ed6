"""Streams of khop's own: one user at a time, reused, never destroyed."""

import itertools

import pytest
import torch

from khop import _native
from khop.sampler.pyg.streams import StreamPool
from support.devices import HAS_GPU


class Stream:
    """As far as it matters, torch's stream at an address, to which weak references do not work."""

    __slots__ = ("__dict__",)

    def __init__(self, address, device):
        self.cuda_stream = address
        self.device = device


@pytest.fixture
def made(monkeypatch):
    """GPUs of the streams that were created, in order."""
    gpus, addresses = [], itertools.count(1000)

    def create(index):
        gpus.append(index)
        return next(addresses)

    monkeypatch.setattr(_native, "cuda_status", lambda: {"compiled": True})
    monkeypatch.setattr(_native, "cuda_stream", create, raising=False)
    monkeypatch.setattr(torch.cuda, "ExternalStream", Stream)
    return gpus


def test_no_two_users_at_a_time(made):
    """Torch has 32 streams to hand out in turn: the 33rd user would share the first one's."""
    pool = StreamPool()
    streams = [pool.lease(0) for _ in range(33)]
    assert len({stream.cuda_stream for stream in streams}) == len(made) == 33


def test_streams_are_reused(made):
    """A loader an epoch takes the streams of the loader before."""
    pool = StreamPool()
    addresses = set()
    for _ in range(5):
        one, two = pool.lease(0), pool.lease(0)
        addresses |= {one.cuda_stream, two.cuda_stream}
        del one, two
    assert len(addresses) == len(made) == 2


def test_each_gpu_has_its_own(made):
    pool = StreamPool()
    first = pool.lease(1)
    assert first.device == torch.device("cuda", 1)
    address = first.cuda_stream
    del first
    assert pool.lease(0).cuda_stream != address
    assert pool.lease(1).cuda_stream == address
    assert made == [1, 0]


def test_without_cuda_in_khop_they_are_torchs(made, monkeypatch):
    """Torch copies batches to a GPU all the same."""
    monkeypatch.setattr(_native, "cuda_status", lambda: {"compiled": False})
    monkeypatch.setattr(torch.cuda, "Stream", lambda index: f"torch's, of GPU {index}")
    assert StreamPool().lease(1) == "torch's, of GPU 1"
    assert made == []


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="no usable CUDA device")
def test_streams_of_torch_come_back():
    """Torch 2.11 frees a stream without telling weak references to it."""
    pool = StreamPool()
    address = pool.lease(0).cuda_stream
    assert pool.lease(0).cuda_stream == address
