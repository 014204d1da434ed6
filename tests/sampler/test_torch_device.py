"""What torch is told of a device's work, on machines without a GPU: with torch's part faked."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from khop.sampler.pyg.device import (
    TorchDevice,
    on_stream,
    tensors_in,
    tensors_within,
    wait_and_record_stream,
)


class Stream:
    """A stream that notes what is done with it."""

    def __init__(self, index=0):
        self.device = torch.device("cuda", index)
        self.waits = []

    def wait_event(self, moment):
        self.waits.append(moment)


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says it were a GPU's."""

    is_cuda = True
    device = torch.device("cuda", 0)

    def record_stream(self, stream):
        recorded = self.__dict__.setdefault("recorded", [])
        recorded.append(stream)


@pytest.fixture
def stream(monkeypatch):
    """Torch's current stream."""
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return stream


def test_tensors_are_handed_over(stream):
    """The stream waits once, and memory of torch's is kept for it."""
    tensors = [torch.arange(3).as_subclass(OnGpu) for _ in range(2)]
    wait_and_record_stream([*tensors, torch.arange(3)], "moment")
    assert stream.waits == ["moment"]
    assert [tensor.recorded for tensor in tensors] == [[stream], [stream]]


def test_memory_that_is_not_torchs(stream):
    """A tensor of a slab is waited for, and torch's allocator does not hear of it.

    `record_stream` of memory that it has not given is an error of its backend cudaMallocAsync.
    """
    tensor = from_dlpack(np.arange(3)).as_subclass(OnGpu)
    wait_and_record_stream([tensor, tensor[1:]], "moment")
    assert stream.waits == ["moment"]
    assert not hasattr(tensor, "recorded")


def test_the_parts_of_matrices():
    """A matrix has no memory of its own: that of its parts is waited for and kept."""
    matrix = torch.eye(4)
    for made, count in [
        (matrix.to_sparse_coo(), 2),
        (matrix.to_sparse_csr(), 3),
        (matrix.to_sparse_csc(), 3),
        (matrix.to_sparse_bsr((2, 2)), 3),
        (matrix, 1),
        ("matrix", 0),
    ]:
        parts = tensors_within(made)
        assert [part.layout for part in parts] == [torch.strided] * count
    assert len(tensors_in(Data(x=matrix, adj_t=matrix.to_sparse_csr(), num_nodes=4))) == 4


def test_tensors_within_other_values():
    """PyG copies what lies in lists, tuples and dicts, too: it is waited for and kept likewise."""
    one, two, three = torch.arange(3), torch.arange(4), torch.eye(2).to_sparse_coo()
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(2), torch.zeros(1)])
    batch = Data(
        x=one, extra={"deep": [(two, "text", None, 3)], "sparse": three}, packed=packed, num_nodes=3
    )
    found = tensors_in(batch)
    assert [len(tensor) for tensor in found[:2]] == [3, 4]
    assert len(found) == 2 + 2 + 2  # a matrix has indices and values; a sequence, data and sizes


def test_what_pygs_index_tensors_keep(stream):
    """PyG copies their caches, too, and graphs within a graph. A wrapper has no memory itself."""
    edges = EdgeIndex([[0, 1, 1], [1, 0, 2]], sparse_size=(3, 3), sort_order="row")
    edges.fill_cache_()
    batch = Data(edge_index=edges, inner=Data(x=torch.eye(2)), num_nodes=3)
    moved = batch.to("meta")
    for copied in (batch, moved):
        found = tensors_in(copied)
        assert all(type(tensor) is torch.Tensor for tensor in found)
        cached = [edges._data, edges._indptr, edges._T_perm, edges._T_indptr, *edges._T_index]
        assert len(found) == sum(tensor is not None for tensor in cached) + 1


def test_the_parts_of_torch_sparses_matrices(monkeypatch):
    class SparseTensor:
        """As far as it matters: tensors, some of them not computed yet, in a storage."""

        def __init__(self):
            self.storage = SimpleNamespace(_row=None, _col=torch.arange(3), _rowptr=torch.arange(4))

    monkeypatch.setattr("torch_geometric.typing.SparseTensor", SparseTensor)
    assert [len(part) for part in tensors_within(SparseTensor())] == [3, 4]


def test_memory_before_torch_could_tell(stream, monkeypatch):
    """Before torch 2.3 storages do not say whether torch allocated them: all are recorded."""
    tensor = from_dlpack(np.arange(3)).as_subclass(OnGpu)
    monkeypatch.setattr(OnGpu, "untyped_storage", lambda self: object(), raising=False)
    wait_and_record_stream([tensor], "moment")
    assert tensor.recorded == [stream]


def test_work_on_a_stream_leaves_the_threads_device(monkeypatch):
    """The stream's GPU is current around it, so that leaving it makes no other GPU current."""
    done = []

    @contextlib.contextmanager
    def note(what):
        done.append(what)
        yield
        done.append(f"end of {what}")

    monkeypatch.setattr(torch.cuda, "device", lambda device: note(str(device)))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: note("stream"))
    with on_stream(Stream(1)):
        done.append("work")
    assert done == ["cuda:1", "stream", "work", "end of stream", "end of cuda:1"]


def test_an_emulated_device_is_waited_for():
    """Nobody else can wait for it: torch has no stream there."""
    device, waits = TorchDevice("emulated"), []

    class Native:
        def synchronize(self):
            waits.append("device")

    device.native = Native()
    assert device.mark() is None
    assert waits == ["device"]
    assert device.mark_of_user() is None
