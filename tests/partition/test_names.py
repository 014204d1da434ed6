"""Types and attributes may have any name: it stays in its folder and comes back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from khop.partition import GraphSource, PartitionFolder, RandomPartitioner, verify_folder
from khop.storage.folder.paths import edge_folder, safe_name

HOSTILE = [
    "../../x",
    "a/b",
    "/etc/passwd",
    "__",
    "..",
    ".",
    "",
    "a__b",
    "_",
    "Größe",
    "节点",
    "a.npy",
    "%2E",
    "a\nb",
    "a\0b",
    " ",
    "C:\\x",
    "~",
]


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_hostile_names_round_trip(tmp_path, union, name):
    edge_type = (name, name, name)
    attrs = {name: {name: np.arange(6.0)}}
    edge_attrs = {name: {edge_type: np.arange(3.0)}}
    source = GraphSource.from_arrays(
        {name: 6}, {edge_type: np.array([[0, 2, 4], [1, 3, 5]])}, attrs, edge_attrs
    )
    root = tmp_path / "inside" / "f"
    RandomPartitioner.from_data(source, root, 2).partition()
    assert verify_folder(root) == []
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.npy")] == [
        str(p.relative_to(tmp_path)) for p in root.rglob("*.npy")
    ]
    files = json.loads((root / "meta.json").read_text())["files"]
    assert {str(p.relative_to(root)) for p in root.rglob("*.npy")} == set(files)
    read = union(root)
    assert read.edges[edge_type].tolist() == [[0, 2, 4], [1, 3, 5]]
    assert read.node_attrs[name, name].tolist() == list(range(6))
    assert read.edge_attrs[edge_type, name].tolist() == [0, 1, 2]


def test_edge_types_whose_names_run_together_stay_apart(tmp_path, union):
    """Joined by '__', all of these would be 'a__b__c__d'."""
    types = [("a__b", "c", "d"), ("a", "b__c", "d"), ("a", "b", "c__d")]
    nodes = {name: 2 for edge_type in types for name in (edge_type[0], edge_type[2])}
    edges = {t: np.array([[i % 2], [1]]) for i, t in enumerate(types)}
    RandomPartitioner.from_data(
        GraphSource.from_arrays(nodes, edges), tmp_path / "f", 2
    ).partition()
    assert verify_folder(tmp_path / "f") == []
    assert {t: e.tolist() for t, e in union(tmp_path / "f").edges.items()} == {
        t: e.tolist() for t, e in edges.items()
    }


NAMES = st.text(st.sampled_from("ab_./%\\é"), max_size=5)


@settings(max_examples=300)
@given(st.tuples(NAMES, NAMES, NAMES), st.tuples(NAMES, NAMES, NAMES))
def test_no_two_edge_types_share_a_folder(one, other):
    assert (edge_folder(one) == edge_folder(other)) == (one == other)


@settings(max_examples=300)
@given(st.text(max_size=20).filter(lambda s: s.isprintable()), st.text(max_size=3))
def test_names_are_one_step_of_a_path(name, other):
    safe = safe_name(name)
    assert safe
    assert safe not in (".", "..")
    assert "/" not in safe
    assert (safe == safe_name(other)) == (name == other)


def test_reading_names_that_meta_json_does_not_list(tmp_path):
    source = GraphSource.from_arrays(4, np.array([[0], [1]]))
    RandomPartitioner.from_data(source, tmp_path / "f", 2).partition()
    folder = PartitionFolder(tmp_path / "f")
    with pytest.raises(ValueError, match="has no array"):
        folder.open("../secret.npy")
    with pytest.raises(KeyError, match="no node type 'user': there are"):
        folder.node_ids(0, "node") if folder.meta.node_type("user") else None
