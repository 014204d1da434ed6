"""A folder from a stranger: reading stays within it, and runs nothing."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from khop.errors import FolderError
from khop.partition import PartitionFolder, RandomPartitioner, verify_folder
from khop.storage.folder import edge_path, map_path, node_path, split_path
from khop.storage.folder.npy import parse_header
from khop.storage.part import Part
from khop.typing import NODE
from support.formats.forging import forge, set_in

EDGE = ("node", "to", "node")
NUMBER = {"stored": ["float32", []], "delivered": ["float32", []]}
HALVES = {"stored": ["float16", []], "delivered": ["float32", []], "encoding": "float16"}


@pytest.fixture
def root(tmp_path, make_data):
    RandomPartitioner.from_data(make_data(), tmp_path / "f", 2).partition()
    return tmp_path / "f"


@pytest.fixture
def secret(tmp_path):
    """An array outside of the folder, of the same form as the map."""
    path = tmp_path / "secret.npy"
    np.save(path, np.arange(40, dtype=np.int32))
    return path


def test_a_link_out_of_the_folder(root, tmp_path, secret):
    file = root / map_path(NODE)
    shutil.copy(file, tmp_path / "copy.npy")
    file.unlink()
    file.symlink_to(tmp_path / "copy.npy")
    with pytest.raises(FolderError, match=r"link that leads out of the folder.*copy\.npy"):
        PartitionFolder(root).id_map(NODE)


def test_a_folder_in_it_that_is_a_link_out(root, tmp_path):
    shutil.move(root / "map", tmp_path / "elsewhere")
    (root / "map").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FolderError, match="link that leads out of the folder"):
        PartitionFolder(root).id_map(NODE)


def test_meta_json_that_is_a_link_out(root, tmp_path):
    shutil.move(root / "meta.json", tmp_path / "meta.json")
    (root / "meta.json").symlink_to(tmp_path / "meta.json")
    with pytest.raises(FolderError, match="link that leads out of the folder"):
        PartitionFolder(root)


def test_links_within_and_to_the_folder_are_followed(root, tmp_path):
    """Users name their folders as they like."""
    expected = PartitionFolder(root).id_map(NODE).tolist()
    (tmp_path / "link").symlink_to(root)
    shutil.move(root / "map", root / "moved")
    (root / "map").symlink_to("moved")
    assert PartitionFolder(tmp_path / "link").id_map(NODE).tolist() == expected


@pytest.mark.parametrize("name", ["map/node.npy", "meta.json"])
def test_a_fifo_is_not_waited_for(root, name):
    (root / name).unlink()
    os.mkfifo(root / name)
    with pytest.raises(FolderError, match="no regular file"):
        PartitionFolder(root).id_map(NODE)


@pytest.mark.parametrize(
    "path",
    [
        "../secret.npy",
        "/etc/secret.npy",
        "map/../../secret.npy",
        "map/./node.npy",
        "map//node.npy",
        "./map/node.npy",
        "map/node.npy\0",
        "map/%2e%2e/node.npy/../x",
        "map\\node.npy",
        "",
        "map/node",
    ],
)
def test_paths_that_lead_elsewhere(root, path):
    """meta.json lists files of the folder, and nothing else; also `khop verify` looks nowhere."""
    forge(root, set_in("files", path, value={"bytes": 1, "sha256": "0" * 64}))
    with pytest.raises(FolderError, match=r"damaged: the files: lists file .* no folder has"):
        PartitionFolder(root)
    assert len(verify_folder(root)) == 1


@pytest.mark.parametrize("name", ["../../secret", "..", ".", "/etc/passwd", "a/b", "%2e%2e", "\0"])
def test_names_do_not_become_paths(root, tmp_path, secret, name):
    """Whatever a type or attribute is called, its file lies in its folder."""

    def rename(meta):
        for node_type in meta["node_types"]:
            node_type["attrs"][name] = node_type["attrs"]["x"]
        meta["edge_types"][0]["attrs"][name] = NUMBER

    forge(root, rename)
    folder = PartitionFolder(root)
    for path in folder.meta.files():
        assert (root / path).resolve().is_relative_to(root), path
    with pytest.raises(FolderError, match="no array"):
        folder.node_feature(0, NODE, name)


@pytest.mark.parametrize("value", [-1, 1.5, "7", True, None, 2**60, [1]])
def test_lengths_of_files(root, value):
    forge(root, set_in("files", map_path(NODE), "bytes", value=value))
    with pytest.raises(
        FolderError, match=r"damaged: the files.*bytes must be an integer from 1 to"
    ):
        PartitionFolder(root)


def of_x(shape, dtype="float32"):
    """A change of attribute x."""
    row = [dtype, shape]
    return set_in("node_types", 0, "attrs", "x", value={"stored": row, "delivered": row})


@pytest.mark.parametrize(
    ("flag", "meaning"),
    [
        ("keys", "keys of their own"),
        ("segments", "several segments"),
        ("sharding", "unknown to this khop"),
    ],
)
def test_flags_are_refused_by_name(root, flag, meaning):
    """Whatever else such a folder says, which this khop need not understand."""

    def later(meta):
        meta.update(flags=[flag], khop_version="9.1", files="elsewhere", of_later_versions=1)

    forge(root, later)
    with pytest.raises(FolderError, match=rf"has flag '{flag}' \(.*{meaning}.*wrote it \('9\.1'\)"):
        PartitionFolder(root)


@pytest.mark.parametrize(
    "change",
    [
        set_in("node_types", 0, "name", value=["node"]),
        set_in("node_types", 0, "name", value="\ud800"),
        set_in("node_types", 0, "bounds", value=[0, 1, float("inf")]),
        set_in("node_types", 0, "bounds", value=[0, 1, 2**70]),
        of_x([2**40, 2**40]),
        of_x([1] * 40),
        of_x([1] * 60_000),
        of_x([0, 2**62]),
        of_x([-1]),
        of_x(4),
        of_x([4], "object"),
        of_x([4], ["float32"]),
        set_in("node_types", 0, "attrs", "x", value={}),
        set_in("node_types", 0, "attrs", "x", value={**NUMBER, "encoding": "int8"}),
        set_in("node_types", 0, "attrs", "x", value={**NUMBER, "parameters": {"scale": 1}}),
        set_in("node_types", 0, "attrs", "x", "delivered", value=["float64", [3]]),
        set_in("node_types", 0, "attrs", "x", value={**NUMBER, "encoding": "float32"}),
        set_in("node_types", 0, "attrs", "x", value=HALVES),  # without the flag
        set_in("segments", value=[]),
        set_in("segments", 1, value=["part-1", "part-1.1"]),
        set_in("segments", 1, value=["../part-1"]),
        set_in("flags", value="segments"),
        set_in("identity", value="x" * 100),
        set_in("node_types", 0, "splits", value=[["train_mask"]]),
        set_in("node_types", 0, "cached", value=[1]),
        set_in("node_types", 0, "cached", value=[-1, -1]),
        set_in("num_parts", value=float("nan")),
        lambda m: m["node_types"].append(m["node_types"][0]),
        lambda m: m["edge_types"].append(m["edge_types"][0]),
    ],
)
def test_descriptions_that_make_no_sense(root, change):
    forge(root, change)
    with pytest.raises(FolderError, match=r"meta\.json' is damaged"):
        PartitionFolder(root)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000])
def test_depth_without_end(root, text):
    (root / "meta.json").write_bytes(text)
    with pytest.raises(FolderError, match="is damaged"):
        PartitionFolder(root)


def test_depth_that_json_reads_and_does_not_write(root):
    deep = "[" * 900 + "]" * 900
    content = json.loads((root / "meta.json").read_text())
    text = json.dumps(content)[:-1] + f', "method": {deep}}}'
    (root / "meta.json").write_text(text)
    with pytest.raises(FolderError, match="is damaged"):
        PartitionFolder(root)


class Bomb:
    """Unpickling it touches a file."""

    def __init__(self, file):
        self.file = str(file)

    def __reduce__(self):
        return Path.touch, (Path(self.file),)


@pytest.mark.parametrize("form", ["objects", "records of objects", "bare pickle", "pickle in x"])
def test_pickles_are_never_run(root, tmp_path, form):
    """Wherever they are, and though meta.json vouches for them."""
    target = tmp_path / "exploded"
    path = map_path(NODE) if form != "pickle in x" else node_path(0, NODE, "x")
    bomb = np.empty(1, object)
    bomb[0] = Bomb(target)
    if form == "records of objects":
        bomb = np.array([(Bomb(target),)], dtype=[("a", object)])
    with (root / path).open("wb") as file:
        if form == "bare pickle":
            pickle.dump(Bomb(target), file)
        else:
            np.save(file, bomb, allow_pickle=True)
    forge(root, lambda meta: meta["files"].update({path: described(root / path)}))
    folder = PartitionFolder(root)
    with pytest.raises(FolderError, match="is damaged"):
        folder.id_map(NODE)
        folder.node_feature(0, NODE, "x")
    assert verify_folder(root)
    assert not target.exists()


def described(file):
    import hashlib

    data = file.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def header_of(array, **save):
    import io

    buffer = io.BytesIO()
    np.save(buffer, array, **save)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3), order="F"),
        np.zeros(3, ">i8"),
        np.zeros(3, "S5"),
        np.zeros(3, "U5"),
        np.zeros(3, "M8[s]"),
        np.zeros(3, complex),
        np.zeros(3, [("a", "i4")]),
        np.zeros(3, np.float128),
    ],
    ids=lambda a: str(a.dtype),
)
def test_other_arrays_are_not_read(array):
    data = header_of(array)
    with pytest.raises(ValueError, match=r"header|Fortran|supported"):
        parse_header(data, len(data))


SHAPES = [(), (3,), (0,), (2, 3), (0, 5), (1, 1, 4), (12345, 0)]
NUMBERS = ["bool", "int8", "uint16", "int32", "uint64", "f2", "f4", "f8"]


def test_headers_of_numbers_are_read_as_numpy_does(tmp_path):
    file = tmp_path / "a.npy"
    for case in itertools.product(SHAPES, NUMBERS, ((1, 0), (2, 0), (3, 0))):
        shape, dtype, version = case
        array = np.ones(shape, dtype)
        with file.open("wb") as opened:
            np.lib.format.write_array(opened, array, version)
        data = file.read_bytes()
        found, axes, begin = parse_header(data[:10_012], len(data))
        assert (found, axes) == (array.dtype, array.shape), case
        assert data[begin:] == array.tobytes(), case


@pytest.mark.parametrize(
    "old,new",
    [
        (b"(40,)", b"(41,)"),
        (b"(40,)", b"(-4,)"),
        (b"(40,)", b"(4,0)"),
        (b"(40,)", b"(99999999999999999999,)"),
        (b"(40,)", b"[40,]"),
        (b"'<i4'", b"'|O'"),
        (b"'<i4'", b"'<i3'"),
        (b"'<i4'", b"'<c8'"),
        (b"'<i4'", b"__import__('os')"),
        (b"False", b"True"),
        (b"'shape'", b"'share'"),
        (b"\x93NUMPY", b"\x93NUMPI"),
        (b"NUMPY\x01", b"NUMPY\x09"),
    ],
)
def test_headers_that_lie(old, new):
    data = header_of(np.arange(40, dtype=np.int32))
    assert old in data
    length = len(data)
    changed = data.replace(old, new)
    padded = changed.replace(b" " * max(len(changed) - length, 0) + b"\n", b"\n", 1)
    with pytest.raises(ValueError):
        parse_header(padded, len(padded))


def test_arrays_of_another_form_than_described(root):
    """Each array has the rows and the dtype that meta.json says, before anything uses it."""
    cases = {
        edge_path(0, EDGE, "indptr"): lambda a: a[:-1],
        edge_path(0, EDGE, "indices"): lambda a: a.astype(np.float64),
        edge_path(0, EDGE, "edge_id"): lambda a: np.append(a, 0).astype(a.dtype),
        node_path(0, NODE, "id"): lambda a: a.reshape(-1, 1),
        node_path(0, NODE, "x"): lambda a: a[:, :1],
        map_path(NODE): lambda a: a.astype(np.uint8),
        split_path(NODE, "train_mask"): lambda a: a.astype(bool),
    }
    for path, change in cases.items():
        before = (root / path).read_bytes(), (root / "meta.json").read_bytes()
        forge(root, **{path: change})
        folder = PartitionFolder(root)
        with pytest.raises(FolderError, match="instead of"):
            part = Part(folder, 0)
            _ = part.csrs
            part.edge_feature(0, "edge_id")
            part.node_feature(0, "x")
            folder.id_map(NODE)
            folder.split(NODE, "train_mask")
        (root / path).write_bytes(before[0])
        (root / "meta.json").write_bytes(before[1])


def test_files_stay_as_they_were_opened(root):
    """A mapped file that is replaced (not cut) goes on being the one that was checked."""
    folder = PartitionFolder(root)
    ids = folder.id_map(NODE)
    before = ids.tolist()
    other = root / "other.npy"
    np.save(other, np.zeros(40, np.int32))
    other.replace(root / map_path(NODE))
    assert ids.tolist() == before


@pytest.mark.parametrize(
    "change",
    [np.zeros_like, lambda a: np.where(a == 7, 8, a), lambda a: a + 1],
    ids=["all the same", "one left out", "one too large"],
)
def test_a_map_that_is_no_permutation(root, change):
    """What it leaves out has no original id, and gets none that was in memory before."""
    forge(root, **{map_path(NODE): change})
    folder = PartitionFolder(root)
    for _ in range(2):
        with pytest.raises(FolderError, match=r"map of 'node' does not hold each .* 'khop verify"):
            folder.original_ids(NODE)
