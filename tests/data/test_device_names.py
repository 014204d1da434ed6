"""Names of devices: 'cuda' is torch's current GPU, wherever a name is read."""

import subprocess
import sys

import pytest
import torch

from khop import _native
from khop.data import Graph, Topology
from khop.data.device import current_gpu, full_name, parse_device
from khop.distributed import MpDistSamplingWorkerOptions, RemoteDistSamplingWorkerOptions
from khop.distributed.loaders.device_transfer import TargetDevice
from khop.sampler import NeighborSampler
from khop.sampler.pyg.device import TorchDevice


@pytest.fixture
def gpus(monkeypatch):
    """Four GPUs, as torch and khop would find them, of which the third is current."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    status = {"compiled": True, "devices": 4, "error": None, "gpus": []}
    monkeypatch.setattr(_native, "cuda_status", lambda: status)


class Stream:
    """A stream of CUDA's, in name."""

    def __init__(self, address, device):
        self.device = device
        self.cuda_stream = address


@pytest.fixture
def opened(gpus, monkeypatch):
    """Indices of the GPUs that were opened; what is returned can do nothing."""
    opened = []

    def open_gpu(index, *arguments):
        opened.append(index)
        return object()

    monkeypatch.setattr(_native, "cuda_device", open_gpu, raising=False)
    monkeypatch.setattr(_native, "cuda_stream", lambda index: 77, raising=False)
    monkeypatch.setattr(torch.cuda, "ExternalStream", Stream)
    return opened


@pytest.mark.parametrize(("device", "name"), [
    ("cuda", "cuda:2"),
    ("cuda:0", "cuda:0"),
    (torch.device("cuda"), "cuda:2"),
    (torch.device("cuda", 1), "cuda:1"),
    ("emulated", "emulated:0"),
    ("emulated:7", "emulated:7"),
])  # fmt: skip
def test_full_names(gpus, device, name):
    assert full_name(device) == name
    kind, _, number = name.partition(":")
    assert parse_device(device) == (kind, int(number))


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:", "cuda:-1", "cpu", 3, None])
def test_malformed_device_names_are_refused(device):
    with pytest.raises(ValueError, match="device must be 'cuda' or 'cuda:<index>'"):
        parse_device(device)


def test_the_first_gpu_where_torch_can_use_none(monkeypatch):
    def never():
        raise AssertionError("there is no CUDA to be initialised")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", never)
    assert current_gpu() == 0


@pytest.mark.process
def test_the_first_gpu_without_torch():
    """In sampler processes names are complete; whoever else has no torch has no current GPU."""
    code = (
        "import sys; from khop.data.device import full_name\n"
        "assert full_name('cuda') == 'cuda:0' and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_device_of_torch(opened):
    """It keeps the GPU that was current when it was made; another thread may have another."""
    device = TorchDevice("cuda")
    assert (device.name, device.torch_device, opened) == ("cuda:2", torch.device("cuda", 2), [2])
    assert device._stream.device == torch.device("cuda", 2)


def test_a_graph_of_mode_cuda(opened, monkeypatch):
    for name in ("graphs_on", "EdgeNames", "DeviceDrawer"):
        monkeypatch.setattr(f"khop.sampler.pyg.neighbor.{name}", lambda *arguments: None)
    graph = Graph(Topology(torch.tensor([[0, 1], [1, 0]]), num_src=2, num_dst=2), mode="CUDA")
    assert NeighborSampler(graph, [2]).device.name == "cuda:2"
    assert opened == [2]


def test_destinations(gpus):
    for name in ("cuda", torch.device("cuda")):
        assert TargetDevice(name).device == "cuda:2"
    assert TargetDevice("cuda:3").torch_device == torch.device("cuda", 3)
    with pytest.raises(RuntimeError, match=r"'cuda:4' cannot be used.*4 CUDA devices"):
        TargetDevice("cuda:4")


def test_sampler_processes(gpus, monkeypatch):
    """They have the trainer's GPU when the loader is made, whenever the options were."""
    options = MpDistSamplingWorkerOptions(3, worker_devices=["cuda", "cuda:1", "cpu"])
    assert options.devices() == ["cuda:2", "cuda:1", None]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert options.devices() == ["cuda:3", "cuda:1", None]


def test_samplers_of_servers(gpus):
    """What is current here says nothing of another machine."""
    options = RemoteDistSamplingWorkerOptions(num_workers=2, worker_devices=["cuda", "cuda:1"])
    assert options.devices() == ["cuda:0", "cuda:1"]


def test_options_ask_torch_for_nothing(monkeypatch):
    """They may be made before a fork, which a process that has used CUDA cannot survive."""

    def never():
        raise AssertionError("CUDA is asked for")

    monkeypatch.setattr(torch.cuda, "is_available", never)
    MpDistSamplingWorkerOptions(1, worker_devices="cuda")
