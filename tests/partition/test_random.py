"""Random partitions are balanced and depend on the seed alone; users may write their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from khop.partition import GraphSource, PartitionerBase, PartitionFolder, RandomPartitioner
from khop.partition.source import NodeSource
from khop.typing import NODE


def source_of(num_nodes, edges=((), ())):
    return GraphSource.from_arrays(num_nodes, np.array(edges, np.int64).reshape(2, -1))


@settings(max_examples=100)
@given(st.integers(0, 300), st.integers(1, 40), st.integers(0, 2**63 - 1))
def test_sizes_differ_by_at_most_one(num_nodes, num_parts, seed):
    partitioner = RandomPartitioner.from_data(source_of(num_nodes), "unused", num_parts, seed=seed)
    sizes = np.bincount(partitioner.assign_nodes(NODE), minlength=num_parts)
    assert len(sizes) == num_parts
    assert sizes.max() - sizes.min() <= 1


def test_the_seed_decides(tmp_path):
    owners = [
        RandomPartitioner.from_data(source_of(500), "unused", 4, seed=s).assign_nodes(NODE)
        for s in (7, 7, 8)
    ]
    assert np.array_equal(owners[0], owners[1])
    assert not np.array_equal(owners[0], owners[2])


def test_the_same_cut_writes_the_same_bytes(tmp_path, make_data):
    for name in "ab":
        RandomPartitioner.from_data(make_data(), tmp_path / name, 3, seed=1).partition()
    assert (
        PartitionFolder(tmp_path / "a").fingerprint == PartitionFolder(tmp_path / "b").fingerprint
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_parts": 0}, "num_parts must be at least 1"),
        ({"edge_dir": "by_edge"}, "edge_dir must be 'in' or 'out'"),
    ],
)
def test_bad_options(make_data, options, message):
    with pytest.raises(ValueError, match=message):
        RandomPartitioner.from_data(make_data(), "unused", **{"num_parts": 2, **options})


class Halves(PartitionerBase):
    """The user's own: low ids to part 0; part 1 keeps a copy of node 0."""

    def assign_nodes(self, node_type):
        return (np.arange(self.source.nodes[node_type].count) >= 15).astype(np.int64)

    def cached_nodes(self, node_type, part, owners):
        return np.array([0] if part == 1 else [], np.int64)


def test_a_partitioner_of_the_users_own(tmp_path, union, make_data):
    data = make_data()
    meta = Halves.from_data(data, tmp_path / "f", 2).partition()
    assert meta.method["name"] == "Halves"
    folder = PartitionFolder(tmp_path / "f")
    assert folder.node_ids(1, NODE).tolist() == list(range(15, 30))
    assert folder.meta.node_type(NODE).cached == [0, 1]
    assert np.array_equal(union(tmp_path / "f").edges[("node", "to", "node")], data.edge_index)


def test_options_of_the_users_own_partitioner(tmp_path, make_data):
    """Both constructors take them, by name; the example of `PartitionerBase`."""

    class AssignedPartitioner(PartitionerBase):
        def _configure(self, owners):  # options of its own, if it has any
            self.owners = owners

        def assign_nodes(self, node_type):
            return self.owners[node_type]

    data, owners = make_data(), {NODE: np.arange(30) % 2}
    AssignedPartitioner.from_data(data, tmp_path / "a", 2, owners=owners).partition()
    AssignedPartitioner(tmp_path / "b", 2, 30, data.edge_index, owners=owners).partition()
    for name in ("a", "b"):
        assert PartitionFolder(tmp_path / name).node_ids(1, NODE).tolist() == [*range(1, 30, 2)]
    for options in ({}, {"owner": owners}):
        with pytest.raises(TypeError, match="owner"):
            AssignedPartitioner(tmp_path / "c", 2, 30, data.edge_index, **options)


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ([0] * 29, "must return 30 integers"),
        ([0.0] * 30, "must return 30 integers"),
        ([0] * 29 + [2], r"outside 0 \.\. 1"),
        ([0] * 29 + [-1], r"outside 0 \.\. 1"),
    ],
)
def test_bad_assignments_are_refused(tmp_path, make_data, owners, message):
    class Bad(PartitionerBase):
        def assign_nodes(self, node_type):
            return np.array(owners)

    with pytest.raises(ValueError, match=message):
        Bad.from_data(make_data(), tmp_path / "f", 2).partition()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cached", [[20], [0, 0], [30], [-1]])
def test_bad_caches_are_refused(tmp_path, make_data, cached):
    class Bad(Halves):
        def cached_nodes(self, node_type, part, owners):
            return np.array(cached, np.int64)

    with pytest.raises(ValueError, match=r"cached_nodes\('node', [01]\)"):
        Bad.from_data(make_data(), tmp_path / "f", 2).partition()


def test_glt_keywords_of_the_random_partitioner(tmp_path, union):
    """As in GLT's guide, keyword for keyword."""
    edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    RandomPartitioner(
        output_dir=str(tmp_path / "f"),
        num_parts=2,
        num_nodes=4,
        edge_index=edge_index,
        node_feat=torch.arange(8.0).view(4, 2),
        node_feat_dtype=torch.float16,
        edge_feat=torch.arange(4),
        edge_feat_dtype=torch.int32,
        edge_weights=torch.rand(4),
        edge_dir="out",
    ).partition()
    folder = PartitionFolder(tmp_path / "f")
    assert folder.meta.edge_dir == "out"
    assert folder.meta.node_type(NODE).attrs["x"].dtype == "float16"
    attrs = folder.meta.edge_types[0].attrs
    assert (attrs["edge_attr"].dtype, attrs["edge_weight"].dtype) == ("int32", "float32")
    read = union(tmp_path / "f")
    assert np.array_equal(read.edges[("node", "to", "node")], edge_index)
    assert read.node_attrs[NODE, "x"].tolist() == torch.arange(8.0).view(4, 2).tolist()


def test_glt_positional_arguments_and_dictionaries(tmp_path, union):
    nodes, edge_type = {"u": 3, "v": 2}, ("u", "to", "v")
    RandomPartitioner(
        tmp_path / "f",
        2,
        nodes,
        {edge_type: torch.tensor([[0, 1, 2], [0, 1, 0]])},
        node_feat={"u": torch.eye(3), "v": torch.eye(2)},
        node_feat_dtype=torch.float64,
        edge_feat={edge_type: torch.arange(3.0)},
        edge_feat_dtype=torch.float32,
        edge_weights=None,
        edge_dir="in",
    ).partition()
    read = union(tmp_path / "f")
    assert read.node_attrs["v", "x"].tolist() == [[1, 0], [0, 1]]
    assert read.node_attrs["v", "x"].dtype == np.float64
    assert read.edge_attrs[edge_type, "edge_attr"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("count", [2**56, 2**62, 2**64, -1, 6.5])
def test_numbers_of_nodes_that_cannot_be(count):
    for make in (lambda: source_of(count), lambda: GraphSource({NODE: NodeSource(count)}, {})):
        with pytest.raises(
            (ValueError, TypeError), match=f"num_nodes of node type 'node' .*got {count}"
        ):
            make()


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_that_are_no_keys(seed):
    with pytest.raises(ValueError, match=rf"seed must lie in \[0, 2\^64\) \(got {seed}\)"):
        RandomPartitioner.from_data(source_of(5), "unused", 2, seed=seed)
