"""Loaders, samplers, folders and contexts show what they are of in a notebook."""

import torch
from torch_geometric.data import Data

import khop
from khop.distributed import DistDataset, DistNeighborLoader
from khop.loader import NeighborLoader, RandomNodeLoader
from khop.partition import PartitionFolder
from khop.sampler import NeighborSampler, SaintWalks

DATA = Data(edge_index=torch.arange(18).view(2, 9) % 9, num_nodes=9)


def test_loaders_and_samplers():
    loader = NeighborLoader(DATA, [2, 3], batch_size=4)
    assert repr(loader) == "NeighborLoader([2, 3], 9 seeds, 3 batches)"
    assert str(loader) == "NeighborLoader()"  # PyG's tests compare with it
    walks = NeighborLoader(DATA, SaintWalks(2), torch.arange(3), batch_size=3)
    assert repr(walks) == "NeighborLoader(saint-walks, 3 seeds, 1 batches)"
    assert repr(RandomNodeLoader(DATA, 3)) == "RandomNodeLoader(3 batches)"
    assert repr(NeighborSampler(DATA, [2])) == "NeighborSampler([2], 9 nodes)"


def test_folders_and_distributed_loaders(tmp_path):
    folder = tmp_path / "parts"
    khop.partition_graph(DATA, folder, 1)
    assert (
        repr(PartitionFolder(folder)) == f"PartitionFolder('{folder}', 1 parts, 9 nodes, 9 edges)"
    )
    dataset = DistDataset.from_folder(folder)
    loader = DistNeighborLoader(dataset, [2], batch_size=4)
    assert repr(loader) == f"DistNeighborLoader({dataset!r}, [2], 9 seeds, 3 batches)"
