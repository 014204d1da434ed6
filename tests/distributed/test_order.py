"""Order of rows within a part: batches, and who trains on what, do not depend on it."""

import json

import numpy as np
import pytest
import torch

from khop.distributed import (
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    link_split,
    node_split,
)
from khop.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from khop.partition import PartitionFolder, RandomPartitioner, verify_folder
from khop.sampler import Labor, Ladies, PinSage
from khop.storage.folder import ORDERS
from khop.storage.folder.content import META_FILE, sealed
from khop.storage.part import Part
from support.cluster import twins

OTHERS = [order for order in ORDERS if order != "original"]
SEEDS = torch.tensor([*range(0, 60, 3), 149, 11])
COMMON = {"batch_size": 8, "shuffle": True, "seed": 7}
ALL = {"collect_features": True, "with_edge": True}


def partitioned(data, root, num_parts, order, **options):
    RandomPartitioner.from_data(data, root, num_parts, order=order, **options).partition()
    assert verify_folder(root) == []
    return root


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Returns folder_of(num_parts, order): a partitioning of the homogeneous graph."""
    base, made = tmp_path_factory.mktemp("order"), {}

    def folder_of(num_parts, order):
        root = base / f"{num_parts}-{order}"
        if root not in made:
            options = {"weight_attr": "edge_weight", "neighbor_ids": True, "seed": 5}
            made[root] = partitioned(twins.homogeneous(), root, num_parts, order, **options)
        return root

    return folder_of


@pytest.mark.parametrize("some_parts,order", twins.with_parts(OTHERS))
def test_batches_are_those_in_memory(folder_of, some_parts, order):
    """Uniform and weighted draws, LABOR, programs, induced subgraphs, links with negatives."""
    data = twins.homogeneous()
    links = {"edge_label_index": data.edge_index[:, ::30], "neg_sampling": "binary"}
    weighted = {**COMMON, "weight_attr": "edge_weight"}
    for num_parts in some_parts:
        with twins.open_dataset(folder_of(num_parts, order), num_parts) as dataset:
            for method in ([4, 3], Labor([4, 3]), Ladies([9, 9]), PinSage(3, num_layers=2)):
                ours = DistNeighborLoader(dataset, method, SEEDS, **ALL, **COMMON)
                twins.same_epochs(ours, NeighborLoader(data, method, SEEDS, **COMMON))
            ours = DistNeighborLoader(dataset, [4, 3], SEEDS, weight_attr=True, **ALL, **COMMON)
            twins.same_epochs(ours, NeighborLoader(data, [4, 3], SEEDS, **weighted))
            ours = DistSubGraphLoader(dataset, SEEDS, [3], **ALL, **COMMON)
            twins.same_epochs(ours, SubGraphLoader(data, SEEDS, [3], **COMMON))
            ours = DistLinkNeighborLoader(dataset, [3], **links, **ALL, **COMMON)
            twins.same_epochs(ours, LinkNeighborLoader(data, [3], **links, **COMMON))


@pytest.mark.parametrize("order", OTHERS)
def test_temporal_draws_of_several_types(tmp_path, order):
    data = twins.heterogeneous()
    root = partitioned(data, tmp_path / "parts", 2, order, time_attr="time")
    node_type = data.node_types[0]
    options = {**COMMON, "time_attr": "time"}
    with twins.open_dataset(root, 2) as dataset, twins.quiet():
        seeds = (node_type, torch.arange(20))
        ours = DistNeighborLoader(dataset, [3, 2], seeds, **ALL, **options)
        twins.same_epochs(ours, NeighborLoader(data, [3, 2], seeds, **options))


@pytest.mark.parametrize("order", OTHERS)
@pytest.mark.parametrize("num_parts", [1, 3])
def test_shares_of_trainers(folder_of, num_parts, order):
    """Seeds and links of each trainer, all edges of a part, and ids that users are shown."""
    homes = [0, 0, num_parts - 1]
    links = twins.homogeneous().edge_index[:, ::5]
    plain, other = (
        DistDataset().load(folder_of(num_parts, o), partition_idx=0) for o in ("original", order)
    )
    for rank in range(3):
        for split, given in ((node_split, SEEDS), (link_split, links)):
            shares = [split(given, d, rank=rank, homes=homes) for d in (plain, other)]
            assert torch.equal(*shares)
    assert torch.equal(plain.local_nodes(), other.local_nodes())
    for part in range(num_parts):
        want, found = (
            Part(PartitionFolder(folder_of(num_parts, o)), part) for o in ("original", order)
        )
        assert np.array_equal(want.edge_ends(0), found.edge_ends(0))
        places = np.arange(3, want.meta.edge_types[0].bounds[1] // 2, 4)
        assert np.array_equal(want.edge_ends(0)[:, places], found.edge_ends(0, places))


def test_rows_lie_as_asked_for(tmp_path):
    """A star whose centre is node 3: all rows have it as neighbour, so it comes first."""
    edge_index = torch.tensor([[3, 3, 3, 0], [0, 1, 2, 3]])
    data = twins.Data(edge_index=edge_index, num_nodes=5)
    for order, first in (("original", 0), ("degree", 3), ("hotness", 3)):
        root = partitioned(data, tmp_path / order, 1, order)
        folder = PartitionFolder(root)
        assert folder.node_ids(0, "node")[0] == first
        assert folder.meta.order == order


def test_unknown_orders_are_refused(tmp_path):
    data = twins.homogeneous()
    with pytest.raises(ValueError, match=r"order must be one of 'original', .*got 'random'"):
        RandomPartitioner.from_data(data, tmp_path / "parts", 2, order="random")


def test_rows_in_another_order_than_the_folder_says(tmp_path):
    """A single part whose ids would be taken for the original ones is found by `verify`."""
    root = partitioned(twins.homogeneous(), tmp_path / "parts", 1, "degree")
    content = json.loads((root / META_FILE).read_text())
    del content["seal"]
    content |= {"order": "original"}
    (root / META_FILE).write_bytes(sealed(content))
    (problem,) = verify_folder(root)
    assert problem.endswith("is not in the order of original ids")
