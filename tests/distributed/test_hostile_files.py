"""Files that come with a partition folder: a pickle in them is refused, not run."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from khop.distributed import DistDataset


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
