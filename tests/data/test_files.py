"""Files that users name: no waiting, no code."""

import mmap
import os
import pickle
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from khop.data import files
from khop.data.files import check_regular, load_npy, load_torch
from khop.partition import RandomPartitioner
from khop.storage.folder import PartitionFolder
from khop.storage.part import Part
from support.versions import reading_torch_files


def test_arrays_are_read_or_mapped(tmp_path):
    for array in (np.arange(6).reshape(2, 3), np.asfortranarray(np.eye(3)), np.zeros((0, 4), "f4")):
        np.save(tmp_path / "a.npy", array)
        for mode in (None, "r", "c"):
            read = load_npy(tmp_path / "a.npy", mode)
            assert type(read) is np.ndarray
            assert read.dtype == array.dtype
            assert np.array_equal(read, array)


def test_special_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    for path in ("/dev/zero", *(tmp_path / name for name in ("fifo", "link", "socket", "."))):
        with pytest.raises(ValueError, match=f"'{path}' is no regular file"):
            load_npy(path)
    with pytest.raises(FileNotFoundError):
        check_regular(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK\x03\x04", pickle.dumps([1])])
def test_file_without_an_array_is_refused(tmp_path, content):
    (tmp_path / "a.npy").write_bytes(content)
    for mode in (None, "r"):
        with pytest.raises(ValueError, match=r"a\.npy' cannot be read as an array") as raised:
            load_npy(tmp_path / "a.npy", mode)
        assert "pickle" not in str(raised.value)


@reading_torch_files
def test_tensors_that_stand_for_more_than_is_stored(tmp_path):
    """A few bytes would be terabytes: of a stride of zero, and of a compressed member."""
    nested = {"a": [torch.arange(3), {"b": (torch.zeros(1).expand(10**12),)}]}
    torch.save(nested, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt' holds a tensor with more values than are stored"):
        load_torch(tmp_path / "a.pt", "wait")
    torch.save(torch.zeros(1 << 20), tmp_path / "b.pt")
    with zipfile.ZipFile(tmp_path / "b.pt") as whole, zipfile.ZipFile(tmp_path / "c.pt", "w") as to:
        for name in whole.namelist():
            to.writestr(name, whole.read(name), zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=r"c\.pt' is compressed: 4,19"):
        load_torch(tmp_path / "c.pt", "wait")
    content = (tmp_path / "c.pt").read_bytes()
    (tmp_path / "d.pt").write_bytes(content.replace(b"PK\x01\x02", b"PK\x01\x03"))
    with pytest.raises(ValueError, match=r"d\.pt' is damaged"):
        load_torch(tmp_path / "d.pt", "wait")


@reading_torch_files
def test_tensors_that_share_what_is_stored(tmp_path):
    """Views, also of views, containers that share entries, and no values at all."""
    whole = torch.arange(12).reshape(3, 4)
    shared = [[whole.T, whole[1]]]
    for _ in range(60):
        shared = [shared, shared]
    torch.save({"x": shared, "empty": torch.empty(0, 3)}, tmp_path / "a.pt")
    found = load_torch(tmp_path / "a.pt", "wait")
    assert found["empty"].shape == (0, 3)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1_000_000, "rr"), (1_500_500, ""), (1 << 40, "hg"), (None, "")],
)
def test_what_the_kernel_is_advised_of_mapped_files(tmp_path, monkeypatch, limit, expected):
    """The flags "rr" and "hg" of a mapping are those of MADV_RANDOM and MADV_HUGEPAGE.

    The file has 1.2 MB. It is read at random if memory cannot hold it, and by huge pages if memory
    holds it and all other files of the part. A part gives the advice. A kernel may have no huge
    pages.
    """
    try:
        mmap.mmap(-1, 4096).madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        expected = expected.replace("hg", "")
    data = Data(x=torch.rand(1000, 300), edge_index=torch.randint(1000, (2, 50)))
    RandomPartitioner.from_data(data, tmp_path / "parts", 1).partition()
    monkeypatch.setattr(files, "memory_limit", lambda: limit)
    part = Part(PartitionFolder(tmp_path / "parts"), 0)
    rows = part.node_feature(0, "x").array
    structure = part.rows(0)
    flags, name = {}, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *words = line.split()
        if "-" in first:
            name = Path(words[-1]).name if words[-1].startswith(str(tmp_path)) else ""
        elif first == "VmFlags:":
            flags[name] = "".join({"rr", "hg"} & {*words})
    assert flags["x.npy"] == expected
    assert flags["indices.npy"] == ("hg" if expected == "hg" else "")  # small
    assert len(structure[1]) == 50
    assert torch.equal(torch.from_numpy(np.sort(rows, 0)), data.x.sort(0).values)
