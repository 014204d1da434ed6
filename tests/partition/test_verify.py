"""`verify_folder` finds whatever is wrong with a folder."""

from __future__ import annotations

import random
import re
import shutil

import numpy as np
import pytest

from khop.errors import FolderError
from khop.partition import FrequencyPartitioner, GraphSource, PartitionFolder, verify_folder
from khop.partition.source import NodeSource
from khop.storage.folder import (
    cache_attr_path,
    cache_path,
    edge_attr_path,
    edge_path,
    map_path,
    node_attr_path,
    node_path,
    split_path,
)
from khop.typing import EDGE, NODE
from support.formats.forging import forge, set_in

BYTE = {"stored": ["int8", []], "delivered": ["int8", []]}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    rng = np.random.default_rng(0)
    root = tmp_path_factory.mktemp("sound") / "f"
    source = GraphSource.from_arrays(
        40,
        rng.integers(40, size=(2, 120)),
        {"x": rng.random((40, 3)), "train_mask": rng.random(40) < 0.5},
        {"edge_attr": rng.random(120)},
    )
    probs = list(rng.random((3, 40)))
    FrequencyPartitioner.from_data(source, root, 3, probs=probs, cache_ratio=0.2).partition()
    assert verify_folder(root) == []
    return root


@pytest.fixture
def root(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "f")


def test_any_flipped_bit_is_found(root):
    """Every file, meta.json too: first and last byte, and some in between."""
    generator = random.Random(0)
    for file in sorted(p for p in root.rglob("*") if p.is_file()):
        good = file.read_bytes()
        places = {0, len(good) - 1, *(generator.randrange(len(good)) for _ in range(4))}
        if file.name == "meta.json":
            places |= {generator.randrange(len(good)) for _ in range(150)}
        for place in places:
            bad = bytearray(good)
            bad[place] ^= 1 << generator.randrange(8)
            file.write_bytes(bad)
            assert verify_folder(root) != [], (file.name, place)
        file.write_bytes(good)
    assert verify_folder(root) == []


def test_white_space_in_meta_json_is_found(root):
    meta = root / "meta.json"
    meta.write_bytes(meta.read_bytes() + b"\n")
    assert verify_folder(root) != []


def test_missing_truncated_longer_and_further_files(root):
    (root / map_path(NODE)).unlink()
    file = root / node_path(1, NODE, "x")
    file.write_bytes(file.read_bytes()[:-8])
    longer = root / edge_path(0, EDGE, "indices")
    longer.write_bytes(longer.read_bytes() + b"\0")
    (root / "part-0" / "notes.txt").write_text("hello")
    problems = "\n".join(verify_folder(root))
    assert f"{map_path(NODE)}: missing" in problems
    assert f"{node_path(1, NODE, 'x')}: {file.stat().st_size} bytes instead of" in problems
    assert f"{edge_path(0, EDGE, 'indices')}: " in problems
    assert "part-0/notes.txt: not part of the folder" in problems


def test_a_missing_part(root):
    shutil.rmtree(root / "part-2")
    problems = verify_folder(root)
    assert problems
    assert all(p.startswith("part-2/") and p.endswith("missing") for p in problems)


def test_files_of_two_parts_exchanged(root):
    one, other = root / node_path(0, NODE, "x"), root / node_path(1, NODE, "x")
    one.rename(root / "aside")
    other.rename(one)
    (root / "aside").rename(other)
    assert verify_folder(root)


def changed(place, value):
    def change(array):
        array[place] = value
        return array

    return change


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        (map_path(NODE), changed(0, 41), "not a permutation"),
        (map_path(NODE), lambda a: a[:-1], "not a permutation"),
        (node_path(0, NODE, "id"), lambda a: a[::-1].copy(), "does not agree with the map"),
        (node_path(0, NODE, "id"), lambda a: a[:-1], "wrong number of ids"),
        (node_path(0, NODE, "id"), changed(0, -1), "ids out of range"),
        (node_path(1, NODE, "x"), lambda a: a[:-1], r"instead of float64 \(13, 3\)"),
        (node_path(1, NODE, "x"), lambda a: a.astype("f4"), "float32"),
        (node_path(1, NODE, "train_mask"), lambda a: (a * np.uint8(2)).view(bool), "neither 0 nor"),
        (split_path(NODE, "train_mask"), lambda a: a[1:], "split 'train_mask' of 'node'"),
        (cache_path(0, NODE, "x"), changed((0, 0), 9.0), "differs from the owner's rows"),
        (cache_path(0, NODE, "new_id"), changed(0, 0), "caches its own nodes"),
        (cache_path(0, NODE, "new_id"), lambda a: a[[1, *range(1, 8)]], "a node twice"),
        (cache_path(0, NODE, "id"), changed(0, 39), "does not agree with the map"),
        (edge_path(0, EDGE, "indptr"), lambda a: a[:-1], "indptr does not fit"),
        (edge_path(0, EDGE, "indptr"), changed(-1, 0), "indptr does not fit"),
        (edge_path(0, EDGE, "indptr"), lambda a: a + 1, "disagree on the number of edges"),
        (edge_path(1, EDGE, "indices"), changed(3, 40), "neighbour's id is out of range"),
        (edge_path(1, EDGE, "edge_id"), lambda a: a[:-1], "edge_id has"),
        (edge_path(1, EDGE, "edge_id"), lambda a: a[[0, 0, *range(2, len(a))]], "edge ids are not"),
        (edge_path(1, EDGE, "edge_attr"), lambda a: a[:-1], "holds float64"),
    ],
)
def test_wrong_contents_under_right_checksums(root, path, change, message):
    forge(root, **{path: change})
    problems = verify_folder(root)
    assert any(re.search(message, p) for p in problems), problems


@pytest.mark.parametrize(
    "change",
    [
        set_in("node_types", 0, "bounds", value=[0, 13, 27, 40]),
        set_in("node_types", 0, "bounds", value=[0, 14, 27, 41]),
        set_in("edge_types", 0, "bounds", value=[0, 1, 2, 120]),
        set_in("edge_types", 0, "bounds", value=[0, 40, 80, 121]),
        set_in("node_types", 0, "cached", value=[0, 8, 8]),
        set_in("node_types", 0, "cached", value=[9, 8, 8]),
        set_in("node_types", 0, "cached", value=[8]),
        set_in("node_types", 0, "splits", value=[]),
        set_in("node_types", 0, "splits", value=["val_mask"]),
        set_in("node_types", 0, "attrs", value={}),
        set_in("node_types", 0, "attrs", "z", value=BYTE),
        set_in("edge_types", 0, "attrs", value={}),
        set_in("node_types", 0, "name", value="user"),
        set_in("edge_types", value=[]),
        set_in("summary", "edges_between_parts", value=[[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
    ],
)
def test_wrong_counts_in_a_sealed_meta_json(root, change):
    forge(root, change)
    assert verify_folder(root)


def with_attribute(root, name, of_nodes):
    """Adds an attribute as the writer would: files, checksums and description fit."""
    described, copies = "node_types" if of_nodes else "edge_types", {}
    for part in range(3):
        if of_nodes:
            copies[node_attr_path(part, NODE, name)] = node_path(part, NODE, "x")
            copies[cache_attr_path(part, NODE, name)] = cache_path(part, NODE, "x")
        else:
            copies[edge_attr_path(part, EDGE, name)] = edge_path(part, EDGE, "edge_attr")

    def change(meta):
        attrs = meta[described][0]["attrs"]
        attrs[name] = attrs["x" if of_nodes else "edge_attr"]
        for copy, original in copies.items():
            shutil.copy(root / original, root / copy)
            meta["files"][copy] = meta["files"][original]

    forge(root, change)


@pytest.mark.parametrize("of_nodes", [True, False])
@pytest.mark.parametrize("name", ["id", "edge_id", "edge_index"])
def test_names_that_batches_use_themselves(root, name, of_nodes):
    """A batch would have two arrays of one name: the reader refuses what the writer refuses."""
    with_attribute(root, name, of_nodes)
    with pytest.raises(FolderError, match=f"has an attribute with the reserved name '{name}'"):
        PartitionFolder(root)
    (problem,) = verify_folder(root)
    assert "reserved name" in problem


def test_any_other_name_is_sound(root):
    for of_nodes in (True, False):
        with_attribute(root, "indptr", of_nodes)
    assert verify_folder(root) == []


def test_a_split_that_is_listed_twice(root):
    forge(root, lambda meta: meta["node_types"][0]["splits"].append("train_mask"))
    (problem,) = verify_folder(root)
    assert "splits names something twice" in problem


def test_a_homogeneous_graph_of_several_types(root):
    """Batches would show the first node type alone."""
    other = {"name": "b", "bounds": [0, 0, 0, 0], "attrs": {}, "splits": [], "cached": []}
    empty = np.zeros(0, np.int32)
    paths = [map_path("b"), *(node_path(part, "b", "id") for part in range(3))]
    for path in paths:
        (root / path).parent.mkdir(exist_ok=True)
        np.save(root / path, empty)
    forge(
        root,
        lambda meta: meta["node_types"].append(other),
        **dict.fromkeys(paths, lambda array: array),
    )
    (problem,) = verify_folder(root)
    assert "a homogeneous graph has one node type and one edge type" in problem
    with pytest.raises(ValueError, match="pass heterogeneous=True"):
        GraphSource({"a": NodeSource(1), "b": NodeSource(1)}, {})
