"""Features of a folder on disk: the same batches as from mapped files, in every process."""

import numpy as np
import pytest
import torch

import khop
from khop.data.direct_rows import DirectRows
from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
)
from khop.loader import NeighborLoader
from support.cluster import jobs
from support.reference.eviction import lru_misses, sieve_misses

SEEDS = jobs.seeds_of_rank(0)
COMMON = {"batch_size": 16, "seed": 3}
NAMES = ("n_id", "edge_index", "x", "edge_attr", "y")


def load(root, num_parts, **options):
    return DistDataset().load(root, 0, also_serve=range(1, num_parts), **options)


def loader_of(dataset, workers):
    return DistNeighborLoader(
        dataset,
        jobs.FANOUTS,
        SEEDS,
        with_edge=True,
        collect_features=True,
        worker_options=workers,
        **COMMON,
    )


@pytest.mark.parametrize("num_parts,num_workers", [(1, None), (1, 1), (2, None), (2, 2)])
def test_batches_are_the_same(graph, folder_of, num_parts, num_workers):
    """Read by the trainer or its samplers, and served by partition servers."""
    workers = CollocatedDistSamplingWorkerOptions()
    if num_workers is not None:
        workers = MpDistSamplingWorkerOptions(num_workers=num_workers, worker_concurrency=3)
    options = {"features_on_disk": ["x", "edge_attr"], "disk_memory": "16MB"}
    dataset = load(folder_of("random", num_parts), num_parts, **options)
    ours = loader_of(dataset, workers)
    theirs = NeighborLoader(graph, jobs.FANOUTS, SEEDS, **COMMON)
    assert jobs.same_batches(ours, theirs, NAMES) > 5
    disk = ours.stats().disk
    assert disk["asked"] > disk["missed"] > 0
    assert disk["missed"] >= disk["reads"] > 0
    assert disk["bytes"] >= 4096 * disk["reads"]
    if num_parts == 1:
        assert disk["asked"] == ours.stats().nodes + ours.stats().edges
    some = torch.tensor([3, 499, 3])
    assert torch.equal(dataset.get_tensor(None, "x", some), graph.x[some])
    assert torch.equal(dataset.get_tensor(None, "x", None), graph.x)
    assert "not in the cache" in str(ours.stats())
    assert 'khop_loader_disk_reads_total{loader="a"}' in khop.metrics.of_loaders({"a": ours})
    ours.shutdown()


def test_wide_attributes_are_on_disk_with_true(tmp_path):
    data = jobs.make_graph()
    data.wide = torch.rand(data.num_nodes, 16)
    khop.partition_graph(data, tmp_path / "parts", 1)
    dataset = load(tmp_path / "parts", 1, features_on_disk=True)
    assert dataset.opened.disk.names == ("wide",)
    part = khop.storage.part.Part(dataset.opened, 0)
    assert isinstance(part.node_feature(0, "wide"), DirectRows)
    assert isinstance(part.node_feature(0, "y"), khop.data.Feature)
    assert load(tmp_path / "parts", 1).opened.disk is None


def test_memory_is_divided(folder_of):
    """Among attributes by their bytes, and among samplers."""
    options = {"features_on_disk": ["x", "edge_attr"], "disk_memory": 8 << 20}
    dataset = load(folder_of("random", 1), 1, **options)
    part = khop.storage.part.Part(dataset.opened, 0)
    stores = part.node_feature(0, "x"), part.edge_feature(0, "edge_attr")
    shares = [store.options.cache_memory for store in stores]
    assert sum(shares) == pytest.approx(8 << 20, abs=2)
    rows = [store.array.nbytes for store in stores]
    assert shares[0] / shares[1] == pytest.approx(rows[0] / rows[1], rel=1e-5)
    assert stores[0].gather(np.array([2])).tolist() == stores[0].array[[2]].tolist()
    assert part.disk_counts()[:2] == (1, 1)


@pytest.mark.parametrize("names", [["nothing"], ["x", "id"]])
def test_bad_names(folder_of, names):
    with pytest.raises(ValueError, match="features_on_disk: no attribute"):
        load(folder_of("random", 1), 1, features_on_disk=names)


def test_bad_memory(folder_of):
    with pytest.raises(ValueError, match="not a number of bytes"):
        load(folder_of("random", 1), 1, features_on_disk=True, disk_memory="much")


@pytest.mark.parametrize("capacity", [60, 200])
def test_other_rules_miss_what_their_oracles_miss(tmp_path, capacity):
    """Of the nodes of real batches, with the memory that the cache has."""
    data = jobs.make_graph()
    data.wide = torch.rand(data.num_nodes, 16)
    khop.partition_graph(data, tmp_path / "parts", 1)
    memory = (4 << 20) + capacity * (16 * 4 + 96)
    dataset = load(tmp_path / "parts", 1, features_on_disk=["wide"], disk_memory=memory)
    loader = loader_of(dataset, CollocatedDistSamplingWorkerOptions())
    ids = [node for batch in loader for node in batch.n_id.tolist()]
    disk = loader.stats().disk
    assert disk["asked"] == len(ids)
    assert disk["lru_missed"] == lru_misses(ids, capacity)
    assert disk["sieve_missed"] == sieve_misses(ids, capacity)
    assert 0 < disk["missed"] < min(disk["lru_missed"], disk["sieve_missed"]) < len(ids)
    assert "hits by LRU" in str(loader.stats())
    loader.shutdown()
