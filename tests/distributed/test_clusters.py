"""Whole clusters over partitions: the batches of `ClusterLoader`, bit for bit."""

import numpy as np
import pytest
import torch

import khop
from khop.distributed import DistClusterLoader, DistDataset, MpDistSamplingWorkerOptions
from khop.loader import ClusterData, ClusterLoader
from khop.sampler.plan import EpochPlan
from support.cluster import twins

CLUSTERS = torch.arange(150) * 7 % 150 // 11  # 14, of 11 nodes but for the last
COMMON = {"shuffle": True, "seed": 7}
ALL = {"collect_features": True, "with_edge": True}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Returns folder_of(num_parts, edge_dir, **options): a partitioning, made once."""
    base, made = tmp_path_factory.mktemp("clusters"), {}

    def folder_of(num_parts, edge_dir="in", **options):
        key = str((num_parts, edge_dir, *options.items()))
        if key not in made:
            made[key] = base / str(len(made))
            khop.partition_graph(
                twins.homogeneous(), made[key], num_parts, edge_dir=edge_dir, **options
            )
        return made[key]

    return folder_of


def twin(edge_dir="in", assignment=CLUSTERS, batch_size=4, **options):
    data = twins.homogeneous()
    layout = "csc" if edge_dir == "in" else "csr"
    count = int(assignment.max()) + 1
    clusters = ClusterData(data, count, assignment=assignment, sparse_format=layout)
    return ClusterLoader(clusters, batch_size=batch_size, **{**COMMON, **options})


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_batches_are_those_in_memory(folder_of, num_parts, edge_dir):
    strategy = "by_dst" if edge_dir == "in" else "by_src"
    with twins.open_dataset(folder_of(num_parts, edge_dir), num_parts) as dataset:
        for options in ({}, {"shuffle": False}, {"drop_last": True}):
            ours = DistClusterLoader(
                dataset, batch_size=4, assignment=CLUSTERS, **ALL, **{**COMMON, **options}
            )
            batches = twins.same_epochs(ours, twin(edge_dir, **options), 2, strategy)
            assert len(batches) == (3 if "drop_last" in options else 4)


def test_clusters_that_the_folder_keeps(folder_of):
    """Sizes differ; a loader that was stopped goes on where it was, in another order of rows."""
    root = folder_of(3, cluster_ids=12, order="degree")
    kept = khop.partition.folder_source(khop.partition.PartitionFolder(root))
    assignment = torch.from_numpy(kept.nodes["node"].attrs["cluster"].array.astype(np.int64))
    data = twins.homogeneous()
    data.cluster = assignment.to(torch.int32)
    clusters = ClusterData(data, int(assignment.max()) + 1, assignment=root, sparse_format="csc")
    with twins.open_dataset(root, 3) as dataset:
        ours = DistClusterLoader(dataset, batch_size=3, **ALL, **COMMON)
        twins.same_epochs(ours, ClusterLoader(clusters, batch_size=3, **COMMON), 2)
        stopped = DistClusterLoader(dataset, batch_size=3, **ALL, **COMMON)
        epoch = iter(stopped)
        next(epoch)
        state, rest = stopped.state_dict(), [batch.n_id.clone() for batch in epoch]
    with twins.open_dataset(folder_of(2, cluster_ids=12), 2) as dataset:
        resumed = DistClusterLoader(dataset, batch_size=3, **ALL, **COMMON)
        resumed.load_state_dict(state)
        for mine, other in zip(resumed, rest, strict=True):
            assert torch.equal(mine.n_id, other)


def test_sampler_processes(folder_of):
    """Arenas are planned for the largest batch that may come."""
    dataset = DistDataset().load(folder_of(2), 0, also_serve=[1])
    uneven = torch.where(torch.arange(150) < 90, 0, 1 + torch.arange(150) % 7)
    ours = DistClusterLoader(
        dataset,
        batch_size=2,
        assignment=uneven,
        worker_options=twins.workers(2),
        **ALL,
        **COMMON,
    )
    twins.same_epochs(ours, twin(assignment=uneven, batch_size=2), 2)
    assert ours.stats().batches == 8


def test_shares_of_trainers(folder_of, monkeypatch):
    """Every cluster goes to one trainer, evenly, and mostly to where its nodes are."""
    with twins.open_dataset(folder_of(2, method="stream"), 2) as dataset:
        monkeypatch.setattr(type(dataset), "homes", [0, 1])
        owners = khop.partition.PartitionFolder(dataset.opened.root)
        owners = owners.meta.node_types[0].book.owner(owners.id_map("node"))
        assignment = torch.from_numpy(owners * 5 + np.arange(150) % 5)  # clusters of a part each
        share = DistClusterLoader(dataset, assignment=assignment, even_batches=False).clusters
        assert share.tolist() == [0, 1, 2, 3, 4]
        given = DistClusterLoader(dataset, [7, 2], assignment=assignment, even_batches=False)
        assert [set((b.n_id % 5).tolist()) for b in given] == [{2}, {2}]


def test_what_is_refused(folder_of, tmp_path):
    dataset = DistDataset().load(folder_of(1), 0)
    for options, error, message in (
        ({}, ValueError, "clusters are not known"),
        ({"assignment": CLUSTERS[:9]}, ValueError, "a cluster for each of 150 nodes"),
        ({"assignment": CLUSTERS * 100}, IndexError, "assignment holds id"),
        ({"assignment": CLUSTERS, "clusters": [1, 1]}, ValueError, "twice"),
        ({"assignment": CLUSTERS, "clusters": [14]}, IndexError, "clusters holds id 14"),
        ({"assignment": CLUSTERS, "batch_size": 0}, ValueError, "batch_size must be at least 1"),
    ):
        with pytest.raises(error, match=message):
            DistClusterLoader(dataset, **options)
    khop.partition_graph(twins.heterogeneous(), tmp_path / "parts", 1)
    with pytest.raises(ValueError, match="takes a homogeneous graph"):
        DistClusterLoader(DistDataset().load(tmp_path / "parts", 0), assignment=CLUSTERS)


def test_plans_of_given_sizes():
    plan = EpochPlan(9, 4, sizes=[4, 0, 3, 2])
    assert [plan.bounds(batch) for batch in range(4)] == [(0, 4), (4, 4), (4, 7), (7, 9)]
    assert plan.num_batches == 4
    for sizes in ([5, 4], [4, 4], [-1, 4, 4, 2]):
        with pytest.raises(ValueError, match="for 9 seeds"):
            EpochPlan(9, 4, sizes=sizes)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_clusters_with_their_halo(folder_of, edge_dir, num_workers):
    """Nodes of clusters first, as without a halo, then all of their neighbours, by brute force."""
    data = twins.homogeneous()
    source, target = data.edge_index if edge_dir == "in" else data.edge_index.flip(0)
    options = {"batch_size": 4, "assignment": CLUSTERS, **ALL, **COMMON}
    if num_workers:
        options["worker_options"] = MpDistSamplingWorkerOptions(num_workers=num_workers)
    with twins.open_dataset(folder_of(3, edge_dir), 3) as dataset:
        plain = list(DistClusterLoader(dataset, **options))
        loader = DistClusterLoader(dataset, halo=True, **options)
        for batch, alone in zip(loader, plain, strict=True):
            assert torch.equal(batch.n_id[: batch.batch_size], alone.n_id)
            wanted = torch.isin(target, alone.n_id)
            ends = batch.n_id[batch.edge_index]
            found = sorted(zip(*ends.tolist(), strict=True))
            assert found == sorted(
                zip(source[wanted].tolist(), target[wanted].tolist(), strict=True)
            )
            assert set(batch.n_id.tolist()) == {*alone.n_id.tolist(), *source[wanted].tolist()}
            assert torch.equal(batch.x, data.x[batch.n_id])
        if num_workers:
            loader.shutdown()
