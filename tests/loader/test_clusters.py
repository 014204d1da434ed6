"""Clusters: PyG's partition and batches, of any assignment, from files and from METIS."""

import sys

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.loader.cluster import (
    ClusterData as PygClusterData,
    ClusterLoader as PygClusterLoader,
)

import khop
from khop.loader import ClusterData, ClusterLoader
from khop.loader.induced import clusters
from support.loaders import random_graphs

GRAPH = random_graphs.homogeneous(40, 240)  # parallel edges, loops, isolated nodes
CLUSTERS = torch.randint(0, 6, (40,), generator=torch.Generator().manual_seed(1))
CLUSTERS[CLUSTERS == 4] = 3  # one is empty
FORMATS = ["csr", "csc"]


@pytest.fixture
def pygs(monkeypatch):
    """Returns pygs(**options): PyG's `ClusterData` of CLUSTERS; METIS is not asked.

    Without pyg-lib PyG's sort is not stable, with it it is; here it is.
    """
    monkeypatch.setattr(PygClusterData, "_metis", lambda self, *_: CLUSTERS)
    monkeypatch.setattr(
        "torch_geometric.loader.cluster.index_sort",
        lambda values, max_value: torch.sort(values, stable=True),
    )
    return lambda **options: PygClusterData(GRAPH, 6, log=False, **options)


@pytest.mark.parametrize("sparse_format", FORMATS)
@pytest.mark.parametrize("keep", [False, True])
def test_clusters_are_pygs(pygs, sparse_format, keep):
    options = {"sparse_format": sparse_format, "keep_inter_cluster_edges": keep}
    ours, theirs = ClusterData(GRAPH, 6, assignment=CLUSTERS, **options), pygs(**options)
    assert len(ours) == len(theirs) == 6
    for name in ("indptr", "partptr", "node_perm"):
        assert torch.equal(getattr(ours.partition, name), getattr(theirs.partition, name))
    for mine, other in zip(ours, theirs, strict=True):
        # Edges of one node to parallel ends may be in another order.
        assert sorted(edges_of(mine)) == sorted(edges_of(other))
        assert torch.equal(mine.x, other.x)
        assert torch.equal(mine.x, GRAPH.x[mine.n_id])
        assert torch.equal(mine.edge_attr, GRAPH.edge_attr[mine.e_id])
        assert mine.num_nodes == other.num_nodes
    for index in (-1, 6):
        with pytest.raises(IndexError):
            ours[index]


def edges_of(data):
    """(source, destination, attribute) of each edge."""
    return [*zip(*data.edge_index.tolist(), data.edge_attr.view(-1).tolist(), strict=True)]


@pytest.mark.parametrize("sparse_format", FORMATS)
def test_batches_are_pygs(pygs, sparse_format):
    options = {"sparse_format": sparse_format}
    ours = ClusterLoader(ClusterData(GRAPH, 6, assignment=CLUSTERS, **options), batch_size=4)
    theirs = PygClusterLoader(pygs(**options), batch_size=4)
    assert len(ours) == 2
    for mine, other in zip(ours, theirs, strict=True):
        assert sorted(edges_of(mine)) == sorted(edges_of(other))
        assert torch.equal(mine.x, other.x)
        ends = mine.edge_index[0 if sparse_format == "csr" else 1]
        assert (ends.diff() >= 0).all()


def test_shuffled_batches_are_whole_clusters():
    loader = ClusterLoader(
        ClusterData(GRAPH, 6, assignment=CLUSTERS), batch_size=2, shuffle=True, seed=1
    )
    first, second = ([batch.n_id for batch in loader] for _ in range(2))
    for epoch in (first, second):
        assert torch.cat(epoch).sort().values.tolist() == list(range(40))
        for nodes in epoch:
            found = CLUSTERS[nodes].unique_consecutive()
            assert len(found) <= 2
            for cluster in found:
                of_it = nodes[CLUSTERS[nodes] == cluster]
                assert of_it.tolist() == (cluster == CLUSTERS).nonzero().view(-1).tolist()
    assert [n.tolist() for n in first] != [n.tolist() for n in second]


def test_parts_of_a_folder_are_clusters(tmp_path):
    khop.partition_graph(GRAPH, tmp_path / "parts", num_parts=3)
    clusters = ClusterData(GRAPH, 3, assignment=tmp_path / "parts")
    dataset = khop.distributed.DistDataset.from_folder(tmp_path / "parts")
    bounds = dataset.opened.meta.node_types[0].bounds
    assert clusters.partition.partptr.tolist() == bounds
    assert torch.cat([part.n_id for part in clusters]).sort().values.tolist() == list(range(40))
    with pytest.raises(IndexError, match="assignment holds id"):
        ClusterData(GRAPH, 2, assignment=tmp_path / "parts")


def test_clusters_that_a_folder_keeps(tmp_path):
    """Those of `cluster_ids`, whatever its parts and the order of their rows."""
    khop.partition_graph(GRAPH, tmp_path / "parts", 3, cluster_ids=5, order="degree")
    folder = khop.partition.PartitionFolder(tmp_path / "parts")
    kept = np.empty(40, np.int64)
    for part in range(3):
        kept[folder.node_ids(part, "node")] = folder.node_feature(part, "node", "cluster").array
    count, kept = int(kept.max()) + 1, torch.from_numpy(kept)
    ours = ClusterLoader(ClusterData(GRAPH, count, assignment=tmp_path / "parts"), batch_size=2)
    same = ClusterLoader(ClusterData(GRAPH, count, assignment=kept), batch_size=2)
    for a, b in zip(ours, same, strict=True):
        assert torch.equal(a.n_id, b.n_id)
        assert torch.equal(a.e_id, b.e_id)


# METIS ----------------------------------------------------------------------------------------


@pytest.fixture
def metis(monkeypatch):
    """A METIS that notes what it is asked, and gives nodes their id modulo the number."""
    calls = []

    def run_metis(graph, weights, num_parts, *, recursive):
        calls.append((num_parts, graph.indptr, graph.indices, recursive))
        return np.arange(len(weights), dtype=np.int32) % num_parts

    monkeypatch.setattr(clusters, "has_metis", lambda: True)
    monkeypatch.setattr(clusters, "run_metis", run_metis)
    return calls


def test_metis_gets_an_undirected_graph(metis):
    made = ClusterData(GRAPH, 4, recursive=True, log=False)
    assert made[1].n_id.tolist() == list(range(1, 40, 4))
    ((num_parts, indptr, indices, recursive),) = metis
    assert (num_parts, recursive) == (4, True)
    want = {(u, v) for u, v in GRAPH.edge_index.T.tolist() if u != v}
    want |= {(v, u) for u, v in want}
    rows = np.repeat(np.arange(40), np.diff(indptr)).tolist()
    assert [*zip(rows, indices.tolist(), strict=True)] == sorted(want)


def test_clusters_of_metis_are_kept(metis, tmp_path):
    def make(data=GRAPH, **options):
        return ClusterData(data, 4, save_dir=str(tmp_path), log=False, **options)

    first, again = make(), make()
    assert len(metis) == 1
    assert (tmp_path / "part_4" / "metis.pt").exists()  # as in PyG
    assert torch.equal(first.partition.node_perm, again.partition.node_perm)
    make(recursive=True, filename="own.pt")
    assert (tmp_path / "part_4_recursive" / "own.pt").exists()
    with pytest.raises(ValueError, match="belongs to another graph"):
        make(random_graphs.homogeneous(40, 240, seed=1))


@pytest.mark.process
@pytest.mark.parametrize("recursive", [False, True])
def test_metis_itself(recursive):
    """Two cliques that one edge joins."""
    pytest.importorskip("pymetis")
    clique = torch.combinations(torch.arange(8)).T
    edges = torch.cat([clique, clique + 8, torch.tensor([[0], [8]])], 1)  # one direction only
    data = random_graphs.Data(edge_index=edges, num_nodes=16)
    made = ClusterData(data, 2, recursive, log=False)
    assert {*map(tuple, (c.n_id.tolist() for c in made))} == {
        tuple(range(8)),
        tuple(range(8, 16)),
    }


def test_without_metis(monkeypatch):
    monkeypatch.setattr(clusters, "has_metis", lambda: False)
    for name in ("pyg_lib.partition", "torch_sparse"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install pymetis.*or pass assignment="):
        ClusterData(GRAPH, 4, log=False)
    assert ClusterData(GRAPH, 1, log=False)[0].num_nodes == 40


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"data": HeteroData()}, TypeError, "takes a homogeneous graph"),
        ({"num_parts": 0}, ValueError, "num_parts must be at least 1"),
        ({"num_parts": "2"}, TypeError, "num_parts must be an integer"),
        ({"num_parts": 41}, ValueError, "at most 40 clusters"),
        ({"sparse_format": "coo"}, ValueError, "must be 'csr' or 'csc'"),
        ({"assignment": [0, 1]}, ValueError, "a cluster for each of 40 nodes"),
        ({"assignment": torch.full((40,), 6)}, IndexError, "ids run from 0 to 5"),
        ({"assignment": torch.rand(40)}, TypeError, "integer"),
        ({"assignment": CLUSTERS.view(2, 20)}, ValueError, "one integer a node"),
        ({"assignment": CLUSTERS, "save_dir": "x"}, ValueError, "leave it out"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        ClusterData(**{"data": GRAPH, "num_parts": 6, "log": False, **arguments})


def test_loaders_take_clusters():
    with pytest.raises(TypeError, match=r"takes a khop\.loader\.ClusterData"):
        ClusterLoader(GRAPH, batch_size=2)
