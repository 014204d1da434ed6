"""`frequency_partition`: seeds split by structure, hotness from fan-outs, all from the graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from khop.partition import FolderSummary, PartitionFolder, frequency_partition, verify_folder
from khop.partition.methods.seeded import communities, split_seeds
from khop.partition.writing.undirected import undirected_of_edges
from khop.sampler import Labor, NeighborSampler, SaintWalks
from khop.typing import NODE


def communities_graph(num_groups=8, size=60, degree=12, stray=0.05, seed=0):
    """Groups of nodes with scattered ids; neighbours are mostly of the same group."""
    rng = np.random.default_rng(seed)
    num_nodes = num_groups * size
    group = rng.permutation(num_nodes) % num_groups
    dst = np.repeat(np.arange(num_nodes), degree)
    order = np.argsort(group, kind="stable")
    src = order[group[dst] * size + rng.integers(size, size=len(dst))]
    away = rng.random(len(dst)) < stray
    src[away] = rng.integers(num_nodes, size=away.sum())
    data = Data(edge_index=torch.from_numpy(np.stack([src, dst])), num_nodes=num_nodes)
    data.train_mask = torch.from_numpy(rng.random(num_nodes) < 0.5)
    return data, group


def neighbors_of(data):
    return undirected_of_edges(*data.edge_index.numpy(), data.num_nodes)


@pytest.mark.parametrize("num_parts", [1, 2, 4, 8])
def test_communities_are_found_and_even(num_parts):
    data, _ = communities_graph()
    labels = communities(neighbors_of(data), num_parts)
    sizes = np.bincount(labels, minlength=num_parts)
    assert sizes.max() <= np.ceil(1.05 * data.num_nodes / num_parts)
    src, dst = data.edge_index.numpy()
    by_chance = 1 - 1 / num_parts
    assert np.mean(labels[src] != labels[dst]) <= 0.6 * by_chance
    assert np.array_equal(labels, communities(neighbors_of(data), num_parts))


@pytest.mark.parametrize("num_nodes", [0, 1, 2, 3, 50])
def test_communities_of_tiny_graphs_without_edges(num_nodes):
    nothing = np.empty(0, np.int64)
    labels = communities(undirected_of_edges(nothing, nothing, num_nodes), 3)
    assert len(labels) == num_nodes
    assert np.all((labels >= 0) & (labels < 3))


def test_seeds_follow_their_cluster_as_far_as_shares_are_even():
    data, group = communities_graph(num_groups=3)
    neighbors = neighbors_of(data)
    seeds = np.flatnonzero(group != 2)[:100]  # none in cluster 2
    parts = split_seeds(neighbors, seeds, group.astype(np.int32), 3)
    assert sorted(np.bincount(parts).tolist()) == [33, 33, 34]
    assert np.mean(parts == group[seeds]) >= 0.6


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_parts_hold_even_shares_of_nodes_and_seeds(tmp_path, edge_dir, union):
    data, _ = communities_graph()
    frequency_partition(data, tmp_path / "f", 4, [5, 5], edge_dir=edge_dir)
    assert verify_folder(tmp_path / "f") == []
    summary = FolderSummary.of(PartitionFolder(tmp_path / "f"))
    assert max(summary.nodes) - min(summary.nodes) <= 1
    assert max(summary.train_seeds) - min(summary.train_seeds) <= 1
    assert summary.edge_dir == edge_dir
    edges = union(tmp_path / "f").edges[("node", "to", "node")]
    assert np.array_equal(edges, data.edge_index)


def test_most_rows_are_local_where_there_is_structure(tmp_path):
    """A random cut into four would find a quarter of the rows at home."""
    data, _ = communities_graph()
    frequency_partition(data, tmp_path / "f", 4, [5], batch_size=16, cache_ratio=0.05)
    shares = FolderSummary.of(PartitionFolder(tmp_path / "f")).mean_shares
    assert shares["local"] > 0.6
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["remote"] < 0.2


def test_hotness_follows_the_direction_of_the_folder(tmp_path):
    """A star, 1..20 -> 0, and seeds 0: against the edges all are touched, along them only 0."""
    edges = torch.stack([torch.arange(1, 21), torch.zeros(20, dtype=torch.long)])
    data = Data(edge_index=edges, num_nodes=21)
    expected = {}
    for edge_dir in ("in", "out"):
        meta = frequency_partition(
            data,
            tmp_path / edge_dir,
            1,
            [-1],
            seeds=[0],
            edge_dir=edge_dir,
            cache_ratio=1,
        )
        expected[edge_dir] = meta.method
    assert expected["in"]["num_seeds"] == 1
    two = {
        s: frequency_partition(
            data,
            tmp_path / s,
            2,
            [-1],
            seeds=[0],
            edge_dir=s,
            cache_ratio=1,
            overwrite=True,
        )
        for s in ("in", "out")
    }
    cached = {s: max(m.node_types[0].cached) for s, m in two.items()}
    assert cached["in"] >= 10  # what the other part owns of the star
    assert cached["out"] == 0


def test_seeds_default_to_the_training_nodes_or_all(tmp_path):
    data, _ = communities_graph(2, 20)
    with_mask = frequency_partition(data, tmp_path / "a", 2, [3]).method["num_seeds"]
    assert with_mask == int(data.train_mask.sum())
    del data.train_mask
    assert frequency_partition(data, tmp_path / "b", 2, [3]).method["num_seeds"] == 40
    given = frequency_partition(data, tmp_path / "c", 2, [3], seeds=torch.tensor([5, 5, 7]))
    assert given.method["num_seeds"] == 2


def test_more_parts_than_seeds_or_nodes(tmp_path):
    data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3, x=torch.arange(3.0))
    frequency_partition(data, tmp_path / "f", 5, [2, 2], cache_ratio=1.0)
    assert verify_folder(tmp_path / "f") == []
    bounds = PartitionFolder(tmp_path / "f").meta.node_type(NODE).bounds
    assert bounds == [0, 1, 2, 3, 3, 3]


def test_the_same_arguments_write_the_same_folder(tmp_path):
    data, _ = communities_graph()
    prints = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        frequency_partition(data, tmp_path / name, 3, [4, 4], seed=seed)
        prints.append(PartitionFolder(tmp_path / name).fingerprint)
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("method", [Labor([5, 5]), SaintWalks(3)], ids=["labor", "saint"])
def test_hotness_is_that_of_the_method(tmp_path, method):
    """Expected shares are those of its batches from each part's seeds; meta.json names it."""
    data, _ = communities_graph()
    frequency_partition(data, tmp_path / "f", 2, method, batch_size=20)
    folder = PartitionFolder(tmp_path / "f")
    assert folder.meta.method["sampling"]["name"] == method.name
    shares = FolderSummary.of(folder).expected_shares
    id_map = folder.id_map(NODE)
    bounds = folder.meta.node_type(NODE).bounds
    for part in range(2):
        here = torch.from_numpy((id_map >= bounds[part]) & (id_map < bounds[part + 1]))
        seeds = torch.where(here & data.train_mask)[0]
        probs = NeighborSampler(data, method).sample_prob(seeds, batch_size=20)
        share = float(probs[here].sum() / probs.sum())
        assert shares[part]["local"] == pytest.approx(share, abs=1e-9)
    uniform = frequency_partition(data, tmp_path / "u", 2, [5, 5], batch_size=20)
    assert "sampling" not in uniform.method


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_neighbors": []}, ValueError, "fan-out of -1 or more for each hop"),
        ({"num_neighbors": [5, -2]}, ValueError, r"a fan-out is -1 .all., 0 or positive"),
        ({"seeds": ("user", [0])}, ValueError, r"node type 'user': there are \['node'\]"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"seeds": [480]}, IndexError, "seeds holds id 480"),
        ({"seeds": [0.5]}, TypeError, "seeds must hold integers"),
        ({"cache_ratio": -1}, ValueError, "between 0 and 1"),
        ({"num_parts": 0}, ValueError, "num_parts must be at least 1"),
    ],
)
def test_bad_arguments(tmp_path, options, error, message):
    data, _ = communities_graph()
    with pytest.raises(error, match=message):
        frequency_partition(
            data, tmp_path / "f", **{"num_parts": 2, "num_neighbors": [5], **options}
        )
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_found_before_the_work(tmp_path):
    (tmp_path / "f").mkdir()
    with pytest.raises(FileExistsError, match="overwrite"):
        frequency_partition("not even looked at", tmp_path / "f", 2, [5])
