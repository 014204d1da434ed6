"""A folder cut again: the folder of the original input, and the same graph in other parts."""

import json

import numpy as np
import pytest
import torch

import khop
from khop.cli.main import main
from khop.distributed import DistNeighborLoader
from khop.errors import FolderError
from khop.loader import NeighborLoader
from khop.partition import (
    GraphSource,
    PartitionFolder,
    RandomPartitioner,
    folder_source,
    repartition,
    verify_folder,
)
from support.cluster import twins


def files_of(root):
    """{path: bytes} of all files of a folder."""
    files = (file for file in root.rglob("*") if file.is_file())
    return {str(file.relative_to(root)): file.read_bytes() for file in files}


def own_graph(name):
    data = getattr(twins, name)()
    store = data if name == "homogeneous" else data["paper"]
    store.train_mask = torch.arange(store.x.shape[0]) % 3 == 0
    return data


DRAWS = {"time_attr": "time", "weight_attr": "edge_weight", "neighbor_ids": True}
HOT = {"method": "frequency", "num_neighbors": [3, 2], "batch_size": 8, "cache_ratio": 0.2}
CUTS = [
    ("homogeneous", {"seed": 3, **DRAWS}),
    ("homogeneous", {"edge_dir": "out", "method": "stream", "balance": ["nodes", "train"]}),
    ("homogeneous", {**HOT, "order": "hotness", "cluster_ids": 12}),
    ("heterogeneous", {**HOT, **DRAWS, "seeds": ("paper", None)}),
    ("heterogeneous", {"order": "degree", **DRAWS}),
]


@pytest.mark.parametrize("graph,options", CUTS)
def test_the_same_cut_is_the_same_folder(tmp_path, graph, options):
    """By way of a folder in another number of parts, whose order of rows is another one."""
    data = own_graph(graph)
    khop.partition_graph(data, tmp_path / "first", 3, **options)
    khop.partition_graph(data, tmp_path / "other", 2, order="cluster", **DRAWS)
    first = files_of(tmp_path / "first")
    repartition(tmp_path / "first", tmp_path / "again", 3)
    assert files_of(tmp_path / "again") == first
    options = {"time_attr": None, "weight_attr": None, "neighbor_ids": False, **options}
    options = {"method": "random", "order": "original", "edge_dir": "in", **options}
    repartition(tmp_path / "other", tmp_path / "by way of", 3, **options)
    assert files_of(tmp_path / "by way of") == first


@pytest.mark.parametrize("num_parts", [1, 3])
def test_batches_of_another_number_of_parts(tmp_path, num_parts):
    data = own_graph("homogeneous")
    khop.partition_graph(data, tmp_path / "first", 2, **HOT, **DRAWS)
    repartition(tmp_path / "first", tmp_path / "again", num_parts)
    assert verify_folder(tmp_path / "again") == []
    options = {"batch_size": 8, "shuffle": True, "seed": 7, "time_attr": "time"}
    with twins.open_dataset(tmp_path / "again", num_parts) as dataset:
        ours = DistNeighborLoader(
            dataset, [3, 2], torch.arange(40), collect_features=True, with_edge=True, **options
        )
        twins.same_epochs(ours, NeighborLoader(data, [3, 2], torch.arange(40), **options))


def test_a_folder_is_read_back(tmp_path, hetero):
    """All types, attributes and edges, by original id; bfloat16 stays bfloat16."""
    hetero["item"].x = hetero["item"].x.to(torch.bfloat16)
    khop.partition_graph(hetero, tmp_path / "parts", 3)
    want = GraphSource.from_data(hetero)
    found = folder_source(PartitionFolder(tmp_path / "parts"))
    assert (found.heterogeneous, list(found.nodes)) == (True, list(want.nodes))
    for edge_type, edge in want.edges.items():
        assert np.array_equal(found.edges[edge_type].src, edge.src)
        assert np.array_equal(found.edges[edge_type].dst, edge.dst)
    both = [*want.nodes.items(), *want.edges.items()]
    for name, of_type in both:
        other = {**found.nodes, **found.edges}[name]
        assert list(other.attrs) == list(of_type.attrs)
        for attr, feature in of_type.attrs.items():
            read = other.attrs[attr]
            assert (read.dtype, read.row_shape) == (feature.dtype, feature.row_shape)
            assert read.floating == feature.floating
            assert np.array_equal(read.array, feature.array)
            rows = np.arange(feature.num_rows)[::-2]
            out = np.zeros_like(feature.array)
            read.gather(rows, out, rows.astype(np.int64))
            assert np.array_equal(out[rows], feature.array[rows])


def test_what_cannot_be_repeated(tmp_path, make_data):
    data = make_data()
    khop.partition_graph(data, tmp_path / "given", 2, method="assigned", owners=np.arange(30) % 2)
    with pytest.raises(ValueError, match=r"made by AssignedPartitioner .*name a method"):
        repartition(tmp_path / "given", tmp_path / "out", 3)
    khop.partition_graph(data, tmp_path / "seeds", 2, **{**HOT, "seeds": torch.arange(3)})
    with pytest.raises(ValueError, match=r"made for 3 seeds of the user's own"):
        repartition(tmp_path / "seeds", tmp_path / "out", 3)
    seeds = repartition(tmp_path / "seeds", tmp_path / "out", 3, seeds=torch.arange(4))
    assert seeds.method["num_seeds"] == 4
    RandomPartitioner.from_data(data, tmp_path / "some", 2).partition()
    (tmp_path / "some" / "part-1").rename(tmp_path / "elsewhere")
    with pytest.raises(FolderError, match="part-1 is not on this machine"):
        repartition(tmp_path / "some", tmp_path / "new", 3)


def test_damaged_edges_are_refused(tmp_path, make_data):
    khop.partition_graph(make_data(), tmp_path / "parts", 2)
    (file,) = (tmp_path / "parts" / "part-0").rglob("edge_id.npy")
    ids = np.load(file)
    ids[0] = ids[1]
    np.save(file, ids)
    with pytest.raises(FolderError, match=r"does not hold each id once.*khop verify"):
        folder_source(PartitionFolder(tmp_path / "parts"))


def test_command(tmp_path, capsys, make_data):
    khop.partition_graph(make_data(), tmp_path / "parts", 2, seed=9)
    words = ["repartition", str(tmp_path / "parts"), str(tmp_path / "new"), "--num-parts", "3"]
    assert main([*words, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (len(summary["nodes"]), summary["method"]["seed"]) == (3, 9)
    assert main(words) == 2
    assert "exists" in capsys.readouterr().err
