"""DistDGL's folders, read and written: graphs, attributes, ids and parts are the original ones.

The oracle is a folder that DGL wrote, and a writer of the layout in plain Python.
"""

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric.data import Data, HeteroData

import khop
from khop.distributed import DistNeighborLoader
from khop.errors import FolderError
from khop.loader import NeighborLoader
from khop.partition import PartitionFolder, from_distdgl, to_distdgl, verify_folder
from khop.partition.formats.distdgl.config import read_config
from khop.partition.formats.distdgl.graph_file import read_graph, write_graph
from khop.partition.formats.distdgl.importer import read_distdgl
from support.cluster import twins
from support.formats import distdgl

BUYS, BOUGHT, FOLLOWS = (
    ("user", "buys", "item"),
    ("item", "rev_buys", "user"),
    ("user", "follows", "user"),
)


def files_of(root):
    """{path: bytes} of all files of a folder but meta.json, which names the method."""
    files = (file for file in root.rglob("*") if file.is_file() and file.name != "meta.json")
    return {str(file.relative_to(root)): file.read_bytes() for file in files}


def owners_of(root):
    """{node type: part of each node}, by original id."""
    folder = PartitionFolder(root)
    return {
        t.name: t.book.owner(np.asarray(folder.id_map(t.name))).tolist()
        for t in folder.meta.node_types
    }


def test_a_folder_that_dgl_wrote(tmp_path, union):
    shop, original = distdgl.unpack(tmp_path)
    summary = from_distdgl(shop, tmp_path / "parts")
    assert (len(summary.nodes), verify_folder(tmp_path / "parts")) == (3, [])
    read = union(tmp_path / "parts")
    assert set(read.edges) == {BUYS, BOUGHT, FOLLOWS}
    for edge_type, ends in read.edges.items():
        assert np.array_equal(ends, original[f"ends {' '.join(edge_type)}"])
    found = {f"node {t} {name}": rows for (t, name), rows in read.node_attrs.items()}
    found |= {f"edge {' '.join(t)} {name}": rows for (t, name), rows in read.edge_attrs.items()}
    assert set(found) == {name for name in original if not name.startswith("ends")}
    for name, rows in found.items():
        assert rows.dtype == original[name].dtype
        assert np.array_equal(rows, original[name])
    ranges = json.loads((shop / "shop.json").read_text())["node_map"]
    for node_type, owners in owners_of(tmp_path / "parts").items():
        assert np.bincount(owners).tolist() == [end - first for first, end in ranges[node_type]]


def test_ids_without_a_mapping_are_those_of_dgl(tmp_path, union):
    """DistDGL's ids of a type: the first part's nodes first, each part's in DGL's order."""
    shop, original = distdgl.unpack(tmp_path)
    from_distdgl(shop, tmp_path / "original")
    mapped = union(tmp_path / "original").edges[FOLLOWS]
    kept = {}
    for kind, name in (("n", "user"), ("e", ":".join(FOLLOWS))):
        files = [shop / f"part{p}" / f"orig_{kind}ids.dgl" for p in range(3)]
        kept[kind] = np.concatenate([values_of(file.read_bytes(), name) for file in files])
        for file in files:
            file.unlink()
    from_distdgl(shop / "shop.json", tmp_path / "parts")
    own = union(tmp_path / "parts")
    assert np.array_equal(kept["n"][own.edges[FOLLOWS]], mapped[:, kept["e"]])
    x = original["node user x"]
    assert np.array_equal(own.node_attrs["user", "x"], x[kept["n"]])


def values_of(content, name):
    """The int64 values of a vector in a file of tensors."""
    at = content.index(distdgl.text(name)) + len(distdgl.text(name))
    count = int.from_bytes(content[at + 32 : at + 40], "little")
    return np.frombuffer(content, np.int64, count, at + 48)


@st.composite
def graphs(draw):
    """Graphs of two node types and three edge types, parts without nodes, types without edges."""
    seed, num_parts = draw(st.integers(0, 99)), draw(st.integers(1, 3))
    counts = {"user": draw(st.integers(num_parts, 8)), "item": draw(st.integers(0, 4))}
    random = np.random.default_rng(seed)
    edges = {}
    for edge_type in (BUYS, BOUGHT, FOLLOWS):
        sizes = counts[edge_type[0]], counts[edge_type[2]]
        n = draw(st.integers(0, 12)) if min(sizes) else 0
        ends = np.stack([random.integers(0, max(1, size), n) for size in sizes])
        edges[edge_type] = ends, {"w": random.random((n, 2)).astype(np.float32)}
    nodes = {
        t: (n, {"x": random.random((n, 3)), "test_mask": random.random(n) < 0.5})
        for t, n in counts.items()
    }
    owners = {t: random.integers(0, num_parts, n) for t, n in counts.items()}
    forms = draw(st.sets(st.sampled_from(["coo", "csr", "csc"]), min_size=1))
    return nodes, edges, owners, num_parts, forms


@settings(max_examples=12)
@given(graph=graphs(), with_ids=st.booleans())
def test_any_folder_of_the_layout(tmp_path_factory, graph, with_ids):
    place = tmp_path_factory.mktemp("layout")
    nodes, edges, owners, num_parts, forms = graph
    node_ids, edge_ids = distdgl.write(
        place / "dgl", nodes, edges, owners, num_parts, forms, with_ids
    )
    from_distdgl(place / "dgl", place / "parts")
    assert verify_folder(place / "parts") == []
    source = khop.partition.folder_source(PartitionFolder(place / "parts"))
    number = {t: np.argsort(ids) for t, ids in node_ids.items()}  # original id -> DistDGL's
    for t, (count, attrs) in nodes.items():
        order = slice(None) if with_ids else node_ids[t]
        assert source.nodes[t].count == count
        assert owners_of(place / "parts")[t] == owners[t][order].tolist()
        for name, rows in attrs.items():
            assert np.array_equal(source.nodes[t].attrs[name].array, rows[order])
            assert source.nodes[t].attrs[name].dtype == rows.dtype.name
    for t, (ends, attrs) in edges.items():
        order = slice(None) if with_ids else edge_ids[t]
        for side, found in enumerate((source.edges[t].src, source.edges[t].dst)):
            expected = ends[side] if with_ids else number[t[2 * side]][ends[side]]
            assert np.array_equal(found, expected[order])
        assert np.array_equal(source.edges[t].attrs["w"].array, attrs["w"][order])
    shutil.rmtree(place)


def test_draws_from_a_homogeneous_folder(tmp_path):
    """Batches of the folder are those of the original graph in memory, with their rows."""
    data = twins.homogeneous()
    ends = data.edge_index.numpy()
    owners = {"_N": np.arange(150) * 2 // 150}
    nodes = {"_N": (150, {"x": data.x.numpy(), "y": data.y.numpy()})}
    edges = {("_N", "_E", "_N"): (ends, {"edge_weight": data.edge_weight.numpy()})}
    distdgl.write(tmp_path / "dgl", nodes, edges, owners, 2, ["csc"])
    from_distdgl(tmp_path / "dgl", tmp_path / "parts", weight_attr="edge_weight")
    own = Data(x=data.x, y=data.y, edge_index=data.edge_index, edge_weight=data.edge_weight)
    options = {"batch_size": 16, "shuffle": True, "seed": 3, "weight_attr": "edge_weight"}
    with twins.open_dataset(tmp_path / "parts", 2) as dataset:
        ours = DistNeighborLoader(
            dataset, [4, 3], torch.arange(150), collect_features=True, with_edge=True, **options
        )
        twins.same_epochs(ours, NeighborLoader(own, [4, 3], torch.arange(150), **options))


@pytest.mark.parametrize("graph", ["homogeneous", "heterogeneous"])
def test_there_and_back(tmp_path, graph):
    """Every file of the folder is the same again; only the method differs."""
    data = getattr(twins, graph)()
    options = {"time_attr": "time", "weight_attr": "edge_weight", "neighbor_ids": True}
    khop.partition_graph(data, tmp_path / "first", 3, seed=4, **options)
    to_distdgl(tmp_path / "first", tmp_path / "dgl")
    from_distdgl(tmp_path / "dgl", tmp_path / "again", **options)
    assert files_of(tmp_path / "again") == files_of(tmp_path / "first")
    assert owners_of(tmp_path / "again") == owners_of(tmp_path / "first")


def test_bfloat16_and_empty_rows_there_and_back(tmp_path):
    data = HeteroData()
    data["user"].x = torch.arange(12).view(6, 2).bfloat16()
    data["user"].none = torch.empty(6, 0)
    data["item"].num_nodes = 1
    data["user", "buys", "item"].edge_index = torch.zeros(2, 4, dtype=torch.int64)
    khop.partition_graph(data, tmp_path / "first", 2)
    to_distdgl(tmp_path / "first", tmp_path / "dgl")
    from_distdgl(tmp_path / "dgl", tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "first")
    assert PartitionFolder(tmp_path / "again").meta.node_type("user").attrs["x"].dtype == "bfloat16"


def test_what_is_written_is_what_the_layout_says(tmp_path, hetero):
    """A part's files, byte for byte, as the plain writer has them without halo edges."""
    khop.partition_graph(hetero, tmp_path / "parts", 2)
    to_distdgl(tmp_path / "parts", tmp_path / "dgl", graph_name="toy")
    owners = owners_of(tmp_path / "parts")
    nodes = {
        t: (hetero[t].num_nodes, {k: v.numpy() for k, v in hetero[t].items() if k != "num_nodes"})
        for t in hetero.node_types
    }
    edges = {
        t: (hetero[t].edge_index.numpy(), {"edge_attr": hetero[t].edge_attr.numpy()})
        if "edge_attr" in hetero[t]
        else (hetero[t].edge_index.numpy(), {})
        for t in hetero.edge_types
    }
    distdgl.write(tmp_path / "plain", nodes, edges, owners, 2, halo=False)
    ours, plain = (json.loads((tmp_path / f / "toy.json").read_text()) for f in ("dgl", "plain"))
    assert {key: ours[key] for key in plain} == plain
    for p in range(2):
        written, expected = (
            (tmp_path / f / f"part{p}" / "orig_nids.dgl").read_bytes() for f in ("dgl", "plain")
        )
        assert written == expected
        node_feats = (tmp_path / "dgl" / f"part{p}" / "node_feat.dgl").read_bytes()
        assert node_feats == (tmp_path / "plain" / f"part{p}" / "node_feat.dgl").read_bytes()


def test_bytes_of_a_graph_are_those_of_dgl(tmp_path):
    """DGL's own file, read and written again; the label, and what DGL leaves in its head, apart."""
    shop, _ = distdgl.unpack(tmp_path)
    for p in range(3):
        read = read_graph(shop, f"part{p}/graph.dgl")
        arrays = [{k: t.values for k, t in data.items()} for data in (read.nodes, read.edges)]
        write_graph(tmp_path / f"{p}.dgl", read.num_nodes, read.src, read.dst, *arrays)
        written = (tmp_path / f"{p}.dgl").read_bytes()
        assert written == (shop / f"part{p}" / "graph.dgl").read_bytes()


# What is refused --------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path):
    return distdgl.unpack(tmp_path)[0]


def changed(shop, **entries):
    """Replaces entries of the JSON file; those of parts are merged."""
    file = shop / "shop.json"
    content = json.loads(file.read_text())
    for name, value in entries.items():
        key = name.replace("part_", "part-")
        content[key] = {**content[key], **value} if key.startswith("part-") else value
    file.write_text(json.dumps(content))


ITEM = "item:rev_buys:user"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"part_1": {"node_feats": "../secret.dgl"}}, "leads out of the folder"),
        ({"part_1": {"part_graph": "/etc/passwd"}}, "leads out of the folder"),
        ({"part_1": {"part_graph": 3}}, "no path"),
        ({"num_parts": 2**40}, "num_parts is 1099511627776"),
        ({"num_parts": "3"}, "num_parts is '3'"),
        ({"num_parts": 2}, "not one range for each part"),
        ({"num_nodes": 43}, "node_map has 42 nodes, num_nodes 43"),
        ({"ntypes": {"item": 0, "user": 2}}, "does not number the types"),
        ({"ntypes": []}, "ntypes is no object of names"),
        ({"ntypes": {"item": 0, "user": float("inf")}}, "infinity"),
        ({"node_map": {"item": [[0, 3]] * 3, "user": [[3, 17]] * 3}}, "in part 1, after 17"),
        ({"node_map": {"item": [3, 5, 9], "user": [3, 5, 9]}}, r"holds 3, not \[first, end\]"),
        ({"etypes": {"buys": 0}, "edge_map": {"buys": [[0, 9], [9, 99], [99, 165]]}}, "canonical"),
    ],
)
def test_a_json_file_that_lies(tmp_path, shop, entries, message):
    changed(shop, **entries)
    with pytest.raises(FolderError, match=message):
        from_distdgl(shop, tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


def test_counts_beyond_what_files_hold_take_no_memory(tmp_path, shop):
    content = json.loads((shop / "shop.json").read_text())
    content["node_map"]["user"][2][1] += 2**50
    content["num_nodes"] += 2**50
    (shop / "shop.json").write_text(json.dumps(content))
    with pytest.raises(FolderError, match="too few for the"):
        from_distdgl(shop, tmp_path / "parts")


def test_every_file_that_ends_early_is_refused(tmp_path, shop):
    for name in ("graph.dgl", "node_feat.dgl", "orig_eids.dgl"):
        file = shop / "part1" / name
        whole = file.read_bytes()
        needed = len(whole) - (94 if name == "graph.dgl" else 0)  # names and index are not read
        for size in [0, 7, 8, 20, 31, *range(4090, needed, 97), needed - 1]:
            if size < needed:
                file.write_bytes(whole[:size])
                with pytest.raises(FolderError, match=r"damaged|too few"):
                    from_distdgl(shop, tmp_path / "parts")
        file.write_bytes(whole)
    from_distdgl(shop, tmp_path / "parts")


@pytest.mark.parametrize("file", ["part0/graph.dgl", "part1/node_feat.dgl", "part2/orig_nids.dgl"])
def test_changed_bytes_are_refused_or_change_values_alone(shop, file):
    """Each damage is a clear error, or a graph that holds together."""
    whole = (shop / file).read_bytes()
    for place in [*range(32), *range(4096 if "graph" in file else 32, len(whole), 13)]:
        damaged = bytes([whole[place] ^ 0xFF])
        (shop / file).write_bytes(whole[:place] + damaged + whole[place + 1 :])
        try:
            source, owners = read_distdgl(read_config(shop), lambda what, done, total: None)
        except (FolderError, ValueError) as error:
            assert "'" in str(error)
            continue
        for (src, _, dst), edges in source.edges.items():
            for kind, ends in ((src, edges.src), (dst, edges.dst)):
                assert 0 <= ends.min() <= ends.max() < source.nodes[kind].count
        assert all(0 <= parts.min() <= parts.max() < 3 for parts in owners.values())


def test_links_and_pickles(tmp_path, shop):
    file = shop / "part1" / "node_feat.dgl"
    shutil.move(file, tmp_path / "elsewhere.dgl")
    file.symlink_to(tmp_path / "elsewhere.dgl")
    with pytest.raises(FolderError, match="link that leads out of the folder"):
        from_distdgl(shop, tmp_path / "parts")
    file.unlink()
    torch.save({"user/x": torch.ones(3)}, file)
    with pytest.raises(FolderError, match="begin of a file of tensors"):
        from_distdgl(shop, tmp_path / "parts")


def test_graphbolt_is_read_from_a_graph_beside_it(tmp_path, shop):
    content = (shop / "shop.json").read_text()
    (shop / "shop.json").write_text(content.replace('"part_graph"', '"part_graph_graphbolt"'))
    from_distdgl(shop, tmp_path / "parts")
    (shop / "part2" / "graph.dgl").unlink()
    with pytest.raises(FolderError, match=r"part 2 .* a pickle, .*migrate-from-distdgl\.md"):
        from_distdgl(shop, tmp_path / "other")


def test_mappings_of_some_parts_or_of_other_ids(tmp_path, shop):
    file = shop / "part2" / "orig_nids.dgl"
    content = file.read_bytes()
    at = content.index(distdgl.text("user")) + 12 + 48
    file.write_bytes(content[:at] + content[at + 8 : at + 16] + content[at + 8 :])
    with pytest.raises(FolderError, match="each id of 'user' from 0 to 29 once"):
        from_distdgl(shop, tmp_path / "parts")
    file.unlink()
    with pytest.raises(FolderError, match=r"orig_nids\.dgl for some parts only"):
        from_distdgl(shop, tmp_path / "parts")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((3, 2)), r"has float64 \[3, 2\] in part 1, not float32 \[14, 3\]"),
        (np.float32(1), r"has float32 \[\] in part 1"),
        (None, "is missing in part 1"),
    ],
)
def test_attributes_that_differ_between_parts(tmp_path, rows, message):
    nodes = {"_N": (28, {"x": np.ones((28, 3), np.float32)})}
    edges = {("_N", "_E", "_N"): (np.zeros((2, 5), np.int64), {})}
    distdgl.write(tmp_path / "dgl", nodes, edges, {"_N": np.arange(28) // 14}, 2)
    changed = {} if rows is None else {"_N/x": rows}
    (tmp_path / "dgl" / "part1" / "node_feat.dgl").write_bytes(distdgl.tensors(changed))
    with pytest.raises(FolderError, match=message):
        from_distdgl(tmp_path / "dgl", tmp_path / "parts")


def test_what_distdgl_has_no_way_to_say(tmp_path, make_data):
    khop.partition_graph(make_data(), tmp_path / "out", 2, edge_dir="out")
    with pytest.raises(ValueError, match="--edge-dir in"):
        to_distdgl(tmp_path / "out", tmp_path / "dgl")
    data = HeteroData()
    data["a:b"].num_nodes = 4
    data["a:b", "to", "a:b"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    khop.partition_graph(data, tmp_path / "colon", 2)
    with pytest.raises(ValueError, match="name 'a:b' holds one of"):
        to_distdgl(tmp_path / "colon", tmp_path / "dgl")
    khop.partition_graph(make_data(), tmp_path / "in", 2)
    for name in ("", "a/b", ".hidden"):
        with pytest.raises(ValueError, match="cannot be the name of a graph"):
            to_distdgl(tmp_path / "in", tmp_path / "dgl", graph_name=name)
    (tmp_path / "dgl").mkdir()
    (tmp_path / "dgl" / "mine").touch()
    with pytest.raises(FileExistsError, match="exists: choose another"):
        to_distdgl(tmp_path / "in", tmp_path / "dgl")
    assert [file.name for file in (tmp_path / "dgl").iterdir()] == ["mine"]
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".tmp")]


def test_no_folder_and_several_json_files(tmp_path, shop):
    with pytest.raises(FileNotFoundError, match="no folder or file"):
        from_distdgl(tmp_path / "none", tmp_path / "parts")
    (shop / "other.json").write_text("[]")
    with pytest.raises(FolderError, match=r"found: other\.json, shop\.json"):
        from_distdgl(shop, tmp_path / "parts")
    with pytest.raises(FolderError, match="holds no object"):
        from_distdgl(shop / "other.json", tmp_path / "parts")
    from_distdgl(shop / "shop.json", tmp_path / "parts")
