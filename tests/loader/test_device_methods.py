"""Methods for all rows together on devices: PinSAGE, layers by importance, layer-wise draws.

Batches equal the CPU's bit for bit, whose own tests compare them with plain Python.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch_geometric.data import Data

from khop import _native
from khop.loader import DeviceOptions, LinkNeighborLoader, NeighborLoader
from khop.sampler import FastGcn, Labor, Ladies, NeighborSampling, PinSage, PoissonLadies, register
from khop.sampler.device.engine import DeviceEngine
from support.cluster import twins
from support.devices import gpu
from support.loaders.batches import assert_same

DEVICES = pytest.mark.parametrize("device", ["emulated:5", pytest.param("cuda", marks=gpu)])
METHODS = {
    "visits": PinSage(3, num_random_walks=7, num_traversals=3, termination_prob=0.3, num_layers=2),
    "all visits": PinSage(50, num_random_walks=4, num_traversals=2, termination_prob=0),
    "first steps": PinSage(2, num_random_walks=5, num_traversals=4, termination_prob=1),
    "chances": PoissonLadies([7, 9], edge_norm="ht"),
    "chances, skip": PoissonLadies([3, 8, 20], skip=True),
    "one node": PoissonLadies([1, 1]),
    "all nodes": PoissonLadies([10_000]),
    "draws": Ladies([6, 9]),
    "draws, skip": Ladies([6, 30], skip=True),
    "of the graph": FastGcn([40, 30]),
    "of the graph, sums": FastGcn([60], edge_norm="ht"),
    "layer-wise": NeighborSampling([2, 3], layer_wise=True),
    "layer-wise, whole rows": NeighborSampling([-1, 2], layer_wise=True),
    "labor, layer-wise": Labor([2, 3], layer_dependency=True, layer_wise=True),
}


def assert_same_epochs(on_cpu, on_device):
    pairs = list(zip(on_cpu, on_device, strict=True))
    assert pairs
    for a, b in pairs:
        assert_same(a, b)


@st.composite
def graphs(draw):
    """Few nodes with parallel edges, loops, hubs and isolated nodes; seeds that repeat."""
    count = draw(st.integers(1, 30))
    node = st.integers(0, count - 1)
    hub = draw(node)
    ends = draw(st.lists(st.tuples(node, st.one_of(node, st.just(hub))), max_size=150))
    seeds = draw(st.lists(node, min_size=1, max_size=12))
    edges = torch.tensor(ends, dtype=torch.int64).view(-1, 2).T.contiguous()
    return Data(edge_index=edges, num_nodes=count), torch.tensor(seeds)


@DEVICES
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(graph=graphs(), seed=st.integers(0, 2**32))
def test_any_graph(device, method, graph, seed):
    data, seeds = graph
    options = {"input_nodes": seeds, "batch_size": 4, "seed": seed}
    on_cpu = NeighborLoader(data, method, **options)
    assert_same_epochs(on_cpu, NeighborLoader(data, method, device=device, **options))


@DEVICES
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_larger_batches(device, method, num_workers):
    """Batches of hundreds of rows, on threads of the trainer; attributes of nodes and edges."""
    data = twins.homogeneous()
    options = {"input_nodes": torch.arange(150), "batch_size": 70, "seed": 3, "shuffle": True}
    on_cpu = NeighborLoader(data, method, **options)
    on_device = NeighborLoader(data, method, device=device, num_workers=num_workers, **options)
    for _ in range(2):
        assert_same_epochs(on_cpu, on_device)


@DEVICES
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_links_without_their_own_edges(device, method):
    """Excluded edges count in no degree, and no walk takes them."""
    data = twins.homogeneous()
    options = {
        "edge_label_index": data.edge_index[:, :40],
        "batch_size": 15,
        "neg_sampling": "binary",
        "exclude_seed_edges": True,
        "seed": 2,
    }
    on_device = LinkNeighborLoader(data, method, device=device, **options)
    assert_same_epochs(LinkNeighborLoader(data, method, **options), on_device)


@pytest.mark.parametrize("count", [1, 5, 11, 12, 13])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("degree", [1, 3])
def test_equal_importance(count, skip, degree):
    """All neighbours are equally important: which are certain depends on how shares are rounded."""
    node = torch.arange(12).repeat(degree)
    other = (node + torch.arange(1, degree + 1).repeat_interleave(12)) % 12
    data = Data(edge_index=torch.stack([other, node]), num_nodes=12)
    for method in (PoissonLadies([count] * 2, skip=skip), Ladies([count] * 2, skip=skip)):
        options = {"batch_size": 12, "seed": 8}
        on_device = NeighborLoader(data, method, device="emulated:1", **options)
        assert_same_epochs(NeighborLoader(data, method, **options), on_device)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_more_than_there_was_room_for(method, monkeypatch):
    """A batch that finds too little room is drawn again, the same batch."""

    def with_little_room(self):
        view, spec = self.view, self.spec
        return _native.DeviceSubgraph(
            self._device, view.num_nodes, view.relations, spec.with_edge, spec.disjoint, room=8
        )

    monkeypatch.setattr(DeviceEngine, "_new_subgraph", with_little_room)
    data, options = twins.homogeneous(), {"batch_size": 70, "seed": 3}
    on_device = NeighborLoader(data, method, device="emulated:5", **options)
    assert_same_epochs(NeighborLoader(data, method, **options), on_device)


@pytest.mark.parametrize("name", ["visits", "chances"])
def test_padding(name):
    """The host pads batches of programs."""
    method = METHODS[name]
    data, options = twins.homogeneous(), {"batch_size": 20, "seed": 3, "pad": "auto"}
    on_device = NeighborLoader(data, method, device="emulated:5", **options)
    assert_same_epochs(NeighborLoader(data, method, **options), on_device)


def test_what_cannot_be_combined():
    data = twins.homogeneous()
    recorded = DeviceOptions(cuda_graph=True)
    for name in ("visits", "chances", "draws", "of the graph"):
        with pytest.raises(ValueError, match="not recorded: leave cuda_graph out"):
            NeighborLoader(data, METHODS[name], device="emulated", device_options=recorded)

    @register
    @dataclass(frozen=True)
    class Fewer(PinSage):
        """A subclass, which may draw otherwise."""

    method = Fewer(2)
    with pytest.raises(ValueError, match="Fewer asks the graph in Python, which a device"):
        NeighborLoader(data, method, device="emulated")


def test_recorded_layers():
    """Layer-wise draws of single rows are recorded."""
    data, method = twins.homogeneous(), METHODS["layer-wise"]
    options = {"input_nodes": torch.arange(150), "batch_size": 30, "seed": 3}
    recorded = DeviceOptions(cuda_graph=True)
    on_device = NeighborLoader(data, method, device="emulated", device_options=recorded, **options)
    assert_same_epochs(NeighborLoader(data, method, **options), on_device)
