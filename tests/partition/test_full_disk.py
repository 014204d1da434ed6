"""A disk that is full: an exception that says so, and nothing of the folder stays."""

import errno
import os
import resource
import shutil
import subprocess

import pytest
import torch
from torch_geometric.data import Data

from khop.partition import RandomPartitioner


def partition(root):
    """Partitions a graph whose folder takes some megabytes."""
    graph = Data(
        x=torch.zeros(20_000, 8),
        y=torch.zeros(20_000, dtype=torch.int64),
        edge_index=torch.randint(0, 20_000, (2, 100_000)),
    )
    RandomPartitioner.from_data(graph, root, 2).partition()


@pytest.fixture
def small_disk(tmp_path):
    """A file system with little room."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("file systems are mounted by root")
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("this system does not allow mounts")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("filled", [0, 900_000, 1_010_000])
def test_full_disk(small_disk, filled):
    """Where it gets full in the middle of an array, or before the first one."""
    (small_disk / "other").write_bytes(bytes(filled))
    with pytest.raises(OSError, match=r"cannot write.*No space left.*bytes are free") as caught:
        partition(small_disk / "parts")
    assert caught.value.errno == errno.ENOSPC
    assert [p.name for p in small_disk.iterdir()] == ["other"]


@pytest.fixture
def small_files():
    """No file may be larger than 100,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_files_that_may_not_be_so_large(small_files, tmp_path):
    """A limit of the process (RLIMIT_FSIZE), as batch systems set it."""
    with pytest.raises(OSError, match=r"cannot write.*File too large") as caught:
        partition(tmp_path / "parts")
    assert caught.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []
