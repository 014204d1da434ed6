"""What a report counts and samples is what brute force, NetworkX and the loaders count."""

import json

import networkx as nx
import numpy as np
import pytest
import torch

import khop
from khop.cli.main import main
from khop.distributed import DistNeighborLoader, node_split
from khop.partition import CutReport, PartitionFolder, RandomPartitioner
from khop.partition.report.cache_hits import PredictedCache
from khop.partition.report.cut_graph import CutGraph
from support.cluster import twins
from support.reference.lookahead_cache import WindowedBelady

HOT = {"method": "frequency", "num_neighbors": [3, 2], "batch_size": 8, "cache_ratio": 0.1}


def owners_of(folder, node_type):
    """Part of each node, by original id."""
    return folder.meta.node_type(node_type).book.owner(folder.id_map(node_type))


@pytest.fixture(scope="module")
def data():
    data = twins.homogeneous()
    data.train_mask = torch.arange(150) % 2 == 0
    return data


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_counts_of_types_with_and_without_edges(tmp_path, edge_dir):
    """Cut by edge type, the matrix, and halos, edge by edge."""
    graph = twins.heterogeneous()
    khop.partition_graph(graph, tmp_path / "parts", 3, edge_dir=edge_dir)
    folder = PartitionFolder(tmp_path / "parts")
    report = CutReport.of(folder, [2], seed_type="paper", batch_size=4)
    matrix, halo = np.zeros((3, 3), int), [set(), set(), set()]
    for edge_type in graph.edge_types:
        cut = 0
        for src, dst in graph[edge_type].edge_index.T.tolist():
            ends = [(edge_type[0], src), (edge_type[2], dst)]
            (neighbor_type, neighbor), (row_type, row) = ends if edge_dir == "in" else ends[::-1]
            part = owners_of(folder, row_type)[row]
            other = owners_of(folder, neighbor_type)[neighbor]
            matrix[part, other] += 1
            cut += part != other
            if part != other:
                halo[part].add((neighbor_type, neighbor))
        count = graph[edge_type].num_edges
        assert report.cut[" ".join(edge_type)] == pytest.approx(cut / count if count else 0)
    assert report.edges_between_parts == matrix.tolist()
    assert report.edges_between_parts == folder.meta.summary["edges_between_parts"]
    assert report.halo == [len(nodes) for nodes in halo]
    total = sum(graph[t].num_nodes for t in graph.node_types)
    assert report.replication == pytest.approx(1 + sum(map(len, halo)) / total)
    assert sum(report.seeds) == graph["paper"].num_nodes


def test_rows_of_whole_neighbourhoods(tmp_path, data):
    """Batches of all of a part's seeds, all neighbours: two hops backwards, by NetworkX."""
    khop.partition_graph(data, tmp_path / "parts", 3, **HOT)
    folder = PartitionFolder(tmp_path / "parts")
    report = CutReport.of(folder, [-1, -1], batch_size=1000)
    owners = owners_of(folder, "node")
    graph = nx.DiGraph(data.edge_index.flip(0).T.tolist())
    graph.add_nodes_from(range(150))
    for part, rows in enumerate(report.rows):
        seeds = np.flatnonzero((owners == part) & data.train_mask.numpy())
        touched = set()
        for seed in seeds.tolist():
            touched |= set(nx.single_source_shortest_path_length(graph, seed, 2))
        copies = set(np.load(folder.root / f"part-{part}/cache/node/id.npy").tolist())
        local = {node for node in touched if owners[node] == part}
        assert (rows.batches, rows.total, rows.local) == (8, len(touched), len(local))
        assert rows.cached == len(copies & touched) > 0
    assert report.remote < report.remote_without_copies


def test_loaders_count_the_same(tmp_path, data):
    """Rows of an epoch of whole batches, by the distributed loader's statistics."""
    khop.partition_graph(data, tmp_path / "parts", 2, **HOT)
    report = CutReport.of(PartitionFolder(tmp_path / "parts"), [-1, 3], batch_size=150)
    with twins.open_dataset(tmp_path / "parts", 2) as dataset:
        seeds = node_split("train_mask", dataset, rank=0, homes=[0, 1])
        assert len(seeds) == report.seeds[0]
        loader = DistNeighborLoader(dataset, [-1], seeds, batch_size=150, collect_features=True)
        whole = CutReport.of(PartitionFolder(tmp_path / "parts"), [-1], batch_size=150)
        for _ in loader:
            pass
        counted = loader.stats().rows
    rows = whole.rows[0]
    assert [counted[name] for name in ("local", "cached", "remote")] == [
        rows.local,
        rows.cached,
        rows.remote,
    ]
    assert report.rows[0].total > rows.total


@pytest.mark.parametrize("order", ["original", "cluster"])
def test_a_partitioner_and_its_folder_agree(tmp_path, data, order):
    """Reports of what is only planned are those of the folder, whatever the order of rows."""
    make = RandomPartitioner.from_data(data, tmp_path / "parts", 3, order=order)
    planned = CutGraph.of_partitioner(make)
    make.partition()
    folder = PartitionFolder(tmp_path / "parts")
    new_ids = folder.split("node", "train_mask").astype(np.int64)
    ours = CutReport.of_cut(planned, (0, new_ids), [3, 2], 8)
    assert ours == CutReport.of(folder, [3, 2], batch_size=8)
    RandomPartitioner.from_data(data, tmp_path / "plain", 3).partition()
    plain = CutReport.of(PartitionFolder(tmp_path / "plain"), [3, 2], batch_size=8)
    assert ours == plain  # draws are those of original ids


def test_bytes_are_those_of_the_files(tmp_path, data):
    """But for headers, masks' lists and indptr, which all parts have alike."""
    khop.partition_graph(data, tmp_path / "parts", 2, **HOT)
    folder = PartitionFolder(tmp_path / "parts")
    report = CutReport.of(folder, [2], batch_size=8)
    for part, count in enumerate(report.bytes):
        arrays = (tmp_path / "parts" / f"part-{part}").rglob("*.npy")
        assert count == sum(np.load(a).nbytes for a in arrays if a.name != "indptr.npy")


def test_seeds_that_are_not_known(tmp_path):
    """Of several types without masks nothing is drawn, unless one is named."""
    khop.partition_graph(twins.heterogeneous(), tmp_path / "parts", 2)
    folder = PartitionFolder(tmp_path / "parts")
    report = CutReport.of(folder)
    assert (report.seeds, report.rows, report.remote) == (None, None, None)
    assert "largest / mean" in str(report)
    with pytest.raises(KeyError, match="no node type 'book'"):
        CutReport.of(folder, seed_type="book")
    with pytest.raises(ValueError, match=r"batches must be at least 1 \(got 0\)"):
        CutReport.of(folder, seed_type="paper", batches=0)


@pytest.mark.parametrize("window", [1, 3, 8])
def test_predicted_hits_are_those_of_the_rule(window):
    """As many as Belady's rule finds in plain Python, of the second half of the batches."""
    rng = np.random.default_rng(window)
    batches = [np.unique(rng.integers(100, size=30) ** 2 // 100) for _ in range(40)]
    cache, oracle, hits, rows = PredictedCache(20, window), WindowedBelady(20), [], []
    for batch in batches:
        cache.add(batch)
    for i, batch in enumerate(batches):
        for later in batches[: 1 + window] if i == 0 else batches[i + window : i + window + 1]:
            oracle.announce(later.tolist())
        found = oracle.take(i)
        hits.append(sum(row in found for row in batch.tolist()))
        rows.append(len(batch))
    assert cache.finish() == (sum(hits[20:]), sum(rows[20:]))
    assert 0 < sum(hits[20:]) < sum(rows[20:])


def test_predicted_hits_are_about_those_of_loaders(tmp_path, data):
    khop.partition_graph(data, tmp_path / "parts", 2)
    memory = 60 * 250
    options = {"cache_memory": memory, "batch_size": 4, "shuffle": True, "seed": 3}
    folder = PartitionFolder(tmp_path / "parts")
    report = CutReport.of(folder, [3, 2], batch_size=4, batches=200, cache_memory=memory)
    with twins.open_dataset(tmp_path / "parts", 2) as dataset:
        seeds = node_split("train_mask", dataset, rank=0, homes=[0, 1])
        loader = DistNeighborLoader(dataset, [3, 2], seeds, collect_features=True, **options)
        for _ in range(8):
            for _ in loader:
                pass
        assert loader.stats().hit_rate == pytest.approx(report.hits[0].remote, abs=0.08)


def test_command_predicts_hits(tmp_path, capsys, data):
    khop.partition_graph(data, tmp_path / "parts", 2)
    words = ["inspect", str(tmp_path / "parts"), "--report", "--cache-memory", "20KB"]
    words += ["--fanout", "3,2", "--batch-size", "4"]
    assert main(words) == 0
    assert "predicted hits of part  rows of other parts  rows on disk" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["rows"][0]["batches"] == 64
    assert 0 < report["hits"][0]["remote"] < 1
    assert main([*words[:-1], "4", "--cache-memory", "some"]) != 0


def test_command(tmp_path, capsys, data):
    khop.partition_graph(data, tmp_path / "parts", 2)
    words = ["inspect", str(tmp_path / "parts"), "--report", "--fanout", "3,2", "--batches", "2"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "without copies" in text and "edges to part" in text
    assert main([*words, "--json", "--batch-size", "16", "--seed-type", "node"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["rows"][0]["batches"] == 2
    assert 0.3 < report["remote"] == report["remote_without_copies"] < 0.7
