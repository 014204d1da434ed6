"""Padded batches of devices: the CPU's, bit for bit, without a wait of the host; captured steps.

On machines without a GPU the device is emulated. `test_device_padding.py` of the kernels has the
oracle in plain Python.
"""

import ctypes

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput

from fake_cuda import control
from khop.loader import DeviceOptions, LinkNeighborLoader, NeighborLoader
from khop.loader.batches import captured
from khop.sampler import NeighborSampler
from khop.sampler.pyg.base import BatchKey
from khop.sampler.pyg.padded import PadSizes
from support.devices import fake, gpu
from support.loaders.batches import assert_same

DEVICES = pytest.mark.parametrize("device", ["emulated:5", pytest.param("cuda", marks=gpu)])
SIZES = {"nodes": [16, 64, 160], "edges": [64, 192]}


def graph(num_nodes=400, num_edges=3000):
    generator = torch.Generator().manual_seed(3)
    return Data(
        x=torch.rand(num_nodes, 5, generator=generator) + 1,
        half=torch.rand(num_nodes, 3, generator=generator).half(),
        cube=torch.ones(num_nodes, 2, 3),
        column=torch.ones(2, num_nodes),
        y=torch.arange(1, num_nodes + 1),
        train_mask=torch.ones(num_nodes, dtype=torch.bool),
        time=torch.randint(0, 50, (num_nodes,), generator=generator),
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=generator),
        edge_attr=torch.rand(num_edges, 2, generator=generator) + 1,
    )


def typed_graph():
    data = HeteroData()
    generator = torch.Generator().manual_seed(4)
    for name, count in (("paper", 200), ("author", 90), ("venue", 5)):
        data[name].x = torch.rand(count, 3, generator=generator) + 1
    for ends in (("paper", "author"), ("author", "paper"), ("paper", "paper"), ("venue", "paper")):
        counts = [data[name].num_nodes for name in ends]
        index = torch.stack([torch.randint(n, (600,), generator=generator) for n in counts])
        data[ends[0], "to", ends[1]].edge_index = index
    return data


OPTIONS = {
    "plain": {},
    "threads": {"num_workers": 1},
    "disjoint": {"disjoint": True},
    "temporal": {"time_attr": "time", "temporal_strategy": "last"},
    "replace": {"replace": True, "shuffle": True},
    "recorded": {"num_workers": 1, "device_options": DeviceOptions(cuda_graph=True)},
    "table": {"device_options": DeviceOptions(feature_mode="CUDA", split_ratio=0.3)},
}


@DEVICES
@pytest.mark.parametrize("pad", ["auto", "sizes", "totals"])
@pytest.mark.parametrize("name", OPTIONS)
def test_batches_are_the_cpus(device, pad, name):
    """All attributes, masks and counts, with sizes that grow, that are chosen, and with totals."""
    chosen = {"nodes": [16, 80, 320], "edges": [72, 272]}
    totals = {"nodes": 500, "edges": 500}
    pad = {"sizes": chosen, "totals": totals}.get(pad, pad)
    options = {"batch_size": 15, "seed": 1, "pad": pad}
    own = {k: v for k, v in OPTIONS[name].items() if k != "device_options"}
    on_cpu = NeighborLoader(graph(), [4, 3], **options, **own)
    on_device = NeighborLoader(graph(), [4, 3], **options, **OPTIONS[name], device=device)
    for _ in range(2):
        for one, other in zip(on_cpu, on_device, strict=True):
            assert_same(one, other)
    assert on_cpu.pad_sizes == on_device.pad_sizes


@DEVICES
@pytest.mark.parametrize("pad", ["auto", "sizes"])
def test_types(device, pad):
    """A type that no edge leads to, and edge types that share one."""
    options = {"input_nodes": ("paper", torch.arange(60)), "batch_size": 8, "seed": 2}
    known = NeighborLoader(typed_graph(), [3, 2], pad="auto", **options)
    list(known)
    pad = known.pad_sizes if pad == "sizes" else pad
    on_cpu, on_device = (
        NeighborLoader(typed_graph(), [3, 2], pad=pad, device=d, **options) for d in (None, device)
    )
    for one, other in zip(on_cpu, on_device, strict=True):
        assert_same(one, other)


@DEVICES
def test_links(device):
    """Batches of links are padded after the draw."""
    options = {"edge_label_index": graph().edge_index[:, :40], "batch_size": 8, "seed": 2}
    on_cpu, on_device = (
        LinkNeighborLoader(graph(), [3, 2], pad="auto", device=d, **options) for d in (None, device)
    )
    for one, other in zip(on_cpu, on_device, strict=True):
        assert_same(one, other)


@DEVICES
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_is_too_large(device, num_workers):
    """The error comes with a later batch, or at the end of the epoch."""
    small = {"nodes": [16, 24, 160], "edges": [64, 192]}
    options = {"batch_size": 15, "seed": 1, "pad": small, "num_workers": num_workers}
    loader = NeighborLoader(graph(), [4, 3], torch.arange(45), device=device, **options)
    with pytest.raises(ValueError, match=r"batch \d has more nodes or edges than pad's sizes"):
        list(loader)


@fake
def test_a_sampler_never_waits(monkeypatch):
    """From seeds to tensors: launches and two copies a batch, and no wait."""
    monkeypatch.setenv("KHOP_EMULATED", "cuda")
    sampler = NeighborSampler(graph(), [4, 3], device="emulated")
    pad = PadSizes([SIZES["nodes"]], [SIZES["edges"]], True)
    seeds = sampler.seed_set(NodeSamplerInput(input_id=None, node=torch.arange(15)))
    names = "waits", "launches", "uploads_pinned", "downloads_pinned", "uploads_pageable"
    counts = {name: control.count(name) for name in names}
    for batch in range(6):
        drawn = sampler.begin_nodes([seeds], BatchKey(1, batch), pad).finish()
        assert drawn.nodes[0].shape == (240,)
        assert drawn.nodes_per_hop == [SIZES["nodes"]]
    counts = {name: control.count(name) - before for name, before in counts.items()}
    # The slot of a batch is free long before four others are launched.
    assert counts["launches"] == 6 * (2 + 2 * 4)
    assert counts["uploads_pinned"] == counts["downloads_pinned"] == 6
    assert counts["uploads_pageable"] == 0
    assert counts["waits"] == 2  # for slots of batches 0 and 1


def steps_of(device, **options):
    chosen = {"nodes": [16, 80, 320], "edges": [72, 272]}
    common = {"batch_size": 15, "seed": 1, "pad": chosen, "drop_last": True, "shuffle": True}
    where = DeviceOptions(cuda_graph="step", feature_mode="CUDA")
    data = graph()
    del data.column  # PyG's selection
    loader = NeighborLoader(data, [4, 3], device=device, device_options=where, **common, **options)
    on_cpu = NeighborLoader(data, [4, 3], **common, **options)
    return loader, on_cpu


@DEVICES
@pytest.mark.parametrize("options", [{}, {"time_attr": "time"}, {"disjoint": True}])
def test_captured_steps(device, options):
    """A step sees the loader's batches, in every epoch. Its results are the same tensors."""
    loader, on_cpu = steps_of(device, **options)
    steps = loader.capture(lambda batch: batch)
    for _ in range(2):
        results = 0
        for batch, expected in zip(steps, on_cpu, strict=True):
            del expected.input_id
            expected._store._mapping.pop("seed_time", None)
            assert_same(batch, expected)
            results += 1
        assert results == 26
    assert loader.state_dict() == on_cpu.state_dict()


@fake
def test_a_step_is_one_graph(monkeypatch):
    """Draw and gathers are recorded once. A batch is one upload, one launch and one download."""
    monkeypatch.setenv("KHOP_EMULATED", "cuda")
    loader, on_cpu = steps_of("emulated")
    recorded = []

    def record(device, work):
        """As torch's: the stream is captured while the step's work is launched."""
        cuda, stream = control.runtime(), ctypes.c_void_p(device.native.stream)
        made, graph = ctypes.c_void_p(), ctypes.c_void_p()
        assert cuda.cudaStreamBeginCapture(stream, 1) == 0
        work()
        assert cuda.cudaStreamEndCapture(stream, ctypes.byref(made)) == 0
        zero = ctypes.c_ulonglong(0)
        assert cuda.cudaGraphInstantiate(ctypes.byref(graph), made, zero) == 0
        recorded.append(graph)

        def launch():
            assert cuda.cudaGraphLaunch(graph, stream) == 0

        return launch

    steps = captured.CapturedSteps(loader, lambda batch: batch, 2, record)
    names = "launches", "uploads_pinned", "downloads_pinned", "copies_on_device", "allocations"
    for epoch in range(2):
        for i, (batch, expected) in enumerate(zip(steps, on_cpu, strict=True)):
            del expected.input_id
            assert_same(batch, expected)
            if i == 2:
                counts = {name: control.count(name) for name in names}
        counts = {name: control.count(name) - n for name, n in counts.items()}
        assert counts == dict(zip(names, (23, 23, 23, 0, 0), strict=True)), epoch
    assert len(recorded) == 1


def test_a_step_with_a_batch_too_large():
    loader, _ = steps_of("emulated")
    loader._padder.shapes._sizes[0][0][1] = 24
    with pytest.raises(ValueError, match=r"batch \d has more nodes or edges than pad's sizes"):
        list(loader.capture(lambda batch: None))


def test_refused():
    """What has no fixed shape, or is not on a device, is refused before anything is recorded."""
    data, step = graph(), DeviceOptions(cuda_graph="step")
    common = {"batch_size": 15, "device": "emulated", "pad": SIZES}
    with pytest.raises(ValueError, match="cuda_graph must be False, True or 'step'"):
        DeviceOptions(cuda_graph="steps")
    for options, message in (
        ({"device": None}, "captured by a loader with device='cuda'"),
        ({"device_options": DeviceOptions(cuda_graph=True)}, "captured by a loader"),
        ({"pad": None}, "needs pad="),
        ({"pad": "auto"}, "`pad_sizes` of a loader with pad='auto' has them"),
        ({"pad": {"nodes": 500, "edges": 500}}, "needs pad="),
        ({"transform_sampler_output": lambda out: out}, "without a sampler of seeds, hooks"),
        ({"sampler": torch.utils.data.SequentialSampler(range(400))}, "without a sampler of seeds"),
        ({}, r"the last batch would have 10 seeds, not 15: pass drop_last=True"),
        ({"subgraph_type": "induced", "drop_last": True}, "needs batches of drawn edges"),
    ):
        loader = NeighborLoader(data, [4, 3], **{**common, "device_options": step, **options})
        with pytest.raises(ValueError, match=message):
            loader.capture(lambda batch: None)
    options = DeviceOptions(cuda_graph="step", feature_mode="CPU")
    loader = NeighborLoader(data, [4, 3], **{**common, "device_options": options}, drop_last=True)
    with pytest.raises(ValueError, match="attributes that a GPU gathers"):
        loader.capture(lambda batch: None)
    loader = NeighborLoader(data, [4, 3], **common, device_options=step, drop_last=True)
    with pytest.raises(ValueError, match="warm_up must be at least 1"):
        loader.capture(lambda batch: None, warm_up=0)
