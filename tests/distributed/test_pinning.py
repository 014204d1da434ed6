"""Page-locked memory: what is copied from it later than the program goes on is still there.

The GPU is a fake one. As CUDA does, it makes copies from page-locked memory when it gets to them
(here: when the test says so) and copies from other memory at once.
"""

import contextlib
import ctypes
import gc
import os
from functools import partialmethod
from types import SimpleNamespace

import pytest
import torch

from khop.channel.arena import ArenaReader, create_memory
from khop.distributed import DistDataset, DistNeighborLoader, MpDistSamplingWorkerOptions
from khop.distributed.loaders.device_transfer import DeviceTransfer, TargetDevice, pinning
from khop.loader import NeighborLoader
from support.cluster import jobs

SEEDS = jobs.seeds_of_rank(0)


class Moment:
    """An event that passes when the test says so."""

    has_passed = False

    def query(self):
        return self.has_passed

    def synchronize(self):
        self.has_passed = True


class FakeGpu:
    """CUDA's runtime, as far as `torch.cuda.cudart()` has it, with copies that wait."""

    def __init__(self):
        self.locked = {}
        self.refuses = False
        self.current = [0]
        self.moments = []
        self._of_torch = []
        self._waiting = []

    def cudaHostRegister(self, address, nbytes, flags):
        if self.refuses:
            return 2
        self.locked[address] = (nbytes, self.current[-1])
        return 0

    def cudaHostUnregister(self, address):
        assert self.locked.pop(address)[1] == self.current[-1]

    def pinned(self, tensor):
        """`Tensor.pin_memory`: torch keeps the memory until copies from it are made."""
        if any(tensor is known for known in self._of_torch):
            return tensor
        copy = tensor.clone()
        self._of_torch.append(copy)
        self.locked[copy.data_ptr()] = (copy.nbytes, None)
        return copy

    def copy(self, tensor):
        """`tensor.to('cuda', non_blocking=True)`."""
        out, start = torch.empty_like(tensor), tensor.data_ptr()
        if any(a <= start < a + nbytes for a, (nbytes, _) in self.locked.items()):
            self._waiting.append((out, start))
        else:
            out.copy_(tensor)
        return out

    def finish(self):
        """Makes the copies."""
        for out, start in self._waiting:
            ctypes.memmove(out.data_ptr(), start, out.nbytes)

    @contextlib.contextmanager
    def use(self, device):
        """`torch.cuda.device`."""
        self.current.append(torch.device(device).index)
        yield
        self.current.pop()


class FakeStream:
    """A stream of the fake GPU."""

    def __init__(self, gpu, device):
        self._gpu, self.device, self.cuda_stream = gpu, torch.device(device), id(self)

    def record_event(self):
        self._gpu.moments.append(Moment())
        return self._gpu.moments[-1]

    def wait_event(self, moment):
        pass


@pytest.fixture
def gpu(monkeypatch):
    gpu = FakeGpu()
    current = FakeStream(gpu, "cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "device", gpu.use)
    streams = SimpleNamespace(lease=lambda index: FakeStream(gpu, f"cuda:{index}"))
    monkeypatch.setattr("khop.distributed.loaders.device_transfer.STREAMS", streams)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.Tensor, "pin_memory", partialmethod(_pinned, gpu))
    return gpu


def _pinned(tensor, gpu):
    return gpu.pinned(tensor)


@pytest.mark.parametrize("to_device", [None, "cpu"])
def test_copies_that_the_user_does_not_wait_for(gpu, graph, folder_of, to_device):
    """Batches are dropped, and their slots written again, before they are copied."""
    loader = DistNeighborLoader(
        DistDataset().load(folder_of("random", 1), 0),
        jobs.FANOUTS,
        SEEDS,
        batch_size=16,
        seed=5,
        collect_features=True,
        device=to_device,
        worker_options=MpDistSamplingWorkerOptions(1, pin_memory=True, buffer_size="300KB"),
    )
    copies = []
    for batch in loader:
        copies.append(gpu.copy(batch.x))
        del batch
    assert loader._backend._pool.samplers[0].arena.bytes_leased == 0
    gpu.finish()
    twin = NeighborLoader(graph, jobs.FANOUTS, SEEDS, batch_size=16, seed=5)
    assert len(copies) == len(twin)
    for ours, theirs in zip(copies, twin, strict=True):
        assert torch.equal(ours, theirs.x)
    loader.shutdown()


def test_memory_is_pinned_where_the_copy_starts(gpu):
    """Rings where khop copies from them, batches where the user does, nothing for emulated GPUs."""
    for to_device, rings, batches in [
        ("cuda:1", True, False),
        (None, False, True),
        ("cpu", False, True),
        ("emulated", False, False),
    ]:
        destination = TargetDevice(to_device, pin_memory=True)
        assert (destination.pins_arenas, destination.pins_batches) == (rings, batches)
        assert (pinning(destination) is not None) == rings
        plain = TargetDevice(to_device)
        assert (plain.pins_arenas, plain.pins_batches) == (False, False)
        assert pinning(plain) is None


def make_ring(nbytes=8192):
    descriptor = create_memory(nbytes)
    ring = ArenaReader(descriptor)
    os.close(descriptor)
    return ring


def test_a_ring_is_registered_while_it_is_mapped(gpu):
    """On the destination's GPU: the call would take memory of whichever is current."""
    ring = make_ring()
    pinning(TargetDevice("cuda:1", pin_memory=True))(ring)
    assert gpu.locked == {ring.address: (8192, 1)}
    kept = ring.lease(0, 64, None)
    del ring
    gc.collect()
    assert len(gpu.locked) == 1
    del kept
    gc.collect()
    assert gpu.locked == {}


def test_a_driver_that_refuses(gpu, monkeypatch):
    """The error is the loader's, and not that of the next kernel, too."""
    launched = []
    monkeypatch.setattr(torch, "ones", lambda *size, device: launched.append(device))
    gpu.refuses = True
    with pytest.raises(RuntimeError, match=r"cudaHostRegister failed for 8192 bytes.*buffer_size"):
        pinning(TargetDevice("cuda:1", pin_memory=True))(make_ring())
    assert launched == [torch.device("cuda", 1)]


class Batch:
    """A batch of one tensor, or none, that is copied when it is moved."""

    def __init__(self, x=None):
        self.stores = [{} if x is None else {"x": x}]

    def to(self, device, non_blocking):
        return Batch(self.stores[0]["x"].clone()) if self.stores[0] else Batch()


def test_a_slot_that_is_copied_to_a_gpu(gpu):
    """It goes back when the copy has been made, not when the batch is gone."""
    ring, freed = make_ring(), []
    mover = DeviceTransfer(TargetDevice("cuda:1", pin_memory=True))
    moving = mover.start(Batch(torch.from_numpy(ring.lease(4096, 64, freed.append))))
    mover.finish(moving)
    del moving
    mover.start(Batch())
    gc.collect()
    assert freed == []
    gpu.moments[0].has_passed = True
    mover.start(Batch())
    gc.collect()
    assert freed == [4096]
    mover.start(Batch(torch.from_numpy(ring.lease(0, 64, freed.append))))
    mover.close()
    gc.collect()
    assert freed == [4096, 0]
