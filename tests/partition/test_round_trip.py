"""What a partitioner writes is the graph that it was given."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch_geometric.data import Data, HeteroData

from khop.data.arrays import to_array
from khop.partition import GraphSource, PartitionFolder, RandomPartitioner, verify_folder
from khop.typing import EDGE, NODE

DTYPES = [
    torch.bool,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def write(data, root, num_parts, strategy="by_dst", **options):
    RandomPartitioner.from_data(
        data, root, num_parts, edge_dir="in" if strategy == "by_dst" else "out", **options
    ).partition()
    assert verify_folder(root) == []
    return PartitionFolder(root)


@pytest.mark.parametrize(
    "num_parts,strategy", [(1, "by_src"), (2, "by_dst"), (3, "by_src"), (11, "by_dst")]
)
def test_homogeneous_graph(tmp_path, union, make_data, num_parts, strategy):
    """Eleven parts are more than the graph has nodes."""
    data = make_data(10, 60)
    folder = write(data, tmp_path / "f", num_parts, strategy)
    assert folder.meta.edge_dir == ("in" if strategy == "by_dst" else "out")
    read = union(tmp_path / "f")
    assert np.array_equal(read.edges[EDGE], data.edge_index)
    for name in ("x", "y", "train_mask"):
        assert np.array_equal(read.node_attrs[NODE, name], data[name])
    assert np.array_equal(read.edge_attrs[EDGE, "edge_attr"], data.edge_attr)


@pytest.mark.parametrize("num_parts,strategy", [(1, "by_dst"), (2, "by_src"), (5, "by_dst")])
def test_heterogeneous_graph(tmp_path, union, hetero, num_parts, strategy):
    folder = write(hetero, tmp_path / "f", num_parts, strategy)
    assert folder.meta.heterogeneous
    assert [t.name for t in folder.meta.node_types] == ["user", "item", "tag"]
    read = union(tmp_path / "f")
    for edge_type in hetero.edge_types:
        assert np.array_equal(read.edges[edge_type], hetero[edge_type].edge_index)
    assert set(read.node_attrs) == {("user", "x"), ("user", "train_mask"), ("item", "x")}
    assert np.array_equal(read.node_attrs["item", "x"], hetero["item"].x)
    likes = ("user", "likes", "item")
    assert np.array_equal(read.edge_attrs[likes, "edge_attr"], hetero[likes].edge_attr)


def test_features_of_every_dtype_and_shape(tmp_path, union, make_data):
    """All in one folder, of nodes and of edges."""
    data = make_data(12, 20)
    generator = torch.Generator().manual_seed(3)
    kinds = {}
    for dtype, shape in itertools.product(DTYPES, [(), (1,), (5,), (2, 3), (0,)]):
        name = str(dtype).removeprefix("torch.")
        i = len(kinds)
        kinds[f"x{i}", f"edge_x{i}"] = name, shape
        for attr, count in ((f"x{i}", 12), (f"edge_x{i}", 20)):
            data[attr] = (torch.rand(count, *shape, generator=generator) * 100).to(dtype)
    folder = write(data, tmp_path / "f", 2)
    read = union(tmp_path / "f")
    for (x, edge_x), kind in kinds.items():
        meta = folder.meta.node_type(NODE).attrs[x]
        assert (meta.dtype, meta.shape) == kind
        assert read.node_attrs[NODE, x].tobytes() == to_array(data[x])[0].tobytes(), kind
        assert read.edge_attrs[EDGE, edge_x].tobytes() == to_array(data[edge_x])[0].tobytes(), kind


def test_bfloat16_comes_back_as_bfloat16(tmp_path, make_data):
    data = make_data(8, 8)
    data.x = torch.randn(8, 4).bfloat16()
    feature = write(data, tmp_path / "f", 1).node_feature(0, NODE, "x")
    assert feature.dtype == "bfloat16"
    assert torch.equal(torch.from_numpy(feature.array.copy()).view(torch.bfloat16), data.x)


def test_features_that_are_strided_read_only_or_of_foreign_byte_order(tmp_path, union):
    x = np.arange(60, dtype=">f4").reshape(6, 10).T[:, ::2]
    x.flags.writeable = False
    source = GraphSource.from_arrays(10, [[0, 1], [1, 2]], {"x": x})
    write(source, tmp_path / "f", 2)
    assert np.array_equal(union(tmp_path / "f").node_attrs[NODE, "x"], x)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_small_graph(tmp_path_factory, union, draw):
    num_nodes = draw.draw(st.integers(1, 12))
    rng = np.random.default_rng(draw.draw(st.integers(0, 2**32)))
    edge_index = rng.integers(0, num_nodes, (2, draw.draw(st.integers(0, 30))))
    num_parts = draw.draw(st.integers(1, 7))
    strategy = draw.draw(st.sampled_from(["by_dst", "by_src"]))
    root = tmp_path_factory.mktemp("any") / "f"
    source = GraphSource.from_arrays(num_nodes, edge_index, {"y": np.arange(num_nodes)})
    write(source, root, num_parts, strategy)
    read = union(root)
    assert np.array_equal(read.edges[EDGE], edge_index)
    assert np.array_equal(read.node_attrs[NODE, "y"], np.arange(num_nodes))
    assert all(np.all(np.diff(ids) > 0) for ids in read.rows)


def test_neighbours_keep_the_order_of_the_edge_list(tmp_path, union, make_data):
    write(make_data(10, 400), tmp_path / "f", 3)
    rows = union(tmp_path / "f").rows
    assert sum(map(len, rows)) == 400
    assert all(np.all(np.diff(ids) > 0) for ids in rows)


def test_isolated_nodes_and_parts_without_edges(tmp_path, union):
    """Nodes 0 and 1 are joined, 2 .. 8 are isolated: most of five parts have no edge."""
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=9, x=torch.arange(9))
    folder = write(data, tmp_path / "f", 5)
    counts = np.diff(folder.meta.edge_types[0].bounds)
    assert sorted(counts.tolist()) == [0, 0, 0, 0, 1]
    assert union(tmp_path / "f").edges[EDGE].tolist() == [[0], [1]]


def test_a_graph_without_edges_or_without_nodes(tmp_path):
    nothing = torch.empty(2, 0, dtype=torch.long)
    write(Data(edge_index=nothing, num_nodes=4), tmp_path / "nodes", 2)
    folder = write(Data(edge_index=nothing, x=torch.empty(0, 3)), tmp_path / "empty", 3)
    assert folder.meta.node_type(NODE).bounds == [0, 0, 0, 0]


def test_splits_list_the_new_ids_of_a_mask(tmp_path, make_data):
    data = make_data()
    folder = write(data, tmp_path / "f", 4)
    held = folder.split(NODE, "train_mask")
    assert np.array_equal(held, np.sort(folder.id_map(NODE)[data.train_mask.numpy()]))
    with pytest.raises(KeyError, match=r"no boolean attribute 'val_mask'.*train_mask"):
        folder.split(NODE, "val_mask")


def test_integers_take_the_narrowest_type_that_fits(tmp_path, make_data):
    folder = write(make_data(), tmp_path / "f", 2)
    assert folder.id_map(NODE).dtype == folder.node_ids(0, NODE).dtype == np.int32


def test_edges_between_parts_are_counted(tmp_path, make_data):
    data = make_data(20, 300)
    folder = write(data, tmp_path / "f", 3)
    owner = folder.meta.node_type(NODE).book.owner(folder.id_map(NODE))
    src, dst = data.edge_index
    want = np.zeros((3, 3), int)
    np.add.at(want, (owner[dst], owner[src]), 1)
    assert folder.meta.summary["edges_between_parts"] == want.tolist()


def test_attributes_that_are_absent_or_graph_level_are_left_out(tmp_path, make_data):
    data = make_data()
    data.name, data.note, data.scale = "graph", None, torch.tensor([1.0, 2.0])
    del data.x
    folder = write(data, tmp_path / "f", 2)
    assert set(folder.meta.node_type(NODE).attrs) == {"y", "train_mask"}


def test_as_many_edges_as_nodes(tmp_path, make_data):
    folder = write(make_data(16, 16), tmp_path / "f", 2)
    assert set(folder.meta.node_type(NODE).attrs) == {"x", "y", "train_mask"}
    assert set(folder.meta.edge_types[0].attrs) == {"edge_attr"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"edge_index": torch.tensor([[0], [30]])}, IndexError, "edge 0 joins node"),
        ({"edge_index": torch.tensor([[-1], [3]])}, IndexError, "negative"),
        ({"edge_index": torch.tensor([[0.0], [3.0]])}, TypeError, "integers"),
        ({"names": [str(i) for i in range(30)]}, TypeError, "'names' is a 'list'"),
        ({"id": torch.arange(30)}, ValueError, "reserved name"),
        ({"x": torch.zeros(30, 2, dtype=torch.complex64)}, TypeError, "complex64"),
    ],
    ids=["id too large", "id negative", "float ids", "list", "reserved", "complex"],
)
def test_bad_graphs_are_refused(tmp_path, make_data, change, error, message):
    data = make_data()
    del data.edge_attr
    for name, value in change.items():
        data[name] = value
    with pytest.raises(error, match=message):
        write(data, tmp_path / "f", 2)
    assert list(tmp_path.iterdir()) == []


def test_a_node_type_of_unknown_size_is_refused(tmp_path):
    data = HeteroData()
    data["a"].name = "no tensor says how many"
    with pytest.raises(ValueError, match="number of nodes of type 'a' is not known"):
        write(data, tmp_path / "f", 2)


def test_an_edge_type_needs_its_node_types(tmp_path):
    with pytest.raises(ValueError, match="node type 'b', whose number of nodes is not given"):
        GraphSource.from_arrays({"a": 2}, {("a", "to", "b"): [[0], [1]]})
