"""Opening a folder: what is wrong is named, and nothing is unpickled."""

from __future__ import annotations

import gc
import hashlib
import json
import pickle
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from khop.errors import FolderError
from khop.partition import PartitionFolder, RandomPartitioner, verify_folder
from khop.storage.folder import map_path
from khop.typing import NODE


@pytest.fixture
def root(tmp_path, make_data):
    RandomPartitioner.from_data(make_data(), tmp_path / "f", 3).partition()
    return tmp_path / "f"


def rewrite(root, change):
    """Changes meta.json and seals it again, as somebody with intent would."""
    content = json.loads((root / "meta.json").read_text())
    content.pop("seal")
    change(content)
    seal = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    (root / "meta.json").write_text(json.dumps({**content, "seal": seal}, indent=1))


def test_no_folder(tmp_path):
    with pytest.raises(FolderError, match="no partition folder at"):
        PartitionFolder(tmp_path / "nowhere")


def test_a_directory_of_something_else(tmp_path):
    with pytest.raises(FolderError, match=r"has no meta\.json. Make one with `khop partition`"):
        PartitionFolder(tmp_path)


@pytest.mark.parametrize("order", ["random", None, ["degree"]])
def test_an_unknown_order(root, order):
    rewrite(root, lambda meta: meta.update(order=order))
    with pytest.raises(FolderError, match=r"damaged: .*(unknown order|order must be a text)"):
        PartitionFolder(root)


@pytest.mark.parametrize("version", [0, 4, "1", True, None])
def test_another_version(root, version):
    rewrite(root, lambda meta: meta.update(version=version))
    wanted = f"format version {version!r}, but this khop .* reads versions 1 to 3: install the khop"
    with pytest.raises(FolderError, match=wanted):
        PartitionFolder(root)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'"khop"', b"\xff\xfe", b"{}"])
def test_meta_json_is_something_else(root, text):
    (root / "meta.json").write_bytes(text)
    with pytest.raises(FolderError, match=r"meta\.json' (is damaged|does not describe)"):
        PartitionFolder(root)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(num_parts=4),
        lambda m: m.update(num_parts=0),
        lambda m: m.update(num_parts="many"),
        lambda m: m.update(edge_dir="sideways"),
        lambda m: m.update(node_types=None),
        lambda m: m.pop("edge_types"),
        lambda m: m.update(summary=[1]),
        lambda m: m["node_types"][0].update(bounds=[0, 20, 10, 30]),
        lambda m: m["node_types"][0].update(bounds=[1, 10, 20, 30]),
        lambda m: m["node_types"][0]["attrs"]["x"].update(dtype="object"),
        lambda m: m["node_types"][0]["attrs"]["x"].update(shape=[-1]),
        lambda m: m["edge_types"][0].update(name=["node", "to", "nobody"]),
        lambda m: m["edge_types"][0].update(name=["node", "to"]),
        lambda m: m.update(files=[]),
        lambda m: m["files"]["map/node.npy"].pop("bytes"),
        lambda m: m["files"].update({"map/node.npy": 7}),
    ],
)
def test_meta_json_is_malformed(root, change):
    rewrite(root, change)
    with pytest.raises(FolderError, match=r"meta\.json' is damaged"):
        PartitionFolder(root)
    assert len(verify_folder(root)) == 1


@pytest.mark.parametrize("part", ["0", 0.0, None, True, [0]])
def test_partition_idx_of_a_wrong_type(root, part):
    with pytest.raises(TypeError, match="partition_idx must be an integer"):
        PartitionFolder(root).check_part(part)


@pytest.mark.parametrize("part", [-1, 3, 10**9])
def test_partition_idx_out_of_range(root, part):
    with pytest.raises(IndexError, match=r"has 3 partitions \(0 to 2\)"):
        PartitionFolder(root).check_part(part)


def test_partition_idx_may_come_from_numpy(root):
    assert PartitionFolder(root).check_part(np.int64(2)) == 2


def test_a_part_that_is_not_on_this_machine(root):
    shutil.rmtree(root / "part-1")
    folder = PartitionFolder(root)
    assert folder.check_part(0) == 0
    with pytest.raises(FolderError, match="part-1 is not on this machine: copy"):
        folder.check_part(1)
    with pytest.raises(FolderError, match="cannot be read"):
        folder.node_ids(1, NODE)


def test_a_truncated_file_is_found_on_opening(root):
    file = root / map_path(NODE)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(FolderError, match="bytes instead of"):
        PartitionFolder(root).id_map(NODE)


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path("exploded"),)


@pytest.mark.parametrize("form", ["object array", "bare pickle"])
def test_pickles_are_refused(root, tmp_path, monkeypatch, form):
    """Even if meta.json vouches for the file."""
    monkeypatch.chdir(tmp_path)
    file = root / map_path(NODE)
    if form == "object array":
        np.save(file, np.array([Bomb()], object), allow_pickle=True)
    else:
        file.write_bytes(pickle.dumps(Bomb()))
    known = {
        "bytes": file.stat().st_size,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }
    rewrite(root, lambda meta: meta["files"].update({map_path(NODE): known}))
    with pytest.raises(FolderError, match="is damaged"):
        PartitionFolder(root).id_map(NODE)
    assert verify_folder(root) != []
    assert not (tmp_path / "exploded").exists()


def test_arrays_are_mapped_and_read_only(root):
    ids = PartitionFolder(root).node_ids(0, NODE)
    assert not ids.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


def test_threads_open_arrays_at_the_same_time(root):
    """Whenever threads take turns: here amid the collection of garbage, which runs Python code."""
    folder = PartitionFolder(root)
    expected = folder.node_ids(0, NODE).tolist()
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()

    def open_often(_):
        return all(folder.node_ids(0, NODE).tolist() == expected for _ in range(300))

    def collected(*_):
        return sum(range(50))

    gc.callbacks.append(collected)
    try:
        sys.setswitchinterval(1e-6)
        gc.set_threshold(5)
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(open_often, range(4)))
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
        gc.callbacks.remove(collected)
