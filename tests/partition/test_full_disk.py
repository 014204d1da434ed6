"""A disk that is full: an exception that says so, and nothing of the folder stays."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from khop.partition import RandomPartitioner

PROGRAM = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import test_full_disk

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    test_full_disk.partition(sys.argv[2])
except OSError as error:
    print(error.errno, error)
    sys.exit(7)
"""


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


def test_files_that_may_not_be_so_large(tmp_path):
    """A limit of the process (RLIMIT_FSIZE), as batch systems set it."""
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(tmp_path / "parts")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7, (done.returncode, done.stderr)
    assert done.stdout.startswith(f"{errno.EFBIG} ")
    assert "cannot write" in done.stdout and "File too large" in done.stdout
    assert list(tmp_path.iterdir()) == []
