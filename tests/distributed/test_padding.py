"""`pad=` of distributed loaders: the same batches as in memory, padding included."""

import pytest
import torch

from khop.distributed import DistClusterLoader, DistLinkNeighborLoader, DistNeighborLoader
from khop.loader import ClusterData, ClusterLoader, LinkNeighborLoader, NeighborLoader
from support.cluster import twins

OPTIONS = {"batch_size": 16, "shuffle": True, "seed": 7}
WORKERS = pytest.mark.parametrize("num_workers", [None, pytest.param(1, marks=pytest.mark.process)])


@pytest.fixture(params=["homogeneous", "heterogeneous"])
def graph(request, twin_root):
    """(data, dataset) of a graph in two parts."""
    with twins.open_dataset(twin_root(request.param, 2), 2) as opened:
        yield getattr(twins, request.param)(), opened


def same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        twins.same_batch(a, b)
        for theirs_in, ours_in in zip(b.stores, a.stores, strict=True):
            for name in ("pad_node_mask", "pad_edge_mask"):
                assert (name in theirs_in) == (name in ours_in)


@WORKERS
def test_neighbourhoods(graph, num_workers):
    data, dataset = graph
    seeds = ("paper", torch.arange(60)) if dataset.meta.heterogeneous else torch.arange(60)
    options = {**OPTIONS, "disjoint": not dataset.meta.heterogeneous}
    theirs = NeighborLoader(data, [3, 2], seeds, pad="auto", **options)
    wanted = list(theirs)
    ours = DistNeighborLoader(
        dataset,
        [3, 2],
        seeds,
        pad=theirs.pad_sizes,
        worker_options=twins.workers(num_workers),
        **options,
    )
    same(ours, wanted)
    ours.shutdown()


def test_links_and_clusters(graph):
    data, dataset = graph
    if dataset.meta.heterogeneous:
        pytest.skip("one graph is enough")
    links = data.edge_index[:, :40]
    theirs = LinkNeighborLoader(data, [3, 2], links, neg_sampling="binary", pad="auto", **OPTIONS)
    wanted = list(theirs)
    options = {**OPTIONS, "pad": theirs.pad_sizes}
    same(DistLinkNeighborLoader(dataset, [3, 2], links, neg_sampling="binary", **options), wanted)
    assignment = torch.arange(150) % 10
    clusters = ClusterData(
        data, 10, assignment=assignment, keep_inter_cluster_edges=True, sparse_format="csc"
    )
    options = {"batch_size": 2, "seed": 7, "pad": {"nodes": 40, "edges": 200}}
    theirs = ClusterLoader(clusters, **options)
    same(DistClusterLoader(dataset, assignment=assignment, **options), theirs)


def test_sizes_follow_the_batches(graph):
    data, dataset = graph
    seeds = "paper" if dataset.meta.heterogeneous else None
    del data
    loader = DistNeighborLoader(dataset, [3, 2], seeds, pad="auto", **OPTIONS)
    assert loader.pad_sizes is None
    shapes = []
    for batch in loader:
        store = batch["paper"] if seeds else batch
        shapes.append(store.x.shape)
        assert store.x.size(0) == len(store.pad_node_mask) > store.batch_size
    assert len(set(shapes)) <= 2
    sizes = loader.pad_sizes["nodes"]
    assert sum(sizes["paper"] if seeds else sizes) == shapes[-1][0]


def test_devices(graph):
    """Batches are padded after their transfer, by torch's operations, and are the same."""
    data, dataset = graph
    if dataset.meta.heterogeneous:
        pytest.skip("one graph is enough")
    pad = {"nodes": 150, "edges": 300}
    theirs = NeighborLoader(data, [3, 2], torch.arange(60), pad=pad, **OPTIONS)
    loader = DistNeighborLoader(
        dataset, [3, 2], torch.arange(60), pad=pad, device="emulated", **OPTIONS
    )
    same(loader, theirs)


def test_too_small(graph):
    _, dataset = graph
    if dataset.meta.heterogeneous:
        pytest.skip("one graph is enough")
    loader = DistNeighborLoader(dataset, [3, 2], pad={"nodes": 20, "edges": 20}, **OPTIONS)
    with pytest.raises(ValueError, match="larger sizes, or pad='auto'"):
        next(iter(loader))
