"""A loader over partitions, of which nothing but the data is said anew, has its twin's batches."""

import pytest
import torch
from torch_geometric.data import Data

from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistClusterLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    MpDistSamplingWorkerOptions,
)
from khop.loader import (
    ClusterData,
    ClusterLoader,
    LinkNeighborLoader,
    NeighborLoader,
    SubGraphLoader,
)
from support.cluster import twins

NODES, LINKS = torch.arange(0, 120, 3), torch.arange(70).view(2, 35)
SOME = {"batch_size": 9, "shuffle": True, "seed": 4}
MODES = {
    "default": {},
    "collocated": {"worker_options": CollocatedDistSamplingWorkerOptions()},
    "samplers": {"worker_options": MpDistSamplingWorkerOptions(num_workers=1)},
}
TYPED_LINKS = (twins.CITES, LINKS)
# Each: loader over partitions, in memory, arguments after the data.
CASES = {
    "homogeneous": [
        (DistNeighborLoader, NeighborLoader, ([3, 2], NODES), {}),
        (DistSubGraphLoader, SubGraphLoader, (NODES, [2]), {}),
        (DistLinkNeighborLoader, LinkNeighborLoader, ([3, 2],), {"edge_label_index": LINKS}),
    ],
    "heterogeneous": [
        (DistNeighborLoader, NeighborLoader, ([3, 2], ("paper", NODES)), {}),
        (DistSubGraphLoader, SubGraphLoader, (("paper", NODES), [2]), {}),
        (DistLinkNeighborLoader, LinkNeighborLoader, ([3],), {"edge_label_index": TYPED_LINKS}),
    ],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Partitions of both kinds of graphs, by name."""
    root = tmp_path_factory.mktemp("parts")
    return {
        name: twins.partitioned(getattr(twins, name)(), root / name, 2)
        for name in ("homogeneous", "heterogeneous")
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", CASES)
def test_batches_are_those_in_memory(folders, kind, mode):
    """Features, edge ids and edge attributes, all that the graph has."""
    graph = getattr(twins, kind)()
    with twins.quiet(), twins.open_dataset(folders[kind], 2) as dataset:
        for ours, theirs, arguments, options in CASES[kind]:
            loader = ours(dataset, *arguments, **options, **SOME, **MODES[mode])
            twins.same_epochs(loader, theirs(graph, *arguments, **options, **SOME))
            loader.shutdown()


def test_clusters(folders):
    graph, clusters = twins.homogeneous(), torch.arange(150) // 11
    data = ClusterData(graph, 14, assignment=clusters, sparse_format="csc")
    with twins.open_dataset(folders["homogeneous"], 2) as dataset:
        loader = DistClusterLoader(dataset, batch_size=3, assignment=clusters)
        twins.same_epochs(loader, ClusterLoader(data, batch_size=3))


def test_what_a_folder_does_not_have_is_not_delivered(tmp_path):
    """Neither features nor edge attributes: no error, no empty attributes."""
    graph = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=4)
    root = twins.partitioned(graph, tmp_path / "parts", 1)
    batch = next(iter(DistNeighborLoader(DistDataset().load(root, 0), [2, 2], [3])))
    twins.same_batch(batch, next(iter(NeighborLoader(graph, [2, 2], [3]))))
    assert "x" not in batch and "edge_attr" not in batch
