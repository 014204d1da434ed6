"""A folder is complete or absent, and nothing but a partition folder is ever replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from khop.partition import GraphSource, PartitionFolder, RandomPartitioner, verify_folder
from khop.storage.folder import FolderWriter

STEPS = ["nodes of type 'node'", "edges of type ('node', 'to', 'node')", "checksums"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_exception_leaves_things_as_they_were(tmp_path, make_data, step, overwrite):
    root = tmp_path / "f"
    if overwrite:
        RandomPartitioner.from_data(make_data(), root, 2).partition()
    before = sorted(tmp_path.rglob("*"))

    def fail(what, done, total):
        if what == step:
            raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        RandomPartitioner.from_data(
            make_data(), root, 5, overwrite=overwrite, progress=fail
        ).partition()
    assert sorted(tmp_path.rglob("*")) == before
    if overwrite:
        assert verify_folder(root) == []
        assert PartitionFolder(root).num_parts == 2


KILLED = """
import os, signal, sys
import numpy as np
from khop.partition import GraphSource, RandomPartitioner

def die(what, done, total):
    if what == sys.argv[2] and done == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

source = GraphSource.from_arrays(50, np.random.default_rng(0).integers(50, size=(2, 200)))
RandomPartitioner.from_data(source, sys.argv[1], 3, progress=die).partition()
"""


@pytest.mark.fault
@pytest.mark.parametrize(("step", "done"), [(STEPS[0], 2), (STEPS[1], 1), (STEPS[2], 0)])
def test_kill_in_the_middle_leaves_no_folder(tmp_path, step, done):
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "f"), step, str(done)], check=False
    )
    assert run.returncode == -signal.SIGKILL
    assert not (tmp_path / "f").exists()
    left = list(tmp_path.iterdir())
    assert len(left) == 1
    assert left[0].name.startswith(".f.")
    assert not (left[0] / "meta.json").exists()
    assert verify_folder(left[0]) != []


def test_an_existing_folder_is_not_replaced_unasked(tmp_path, make_data):
    RandomPartitioner.from_data(make_data(), tmp_path / "f", 2).partition()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        RandomPartitioner.from_data(make_data(), tmp_path / "f", 3).partition()
    assert PartitionFolder(tmp_path / "f").num_parts == 2


def test_overwriting_leaves_nothing_of_the_old(tmp_path, make_data):
    """GLT appended to what was there."""
    RandomPartitioner.from_data(make_data(), tmp_path / "f", 5).partition()
    RandomPartitioner.from_data(make_data(), tmp_path / "f", 2, overwrite=True).partition()
    assert verify_folder(tmp_path / "f") == []
    assert PartitionFolder(tmp_path / "f").num_parts == 2
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_overwriting_an_empty_directory(tmp_path, make_data):
    (tmp_path / "f").mkdir()
    RandomPartitioner.from_data(make_data(), tmp_path / "f", 2, overwrite=True).partition()
    assert verify_folder(tmp_path / "f") == []


def test_overwriting_a_damaged_folder(tmp_path, make_data):
    RandomPartitioner.from_data(make_data(), tmp_path / "f", 2).partition()
    meta = tmp_path / "f" / "meta.json"
    meta.write_bytes(meta.read_bytes()[:-20])
    RandomPartitioner.from_data(make_data(), tmp_path / "f", 2, overwrite=True).partition()
    assert verify_folder(tmp_path / "f") == []


@pytest.mark.parametrize("content", ["photos", "foreign meta.json", "a file", "a link"])
def test_overwrite_refuses_other_folders(tmp_path, make_data, content):
    root = tmp_path / "f"
    if content == "a file":
        root.write_text("thesis")
    elif content == "a link":
        RandomPartitioner.from_data(make_data(), tmp_path / "real", 2).partition()
        root.symlink_to(tmp_path / "real")
    else:
        root.mkdir()
        (root / ("meta.json" if "meta" in content else "photo.jpg")).write_text('{"a": 1}')
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileExistsError, match="is not a partition folder"):
        RandomPartitioner.from_data(make_data(), root, 2, overwrite=True).partition()
    assert sorted(tmp_path.rglob("*")) == before


def test_parents_are_made(tmp_path, make_data):
    RandomPartitioner.from_data(make_data(), tmp_path / "a" / "b" / "f", 2).partition()
    assert verify_folder(tmp_path / "a" / "b" / "f") == []


def test_relative_paths(tmp_path, make_data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RandomPartitioner.from_data(make_data(), "f", 2).partition()
    assert verify_folder("f") == []


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077, 0o002])
def test_modes_are_those_of_the_umask(tmp_path, make_data, umask):
    """Servers may run as another user; secret graphs stay secret."""
    old = os.umask(umask)
    try:
        RandomPartitioner.from_data(make_data(), tmp_path / "f", 2).partition()
    finally:
        os.umask(old)
    for path in [tmp_path / "f", *(tmp_path / "f").rglob("*")]:
        wanted = (0o777 if path.is_dir() else 0o666) & ~umask
        assert path.stat().st_mode & 0o777 == wanted, path


def test_unwritable_place_is_named_as_the_user_wrote_it(tmp_path):
    """What the user wrote is named, not the folder's temporary name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write a partition folder to '/proc/f': ") as raised:
        FolderWriter("/proc/f")
    assert ".tmp" not in str(raised.value)
    with pytest.raises(OSError, match=r"cannot write a partition folder to '.*/file/f': Not a dir"):
        FolderWriter(tmp_path / "file" / "f")


def test_object_arrays_are_not_written(tmp_path):
    with (
        pytest.raises(ValueError, match="Object arrays cannot be saved"),
        FolderWriter(tmp_path / "f") as writer,
    ):
        writer.save("map/x.npy", np.array([{}], object))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.eye(4).to_sparse_csr(), r"is a sparse tensor \(torch.sparse_csr\): make it dense"),
        (torch.eye(4).to_sparse(), r"is a sparse tensor \(torch.sparse_coo\): make it dense"),
        (torch.eye(4).to(torch.float8_e4m3fn), "dtype 'float8_e4m3fn' is not supported: convert"),
        (np.array([None] * 4), "dtype 'object' is not supported: convert"),
        (np.array(list("abcd")), "dtype 'str32' is not supported: convert"),
    ],
    ids=str,
)
def test_attributes_that_folders_do_not_hold(value, message):
    """They are named, with what to do."""
    data = Data(edge_index=torch.tensor([[1, 2, 3], [0, 1, 2]]), feature=value, num_nodes=4)
    with pytest.raises(TypeError, match=f"attribute 'feature'.* {message}"):
        GraphSource.from_data(data)
