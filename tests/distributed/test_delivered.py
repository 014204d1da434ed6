"""What methods deliver beside nodes and edges, over partitions: every method, in every mode."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

from khop.distributed import (
    DistLinkNeighborLoader,
    DistNeighborLoader,
    PartitionSampler,
    RemoteDistSamplingWorkerOptions,
)
from khop.loader import LinkNeighborLoader, NeighborLoader
from support.cluster import servers as cluster, twins
from support.delivered import METHODS, check_same
from support.programs import Smallest

SEEDS = torch.tensor([3, 77, 12, 149, 40])
OPTIONS = {"batch_size": 2, "seed": 7}
ALL = pytest.mark.parametrize("name", METHODS)
SOME = ["pinsage", "own program"]


@pytest.fixture(scope="module")
def data():
    full = twins.homogeneous()
    return Data(edge_index=full.edge_index, num_nodes=150, x=full.x)


@pytest.fixture(scope="module")
def root(data, tmp_path_factory):
    """Two parts."""
    return twins.partitioned(data, tmp_path_factory.mktemp("delivered") / "parts", 2, "neighbors")


@pytest.fixture
def dataset(root):
    with twins.open_dataset(root, 2) as opened:
        yield opened


@ALL
def test_in_the_trainer(data, dataset, name):
    """Loaders of nodes and of links."""
    method, names = METHODS[name]
    ours = DistNeighborLoader(dataset, method, SEEDS, **OPTIONS)
    check_same(ours, NeighborLoader(data, method, SEEDS, **OPTIONS), names)
    links = {"edge_label_index": data.edge_index[:, :5], "neg_sampling": "binary", **OPTIONS}
    ours = DistLinkNeighborLoader(dataset, method, **links)
    check_same(ours, LinkNeighborLoader(data, method, **links), names)


@ALL
def test_partition_sampler(data, dataset, name):
    """In khop's loader over the dataset as stores; PyG's own, which would drop it, is refused."""
    method, names = METHODS[name]
    sampler, pair = PartitionSampler(dataset, method), (dataset, dataset)
    ours = NeighborLoader(pair, [], SEEDS, neighbor_sampler=sampler, **OPTIONS)
    check_same(ours, NeighborLoader(data, method, SEEDS, **OPTIONS), names)
    theirs = NodeLoader(pair, sampler, SEEDS, batch_size=2)
    if names:
        with pytest.raises(ValueError, match=f"delivers .*{names[0]}"):
            next(iter(theirs))
    else:
        assert next(iter(theirs)).n_id.numel() > 0


@pytest.mark.parametrize("name", SOME)
def test_samplers(data, dataset, name):
    method, names = METHODS[name]
    ours = DistNeighborLoader(dataset, method, SEEDS, worker_options=twins.workers(1), **OPTIONS)
    check_same(ours, NeighborLoader(data, method, SEEDS, **OPTIONS), names)
    ours.shutdown()


def test_graph_servers(data, root):
    modules = ["support.programs", "support.users_methods"]
    with cluster.cluster(root, [[0, 1]], 1, methods=modules) as servers, servers.client():
        for name in SOME:
            method, names = METHODS[name]
            worker_options = RemoteDistSamplingWorkerOptions(shared_memory=name != "pinsage")
            ours = DistNeighborLoader(None, method, SEEDS, worker_options=worker_options, **OPTIONS)
            check_same(ours, NeighborLoader(data, method, SEEDS, **OPTIONS), names)
            ours.shutdown()


def test_types(tmp_path):
    """Values lie with their types, the mark with the whole batch."""
    data, seeds = twins.heterogeneous(), ("paper", SEEDS[2::2])
    root = twins.partitioned(data, tmp_path / "parts", 2)
    with twins.open_dataset(root, 2) as dataset:
        ours = DistNeighborLoader(dataset, Smallest(2, 2), seeds, **OPTIONS)
        twin = NeighborLoader(data, Smallest(2, 2), seeds, **OPTIONS)
        for batch, reference in zip(ours, twin, strict=True):
            assert batch.layer_wise is reference.layer_wise is True
            for kind in (*data.node_types, *data.edge_types):
                name = "edge_norm" if isinstance(kind, tuple) else "node_norm"
                assert torch.equal(batch[kind][name], reference[kind][name])
