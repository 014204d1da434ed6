"""Original ids of neighbours, in folders that were partitioned with them."""

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from khop.errors import FolderError
from khop.partition import (
    FrequencyPartitioner,
    PartitionFolder,
    RandomPartitioner,
    frequency_partition,
    verify_folder,
)
from khop.storage.folder import edge_array, edge_path
from khop.storage.part import Part
from support.formats.forging import forge, set_in

TO, BACK = ("a", "to", "b"), ("b", "back", "a")


def graph():
    """Two node types, edges both ways, times of nodes."""
    generator = torch.Generator().manual_seed(3)
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 30, 20
    data["b"].time = torch.arange(20) % 4
    for src, name, dst in (TO, BACK):
        ends = [torch.randint(data[t].num_nodes, (90,), generator=generator) for t in (src, dst)]
        data[src, name, dst].edge_index = torch.stack(ends)
    return data


@pytest.mark.parametrize("time_attr", [None, "time"])
@pytest.mark.parametrize("strategy", ["by_dst", "by_src"])
@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_they_stand_beside_the_new_ids(tmp_path, num_parts, strategy, time_attr):
    """Whatever the order of rows: each edge's is that of its neighbour."""
    root, data = tmp_path / "f", graph()
    options = {"time_attr": time_attr, "neighbor_ids": True}
    RandomPartitioner.from_data(
        data, root, num_parts, edge_dir="in" if strategy == "by_dst" else "out", **options
    ).partition()
    assert verify_folder(root) == []
    folder = PartitionFolder(root)
    assert folder.meta.knows_neighbors
    for number in range(num_parts):
        part = Part(folder, number)
        for edge_type in (TO, BACK):
            edges = edge_array(folder, number, edge_type, "edge_id")
            ids = edge_array(folder, number, edge_type, "neighbor_id")
            ends = data[edge_type].edge_index.numpy()[0 if strategy == "by_dst" else 1]
            assert np.array_equal(ids, ends[edges])
        assert all(csr.knows_neighbors for csr in part.csrs)


@pytest.mark.parametrize("num_parts", [1, 2])
def test_without_them(tmp_path, num_parts):
    """One part has not renumbered anything; of several nothing is known."""
    RandomPartitioner.from_data(graph(), tmp_path / "f", num_parts).partition()
    folder = PartitionFolder(tmp_path / "f")
    assert folder.meta.knows_neighbors == (num_parts == 1)
    assert [c.knows_neighbors for c in Part(folder, 0).csrs] == [num_parts == 1] * 2
    assert not any("neighbor_id" in path for path in folder.files)


def test_all_partitioners_write_them(tmp_path):
    rng, data = np.random.default_rng(1), graph()
    probs = [{t: rng.random(data[t].num_nodes) for t in ("a", "b")} for _ in range(2)]
    FrequencyPartitioner.from_data(
        data, tmp_path / "f", 2, probs=probs, neighbor_ids=True
    ).partition()
    frequency_partition(data, tmp_path / "s", 2, [3, 2], seeds=("a", None), neighbor_ids=True)
    for root in (tmp_path / "f", tmp_path / "s"):
        assert verify_folder(root) == []
        assert PartitionFolder(root).meta.knows_neighbors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: (ids + 1) % 30, "does not agree with indices and the map"),
        (lambda ids: ids + 30, "an id is out of range"),
        (lambda ids: ids[:-1], "instead of an id for each edge"),
        (lambda ids: ids.astype(np.float32), "instead of an id for each edge"),
    ],
)
def test_verify_finds_wrong_ones(tmp_path, change, message):
    root = tmp_path / "f"
    RandomPartitioner.from_data(graph(), root, 2, neighbor_ids=True).partition()
    forge(root, **{edge_path(1, TO, "neighbor_id"): change})
    assert [message in problem for problem in verify_folder(root)] == [True]


def test_reading_checks_their_number(tmp_path):
    root = tmp_path / "f"
    RandomPartitioner.from_data(graph(), root, 2, neighbor_ids=True).partition()
    forge(root, **{edge_path(1, TO, "neighbor_id"): lambda ids: ids[:-1]})
    with pytest.raises(FolderError, match="neighbor_id"):
        _ = Part(PartitionFolder(root), 1).csrs


def test_a_listing_without_them_is_found(tmp_path):
    root = tmp_path / "f"
    RandomPartitioner.from_data(graph(), root, 2, neighbor_ids=True).partition()
    forge(root, set_in("edge_types", 0, "neighbor_ids", value=False))
    assert len(verify_folder(root)) == 2  # a file of each part
