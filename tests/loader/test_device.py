"""Loaders whose batches a device draws and gathers: the CPU's batches, bit for bit.

On machines without a GPU the device is emulated: the same kernels, in random orders.
"""

import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

from khop.loader import DeviceOptions, LinkNeighborLoader, NeighborLoader, Node2VecLoader
from khop.sampler import NeighborSampler
from khop.sampler.pyg.device import TorchDevice
from khop.sampler.pyg.device_drawer import DeviceDrawer
from support.devices import HAS_FAKE, HAS_GPU, gpu
from support.loaders import cases
from support.loaders.batches import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:.* reverse:UserWarning")
DEVICES = pytest.mark.parametrize("device", ["emulated:5", pytest.param("cuda", marks=gpu)])


def assert_same_epochs(on_cpu, on_device, epochs=2):
    for _ in range(epochs):
        pairs = list(zip(on_cpu, on_device, strict=True))
        assert pairs
        for a, b in pairs:
            assert_same(a, b)


@DEVICES
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(
    cases.cases(),
    st.integers(0, 2**32),
    st.sampled_from(["directional", "induced", "bidirectional"]),
)
def test_any_options_of_nodes(device, case, seed, subgraph_type):
    """Random graphs, homogeneous and not; any combination of times, weights and options."""
    data, fanouts, seeds, times, options = case
    common = {
        "input_nodes": seeds,
        "input_time": None if times is None else torch.tensor(times),
        "batch_size": 2,
        "seed": seed,
        "subgraph_type": subgraph_type,
        **options,
    }
    on_cpu = NeighborLoader(data, fanouts, **common)
    assert_same_epochs(on_cpu, NeighborLoader(data, fanouts, device=device, **common), 1)


@DEVICES
@pytest.mark.parametrize("neg", [None, "binary", ("triplet", 2)])
@pytest.mark.parametrize("extra", [{}, {"exclude_seed_edges": True}, {"strict_negatives": True}])
@pytest.mark.parametrize("disjoint", [False, True])
def test_links(data, device, neg, extra, disjoint):
    """Links with negatives, without their own edges, in trees of their own."""
    if neg is None and "strict_negatives" in extra:
        return
    options = {
        "edge_label_index": data.edge_index[:, :60],
        "neg_sampling": {"mode": neg[0], "amount": neg[1]} if isinstance(neg, tuple) else neg,
        "batch_size": 25,
        "seed": 3,
        "shuffle": True,
        "disjoint": disjoint,
        **extra,
    }
    on_device = LinkNeighborLoader(data, [4, 3], device=device, **options)
    assert_same_epochs(LinkNeighborLoader(data, [4, 3], **options), on_device)


@pytest.fixture
def rich():
    """Attributes of many kinds."""
    generator = torch.Generator().manual_seed(1)
    count, edges = 300, 3000
    ends = torch.randint(0, count, (2, edges), generator=generator)
    values = torch.randn(count, 6, generator=generator)
    return Data(
        x=values,
        half=values.to(torch.float16),
        brain=values[:, :5].to(torch.bfloat16),
        cube=torch.arange(count * 6).view(count, 2, 3),
        nothing=torch.empty(count, 0),
        y=torch.arange(count),
        mask=torch.rand(count, generator=generator) < 0.5,
        names=[f"node {i}" for i in range(3)],
        edge_index=ends,
        edge_attr=torch.randn(edges, 3, generator=generator),
        edge_small=torch.arange(edges).to(torch.int8),
        scalar=torch.tensor(3.0),
    )


@DEVICES
@pytest.mark.parametrize("graph_mode", ["CUDA", "ZERO_COPY"])
@pytest.mark.parametrize("feature_mode", ["CUDA", "ZERO_COPY", "CPU"])
def test_modes(rich, device, graph_mode, feature_mode):
    """Graph and attributes on the device, or read in place, or gathered by the host."""
    options = {"batch_size": 50, "seed": 2, "shuffle": True}
    where = DeviceOptions(graph_mode, feature_mode)
    on_device = NeighborLoader(rich, [5, 5], device=device, device_options=where, **options)
    assert_same_epochs(NeighborLoader(rich, [5, 5], **options), on_device)


@DEVICES
@pytest.mark.parametrize(
    "share",
    [
        {"split_ratio": 0.2},
        {"split_ratio": 0.0},
        {"split_ratio": 1.0},
        {"budget": "1KB"},
        {"budget": 500, "hotness": np.arange(300.0)},
    ],
)
def test_split(rich, device, share):
    """Hot rows on the device, found by sampling or given; the others on the host."""
    options = {"batch_size": 50, "seed": 2}
    where = DeviceOptions(feature_mode="CUDA", **share)
    on_device = NeighborLoader(rich, [5, 5], device=device, device_options=where, **options)
    assert_same_epochs(NeighborLoader(rich, [5, 5], **options), on_device)


@DEVICES
def test_split_for_links(data, device):
    """Hotness is that of batches which begin at the links' ends."""
    options = {"edge_label_index": data.edge_index[:, :60], "batch_size": 30, "seed": 3}
    where = DeviceOptions(feature_mode="CUDA", split_ratio=0.3)
    on_device = LinkNeighborLoader(data, [4], device=device, device_options=where, **options)
    assert_same_epochs(LinkNeighborLoader(data, [4], **options), on_device)


@DEVICES
@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_threads_and_recordings(data, device, num_workers, cuda_graph):
    """Drawn beside the trainer or not, kernel by kernel or recorded; the last batch is smaller."""
    options = {"batch_size": 33, "seed": 9, "shuffle": True}
    on_device = NeighborLoader(
        data,
        [4, 3],
        device=device,
        device_options=DeviceOptions(cuda_graph=cuda_graph),
        num_workers=num_workers,
        **options,
    )
    assert_same_epochs(NeighborLoader(data, [4, 3], **options), on_device, 3)
    assert on_device.stats().batches == 3 * 7


@DEVICES
@pytest.mark.parametrize("of_links", [False, True])
def test_one_batch_is_drawn_ahead(data, device, of_links, monkeypatch):
    """A thread launches the next batch before it waits for one, so the device always has work."""
    epoch_begun, calls = threading.Event(), []

    def spy(name, method):
        def call(self, *arguments):
            assert epoch_begun.wait(60)
            calls.append(name)
            return method(self, *arguments)

        return call

    begin = "begin_links" if of_links else "begin_nodes"
    monkeypatch.setattr(DeviceDrawer, begin, spy("begin", getattr(DeviceDrawer, begin)))
    monkeypatch.setattr(DeviceDrawer, "finish", spy("finish", DeviceDrawer.finish))
    options = {"batch_size": 70, "seed": 9, "disjoint": of_links}
    where = {"device": device, "num_workers": 1, "prefetch_factor": 9}
    if of_links:
        options["edge_label_index"] = data.edge_index[:, :200]
    loader = LinkNeighborLoader if of_links else NeighborLoader
    batches = iter(loader(data, [4, 3], **options, **where))
    epoch_begun.set()
    for on_device, on_cpu in zip(batches, loader(data, [4, 3], **options), strict=True):
        assert_same(on_cpu, on_device)
    assert calls == ["begin", "begin", "finish", "begin", "finish", "finish"]


@DEVICES
@pytest.mark.parametrize("feature_mode", ["CUDA", "ZERO_COPY", "CPU"])
def test_changed_attributes(data, device, feature_mode):
    """What is changed in place is seen from the next epoch on, what is exchanged at once."""
    options = {"batch_size": 200, "seed": 1}
    where = DeviceOptions(feature_mode=feature_mode)
    loader = NeighborLoader(data, [2], device=device, device_options=where, **options)
    first = next(iter(loader))
    assert torch.equal(first.x.cpu(), data.x[first.n_id.cpu()])
    data.x *= 2
    second = next(iter(loader))
    assert torch.equal(second.x.cpu(), data.x[second.n_id.cpu()])
    data.x = data.x + 1
    third = next(iter(loader))
    assert torch.equal(third.x.cpu(), data.x[third.n_id.cpu()])


def test_exchanged_attributes_are_let_go(data):
    """The table of an attribute that was exchanged goes with it, in memory and on the device."""
    loader = NeighborLoader(data, [2], batch_size=200, device="emulated")
    gone = []
    for _ in range(3):
        gone.append(weakref.ref(data.x))
        data.x = data.x + 1
        list(loader)
    gc.collect()
    assert [ref() is None for ref in gone] == [True] * 3


@DEVICES
def test_hooks_and_stores(data, device):
    """Hooks get outputs on the host; stores of others are asked there; batches are moved."""
    options = {"batch_size": 40, "seed": 4}

    def hook(out):
        assert out.node.device.type == "cpu"
        out.edge = out.edge * 1
        return out

    def count(batch):
        batch.total = batch.x.sum()
        return batch

    hooks = {"transform_sampler_output": hook, "transform": count}
    on_device = NeighborLoader(data, [3, 2], device=device, **hooks, **options)
    assert_same_epochs(NeighborLoader(data, [3, 2], **hooks, **options), on_device)
    stores = (data, data)
    on_device = NeighborLoader(stores, [3, 2], device=device, **options)
    assert_same_epochs(NeighborLoader(stores, [3, 2], **options), on_device)


@DEVICES
def test_in_pygs_own_loader(data, device):
    """A sampler with a device serves PyG's loader."""
    sampler = NeighborSampler(data, [3, 2], seed=5, device=device)
    plain = NeighborSampler(data, [3, 2], seed=5)
    if sampler.device.torch_device.type == "cuda":
        data = data.clone().to("cuda")
    for a, b in zip(
        NodeLoader(data.cpu(), plain, batch_size=50),
        NodeLoader(data, sampler, batch_size=50),
        strict=True,
    ):
        assert torch.equal(a.n_id, b.n_id.cpu())
        assert torch.equal(a.edge_index, b.edge_index.cpu())
        assert torch.equal(a.x, b.x.cpu())


def test_attributes_that_torch_reads(data, monkeypatch):
    """They may be on a GPU: what the user wrote before an epoch is waited for, and kept."""
    moments, used = iter(["first", "second"]), []

    def note(tensors, moment):
        if moment is not None:
            used.append(([tensor.data_ptr() for tensor in tensors], moment))

    monkeypatch.setattr(TorchDevice, "mark_of_user", lambda device: next(moments))
    monkeypatch.setattr("khop.loader.batches.device.wait_and_record_stream", note)
    x = data.x.t().contiguous().t()  # not row after row, so not for khop's gather
    data.x = x
    ends, values = data.edge_index.flip(0), torch.ones(data.num_edges)
    data.adj_t = torch.sparse_coo_tensor(ends, values, (200, 200), check_invariants=False)
    parts = [data.adj_t._indices().data_ptr(), data.adj_t._values().data_ptr()]
    loader = NeighborLoader(data, [3, 2], batch_size=100, device="emulated")
    for moment in ("first", "second"):
        for batch in loader:
            assert torch.equal(batch.x, x[batch.n_id])
        assert used == [([x.data_ptr()], moment), (parts, moment)] * 2
        used.clear()


def test_a_batch_that_fails_is_waited_for(data, monkeypatch):
    """Its tensors go, and the device may be writing to them."""
    done = []
    loader = NeighborLoader(data, [2], batch_size=200, device="emulated")
    joiner = loader._device_joiner

    def fail(feature, index):
        raise IndexError("there is none")

    monkeypatch.setattr(joiner, "gather", fail)
    monkeypatch.setattr(joiner.device, "mark", lambda: done.append("waited"))
    with pytest.raises(IndexError, match="must have a row for each node"):
        next(iter(loader))
    assert done == ["waited"]


def test_gradients_and_sparse_matrices(data):
    """What kernels cannot gather is torch's to select."""
    data.x.requires_grad_()
    options = {"batch_size": 40, "seed": 4}
    on_device = NeighborLoader(data, [3, 2], device="emulated", **options)
    for a, b in zip(NeighborLoader(data, [3, 2], **options), on_device, strict=True):
        assert b.x.requires_grad
        assert_same(a, b)


class TestWhatIsRefused:
    def test_names(self, data):
        for name in ("gpu", "cuda:x", "cpu:x", 3):
            with pytest.raises(ValueError, match="device must be 'cuda'"):
                NeighborLoader(data, [2], device=name)

    @pytest.mark.skipif(HAS_GPU or HAS_FAKE, reason="there is a GPU")
    def test_a_gpu_that_is_not_there(self, data):
        with pytest.raises(RuntimeError, match="cannot be used"):
            NeighborLoader(data, [2], device="cuda")

    def test_worker_processes(self, data):
        options = {"num_workers": 1, "worker_type": "process"}
        with pytest.raises(ValueError, match="leave worker_type='process'"):
            NeighborLoader(data, [2], device="emulated", **options)
        with pytest.raises(TypeError, match="stays in its process"):
            pickle.dumps(NeighborSampler(data, [2], device="emulated"))

    def test_worker_settings_of_frameworks_keep_the_device_in_the_trainer(self, data):
        """Lightning does, on loaders that it did not make: the device stays in the trainer."""
        loader = NeighborLoader(data, [2], device="emulated", num_workers=1, batch_size=100)
        loader.worker_init_fn = print
        assert len(list(loader)) == 2

    def test_a_device_beside_a_sampler(self, data):
        sampler = NeighborSampler(data, [2])
        with pytest.raises(ValueError, match="to the sampler"):
            NeighborLoader(data, [2], neighbor_sampler=sampler, device="emulated")

    def test_options(self, data):
        with pytest.raises(ValueError, match="graph_mode"):
            DeviceOptions(graph_mode="CPU")
        with pytest.raises(ValueError, match="feature_mode"):
            DeviceOptions(feature_mode="GPU")
        with pytest.raises(ValueError, match="split_ratio"):
            DeviceOptions(feature_mode="CUDA", split_ratio=1.5)
        with pytest.raises(ValueError, match="feature_mode='CUDA'"):
            DeviceOptions(split_ratio=0.5)

    def test_hotness_that_nobody_knows(self, data):
        """Draws by weight have no hotness that could be computed."""
        data.edge_weight = torch.rand(data.num_edges)
        where = DeviceOptions(feature_mode="CUDA", split_ratio=0.5)
        loader = NeighborLoader(
            data, [2], weight_attr="edge_weight", device="emulated", device_options=where
        )
        with pytest.raises(ValueError, match="uniform draws"):
            next(iter(loader))


@pytest.mark.parametrize("name", ["cpu", torch.device("cpu"), "cpu:0"])
def test_the_cpu_by_name(name):
    """Scripts say `device = "cuda" if torch.cuda.is_available() else "cpu"`."""
    data = Data(edge_index=torch.tensor([[1, 2, 3], [0, 1, 2]]), num_nodes=4)
    plain = next(iter(NeighborLoader(data, [2, 2], batch_size=2, seed=1)))
    assert_same(plain, next(iter(NeighborLoader(data, [2, 2], batch_size=2, seed=1, device=name))))
    sampler = NeighborSampler(data, [2, 2], device=name)
    assert sampler.device is None
    options = {"batch_size": 2, "seed": 1, "device": name, "neighbor_sampler": sampler}
    assert_same(plain, next(iter(NeighborLoader(data, [], **options))))
    links = {"batch_size": 2, "seed": 1}
    assert_same(
        next(iter(LinkNeighborLoader(data, [2], **links))),
        next(iter(LinkNeighborLoader(data, [2], device=name, **links))),
    )
    walks = {"walk_length": 3, "context_size": 2, "batch_size": 4, "seed": 1}
    (one,), (other,) = Node2VecLoader(data, **walks), Node2VecLoader(data, device=name, **walks)
    assert torch.equal(one[0], other[0])
