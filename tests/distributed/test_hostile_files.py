"""Files that come with a partition folder: a pickle in them is refused, not run."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from khop.distributed import DistDataset
from khop.distributed.partitions.reader import PartitionReader
from khop.errors import FolderError
from khop.partition import PartitionFolder
from khop.storage.folder import edge_path, node_path
from khop.storage.part import Part
from khop.typing import EDGE, NODE
from support.formats.forging import forge


class Bomb:
    """Unpickling it touches a file."""

    def __init__(self, target: Path) -> None:
        self.target = str(target)

    def __reduce__(self):
        return Path.touch, (Path(self.target),)


def saved(kind: str, file: Path, bomb: Bomb) -> Path:
    """A file of labels with a pickle in it."""
    if kind == "torch's":
        torch.save({"labels": bomb}, file.with_suffix(".pt"))
        return file.with_suffix(".pt")
    if kind == "torch's old form":
        torch.save(bomb, file.with_suffix(".pt"), _use_new_zipfile_serialization=False)
        return file.with_suffix(".pt")
    if kind == "bare, called .pt":
        file.with_suffix(".pt").write_bytes(pickle.dumps(bomb))
        return file.with_suffix(".pt")
    if kind == "bare, called .npy":
        file.with_suffix(".npy").write_bytes(pickle.dumps(bomb))
        return file.with_suffix(".npy")
    objects = np.empty(1, object)
    objects[0] = bomb
    np.save(file.with_suffix(".npy"), objects, allow_pickle=True)
    return file.with_suffix(".npy")


@pytest.mark.parametrize(
    "kind",
    ["torch's", "torch's old form", "bare, called .pt", "bare, called .npy", "array of objects"],
)
def test_labels_with_a_pickle(folder_of, tmp_path, kind):
    target = tmp_path / "exploded"
    file = saved(kind, tmp_path / "labels", Bomb(target))
    with pytest.raises((ValueError, pickle.UnpicklingError, RuntimeError)):
        DistDataset().load(folder_of("random", 1), 0, whole_node_label_file=str(file))
    assert not target.exists()


def test_the_bomb_works(tmp_path):
    """What is not refused does touch the file."""
    pickle.loads(pickle.dumps(Bomb(tmp_path / "exploded")))
    assert (tmp_path / "exploded").exists()


def twice(ids):
    """The second id in place of the first: one is left out."""
    return np.r_[ids[1], ids[1:]]


@pytest.mark.parametrize("change", [twice, lambda ids: ids + len(ids) * 3], ids=["twice", "beyond"])
def test_ids_that_leave_rows_out(folder_of, tmp_path, change):
    """What nothing was read for is refused, or zero: never what was in memory before."""
    root = tmp_path / "forged"
    shutil.copytree(folder_of("random", 3), root)
    forge(
        root,
        **{edge_path(1, EDGE, "edge_id"): change, node_path(1, NODE, "id"): twice},
    )
    folder = PartitionFolder(root)
    reader = PartitionReader(folder, 0, lambda: Part(folder, 0))
    for read in (lambda: reader.edge_list(0, none), lambda: reader.positions(0, ONE, none)):
        with pytest.raises(FolderError, match=r"list of original ids of edge type .*'khop verify"):
            read()
    left_out = int(PartitionFolder(folder_of("random", 3)).node_ids(1, NODE)[0])
    for _ in range(9):  # memory that is used again holds what was in it
        np.full(500 * 5, 7, np.float32)
        assert not reader.attribute("node", 0, "x", none)[left_out].any()


def none():
    """All parts are at hand."""
    raise AssertionError


ONE = np.zeros(1, np.int64)
