"""Files that users name: no waiting, no code."""

import os
import pickle
import socket

import numpy as np
import pytest

from khop.data.files import check_regular, load_npy


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
