"""Features in fewer bits on their way: batches have float32, whoever widens it and wherever it was.

The twin is the in-memory loader of the graph whose features were narrowed and widened by PyTorch.
"""

import itertools

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv

import khop
from khop.data.encoding import Encoding
from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    layerwise_inference,
)
from khop.distributed.loaders.widening import Widening
from khop.errors import ProtocolError
from khop.loader import NeighborLoader
from khop.partition import convert_features
from khop.sampler.replies import check_rows
from khop.storage.folder import AttrMeta, PartitionFolder
from support.cluster import twins
from support.cluster.servers import cluster

FANOUTS = [3, -1, 2]
COMMON = {"batch_size": 16, "seed": 3, "shuffle": True}
SEEDS = torch.arange(0, 150, 2)
DTYPES = {"x": "int8", "half": "float16", "brain": "bfloat16", "tiny": "float8"}
HOT = {"method": "frequency", "num_neighbors": [3, 3], "batch_size": 16, "cache_ratio": 0.1}


def wide(values, dtype):
    """What batches have of values that are stored with a dtype."""
    names = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float8": torch.float8_e4m3fn}
    if dtype in names:
        return values.to(names[dtype]).float()
    flat = values.numpy().reshape(len(values), -1)
    encoding = Encoding.of_range(flat.min(0), flat.max(0))
    codes = np.rint((flat.astype(np.float64) - encoding.zero) / encoding.scale).clip(-128, 127)
    rows = codes.astype(np.float32) * encoding.scale + encoding.zero
    return torch.from_numpy(rows.reshape(values.shape))


def homogeneous():
    rng = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(150, 40, generator=rng),
        half=torch.randn(150, generator=rng),
        brain=torch.randn(150, 2, 3, generator=rng),
        tiny=torch.randn(150, 17, generator=rng),
        plain=torch.randn(150, 3, generator=rng),
        y=torch.arange(150),
        edge_index=torch.randint(0, 150, (2, 1200), generator=rng),
        edge_attr=torch.randn(1200, 5, generator=rng),
        train_mask=torch.arange(150) % 2 == 0,
    )


def heterogeneous():
    rng = torch.Generator().manual_seed(0)
    data = HeteroData()
    for name, count in (("paper", 90), ("author", 60)):
        data[name].x = torch.randn(count, 9, generator=rng)
    for edge_type in (("author", "writes", "paper"), ("paper", "cites", "paper")):
        sizes = [data[t].num_nodes for t in edge_type[::2]]
        ends = [torch.randint(0, n, (400,), generator=rng) for n in sizes]
        data[edge_type].edge_index = torch.stack(ends)
        data[edge_type].edge_attr = torch.randn(400, 4, generator=rng)
    return data


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """root(number of parts): a folder of the homogeneous graph, with copies of hot rows."""
    folder = tmp_path_factory.mktemp("small")
    made = {}

    def of(num_parts):
        if num_parts not in made:
            made[num_parts] = folder / str(num_parts)
            dtypes = {**DTYPES, "edge_attr": "int8"}
            options = HOT if num_parts > 1 else {}
            khop.partition_graph(
                homogeneous(), made[num_parts], num_parts, feature_dtype=dtypes, **options
            )
        return made[num_parts]

    return of


@pytest.fixture(scope="module")
def graph():
    """The graph that batches show."""
    graph = homogeneous()
    for name, dtype in {**DTYPES, "edge_attr": "int8"}.items():
        graph[name] = wide(graph[name], dtype)
    return graph


def same_epoch(loader, graph, seeds=SEEDS):
    twin = NeighborLoader(graph, FANOUTS, seeds, **COMMON)
    for ours, theirs in zip(loader, twin, strict=True):
        twins.same_batch(ours.clone().to("cpu"), theirs)


@pytest.mark.parametrize("widen", ["sampler", "trainer"])
@pytest.mark.parametrize(("num_parts", "num_workers"), [(1, None), (3, None), (1, 1), (2, 2)])
def test_batches(root, graph, widen, num_parts, num_workers):
    """Own rows, copies of hot ones and rows of others; made here and by samplers."""
    with twins.open_dataset(root(num_parts), num_parts) as dataset:
        options = twins.workers(num_workers)
        loader = DistNeighborLoader(
            dataset, FANOUTS, SEEDS, widen=widen, worker_options=options, **COMMON
        )
        same_epoch(loader, graph)
        stats = loader.stats()
        assert (stats.remote_bytes > 0) == (num_parts > 1)
        loader.shutdown()


@pytest.mark.parametrize("widen", ["sampler", "trainer"])
@pytest.mark.parametrize("num_workers", [None, 1])
@pytest.mark.parametrize("same_host_reads", [False, True])
def test_batches_from_the_disk_and_from_caches(root, graph, widen, num_workers, same_host_reads):
    """Encoded rows past the page cache, of other partitions, and kept for later batches."""
    dataset = DistDataset().load(
        root(2),
        0,
        also_serve=[1],
        same_host_reads=same_host_reads,
        features_on_disk=["x", "tiny", "half"],
        disk_memory="16MB",
    )
    loader = DistNeighborLoader(
        dataset, FANOUTS, SEEDS, widen=widen, worker_options=twins.workers(num_workers), **COMMON
    )
    same_epoch(loader, graph)
    stats = loader.stats()
    asked = stats.disk["asked"]
    assert asked == 3 * stats.nodes if same_host_reads else 0 < asked < 3 * stats.nodes
    assert (stats.rows["reused"] > 0) == (not same_host_reads)
    loader.shutdown()


def test_bytes(root, tmp_path):
    """Rows travel as they are stored, and up to the trainer if that widens them."""
    graph, stats = homogeneous(), {}
    khop.partition_graph(graph, tmp_path / "wide", 3, **HOT)
    for folder, widen in [
        (tmp_path / "wide", "sampler"),
        (root(3), "sampler"),
        (root(3), "trainer"),
    ]:
        with twins.open_dataset(folder, 3) as dataset:
            loader = DistNeighborLoader(dataset, FANOUTS, SEEDS, widen=widen, **COMMON)
            for _ in loader:
                pass
            stats[folder, widen] = loader.stats()
    plain, sampler, trainer = stats.values()
    assert sampler.remote_bytes < 0.6 * plain.remote_bytes
    assert trainer.remote_bytes == sampler.remote_bytes
    assert sampler.delivered_bytes == plain.delivered_bytes
    assert trainer.delivered_bytes < 0.6 * plain.delivered_bytes


@pytest.mark.parametrize("widen", ["sampler", "trainer"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_types(tmp_path, widen, edge_dir):
    """Attributes of one type and of all; edges of out-neighbours have other names in batches."""
    data = heterogeneous()
    cites = ("paper", "cites", "paper")
    dtypes = {"paper.x": "float8", "edge_attr": "float16", (cites, "edge_attr"): "int8"}
    khop.partition_graph(data, tmp_path / "p", 2, feature_dtype=dtypes, edge_dir=edge_dir)
    data["paper"].x = wide(data["paper"].x, "float8")
    for edge_type in data.edge_types:
        dtype = "int8" if edge_type == cites else "float16"
        data[edge_type].edge_attr = wide(data[edge_type].edge_attr, dtype)
    seeds = ("paper", torch.arange(40))
    with twins.open_dataset(tmp_path / "p", 2) as dataset:
        loader = DistNeighborLoader(dataset, FANOUTS, seeds, widen=widen, **COMMON)
        strategy = "by_dst" if edge_dir == "in" else "by_src"
        twin = twins.make_twin(NeighborLoader, data, FANOUTS, seeds, strategy, **COMMON)
        for ours, theirs in zip(loader, twin, strict=True):
            twins.same_batch(ours, twins.as_distributed(theirs, strategy))


@pytest.mark.parametrize("widen", ["sampler", "trainer", None])
@pytest.mark.parametrize(("num_parts", "device"), [(1, "emulated"), (1, None), (2, "emulated")])
@pytest.mark.parametrize("load", [{}, {"graph_mode": "CUDA", "feature_with_gpu": True}])
def test_devices(root, graph, widen, num_parts, device, load):
    """Devices hold and gather rows as they are stored, if the trainer widens them."""
    options = MpDistSamplingWorkerOptions(1, worker_devices=["emulated"])
    others = list(range(1, num_parts))
    loader = DistNeighborLoader(
        DistDataset().load(root(num_parts), 0, also_serve=others, **load),
        FANOUTS,
        SEEDS,
        widen=widen,
        device=device,
        worker_options=options,
        **COMMON,
    )
    assert loader._spec.collect.as_stored == (
        widen == "trainer" or (widen is None and device is not None)
    )
    same_epoch(loader, graph)
    loader.shutdown()


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("widen", ["sampler", "trainer"])
def test_graph_servers(root, graph, widen, shared_memory):
    with cluster(root(2), [[0, 1]]) as servers, servers.client():
        options = RemoteDistSamplingWorkerOptions(num_workers=1, shared_memory=shared_memory)
        loader = DistNeighborLoader(
            None, FANOUTS, SEEDS, widen=widen, worker_options=options, **COMMON
        )
        same_epoch(loader, graph)
        loader.shutdown()


def test_feature_store(root, graph):
    """Whole attributes and rows of them, of several parts."""
    with twins.open_dataset(root(3), 3) as dataset:
        for name in DTYPES:
            group = (None, name)
            assert dataset.get_tensor_size(*group) == tuple(graph[name].shape)
            assert torch.equal(dataset.get_tensor(*group, index=None), graph[name])
            ids = torch.tensor([149, 0, 7, 7])
            assert torch.equal(dataset.get_tensor(*group, index=ids), graph[name][ids])


def test_inference(root, tmp_path):
    """As of a folder that has the numbers as float32."""
    convert_features(root(3), tmp_path / "wide", dict.fromkeys([*DTYPES, "edge_attr"], "float32"))
    torch.manual_seed(0)
    model = [SAGEConv(40, 8).eval(), SAGEConv(8, 4).eval()]
    rows = []
    for i, folder in enumerate((root(3), tmp_path / "wide")):
        with twins.open_dataset(folder, 3) as dataset:
            outputs = layerwise_inference(dataset, model, tmp_path / str(i), batch_size=50)
            rows.append(outputs.gather_all()["node"])
    assert torch.equal(*rows)


def test_on_a_gpu_the_same_bits(root):
    """PyTorch's kernels, run on the CPU, give what the host's kernel gives, for all codes."""
    meta = PartitionFolder(root(1)).meta
    widening = Widening(meta, khop.sampler.rows.collect.CollectSpec(), [])
    rng = np.random.default_rng(0)
    scale, zero = rng.normal(size=(2, 4)).astype(np.float32)
    codes = np.arange(2**16).astype(np.uint16).reshape(-1, 4)
    for encoding, stored in [
        (Encoding("bfloat16"), torch.from_numpy(codes.view(np.int16)).view(torch.bfloat16)),
        (Encoding("float16"), torch.from_numpy(codes.view(np.float16))),
        (Encoding("float8_e4m3fn"), torch.from_numpy(codes.astype(np.uint8))),
        (Encoding("int8", abs(scale), zero), torch.from_numpy(codes.astype(np.int8))),
    ]:
        ours = widening._on_device(stored, None, "x", encoding)
        bits = stored.view(torch.int16) if stored.element_size() == 2 else stored
        theirs = torch.from_numpy(encoding.decode(bits.numpy()))
        assert torch.equal(torch.nan_to_num(ours, 7), torch.nan_to_num(theirs, 7))
        assert ours.dtype == torch.float32


def test_replies_are_as_stored(root):
    """A server that sends rows in another format is not believed."""
    attr = PartitionFolder(root(1)).meta.node_types[0].attrs["x"]
    assert attr.stored.dtype == "int8"
    good = [np.zeros((2, 40), np.int8)]
    assert check_rows(good, "partition 1", 2, {"x": attr}, 9) == [good]
    for bad in (np.zeros((2, 40), np.float32), np.zeros((2, 41), np.int8)):
        with pytest.raises(ProtocolError, match=r"for 'x', which is int8 \(2, 40\)"):
            check_rows([bad], "partition 1", 2, {"x": attr}, 9)


def test_other_ways(root):
    with (
        twins.open_dataset(root(1), 1) as dataset,
        pytest.raises(ValueError, match="widen must be 'sampler', 'trainer' or None"),
    ):
        DistNeighborLoader(dataset, FANOUTS, SEEDS, widen="gpu", **COMMON)


def test_descriptions():
    """What `AttrMeta` says of an attribute, and what it does not accept."""
    rows = khop.data.RowFormat
    wide, small = rows("float32", (2,)), rows("int8", (2,))
    good = {"scale": [1.0, 2.0], "zero": [0.0, -1]}
    attr = AttrMeta(small, wide, "int8", good)
    assert (attr.dtype, attr.row_bytes, attr.as_stored) == ("float32", 2, AttrMeta.of("int8", [2]))
    for stored, delivered, encoding, parameters in [
        (small, wide, None, {}),
        (wide, wide, None, good),
        (small, small, "int8", good),
        (small, rows("float32", (3,)), "int8", good),
        (small, rows("float64", (2,)), "int8", good),
        (small, wide, "int4", good),
        (rows("uint8", (2,)), wide, "int8", good),
        (rows("float16", (2,)), wide, "bfloat16", {}),
        (rows("float16", (2,)), wide, "float16", good),
        *(
            (small, wide, "int8", {**good, key: value})
            for key, value in itertools.product(
                ("scale", "zero"),
                ([1.0], [1.0, None], [1.0, "2"], 1, [1.0, float("inf")], [1e300, 1], None, [True]),
            )
        ),
        (small, wide, "int8", {**good, "scale": [1, -1]}),
        (small, wide, "int8", {**good, "more": 1}),
        (small, wide, "int8", {"scale": [1, 1]}),
    ]:
        with pytest.raises(ValueError, match="has "):
            AttrMeta(stored, delivered, encoding, parameters)
