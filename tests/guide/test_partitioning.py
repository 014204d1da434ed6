"""Section 1: data, seeds, partitions, and a loaded partition."""

from pathlib import Path

import numpy as np
import pytest
import torch

from guide import products, running
from khop.partition import PartitionFolder, verify_folder


def test_data(prepared):
    data = prepared["data"]
    assert prepared["node_num"] == products.NUM_NODES == len(data.x)
    assert prepared["edge_num"] == 2 * products.NUM_LINKS == data.edge_index.shape[1]
    labels = torch.load(Path(prepared["label_dir"]) / "label.pt", weights_only=True)
    assert torch.equal(labels, data.y.view(-1))


@pytest.mark.parametrize(
    ("kind", "count"), [("train", products.NUM_TRAIN), ("test", products.NUM_TEST)]
)
def test_seeds(prepared, kind, count):
    split = prepared["split_idx"][kind]
    assert len(split) == count
    folder = prepared[f"{kind}_idx_partitions_dir"]
    saved = [
        torch.load(Path(folder) / f"partition{part}.pt", weights_only=True) for part in range(2)
    ]
    assert [len(ids) for ids in saved] == [count // 2] * 2
    assert torch.equal(torch.cat(saved), split)


def check_folder(root, data):
    """The folder is whole and holds the graph, divided evenly, edges with their sources."""
    assert verify_folder(root) == []
    folder = PartitionFolder(root)
    assert folder.meta.edge_dir == "out"
    ids = [folder.node_ids(part, "node") for part in range(2)]
    assert [len(of_part) for of_part in ids] == [products.NUM_NODES // 2] * 2
    assert np.array_equal(np.sort(np.concatenate(ids)), np.arange(products.NUM_NODES))


def test_random_partitioning(random_folder):
    check_folder(random_folder["folder"], random_folder["data"])


def test_probabilities(parts):
    """Seeds are in their own batch, of 1,024; what three hops cannot reach is impossible."""
    source, target = parts["data"].edge_index.numpy()
    for part, prob in enumerate(parts["probs"]):
        reached = np.zeros(products.NUM_NODES, bool)
        reached[parts["train_idx"][part].numpy()] = True
        seeds = reached.copy()
        for _ in range(3):
            reached[target[reached[source]]] = True
        assert prob.shape == (products.NUM_NODES,)
        assert prob.numpy()[seeds].min() > 0.9 * min(1, 1024 / seeds.sum())
        assert np.array_equal(prob.numpy() > 0, reached)
        assert (~reached).sum() > 0
        assert prob.max() <= 1


def test_partitioning_by_hotness(parts):
    root = Path(parts["root_dir"]) / "graph-partitions"
    check_folder(root, parts["data"])
    folder = PartitionFolder(root)
    for part in range(2):
        prob = parts["probs"][part].numpy()
        cached = np.load(root / f"part-{part}/cache/node/id.npy")
        others = folder.node_ids(1 - part, "node")
        assert len(cached) == products.NUM_NODES // 5
        assert np.isin(cached, others).all()
        assert prob[cached].min() >= prob[np.setdiff1d(others, cached)].max()


def test_hotness_finds_more_at_home(parts):
    """What batches touch lies more often at home than in the random folder."""
    by_hotness = PartitionFolder(Path(parts["root_dir"]) / "graph-partitions")
    at_random = PartitionFolder(parts["random"]["folder"])

    def at_home(folder):
        return sum(
            parts["probs"][part].numpy()[folder.node_ids(part, "node")].sum() for part in range(2)
        )

    assert at_home(by_hotness) > at_home(at_random)


def test_loaded_partition(parts):
    names = running.run("1.3 load", {"ROOT": parts["root_dir"], "PARTITION": 0})
    dataset = names["dist_dataset"]
    assert dataset.num_partitions == 2
    assert dataset.partition_idx == 0
    assert dataset.graph_mode == "ZERO_COPY"
    assert dataset.num_nodes == products.NUM_NODES
    assert dataset.num_edges == 2 * products.NUM_LINKS
    assert torch.equal(dataset.node_labels["node"], parts["data"].y.view(-1))
