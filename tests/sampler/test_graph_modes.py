"""Where a graph's mode says that it lies, samplers on devices find it."""

import pytest
import torch
from torch_geometric.sampler import NodeSamplerInput

from khop.data import Graph, Topology
from khop.sampler import NeighborSampler
from khop.sampler.pyg.device import DeviceOptions
from support.devices import HAS_FAKE, HAS_GPU, gpu

SEEDS = torch.tensor([7, 3, 150])


def graph_of(data, mode):
    return Graph(Topology(data.edge_index, num_src=200, num_dst=200), mode)


def draw(sampler):
    return sampler.sample_from_nodes(NodeSamplerInput(torch.arange(len(SEEDS)), SEEDS))


@pytest.mark.parametrize("device", ["emulated", pytest.param("cuda", marks=gpu)])
@pytest.mark.parametrize("mode", ["CPU", "ZERO_COPY", "CUDA"])
def test_modes_draw_the_same(data, mode, device):
    """The device's draws are the CPU's; the mode says where its graph lies, unless options do."""
    want = draw(NeighborSampler(graph_of(data, "CPU"), [4, -1], seed=5))
    sampler = NeighborSampler(graph_of(data, mode), [4, -1], seed=5, device=device)
    out = draw(sampler)
    for name in ("node", "row", "col", "edge"):
        assert torch.equal(getattr(out, name).cpu(), getattr(want, name)), name
    assert sampler.device_options.graph_mode == ("ZERO_COPY" if mode == "ZERO_COPY" else "CUDA")
    options = DeviceOptions(graph_mode="ZERO_COPY")
    named = NeighborSampler(graph_of(data, mode), [4], device=device, device_options=options)
    assert named.device_options is options


@pytest.mark.parametrize("mode", ["CPU", "ZERO_COPY"])
def test_the_cpu_draws_if_no_device_is_named(data, mode):
    assert NeighborSampler(graph_of(data, mode), [4]).device is None


@pytest.mark.skipif(HAS_GPU or HAS_FAKE, reason="there is a GPU")
def test_a_graph_for_a_gpu_that_is_not_there(data):
    """Mode 'CUDA' means the first GPU if no device is named."""
    with pytest.raises(RuntimeError, match="device 'cuda' cannot be used"):
        NeighborSampler(graph_of(data, "CUDA"), [4])


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="no usable CUDA device")
def test_a_graph_for_a_gpu(data):
    assert draw(NeighborSampler(graph_of(data, "CUDA"), [4])).node.is_cuda
