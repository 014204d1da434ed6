"""Frequency partitions are balanced, put nodes where they are hot, and cache the hottest rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from torch_geometric.data import HeteroData

from khop.partition import (
    FrequencyPartitioner,
    GraphSource,
    PartitionFolder,
    RandomPartitioner,
    verify_folder,
)
from khop.partition.methods.frequency import assign_balanced, even_sizes
from khop.storage.folder import cache_path
from khop.typing import NODE


def partitioner_of(probs, root="unused", attrs=None, **options):
    probs = np.asarray(probs, float)
    source = GraphSource.from_arrays(probs.shape[1], np.empty((2, 0), np.int64), attrs)
    return FrequencyPartitioner.from_data(source, root, len(probs), probs=list(probs), **options)


LEVELS = st.sampled_from([0.0, 0.25, 0.5, 1.0])  # few levels: many ties


@settings(max_examples=60)
@given(
    st.tuples(st.integers(1, 7), st.integers(10, 120)).flatmap(
        lambda shape: hnp.arrays(np.float64, shape, elements=LEVELS | st.floats(0, 1))
    )
)
def test_sizes_differ_by_at_most_one_node(probs):
    """Also where all nodes are hot in one part only, or nowhere."""
    sizes = np.bincount(partitioner_of(probs).assign_nodes(NODE), minlength=len(probs))
    assert sizes.max() - sizes.min() <= 1


def test_nodes_go_where_they_are_hottest():
    """Part 0 touches 0..2, part 1 touches 3..5: all at home."""
    owners = partitioner_of([[1, 0.9, 0.8, 0, 0, 0], [0, 0, 0.1, 0.7, 0.8, 0.9]]).assign_nodes(NODE)
    assert owners.tolist() == [0, 0, 0, 1, 1, 1]


def test_node_with_most_to_lose_is_assigned_first():
    """All prefer part 0, which has room for two: 1 and 3 would lose 0.8 and 0.7 elsewhere."""
    owners = partitioner_of([[0.9, 0.9, 0.5, 0.8], [0.8, 0.1, 0.4, 0.1]]).assign_nodes(NODE)
    assert owners.tolist() == [1, 0, 1, 0]


def test_ties_between_two_of_three_parts_do_not_go_to_the_third():
    """Nodes 0..3 are equally hot in parts 0 and 1, nodes 4 and 5 in part 2 only."""
    probs = np.zeros((3, 6))
    probs[:2, :4], probs[2, 4:] = 0.5, 0.1
    assert partitioner_of(probs).assign_nodes(NODE).tolist() == [0, 0, 1, 1, 2, 2]


def test_no_room():
    with pytest.raises(ValueError, match="room for 2 of 3 items"):
        assign_balanced(np.zeros((2, 3)), np.array([1, 1]))


@given(st.integers(0, 50), st.integers(1, 9))
def test_even_sizes(count, num_parts):
    sizes = even_sizes(count, num_parts)
    assert sizes.sum() == count
    assert sizes.max() - sizes.min() <= 1


def written(root, probs, **options):
    """A folder whose feature x of node i is (i, i, i, i) in float32: 16 bytes a row."""
    x = np.repeat(np.arange(len(probs[0]), dtype=np.float32)[:, None], 4, axis=1)
    partitioner_of(probs, root, {"x": x}, overwrite=True, **options).partition()
    assert verify_folder(root) == []
    return PartitionFolder(root)


@settings(max_examples=12)
@given(
    hnp.arrays(np.float64, (3, 20), elements=LEVELS | st.floats(0.01, 1)),
    st.floats(0, 1),
    st.none() | st.integers(0, 1000),
)
def test_cache_holds_the_hottest_rows_of_others(tmp_path_factory, probs, ratio, budget):
    root = tmp_path_factory.getbasetemp() / "cache"
    folder = written(root, probs, cache_ratio=ratio, cache_memory_budget=budget)
    owners = folder.meta.node_type(NODE).book.owner(folder.id_map(NODE))
    for part in range(3):
        remote = np.flatnonzero((owners != part) & (probs[part] > 0))
        want = remote[np.argsort(-probs[part][remote], kind="stable")]
        cached = folder.meta.node_type(NODE).cached[part]
        assert cached <= ratio * 20
        assert budget is None or cached * 16 <= budget
        if budget is None:
            assert cached == min(int(ratio * 20), len(want))
        if cached:
            ids = folder.open(cache_path(part, NODE, "id"))
            assert ids.tolist() == want[:cached].tolist()
            assert folder.open(cache_path(part, NODE, "x"))[:, 0].tolist() == ids.tolist()


def test_no_cache_unless_asked_for(tmp_path):
    assert written(tmp_path / "f", np.ones((2, 10))).meta.node_type(NODE).cached == [0, 0]


def test_a_budget_alone_bounds_the_cache(tmp_path):
    folder = written(tmp_path / "f", np.ones((2, 100)), cache_memory_budget="0.5KB")
    assert folder.meta.node_type(NODE).cached == [16, 16]  # 512 bytes at 16 + 2 * 8 a row


def test_expected_shares(tmp_path):
    """Part 0: mass 2 at home, 0.5 + 0.25 away, of which one row is cached."""
    probs = [[1, 1, 0.5, 0.25], [0, 0, 1, 1]]
    summary = written(tmp_path / "f", probs, cache_ratio=0.25).meta.summary
    assert summary["expected_shares"][0] == pytest.approx(
        {"local": 2 / 2.75, "cached": 0.5 / 2.75, "remote": 0.25 / 2.75}
    )
    assert summary["expected_shares"][1] == pytest.approx({"local": 1, "cached": 0, "remote": 0})
    curve = summary["cache_curve"]
    assert curve["rows"] == [0, 1, 2]
    assert curve["remote"][0] == pytest.approx([0.75 / 2.75, 0.25 / 2.75, 0])


def test_structure_beats_chance(tmp_path):
    """Ten cliques of ten nodes; each part's batches stay in five of them."""
    rng = np.random.default_rng(0)
    clique = rng.permutation(100) % 10
    probs = np.stack([0.6 * (clique < 5) + 0.01, 0.6 * (clique >= 5) + 0.01])
    shares = written(tmp_path / "f", probs).meta.summary["expected_shares"]
    assert min(s["local"] for s in shares) > 0.95
    owners = RandomPartitioner.from_data(
        GraphSource.from_arrays(100, np.empty((2, 0), np.int64)), "unused", 2
    ).assign_nodes(NODE)
    assert probs[0][owners == 0].sum() / probs[0].sum() < 0.7


def test_heterogeneous_probabilities(tmp_path, hetero, union):
    """Items are hot in one part each; the types without probabilities are spread evenly."""
    probs = [{"item": torch.eye(2)[i].repeat(4)[:7]} for i in (0, 1)]
    FrequencyPartitioner.from_data(hetero, tmp_path / "f", 2, probs=probs).partition()
    folder = PartitionFolder(tmp_path / "f")
    assert folder.node_ids(0, "item").tolist() == [0, 2, 4, 6]
    assert [t.book.size(0) for t in folder.meta.node_types] == [5, 4, 2]
    assert verify_folder(tmp_path / "f") == []


def two_types(root, **options):
    """Rows of type a take 4 + 16 bytes, of b 24 + 16; part 1 owns nothing that is hot.

    Part 1 touches a0 .. a3 with 0.8, 0.4, 0.2, 0.1 and b0 .. b3 with 1, 0.9, 0.3, 0.
    """
    data = HeteroData()
    data["a"].x, data["b"].x = torch.arange(8.0), torch.zeros(8, 6)
    data["a", "to", "b"].edge_index = torch.empty(2, 0, dtype=torch.long)
    hot = {"a": np.array([0.8, 0.4, 0.2, 0.1]), "b": np.array([1, 0.9, 0.3, 0])}
    probs = [
        {t: np.concatenate([np.full(4, 9.0), np.zeros(4)]) for t in hot},
        {t: np.concatenate([h, np.zeros(4)]) for t, h in hot.items()},
    ]
    FrequencyPartitioner.from_data(
        data, root, 2, probs=probs, overwrite=True, **options
    ).partition()
    assert verify_folder(root) == []
    folder = PartitionFolder(root)
    return {
        t: folder.open(cache_path(1, t, "id")).tolist()
        for t in hot
        if folder.meta.node_type(t).cached[1]
    }


def test_types_share_a_budget_by_what_a_byte_saves(tmp_path):
    """In order of gain a byte: a0 .04, b0 .025, b1 .0225, a1 .02, a2 .01, b2 .0075, a3 .005."""
    for budget, a, b in (
        (19, 0, 0),
        (20, 1, 0),
        (59, 1, 0),
        (60, 1, 1),
        (100, 1, 2),
        (140, 3, 2),
        (10**6, 4, 3),
    ):
        cached = two_types(tmp_path / "f", cache_memory_budget=budget)
        assert cached == {t: list(range(n)) for t, n in (("a", a), ("b", b)) if n}


def test_bounds_of_each_type(tmp_path):
    root = tmp_path / "f"
    assert two_types(root, cache_memory_budget={"b": "81"}) == {"b": [0, 1]}
    assert two_types(root, cache_ratio={"a": 0.25}) == {"a": [0, 1]}
    both = {"cache_ratio": {"a": 0.25, "b": 0.125}, "cache_memory_budget": 80}
    assert two_types(root, **both) == {"a": [0, 1], "b": [0]}
    with pytest.raises(ValueError, match=r"cache_ratio names node types \['c'\]"):
        two_types(root, cache_ratio={"c": 0.5})
    with pytest.raises(ValueError, match="'lots' is not a number of bytes"):
        two_types(root, cache_memory_budget={"a": "lots"})


def test_arrays_and_features(tmp_path):
    probs = [torch.tensor([1.0, 1, 0, 0]), torch.tensor([0.0, 0, 1, 1])]
    FrequencyPartitioner(
        output_dir=tmp_path / "f",
        num_parts=2,
        num_nodes=4,
        edge_index=torch.tensor([[0, 1], [2, 3]]),
        probs=probs,
        node_feat=torch.rand(4, 3),
        node_feat_dtype=torch.float32,
        edge_feat=None,
        edge_weights=None,
        edge_dir="out",
        cache_memory_budget=10**9,
        cache_ratio=0.5,
    ).partition()
    method = json.loads((tmp_path / "f" / "meta.json").read_text())["method"]
    assert method == {
        "name": "FrequencyPartitioner",
        "seed": 0,
        "cache_ratio": 0.5,
        "cache_memory_budget": 10**9,
    }


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"probs": None}, ValueError, "each of the 2 parts .got none"),
        ({"probs": [np.zeros(30)]}, ValueError, "each of the 2 parts .got 1"),
        ({"probs": [np.zeros(30), np.zeros(29)]}, ValueError, "part 1 has shape"),
        ({"probs": [np.zeros(30), np.full(30, -0.1)]}, ValueError, "negative or non-finite"),
        ({"probs": [np.zeros(30), np.full(30, np.nan)]}, ValueError, "negative or non-finite"),
        ({"probs": [np.zeros(30)] * 2, "cache_ratio": 1.5}, ValueError, "between 0 and 1"),
        ({"probs": [np.zeros(30)] * 2, "cache_memory_budget": "lots"}, ValueError, "'lots' is not"),
        ({"probs": [np.zeros(30)] * 2, "cache_memory_budget": -1}, ValueError, "negative"),
    ],
)
def test_bad_options(make_data, options, error, message):
    with pytest.raises(error, match=message):
        FrequencyPartitioner.from_data(make_data(), "unused", 2, **options)


def test_heterogeneous_graphs_need_probabilities_by_type(hetero):
    with pytest.raises(TypeError, match="node type: probabilities"):
        FrequencyPartitioner.from_data(hetero, "unused", 1, probs=[np.zeros(10)])
