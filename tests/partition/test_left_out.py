"""Attributes that a folder cannot hold are listed, and masks that are no masks refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import khop
from khop.partition import FolderSummary, GraphSource, PartitionFolder, frequency_partition
from khop.sources.symmetrized import symmetrized
from support.formats.forging import forge


def ring(**attributes):
    """0 -> 1 -> 2 -> 3 -> 4 -> 0, with a row of `x` for each node unless one is given."""
    ids = torch.arange(5)
    attributes = {"x": torch.zeros(5, 2), **attributes}
    return Data(edge_index=torch.stack([ids, (ids + 1) % 5]), num_nodes=5, **attributes)


def test_what_is_not_one_row_a_node_is_listed(tmp_path):
    """An `x` one row too short, ids of a split as OGB has them, a matrix, a number, a name."""
    data = ring(x=torch.zeros(4, 2), train_idx=torch.tensor([1, 3]), classes=3, name="ring")
    data.matrix, data.y = torch.zeros(7, 7), torch.arange(5)
    summary = khop.partition_graph(data, tmp_path / "out", 2)
    rows = "not a row for each of 5 nodes or of 5 edges"
    assert summary.left_out == {
        "x": f"has shape [4, 2], {rows}",
        "train_idx": f"has shape [2], {rows}",
        "classes": f"is an int, {rows}",
        "name": f"is a str, {rows}",
        "matrix": f"has shape [7, 7], {rows}",
    }
    assert set(PartitionFolder(tmp_path / "out").meta.node_types[0].attrs) == {"y"}
    assert ("left out", f"x: it has shape [4, 2], {rows}") in summary.lines()
    assert summary.to_dict()["left_out"] == summary.left_out


def test_nothing_is_listed_where_all_is_kept(tmp_path):
    summary = khop.partition_graph(ring(), tmp_path / "out", 2)
    assert summary.left_out == {}
    assert "left out" not in str(summary)
    assert "left_out" not in PartitionFolder(tmp_path / "out").meta.summary


def test_types_are_named():
    data = HeteroData(classes=4)
    data["a"].x, data["a"].idx, data["b"].num_nodes = torch.zeros(3, 1), torch.arange(2), 2
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [1, 0]])
    data["a", "to", "b"].weight = torch.zeros(3)
    source = GraphSource.from_data(data)
    wanted = {
        "classes": "is an int, not rows of a node or edge type",
        "idx of a": "has shape [2], not a row for each of 3 nodes",
        "weight of a to b": "has shape [3], not a row for each of 2 edges",
    }
    assert source.left_out == wanted
    assert {*symmetrized(source).left_out} >= {"classes", "idx of a", "weight of a to b"}


def test_a_forged_list_is_text_or_nothing(tmp_path):
    khop.partition_graph(ring(name="a"), tmp_path / "out", 1)
    for content in (["x"], 5, {"x": {"y": 1}}):
        forge(tmp_path / "out", lambda meta, c=content: meta["summary"].update(left_out=c))
        found = FolderSummary.of(PartitionFolder(tmp_path / "out")).left_out
        assert found == ({"x": "{'y': 1}"} if isinstance(content, dict) else {})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train_idx", r"left it out, as it has shape \[2\].* mask\[data\.train_idx\] = True"),
        ("y", r"it is int64 of shape \[5\]\. Partition a graph with a mask"),
        ("valid", r"\(there are: 'seen'\): add one"),
    ],
)
def test_a_split_that_is_none(tmp_path, name, message):
    """What there is, and what to do."""
    data = ring(train_idx=torch.tensor([1, 3]), y=torch.arange(5), seen=torch.ones(5).bool())
    khop.partition_graph(data, tmp_path / "out", 2)
    with pytest.raises(KeyError, match=message):
        PartitionFolder(tmp_path / "out").split("node", name)


@pytest.mark.parametrize("name", ["train_mask", "val_mask", "test_mask"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32])
def test_masks_of_numbers_are_refused(tmp_path, name, dtype):
    """As loaders do: `frequency` would take all nodes as seeds, and no split would be there."""
    data = ring(**{name: torch.tensor([1, 0, 1, 0, 1], dtype=dtype)})
    with pytest.raises(TypeError, match=rf"'{name}' .* must be boolean .*data\.{name}\.bool\(\)"):
        khop.partition_graph(data, tmp_path / "out", 2)
    with pytest.raises(TypeError, match="must be boolean"):
        frequency_partition(data, tmp_path / "out", 2, [2])
    assert not (tmp_path / "out").exists()


def test_several_splits_side_by_side_are_no_mask_of_numbers(tmp_path):
    splits = np.ones((5, 3), np.uint8)
    assert khop.partition_graph(ring(train_mask=splits), tmp_path / "out", 2).train_seeds is None


def test_a_graph_without_training_nodes_says_so(tmp_path):
    """And that `frequency` took all nodes as seeds."""
    lines = dict(khop.partition_graph(ring(), tmp_path / "a", 2).lines())
    assert lines["training seeds"] == "no 'train_mask' among the attributes of nodes"
    lines = dict(khop.partition_graph(ring(), tmp_path / "b", 2, method="frequency").lines())
    assert lines["training seeds"] == "no 'train_mask': all nodes count as seeds"
    mask = torch.arange(5) < 2
    assert khop.partition_graph(ring(train_mask=mask), tmp_path / "c", 2).train_seeds is not None
