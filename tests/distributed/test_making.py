"""What a sampler is told, how much memory it gets, and how far ahead of the trainer it works."""

import gc
from pathlib import Path

import pytest
import torch
from torch_geometric.data import HeteroData

from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    shutdown_worker_group,
)
from khop.distributed.loaders.sampling_options import collect_spec, info_for
from khop.distributed.sampling.buffer_plan import plan_memory
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.partition import RandomPartitioner
from khop.sampler.spec import SamplingOptions
from support.cluster import jobs


def plan_of(root, batch_size, **options):
    data = DistDataset().load(root, 0)
    sampling_options = SamplingOptions()
    info = info_for(data, jobs.FANOUTS, sampling_options)
    sampling = sampling_options.spec(jobs.FANOUTS, info)
    spec = PipelineSpec(sampling, collect_spec(data.meta, sampling, True))
    chosen = MpDistSamplingWorkerOptions(**options)
    return plan_memory(
        data.meta, spec, batch_size, chosen.worker_concurrency, chosen.num_workers,
        chosen.buffer_size,
    )  # fmt: skip


def test_small_batches_are_made_ahead_in_bulk(folder_of):
    """More than are in flight, with room for as many again that the trainer still looks into."""
    one = plan_of(folder_of("random", 1), 1)
    assert one.in_bulk
    assert 4 < one.depth <= 64
    assert one.nbytes >= 2 * one.depth * (64 << 10)


@pytest.mark.parametrize("concurrency", [1, 4, 32])
def test_depth_is_never_below_the_concurrency(folder_of, concurrency):
    for size in ("1KB", "256KB", "1GB", None):
        plan = plan_of(folder_of("random", 1), 8, worker_concurrency=concurrency, buffer_size=size)
        assert plan.depth >= concurrency
        assert plan.in_bulk == (plan.depth > concurrency)


@pytest.mark.parametrize(
    ("size", "nbytes"), [("1KB", 1 << 16), ("256KB", 1 << 17), ("1GB", 1 << 29)]
)
def test_rings_have_the_size_that_was_asked_for(folder_of, size, nbytes):
    """Shared among samplers, but 64 KB at least; batches ahead take half of it at most."""
    plan = plan_of(folder_of("random", 1), 8, num_workers=2, buffer_size=size)
    assert plan.nbytes == nbytes
    if plan.in_bulk:
        assert plan.depth * (64 << 10) <= nbytes // 2


def test_samplers_are_told_more_than_a_socket_holds(tmp_path):
    """Hops that find nothing change nothing, also if their lists have 180,000 characters."""
    graph = HeteroData()
    graph["a"].num_nodes = 20
    for i in range(60):
        graph["a", f"r{i}", "a"].edge_index = torch.tensor([range(20), range(20)]).roll(i, 1)
    RandomPartitioner.from_data(graph, tmp_path / "parts", 1).partition()

    def batches(num_hops, workers):
        data = DistDataset().load(tmp_path / "parts", 0)
        fanouts = dict.fromkeys(graph.edge_types, [3] + [0] * (num_hops - 1))
        seeds = ("a", torch.arange(20))
        return DistNeighborLoader(
            data, fanouts, seeds, batch_size=10, worker_options=workers, seed=1
        )

    one_sampler = MpDistSamplingWorkerOptions(num_workers=1)
    for ours, theirs in zip(batches(1000, one_sampler), batches(1, None), strict=True):
        assert torch.equal(ours["a"].n_id, theirs["a"].n_id)
        assert torch.equal(ours["r7"].edge_index, theirs["r7"].edge_index)


def descriptors():
    """Numbers of this process's open descriptors."""
    return {path.name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


@pytest.mark.parametrize("num_parts", [1, 2])
def test_a_dataset_leaves_no_descriptor(folder_of, num_parts):
    """Nor does one whose trainer serves nobody."""
    for _ in range(2):  # what the first opens, libraries may keep
        before = descriptors()
        data = DistDataset().load(folder_of("random", num_parts), 0, also_serve=range(1, num_parts))
        loader = DistNeighborLoader(data, [3], None, batch_size=500)
        assert len(list(loader)) == 1
        del data, loader
        shutdown_worker_group()
        gc.collect()
    assert descriptors() == before
