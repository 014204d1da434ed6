"""Random walks over partitions: those over the graph in memory, bit for bit."""

import pytest
import torch

from khop.loader import Node2VecLoader
from khop.sampler import random_walk
from support.cluster import twins


def same_walks(dataset, data, start, length, **options):
    """Asserts that walks over a dataset are those over its graph."""
    options = {"seed": 11, "return_edge_ids": True, **options}
    ours = random_walk(dataset, start, length, **options)
    theirs = random_walk(data, start, length, **options)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)


def test_homogeneous(twin_root):
    data, start = twins.homogeneous(), torch.arange(150)
    for num_parts in (1, 2, 3):
        root = twin_root("homogeneous", num_parts, strategy="by_src")
        with twins.open_dataset(root, num_parts) as dataset:
            same_walks(dataset, data, start, 8, restart=0.1)
            same_walks(dataset, data, start, 5, p=0.5, q=2)
            same_walks(dataset, data, start[:40], 4, p=1e6, q=1e6)  # whole rows


def test_devices_walk_over_graphs_in_memory_alone(twin_root):
    root = twin_root("homogeneous", 1, strategy="by_src")
    with twins.open_dataset(root, 1) as dataset, pytest.raises(ValueError, match="leave device"):
        random_walk(dataset, torch.tensor([0]), 2, device="emulated")


def test_metapaths(twin_root):
    data, path = twins.heterogeneous(), [twins.WRITES, twins.CITES, twins.WRITTEN]
    with twins.open_dataset(twin_root("heterogeneous", 3, strategy="by_src"), 3) as dataset:
        same_walks(dataset, data, torch.arange(80), 7, metapath=path)


def test_windows_of_walks(twin_root):
    options = {"q": 2, "batch_size": 64, "shuffle": True, "seed": 3}
    with twins.open_dataset(twin_root("homogeneous", 2, strategy="by_src"), 2) as dataset:
        ours = Node2VecLoader(dataset, 4, 3, **options)
        twin = Node2VecLoader(twins.homogeneous(), 4, 3, **options)
        for mine, other in zip(ours, twin, strict=True):
            assert torch.equal(mine[0], other[0])
            assert torch.equal(mine[1], other[1])


def test_a_folder_of_in_neighbours_is_refused(twin_root):
    root, message = twin_root("homogeneous", 1), "partition the folder with strategy 'by_src'"
    with twins.open_dataset(root, 1) as dataset, pytest.raises(ValueError, match=message):
        random_walk(dataset, torch.tensor([0]), 2)
