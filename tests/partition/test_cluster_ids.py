"""Clusters kept as a node attribute."""

import importlib.util

import numpy as np
import pytest

import khop
from khop.datasets import DebianPackages
from khop.partition import (
    ClusterMetisPartitioner,
    GraphSource,
    PartitionFolder,
    folder_source,
)
from support.cluster import twins

HAS_METIS = importlib.util.find_spec("pymetis") is not None


@pytest.fixture(scope="module")
def debian():
    return DebianPackages(undirected=True)[0]


def clusters_of(root, node_type="node"):
    """Cluster of each node, by original id."""
    return folder_source(PartitionFolder(root)).nodes[node_type].attrs["cluster"].array


def test_clusters_are_small_and_cut_few_edges(tmp_path, debian):
    """None has more than twice the mean of 200 clusters, of which random ones cut 99.5 %."""
    khop.partition_graph(debian, tmp_path / "parts", 2, cluster_ids=200)
    clusters = clusters_of(tmp_path / "parts")
    sizes = np.bincount(clusters)
    assert sizes.min() >= 1
    assert sizes.max() <= 2 * debian.num_nodes / 200
    src, dst = clusters[debian.edge_index.numpy()]
    assert np.mean(src != dst) < 0.8
    khop.partition_graph(debian, tmp_path / "others", 3, cluster_ids=200, order="cluster")
    assert np.array_equal(clusters_of(tmp_path / "others"), clusters)


def test_types_share_clusters(tmp_path):
    """A cluster has nodes of several types; repartitioned, they are kept or made anew."""
    data = twins.heterogeneous()
    khop.partition_graph(data, tmp_path / "parts", 2, cluster_ids=10)
    before = {t: clusters_of(tmp_path / "parts", t) for t in data.node_types}
    assert [len(of_type) for of_type in before.values()] == [
        data[t].num_nodes for t in data.node_types
    ]
    assert set(before["paper"]) & set(before["author"])
    khop.partition.repartition(tmp_path / "parts", tmp_path / "kept", 3, method="stream")
    khop.partition.repartition(tmp_path / "parts", tmp_path / "new", 3, cluster_ids=2)
    for node_type, clusters in before.items():
        assert np.array_equal(clusters_of(tmp_path / "kept", node_type), clusters)
    assert max(clusters_of(tmp_path / "new", "paper")) < max(before["paper"])


@pytest.mark.process
@pytest.mark.skipif(not HAS_METIS, reason="pymetis is not installed")
def test_clusters_that_metis_got(tmp_path, debian):
    """Passes after METIS move few nodes, so nearly all of a cluster is in one part."""
    options = {"clusters": 5000, "cluster_ids": True}
    khop.partition_graph(debian, tmp_path / "parts", 2, method="cluster-metis", **options)
    clusters = clusters_of(tmp_path / "parts")
    folder = PartitionFolder(tmp_path / "parts")
    owners = folder.meta.node_types[0].book.owner(folder.id_map("node"))
    in_second = np.bincount(clusters, owners) / np.bincount(clusters)
    assert np.mean(np.maximum(in_second, 1 - in_second)) > 0.9
    khop.partition_graph(debian, tmp_path / "one", 1, method="cluster-metis", **options)
    assert np.array_equal(clusters_of(tmp_path / "one"), clusters)


@pytest.mark.process
@pytest.mark.skipif(not HAS_METIS, reason="pymetis is not installed")
def test_without_a_number_of_clusters_there_is_one_for_64_nodes(tmp_path):
    """At least one for each part; a graph without `cluster_ids` is cut as before."""
    ids = np.arange(1280)
    source = GraphSource.from_arrays(1280, np.stack([ids, (ids + 1) % 1280]))
    options = {"method": "cluster-metis", "cluster_ids": True}
    khop.partition_graph(source, tmp_path / "parts", 2, **options)
    sizes = np.bincount(clusters_of(tmp_path / "parts"))
    assert PartitionFolder(tmp_path / "parts").meta.method["clusters"] == 20
    assert len(sizes) >= 10
    assert sizes.max() <= 128
    small = GraphSource.from_arrays(3, [[0, 1], [1, 2]])
    khop.partition_graph(small, tmp_path / "small", 3, **options)
    assert clusters_of(tmp_path / "small").max() < 3
    whole = ClusterMetisPartitioner.from_data(source, tmp_path / "none", 2)
    assert whole.clusters == 1_000_000


@pytest.mark.skipif(not HAS_METIS, reason="pymetis is not installed")
def test_too_many_clusters_are_refused_before_the_cut(tmp_path):
    source = GraphSource.from_arrays(3, [[0, 1], [1, 2]])
    with pytest.raises(ValueError, match="3 nodes for 4 clusters: ask for fewer"):
        ClusterMetisPartitioner.from_data(source, tmp_path, 2, clusters=4, cluster_ids=True)


def test_what_is_refused(tmp_path, debian):
    for value, message in ((-1, "must be a number of clusters"), (True, "makes no clusters")):
        with pytest.raises(ValueError, match=message):
            khop.partition_graph(debian, tmp_path / "parts", 2, cluster_ids=value)
    data = twins.homogeneous()
    data.cluster = data.y
    with pytest.raises(ValueError, match=r"have an attribute 'cluster'.*rename it"):
        khop.partition.make_partitioner(data, tmp_path / "parts", 2, cluster_ids=3)
    assert not (tmp_path / "parts").exists()
