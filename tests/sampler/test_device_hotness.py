"""`sample_prob` of samplers with a device: the CPU's bits, and what is drawn where."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from khop.loader import DeviceOptions, LinkNeighborLoader
from khop.sampler import Labor, NeighborSampler
from khop.sampler.drawing.engine import Engine
from khop.sampler.drawing.hotness import Draws
from support.devices import gpu
from support.loaders.random_graphs import heterogeneous

DEVICES = pytest.mark.parametrize("device", ["emulated:5", pytest.param("cuda", marks=gpu)])


@pytest.fixture
def no_cpu(monkeypatch):
    """Fail where the CPU draws or adds up over edges."""

    def fail(*args):
        raise AssertionError("the CPU works on a hotness")

    def forbid():
        monkeypatch.setattr(Draws, "add_hop", fail)
        monkeypatch.setattr(Engine, "sample_local", fail)

    return forbid


@DEVICES
@pytest.mark.parametrize("graph_mode", ["CUDA", "ZERO_COPY"])
@pytest.mark.parametrize(
    "fanouts,replace", [([5, 5], False), ([10, 3], True), ([-1, -1], False), (Labor([4, 4]), False)]
)
def test_equals_the_cpus(power_law, device, graph_mode, fanouts, replace, no_cpu):
    """Uniform draws, all neighbours, LABOR, and seeds that repeat."""
    data = Data(edge_index=torch.from_numpy(power_law(700, 5000)), num_nodes=700)
    seeds = torch.arange(300) % 250
    on_cpu = NeighborSampler(data, fanouts, replace=replace)
    expected = on_cpu.sample_prob(seeds, batch_size=16)
    where = DeviceOptions(graph_mode)
    sampler = NeighborSampler(data, fanouts, replace=replace, device=device, device_options=where)
    no_cpu()
    assert torch.equal(sampler.sample_prob(seeds, batch_size=16), expected)
    touched = expected > 0
    assert touched[seeds].all() and not touched.all()


@DEVICES
def test_types(device, no_cpu):
    """Several edge types, and a sampler of disjoint, induced batches: the nodes are the same."""
    data = heterogeneous()
    seeds = NodeSamplerInput(None, torch.arange(9), input_type="a")
    options = {"disjoint": True, "subgraph_type": "induced"}
    expected = NeighborSampler(data, [3, 2], **options).sample_prob(seeds, batch_size=3)
    sampler = NeighborSampler(data, [3, 2], device=device, **options)
    no_cpu()
    got = sampler.sample_prob(seeds, batch_size=3)
    assert list(got) == list(expected)
    assert all(torch.equal(got[t], expected[t]) for t in got)


@DEVICES
def test_one_batch_of_all_seeds(power_law, device):
    """The CPU draws it: a device may lack the memory for more than a batch of training."""
    data = Data(edge_index=torch.from_numpy(power_law(300, 600)), num_nodes=300)
    expected, got = (
        NeighborSampler(data, [2, 2], device=d).sample_prob(torch.arange(99), batch_size=None)
        for d in (None, device)
    )
    assert torch.equal(got, expected)


@DEVICES
def test_rows_are_split_by_it(power_law, device, no_cpu):
    """A loader that splits attributes by hotness asks the device."""
    data = Data(edge_index=torch.from_numpy(power_law(700, 5000)), num_nodes=700)
    data.x = torch.rand(700, 3)
    options = {"edge_label_index": data.edge_index[:, :200], "batch_size": 16, "seed": 1}
    where = DeviceOptions(feature_mode="CUDA", split_ratio=0.1)
    on_cpu = LinkNeighborLoader(data, [3, 2], **options)
    expected = [batch.x for batch in on_cpu]
    loader = LinkNeighborLoader(data, [3, 2], device=device, device_options=where, **options)
    no_cpu()
    for batch, x in zip(loader, expected, strict=True):
        assert np.array_equal(batch.x.cpu(), x)
