"""Times and weights in a folder: rows in their order, tables beside them, whatever the cut."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric.data import Data, HeteroData

from khop import _native
from khop.data import Topology
from khop.data.times import time_keys
from khop.partition import FolderSummary, PartitionFolder, RandomPartitioner, verify_folder
from khop.storage.folder import edge_path, time_path
from khop.storage.part import Part
from khop.typing import EDGE, NODE
from support.formats.forging import forge, set_in


def graph(time=None, weight=None, seed=0):
    """Papers cite papers, authors write papers, nobody 'reads'; times tie, weights are 0 at times.

    time: 'node' (papers only), 'edge' (citations only) or None; weight: whether citations have one.
    """
    rng = np.random.default_rng(seed)
    data = HeteroData()
    data["paper"].num_nodes, data["author"].num_nodes = 9, 5
    cites, writes = rng.integers(9, size=(2, 60)), rng.integers(5, size=(2, 30))
    data["paper", "cites", "paper"].edge_index = torch.from_numpy(cites)
    data["author", "writes", "paper"].edge_index = torch.from_numpy(writes)
    data["author", "reads", "paper"].edge_index = torch.empty(2, 0, dtype=torch.long)
    if time == "node":
        data["paper"].time = torch.from_numpy(rng.integers(-2, 3, size=9))
    if time == "edge":
        data["paper", "cites", "paper"].time = torch.from_numpy(rng.integers(-2, 3, size=60) / 2)
    if weight:
        data["paper", "cites", "paper"].w = torch.from_numpy(rng.integers(3, size=60) * 0.1).float()
    return data


def rows_of(folder, edge_type):
    """Arrays of every row of a folder, by the original id of its node."""
    rows = {}
    place = [t.name for t in folder.meta.edge_types].index(edge_type)
    kind = folder.meta.edge_types[place]
    neighbor, row_type = folder.meta.neighbor_type(kind), folder.meta.row_type(kind)
    original = np.argsort(folder.id_map(neighbor.name))
    names = ["edge_id", *(["time"] if kind.timed else [])]
    names += ["weight_sum", "weight_guide"] if kind.weighted else []
    for part in range(folder.num_parts):
        csr = Part(folder, part).csrs[place]
        assert (csr.has_times, csr.has_weights) == (kind.timed, kind.weighted)
        indptr, indices = (
            folder.open(edge_path(part, edge_type, n)) for n in ("indptr", "indices")
        )
        arrays = [original[indices], *(folder.open(edge_path(part, edge_type, n)) for n in names)]
        for i, node in enumerate(folder.node_ids(part, row_type.name).tolist()):
            rows[node] = [a[indptr[i] : indptr[i + 1]].tolist() for a in arrays]
    return rows


def expected_rows(data, edge_type, edge_dir, **options):
    """The same of the graph in memory."""
    ends = data[edge_type].edge_index
    counts = data[edge_type[0]].num_nodes, data[edge_type[2]].num_nodes
    topology = Topology(ends, num_src=counts[0], num_dst=counts[1], edge_dir=edge_dir, **options)
    ids = np.arange(topology.num_edges) if topology.edge_ids is None else topology.edge_ids
    arrays = [topology.indices, ids, topology.times, topology.weight_sums, topology.weight_guide]
    bounds = topology.indptr[1:-1]
    split = [np.split(a, bounds) for a in arrays if a is not None]
    return {node: [a[node].tolist() for a in split] for node in range(topology.num_rows)}


CITES, WRITES, READS = (
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("author", "reads", "paper"),
)


@pytest.mark.parametrize("edge_dir,num_parts", [("in", 1), ("out", 2), ("in", 5)])
def test_times_of_nodes(tmp_path, union, edge_dir, num_parts):
    """The neighbour's time decides: that of papers, and none where authors are the neighbours."""
    data = graph("node", weight=True)
    options = {"time_attr": "time", "weight_attr": "w"}
    RandomPartitioner.from_data(
        data, tmp_path / "f", num_parts, edge_dir=edge_dir, **options
    ).partition()
    assert verify_folder(tmp_path / "f") == []
    folder = PartitionFolder(tmp_path / "f")
    time = {"node_time": data["paper"].time}
    weights = {"weights": data[CITES].w}
    to_papers = time if edge_dir == "out" else {}
    assert rows_of(folder, CITES) == expected_rows(data, CITES, edge_dir, **time, **weights)
    assert rows_of(folder, WRITES) == expected_rows(data, WRITES, edge_dir, **to_papers)
    assert [t.sorted_by for t in folder.meta.edge_types] == [
        "time",
        *(["time" if edge_dir == "out" else "edge_id"] * 2),
    ]
    assert (
        folder.node_times("paper")[folder.id_map("paper")].tolist() == data["paper"].time.tolist()
    )
    assert folder.node_times("author") is None
    assert Part(folder, 0).node_times(0).tolist() == folder.node_times("paper").tolist()
    read = union(tmp_path / "f")  # attributes are in the order of the rows too
    assert np.array_equal(read.edge_attrs[CITES, "w"], data[CITES].w)
    assert np.array_equal(read.edges[CITES], data[CITES].edge_index)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_times_of_edges(tmp_path, union, edge_dir):
    """Floats, on citations only: the others have no constraint."""
    data = graph("edge")
    RandomPartitioner.from_data(
        data, tmp_path / "f", 3, edge_dir=edge_dir, time_attr="time"
    ).partition()
    assert verify_folder(tmp_path / "f") == []
    folder = PartitionFolder(tmp_path / "f")
    times = data[CITES].time
    assert rows_of(folder, CITES) == expected_rows(data, CITES, edge_dir, edge_time=times)
    assert rows_of(folder, WRITES) == expected_rows(data, WRITES, edge_dir)
    time = folder.meta.time_attr
    assert (time.name, time.level, time.floating) == ("time", "edge", True)
    assert folder.node_times("paper") is None
    assert np.array_equal(union(tmp_path / "f").edge_attrs[CITES, "time"], times)


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(0, 25), st.integers(1, 4), st.booleans())
def test_any_cut_gives_the_rows_of_the_whole_graph(
    tmp_path_factory, seed, num_edges, num_parts, of_nodes
):
    src, dst, time = np.random.default_rng(seed).integers(0, [[6], [6], [3]], (3, num_edges))
    data = Data(edge_index=torch.from_numpy(np.stack([src, dst])), num_nodes=6)
    data.w = torch.arange(len(src)) % 3 / 7
    times = {"node_time": np.arange(6) % 3} if of_nodes else {"edge_time": time}
    data.t = torch.from_numpy(next(iter(times.values())))
    if len(src) == 6:  # PyG cannot tell then whose attribute it is
        return
    root = tmp_path_factory.getbasetemp() / "cut"
    RandomPartitioner.from_data(
        data, root, num_parts, time_attr="t", weight_attr="w", overwrite=True
    ).partition()
    assert verify_folder(root) == []
    hetero = HeteroData()
    hetero[NODE].num_nodes = 6
    hetero[EDGE].edge_index = data.edge_index
    expected = expected_rows(hetero, EDGE, "in", **times, weights=data.w)
    assert rows_of(PartitionFolder(root), EDGE) == expected


def test_integers_and_floats_are_compared_as_floats(tmp_path):
    """One type's times are integers, another's floats: all keys are those of floats."""
    data = graph()
    data["paper"].time, data["author"].time = torch.arange(9), torch.arange(5) + 0.5
    RandomPartitioner.from_data(data, tmp_path / "f", 2, time_attr="time").partition()
    assert verify_folder(tmp_path / "f") == []
    folder = PartitionFolder(tmp_path / "f")
    assert folder.meta.time_attr.floating
    for name in ("paper", "author"):
        keys = folder.node_times(name)[folder.id_map(name)]
        assert np.array_equal(keys, time_keys(data[name].time.double()))


OWN_NAMES = ["time", "indptr", "indices", "weight_sum", "weight_guide", "new_id", "%74ime"]


def test_attributes_called_like_the_folders_own_arrays(tmp_path, union):
    """Each of these lies beside the array of the same name."""
    num_nodes, num_edges = 12, 30
    data = Data(edge_index=torch.randint(num_nodes, (2, num_edges)), num_nodes=num_nodes)
    hetero = HeteroData()
    hetero[NODE].num_nodes = num_nodes
    hetero[EDGE].edge_index = data.edge_index
    for i, name in enumerate(OWN_NAMES):
        hetero[EDGE][name] = torch.arange(num_edges) * (i + 1)
        if name != "time":  # times are those of edges here
            hetero[NODE][name] = torch.arange(num_nodes) * (i + 1)
    RandomPartitioner.from_data(
        hetero, tmp_path / "f", 2, time_attr="time", weight_attr="weight_sum"
    ).partition()
    assert verify_folder(tmp_path / "f") == []
    read = union(tmp_path / "f")
    for i, name in enumerate(OWN_NAMES):
        assert read.edge_attrs[EDGE, name].tolist() == (np.arange(num_edges) * (i + 1)).tolist()
        if name != "time":
            assert read.node_attrs[NODE, name].tolist() == (np.arange(num_nodes) * (i + 1)).tolist()
    part = Part(PartitionFolder(tmp_path / "f"), 1)
    assert np.array_equal(
        part.edge_feature(0, "time").array, part.edge_feature(0, "edge_id").array
    )  # times count on with ids


def test_cached_rows_with_such_names(tmp_path):
    from khop.partition import FrequencyPartitioner

    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=4, new_id=torch.arange(4) * 10)
    FrequencyPartitioner.from_data(
        data, tmp_path / "f", 2, probs=[torch.ones(4)] * 2, cache_ratio=1.0
    ).partition()
    assert verify_folder(tmp_path / "f") == []
    cached = Part(PartitionFolder(tmp_path / "f"), 0).cached(0)
    assert (cached.features["new_id"].array == cached.features["id"].array * 10).all()


def test_weights_of_the_constructor_are_for_drawing(tmp_path):
    """GraphLearn-for-PyTorch's `edge_weights`; another attribute can be named beside."""
    options = {
        "num_parts": 2,
        "num_nodes": 4,
        "edge_index": np.array([[0, 1, 2], [3, 3, 3]]),
        "edge_weights": np.array([1.0, 0.0, 2.0]),
    }
    RandomPartitioner(tmp_path / "f", **options).partition()
    folder = PartitionFolder(tmp_path / "f")
    assert folder.meta.weight_attr == "edge_weight"
    sums, guide = _native.weight_table(np.array([0, 3]), np.array([1.0, 0.0, 2.0]))
    assert rows_of(folder, EDGE)[3] == [[0, 1, 2], [0, 1, 2], sums.tolist(), guide.tolist()]
    RandomPartitioner(
        tmp_path / "g", **options, edge_attrs={"other": np.ones(3)}, weight_attr="other"
    ).partition()
    assert PartitionFolder(tmp_path / "g").meta.weight_attr == "other"


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            {},
            {"time_attr": "when"},
            r"'when' is no attribute: nodes have \['time'\], edges \['w'\]",
        ),
        ({}, {"weight_attr": "time"}, r"'time' is no attribute of edges: they have \['w'\]"),
        (
            {"time": torch.zeros(60)},
            {"time_attr": "time"},
            r"\(paper\) and of edges \(\('paper', 'c",
        ),
        ({"w": -torch.ones(60)}, {"weight_attr": "w"}, r"'w' of \('paper', .* holds -1.0 at pos"),
        ({"w": torch.ones(60, 1)}, {"weight_attr": "w"}, "one dimension"),
        (
            {"w": torch.full((60,), 1e308, dtype=torch.float64)},
            {"weight_attr": "w"},
            "weights of edge type",
        ),
        ({"u": torch.full((60,), np.nan)}, {"time_attr": "u"}, "'u' of .* holds nan at position 0"),
    ],
)
def test_bad_attributes(tmp_path, change, options, message):
    data = graph("node", weight=True)
    for name, values in change.items():
        data[CITES][name] = values
    with pytest.raises(ValueError, match=message):
        RandomPartitioner.from_data(data, tmp_path / "f", 2, **options).partition()
    assert not list(tmp_path.iterdir())


def test_summary(tmp_path):
    RandomPartitioner.from_data(
        graph("node", weight=True), tmp_path / "f", 2, time_attr="time", weight_attr="w"
    ).partition()
    summary = FolderSummary.of(PartitionFolder(tmp_path / "f"))
    assert summary.times == {"attr": "time", "level": "node"}
    assert summary.to_dict()["weights"] == "w"
    RandomPartitioner.from_data(graph(), tmp_path / "g", 2).partition()
    plain = FolderSummary.of(PartitionFolder(tmp_path / "g"))
    assert (plain.times, plain.weights) == (None, None)


def exchanged(a):
    """The first two entries that differ change places."""
    place = int(np.argmax(a[1:] != a[:-1]))
    a[[place, place + 1]] = a[[place + 1, place]]
    return a


@pytest.mark.parametrize("level", ["node", "edge"])
def test_verify_compares_with_the_attributes(tmp_path, level):
    """Under right checksums: other times, other tables, rows in another order."""
    sound, root = tmp_path / "sound", tmp_path / "f"
    RandomPartitioner.from_data(
        graph(level, weight=True), sound, 2, time_attr="time", weight_attr="w"
    ).partition()
    assert verify_folder(sound) == []
    time, sums = edge_path(0, CITES, "time"), edge_path(1, CITES, "weight_sum")
    forged = [
        (time, lambda a: a + 1, "does not agree with the attribute"),
        (time, lambda a: a[:-1], "instead of int64"),
        (time, lambda a: a.astype(np.int32), "instead of int64"),
        (time, lambda a: np.sort(a)[::-1].copy(), "not in ascending order"),
        (sums, lambda a: a + np.uint64(1), "is not the table of attribute 'w'"),
        (edge_path(1, CITES, "weight_guide"), exchanged, "is not the table of attribute 'w'"),
        (edge_path(0, CITES, "edge_id"), lambda a: np.sort(a)[::-1].copy(), "order of their ids"),
        (edge_path(0, WRITES, "edge_id"), lambda a: np.sort(a)[::-1].copy(), "order of their ids"),
    ]
    if level == "node":
        forged.append((time_path("paper"), exchanged, "does not agree with attribute 'time'"))
        forged.append((time_path("paper"), lambda a: a[1:], "instead of int64"))
    for path, change, message in forged:
        shutil.copytree(sound, root)
        forge(root, **{path: change})
        assert message in "\n".join(verify_folder(root)), (path, message)
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder with times and weights, and its meta.json."""
    root = tmp_path_factory.mktemp("sound") / "f"
    RandomPartitioner.from_data(
        graph("node", weight=True), root, 2, time_attr="time", weight_attr="w"
    ).partition()
    forge(root)
    assert verify_folder(root) == []
    return root, (root / "meta.json").read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        set_in("time_attr", value=None),
        set_in("weight_attr", value=None),
        set_in("weight_attr", value="v"),
        set_in("weight_attr", value=["w"]),
        set_in("time_attr", "name", value="when"),
        set_in("time_attr", "level", value="edge"),
        set_in("time_attr", "level", value="graph"),
        set_in("time_attr", "floating", value=True),
        set_in("node_types", 0, "timed", value=False),
        set_in("node_types", 1, "timed", value=True),
        set_in("edge_types", 0, "sorted_by", value="edge_id"),
        set_in("edge_types", 0, "sorted_by", value="colour"),
        set_in("edge_types", 0, "weighted", value=False),
        set_in("edge_types", 1, "weighted", value=True),
    ],
)
def test_wrong_words_in_meta_json(sound, change):
    root, meta = sound
    (root / "meta.json").write_bytes(meta)
    forge(root, change)
    assert verify_folder(root)


def test_folders_written_before_there_were_times(tmp_path):
    root = tmp_path / "f"
    RandomPartitioner.from_data(graph(), root, 2).partition()

    def older(meta):
        for key in ("time_attr", "weight_attr"):
            del meta[key]
        for node_type in meta["node_types"]:
            del node_type["timed"]
        for edge_type in meta["edge_types"]:
            del edge_type["weighted"]

    forge(root, older)
    assert verify_folder(root) == []
    assert rows_of(PartitionFolder(root), CITES) == expected_rows(graph(), CITES, "in")


def test_times_and_weights_of_another_length(tmp_path):
    """A type whose times or weights are too short is refused; it is not one without any."""
    data = HeteroData()
    data["a"].x, data["a"].time = torch.zeros(5, 1), torch.arange(4)
    data["b"].x, data["b"].time = torch.zeros(6, 1), torch.arange(6)
    store = data["a", "to", "b"]
    store.edge_index, store.weight = torch.tensor([[0, 1], [2, 3]]), torch.ones(3)
    with pytest.raises(ValueError, match=r"time_attr='time' of 'a' has shape \[4\]"):
        RandomPartitioner.from_data(data, tmp_path / "a", 2, time_attr="time")
    with pytest.raises(ValueError, match=r"weight_attr='weight' of \('a', 'to', 'b'\) has shape"):
        RandomPartitioner.from_data(data, tmp_path / "b", 2, weight_attr="weight")
