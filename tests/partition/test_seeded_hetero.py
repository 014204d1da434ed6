"""`frequency_partition` of heterogeneous graphs: seeds, hotness and copies by node type."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from khop.partition import FolderSummary, PartitionFolder, frequency_partition, verify_folder
from khop.storage.folder import cache_path

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


def research_groups(num_groups=4, seed=0):
    """Groups of 30 papers and 20 authors with scattered ids; authors write within their group.

    A twentieth of the edges goes anywhere. Venues have no edges; half of the papers are trained on.
    """
    rng = np.random.default_rng(seed)
    counts = {"paper": 30 * num_groups, "author": 20 * num_groups}
    group = {name: rng.permutation(count) % num_groups for name, count in counts.items()}
    data = HeteroData()
    for name, count in counts.items():
        data[name].x = torch.arange(float(count))[:, None]
    data["venue"].num_nodes = 7
    for edge_type, degree in ((CITES, 6), (WRITES, 4)):
        src_type = edge_type[0]
        dst = np.repeat(np.arange(counts["paper"]), degree)
        order = np.argsort(group[src_type], kind="stable")
        size = counts[src_type] // num_groups
        src = order[group["paper"][dst] * size + rng.integers(size, size=len(dst))]
        away = rng.random(len(dst)) < 0.05
        src[away] = rng.integers(counts[src_type], size=away.sum())
        data[edge_type].edge_index = torch.from_numpy(np.stack([src, dst]))
    data["venue", "of", "paper"].edge_index = torch.empty(2, 0, dtype=torch.long)
    data["paper"].train_mask = torch.from_numpy(rng.random(counts["paper"]) < 0.5)
    return data, group


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_every_type_is_balanced_and_close_to_its_seeds(tmp_path, union, edge_dir):
    data, _ = research_groups()
    meta = frequency_partition(data, tmp_path / "f", 4, [4, 4], batch_size=8, edge_dir=edge_dir)
    assert verify_folder(tmp_path / "f") == []
    folder = PartitionFolder(tmp_path / "f")
    for node_type in meta.node_types:
        sizes = np.diff(node_type.bounds)
        assert sizes.max() - sizes.min() <= 1
    summary = FolderSummary.of(folder)
    assert max(summary.train_seeds) - min(summary.train_seeds) <= 1
    assert summary.mean_shares["local"] > 0.6  # by chance a quarter
    assert meta.method["seed_type"] == "paper"
    assert meta.method["num_seeds"] == int(data["paper"].train_mask.sum())
    assert meta.method["num_neighbors"] == [4, 4]
    read = union(tmp_path / "f")
    for edge_type in data.edge_types:
        assert np.array_equal(read.edges[edge_type], data[edge_type].edge_index)


def test_groups_stay_together(tmp_path):
    """Papers and authors of a group mostly lie in one part: the split sees edges of all types."""
    data, group = research_groups()
    frequency_partition(data, tmp_path / "f", 4, [4, 4], batch_size=8)
    folder = PartitionFolder(tmp_path / "f")
    homes = {}
    for name in ("paper", "author"):
        owner = folder.meta.node_type(name).book.owner(folder.id_map(name))
        counts = np.zeros((4, 4), int)
        np.add.at(counts, (group[name], owner), 1)
        homes[name] = counts.argmax(axis=1)
        assert counts.max(axis=1).sum() > 0.7 * counts.sum()
    assert homes["paper"].tolist() == homes["author"].tolist()


def test_copies_are_the_hottest_of_each_type(tmp_path):
    """A star in either type: venue 0 publishes all papers, author 0 writes all of them."""
    data = HeteroData()
    papers = torch.arange(40)
    data["paper"].x, data["author"].x = torch.rand(40, 8), torch.rand(10, 2)
    data["venue"].num_nodes = 4
    nothing = torch.zeros(40, dtype=torch.long)
    data[WRITES].edge_index = torch.stack([nothing, papers])
    data["venue", "of", "paper"].edge_index = torch.stack([nothing, papers])
    data["paper"].train_mask = torch.ones(40, dtype=torch.bool)
    frequency_partition(data, tmp_path / "f", 2, [-1], batch_size=4, cache_ratio=1.0)
    assert verify_folder(tmp_path / "f") == []
    folder = PartitionFolder(tmp_path / "f")
    for name in ("author", "venue"):
        owner = int(folder.meta.node_type(name).book.owner(folder.id_map(name)[:1])[0])
        cached = folder.meta.node_type(name).cached
        assert sorted(cached) == [0, 1]
        assert cached[owner] == 0
        assert folder.open(cache_path(1 - owner, name, "id")).tolist() == [0]
    # Papers are neighbours of nobody: only seeds, which are at home.
    assert folder.meta.node_type("paper").cached == [0, 0]


def test_fan_outs_and_seeds_of_each_type(tmp_path):
    data, _ = research_groups()
    fanouts = {CITES: [0], WRITES: [3], ("venue", "of", "paper"): [1]}
    meta = frequency_partition(
        data, tmp_path / "f", 2, fanouts, seeds=("paper", [5, 1, 5]), cache_ratio=1.0
    )
    assert meta.method["num_seeds"] == 2
    assert meta.method["num_neighbors"] == {
        "paper cites paper": [0],
        "author writes paper": [3],
        "venue of paper": [1],
    }
    assert meta.node_types[0].cached == [0, 0]  # no paper but the seeds is ever touched
    owner = meta.node_types[0].book.owner(PartitionFolder(tmp_path / "f").id_map("paper"))
    assert owner[1] != owner[5]


def test_the_trained_type(tmp_path):
    """One type's train_mask tells; with none or two, the user has to."""
    data, _ = research_groups(2)
    author = frequency_partition(data, tmp_path / "a", 2, [2], seeds=("author", None))
    assert (author.method["seed_type"], author.method["num_seeds"]) == ("author", 40)
    paper = frequency_partition(data, tmp_path / "b", 2, [2], seeds=("paper", None))
    assert paper.method["num_seeds"] == int(data["paper"].train_mask.sum())
    data["author"].train_mask = torch.ones(40, dtype=torch.bool)
    for masks in (["paper", "author"], []):
        for name in {"paper", "author"} - set(masks):
            del data[name].train_mask
        with pytest.raises(ValueError, match="say which one is trained on") as caught:
            frequency_partition(data, tmp_path / "c", 2, [2])
        assert str(masks) in str(caught.value) or not masks
    with pytest.raises(ValueError, match=r"must be \(node type, ids\)"):
        frequency_partition(data, tmp_path / "c", 2, [2], seeds=[0, 1])
    with pytest.raises(ValueError, match="of node type 'user': there are"):
        frequency_partition(data, tmp_path / "c", 2, [2], seeds=("user", [0]))
    with pytest.raises(IndexError, match="seeds holds id 40"):
        frequency_partition(data, tmp_path / "c", 2, [2], seeds=("author", [40]))
    with pytest.raises(ValueError, match="names no fan-outs for edge types"):
        frequency_partition(data, tmp_path / "c", 2, {CITES: [2]}, seeds=("paper", None))
    assert not (tmp_path / "c").exists()


def test_with_times_and_weights(tmp_path):
    data, _ = research_groups(2)
    data["paper"].year = torch.arange(60) % 5
    data[WRITES].w = torch.rand(data[WRITES].num_edges)
    frequency_partition(data, tmp_path / "f", 2, [2], time_attr="year", weight_attr="w")
    assert verify_folder(tmp_path / "f") == []
    meta = PartitionFolder(tmp_path / "f").meta
    assert [t.timed for t in meta.edge_types] == [True, False, False]
    assert [t.weighted for t in meta.edge_types] == [False, True, False]
