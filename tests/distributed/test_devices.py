"""Samplers that work on devices: the batches of the in-memory loader, wherever they shall be."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch_geometric.sampler import NegativeSampling

from khop.distributed import (
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    MpDistSamplingWorkerOptions,
)
from khop.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from khop.partition import partition_graph
from khop.sampler import FastGcn, PinSage, PoissonLadies
from support.cluster import jobs, twins
from support.cluster.twins import CITES, WRITES
from support.devices import HAS_FAKE, HAS_GPU, gpu

SEEDS = torch.tensor([*range(0, 60, 3), 5, 5, 149, 11])
PAPERS = torch.tensor([3, 3, 119, *range(20)])
KINDS = ["emulated:3", pytest.param("cuda:0", marks=gpu)]


@contextlib.contextmanager
def node_loaders(
    graph,
    root,
    seeds,
    devices,
    *,
    to_device=None,
    load=None,
    sub=False,
    num_neighbors=(3, -1, 2),
    **options,
):
    """A loader whose samplers work on devices, and its in-memory twin."""
    data = getattr(twins, graph)()
    num_workers = len(devices) if isinstance(devices, list) else 1
    common = {"batch_size": 8, "shuffle": True, "seed": 7, **options}
    nodes, graphs = (DistNeighborLoader, NeighborLoader), (DistSubGraphLoader, SubGraphLoader)
    ours, twin = graphs if sub else nodes
    is_list = isinstance(num_neighbors, tuple)
    fanouts = [*num_neighbors] if is_list else num_neighbors
    loader = ours(
        DistDataset().load(root, 0, **(load or {})),
        input_nodes=seeds,
        num_neighbors=fanouts,
        with_edge=True,
        collect_features=True,
        device=to_device,
        worker_options=MpDistSamplingWorkerOptions(num_workers, worker_devices=devices),
        **common,
    )
    try:
        yield loader, twin(data, input_nodes=seeds, num_neighbors=fanouts, **common)
    finally:
        loader.shutdown()


def same_epoch(loader, twin):
    """Asserts that loaders make the same batches, compared on the CPU."""
    count = 0
    for ours, theirs in zip(loader, twin, strict=True):
        twins.same_batch(ours.clone().to("cpu"), theirs)
        count += 1
    assert count == len(loader)


CASES = [
    ("homogeneous", "plain", SEEDS, {}),
    ("homogeneous", "plain", SEEDS, {"subgraph_type": "bidirectional", "disjoint": True}),
    ("homogeneous", "plain", SEEDS, {"sub": True}),
    ("homogeneous", "time", SEEDS, {"time_attr": "time", "weight_attr": "edge_weight"}),
    ("homogeneous", "plain", SEEDS, {"num_neighbors": PinSage(4, num_layers=2)}),
    ("homogeneous", "plain", SEEDS, {"num_neighbors": PoissonLadies([9, 12])}),
    ("homogeneous", "plain", SEEDS, {"num_neighbors": FastGcn([90])}),
    ("heterogeneous", "plain", ("paper", PAPERS), {"replace": True}),
    ("heterogeneous", "weight", ("paper", PAPERS), {"weight_attr": "edge_weight"}),
]


@pytest.mark.parametrize("to_device,graph,kind,seeds,options", [
    *[("emulated", *case) for case in CASES],
    *[(None, *case) for case in CASES[1::2]],
])  # fmt: skip
def test_nodes(twin_root, to_device, graph, kind, seeds, options):
    """Batches in shared memory, or where sampler and trainer both work."""
    folder = twin_root(graph, 1, kind)
    with node_loaders(graph, folder, seeds, "emulated", to_device=to_device, **options) as loaders:
        same_epoch(*loaders)


def test_one_part_in_another_order(tmp_path):
    """Batches of a renumbered folder have the user's ids, and its draws."""
    partition_graph(twins.homogeneous(), tmp_path / "folder", 1, order="degree")
    with node_loaders("homogeneous", tmp_path / "folder", SEEDS, "emulated:3") as loaders:
        same_epoch(*loaders)


@pytest.mark.parametrize("load", [
    {"graph_mode": "CUDA", "feature_with_gpu": True},
    {"graph_mode": "CUDA"},
    {"graph_mode": "ZERO_COPY", "feature_with_gpu": True, "device_group_list": [0]},
])  # fmt: skip
def test_modes(twin_root, load):
    """Where graph and attributes lie makes no difference; nor do out-neighbours."""
    folder = twin_root("homogeneous", 1)
    with node_loaders("homogeneous", folder, SEEDS, ["emulated:3", "cpu"], load=load) as loaders:
        same_epoch(*loaders)


@pytest.mark.parametrize("device", KINDS)
def test_mixed_samplers(twin_root, device):
    """One sampler shares the trainer's device, one has another, one is on the CPU; two epochs."""
    devices = [device, "emulated:5", "cpu"]
    with node_loaders(
        "homogeneous", twin_root("homogeneous", 1), SEEDS, devices, to_device=device
    ) as (loader, twin):
        assert [s.device_arena is not None for s in loader._backend._pool.samplers] == [
            True,
            False,
            False,
        ]
        for _ in range(2):
            same_epoch(loader, twin)


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("graph,kind,links,options", [
    ("homogeneous", "plain", lambda d: d.edge_index[:, :40], {"neg_sampling": "binary"}),
    ("homogeneous", "time", lambda d: d.edge_index[:, :40], {
        "time_attr": "time", "edge_label_time": torch.arange(40) % 23,
        "neg_sampling": NegativeSampling("triplet", 2),
    }),
    ("heterogeneous", "plain", lambda d: (WRITES, d[WRITES].edge_index[:, :40]), {
        "neg_sampling": "binary", "strict_negatives": True, "exclude_seed_edges": "reverse",
    }),
    ("heterogeneous", "plain", lambda d: (CITES, d[CITES].edge_index[:, :40]), {
        "subgraph_type": "induced", "disjoint": True,
    }),
])  # fmt: skip
def test_links(twin_root, device, graph, kind, links, options):
    """Links, their negatives, and what batches say of their ends."""
    data = getattr(twins, graph)()
    given = links(data)
    common = {"batch_size": 16, "shuffle": True, "seed": 7, **options}
    loader = DistLinkNeighborLoader(
        DistDataset().load(twin_root(graph, 1, kind), 0),
        [3, 2],
        edge_label_index=given,
        with_edge=True,
        collect_features=True,
        device=device,
        worker_options=MpDistSamplingWorkerOptions(1, worker_devices=torch_name(device)),
        **common,
    )
    same_epoch(loader, LinkNeighborLoader(data, [3, 2], given, **common))
    loader.shutdown()


def torch_name(device):
    """A device as GLT's users name it."""
    return torch.device(device) if device.startswith("cuda") else device


@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("graph,seeds,kind,options", [
    ("homogeneous", SEEDS, "time", {"time_attr": "time"}),
    ("heterogeneous", ("paper", PAPERS), "plain", {"subgraph_type": "induced"}),
])  # fmt: skip
def test_several_partitions(twin_root, device, graph, seeds, kind, options):
    """Samplers draw on the CPU, a warning says so, own rows are gathered where batches shall be."""
    common = {"batch_size": 8, "seed": 7, **options}
    with twins.open_dataset(twin_root(graph, 2, kind), 2) as dataset:
        for to_device in (device, None):
            with pytest.warns(UserWarning, match=r"2 partitions.*draw on the CPU"):
                loader = DistNeighborLoader(
                    dataset,
                    [3, 2],
                    seeds,
                    with_edge=True,
                    collect_features=True,
                    worker_options=MpDistSamplingWorkerOptions(1, worker_devices=[device]),
                    device=to_device,
                    **common,
                )
            same_epoch(loader, NeighborLoader(getattr(twins, graph)(), [3, 2], seeds, **common))
            loader.shutdown()


@pytest.mark.filterwarnings("ignore:of a folder of 3 partitions")
def test_cached_rows_on_a_device(graph, folder_of):
    """Copies of other parts' rows and replies of their servers come from the host."""
    dataset = DistDataset().load(
        folder_of("frequency", 3), 0, feature_with_gpu=True, also_serve=(1, 2)
    )
    loader = make_loader(dataset, "emulated", buffer_size="400KB", num_workers=2)
    assert jobs.same_batches(loader, reference(graph)) == len(loader)
    rows = loader.stats().rows
    assert min(rows["local"], rows["cached"], rows["remote"]) > 0
    loader.shutdown()


def test_samplers_need_no_torch():
    """What runs in them can be imported where torch cannot."""
    code = (
        "import sys; sys.modules['torch'] = None; "
        f"sys.path[:] = {sys.path!r}; "
        "import khop.distributed.sampling.worker, khop.distributed.sampling.device_slots; "
        "import khop.sampler.device.collect, khop.sampler.device.engine"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def make_loader(source, devices, **keywords):
    """A loader of 500 nodes, and what it shall deliver."""
    options = {"device": "emulated", "batch_size": 16, "shuffle": True, "seed": 5}
    return DistNeighborLoader(
        source if isinstance(source, DistDataset) else DistDataset().load(source, 0),
        jobs.FANOUTS,
        jobs.seeds_of_rank(0),
        with_edge=True,
        collect_features=True,
        worker_options=MpDistSamplingWorkerOptions(worker_devices=devices, **keywords),
        **options,
    )


def reference(graph):
    """The in-memory twin of `make_loader`."""
    seeds = jobs.seeds_of_rank(0)
    return NeighborLoader(graph, jobs.FANOUTS, seeds, batch_size=16, shuffle=True, seed=5)


def test_kept_batches(graph, folder_of):
    """Batches outlive their loader and its samplers, also those that found no room in the slab."""
    loader = make_loader(folder_of("random", 1), "emulated", buffer_size="200KB")
    slab = loader._backend._pool.samplers[0].device_arena
    kept = list(loader)
    assert 0 < slab.bytes_leased <= slab.capacity
    loader.shutdown()
    del loader
    assert jobs.same_batches(kept, reference(graph)) == len(kept)


def test_slots_come_back(graph, folder_of):
    """Who drops batches has all of the slab again, and no batch takes another way."""
    loader = make_loader(folder_of("random", 1), "emulated")
    twin = reference(graph)
    for _ in range(3):
        assert jobs.same_batches(loader, twin) == len(twin)
    sampler = loader._backend._pool.samplers[0]
    assert sampler.arena.bytes_leased == 0
    sampler.device_arena.give_back()
    assert sampler.device_arena.bytes_leased == 0
    loader.shutdown()


@pytest.mark.parametrize("size", ["64KB", "300KB"])
def test_batch_without_room_in_the_device_arena_goes_over_the_host(graph, folder_of, size):
    """Batches that find no room take the way over the host."""
    loader = make_loader(folder_of("random", 1), ["emulated", "cpu"], num_workers=2,
                         buffer_size=size)  # fmt: skip
    assert jobs.same_batches(loader, reference(graph)) == len(loader)
    loader.shutdown()


@pytest.mark.filterwarnings("ignore:pin_memory=True has no effect")
def test_locked_rings(graph, folder_of):
    """A sampler's device copies to pages that the sampler has locked."""
    loader = make_loader(folder_of("random", 1), "emulated:3", pin_memory=True)
    assert loader._backend._pool.samplers[0].device_arena is None  # the trainer's is another device
    assert jobs.same_batches(loader, reference(graph)) == len(loader)
    loader.shutdown()


def test_killed_sampler(graph, folder_of):
    """It is started again with memory of its own; what the dead one wrote stays as it is."""
    loader = make_loader(folder_of("random", 1), ["emulated"], buffer_size="512KB")
    batches = []
    for number, batch in enumerate(loader):
        if number == 2:
            os.kill(loader.workers[0].pid, signal.SIGKILL)
        batches.append(batch)
    assert loader.stats().restarts == 1
    assert jobs.same_batches(batches, reference(graph)) == len(loader)
    loader.shutdown()


@pytest.mark.skipif(HAS_GPU or HAS_FAKE, reason="there is a GPU")
@pytest.mark.parametrize("option", ["worker_devices", "device"])
def test_missing_gpu_is_reported_before_processes_start(folder_of, option):
    """The trainer says so, and what for, before any process is started."""
    dataset = DistDataset().load(folder_of("random", 1), 0)
    workers, to_device = ("cuda:0", None) if option == "worker_devices" else ("cpu", "cuda:0")
    with pytest.raises(RuntimeError, match=f"{option}: device 'cuda:0' cannot be used"):
        DistNeighborLoader(
            dataset,
            [2],
            device=to_device,
            worker_options=MpDistSamplingWorkerOptions(1, worker_devices=[workers]),
        )
    assert jobs.khop_processes() == []


def test_graph_on_the_cpu(folder_of):
    dataset = DistDataset().load(folder_of("random", 1), 0, graph_mode="CPU")
    with pytest.raises(ValueError, match=r"worker_devices has 'emulated:0'.*graph_mode='CPU'"):
        DistNeighborLoader(
            dataset,
            [2],
            worker_options=MpDistSamplingWorkerOptions(1, worker_devices=["emulated"]),
        )


@pytest.mark.parametrize("devices", ["tpu", ["cuda:0", "gpu"], ["cuda:-1"]])
def test_devices_that_are_none(devices):
    with pytest.raises(ValueError, match="worker_devices must be 'cpu', 'cuda'"):
        MpDistSamplingWorkerOptions(2, worker_devices=devices)


def test_devices_in_turns():
    options = MpDistSamplingWorkerOptions(5, worker_devices=["cuda:1", torch.device("cuda"), "cpu"])
    assert options.devices() == ["cuda:1", "cuda:0", None, "cuda:1", "cuda:0"]
    assert MpDistSamplingWorkerOptions(2).devices() == [None, None]
    with pytest.raises(ValueError, match="num_workers=1 or more"):
        MpDistSamplingWorkerOptions(0, worker_devices=["cuda"])


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="no usable CUDA device")
@pytest.mark.parametrize("devices", ["cpu", "cuda:0"])
def test_pinned_memory(graph, folder_of, devices):
    """Registered rings are copied from on a side stream; they are given back at the end."""
    for _ in range(2):
        loader = DistNeighborLoader(
            DistDataset().load(folder_of("random", 1), 0),
            jobs.FANOUTS,
            jobs.seeds_of_rank(0),
            batch_size=16,
            shuffle=True,
            seed=5,
            with_edge=True,
            collect_features=True,
            device="cuda",
            worker_options=MpDistSamplingWorkerOptions(
                2, worker_devices=[devices, "cpu"], pin_memory=True
            ),
        )
        batches = [batch.clone() for batch in loader]
        assert all(batch.x.is_cuda and batch.input_id.is_cuda for batch in batches)
        assert jobs.same_batches([b.to("cpu") for b in batches], reference(graph)) == len(loader)
        loader.shutdown()
