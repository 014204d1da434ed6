"""Graphs saved by `torch.save`, as transforms, loaders and users leave them, and hostile files."""

from __future__ import annotations

import collections
import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.transforms import RandomLinkSplit, ToUndirected

from khop.loader import NeighborLoader
from khop.partition import GraphSource
from khop.sources import read_source
from khop.sources.saved import read_saved
from khop.sources.torch_files import containers_admitted
from khop.typing import EDGE, NODE
from support.formats.bomb import Bomb

EDGES = np.array([[0, 1, 2, 2], [1, 2, 0, 3]])


def edges_of(source):
    return np.stack([source.edges[EDGE].src, source.edges[EDGE].dst]).tolist()


def plain():
    """A graph of four nodes whose objects remember nothing of earlier questions."""
    edges = torch.from_numpy(EDGES)
    return Data(x=torch.arange(8.0).reshape(4, 2), edge_index=edges, y=torch.arange(4))


def of_two_types():
    data = HeteroData()
    data["a"].x, data["b"].x = torch.arange(3.0), torch.arange(5.0)
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [4, 2]])
    return data


def asked(data):
    """The graph, after PyG has cached which attributes are those of nodes and of edges."""
    for store in data.stores:
        for name in store:
            getattr(store, "is_node_attr", bool)(name)
            getattr(store, "is_edge_attr", bool)(name)
    return data


def after_a_loader():
    data = plain()
    next(iter(NeighborLoader(data, [2], batch_size=2)))
    return data


@pytest.mark.parametrize("form", ["object", "dict"])
def test_saved_data(tmp_path, form):
    data = Data(edge_index=torch.from_numpy(EDGES), x=torch.rand(4, 2).bfloat16())
    torch.save(data if form == "object" else data.to_dict(), tmp_path / "g.pt")
    source = read_source(str(tmp_path / "g.pt"))
    assert edges_of(source) == EDGES.tolist()
    assert source.nodes[NODE].attrs["x"].dtype == "bfloat16"


@pytest.mark.parametrize("form", ["object", "dict"])
def test_saved_hetero_data(tmp_path, form):
    data = HeteroData()
    data["a"].x, data["b"].num_nodes = torch.rand(3, 2), 5
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [4, 2]])
    torch.save(data if form == "object" else data.to_dict(), tmp_path / "g.pt")
    source = read_source(str(tmp_path / "g.pt"))
    assert source.heterogeneous
    assert {t: n.count for t, n in source.nodes.items()} == {"a": 3, "b": 5}


@pytest.mark.parametrize("form", ["attribute", "bare", "plain pickle"])
def test_a_hostile_pickle_is_refused(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    if form == "plain pickle":
        Path("g.pt").write_bytes(pickle.dumps(Bomb()))
    else:
        data = Data(edge_index=torch.from_numpy(EDGES), note=Bomb())
        torch.save(data if form == "attribute" else Bomb(), "g.pt")
    with pytest.raises(ValueError, match="khop runs no pickled code"):
        read_source("g.pt")
    assert not Path("exploded").exists()


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 broken"])
def test_damaged_files(tmp_path, content):
    (tmp_path / "g.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"g\.pt' is not a"):
        read_source(str(tmp_path / "g.pt"))


def test_a_file_of_something_else(tmp_path):
    torch.save(torch.zeros(3), tmp_path / "g.pt")
    with pytest.raises(TypeError, match=r"holds a 'Tensor': save one graph, as in torch\.save"):
        read_source(str(tmp_path / "g.pt"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"epoch": 3, "loss": 0.5}, "holds a dict with the keys epoch, loss, not a Data or Hetero"),
        ({}, r"holds a dict with the keys \(none\), not a Data"),
        ({"a": {1: 2}}, "holds a dict with the keys a, not a Data"),
        ({"model": {"weight": torch.zeros(3)}}, "holds a dict with the keys model, not a Data"),
        ({"weight": torch.zeros(3)}, "holds a dict with the keys weight, not a Data"),
        (
            {"edge_index": 5, "num_nodes": 3},
            r"edge type .* must have shape \[2, num_edges\] \(got a 'int'",
        ),
        ({"a": {"x": torch.zeros(2)}, ("a", "to", "a"): {"edge_index": 5}}, "must have shape"),
        ([1, 2], "holds a 'list': save one graph"),
    ],
)
def test_a_saved_dict_of_something_else(tmp_path, content, message):
    torch.save(content, tmp_path / "g.pt")
    with pytest.raises((TypeError, ValueError), match=message):
        read_source(str(tmp_path / "g.pt"))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_torchscript_file(tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "g.pt")
    with pytest.raises(TypeError, match="holds a TorchScript program, not a graph") as raised:
        read_source(str(tmp_path / "g.pt"))
    assert "weights_only" not in str(raised.value)


AFTER = {
    "ToUndirected": lambda: ToUndirected()(plain()),
    "ToUndirected of two types": lambda: ToUndirected()(of_two_types()),
    "RandomLinkSplit": lambda: RandomLinkSplit(is_undirected=False)(plain())[0],
    "sort": lambda: plain().sort(),
    "questions": lambda: asked(plain()),
    "questions to two types": lambda: asked(of_two_types()),
    "deepcopy": lambda: copy.deepcopy(asked(plain())),
    "a loader": after_a_loader,
    "Batch": lambda: Batch.from_data_list([plain(), plain()]),
    "Batch of two types": lambda: Batch.from_data_list([of_two_types(), asked(of_two_types())]),
}


@pytest.mark.parametrize("how", AFTER)
def test_graphs_that_pyg_has_worked_with(tmp_path, how):
    """PyG keeps caches in them, and a Batch is a class made on demand: attributes are what counts.

    The partitioner gets what it would get of the same object in memory.
    """
    data = AFTER[how]()
    torch.save(data, tmp_path / "g.pt")
    read, wanted = read_source(str(tmp_path / "g.pt")), GraphSource.from_data(data)
    assert read.heterogeneous == wanted.heterogeneous
    for found, known in ((read.nodes, wanted.nodes), (read.edges, wanted.edges)):
        assert list(found) == list(known)
        for kind, holder in known.items():
            assert set(found[kind].attrs) == set(holder.attrs)
            for name, feature in holder.attrs.items():
                np.testing.assert_array_equal(found[kind].attrs[name].array, feature.array)
    for kind, edge in wanted.edges.items():
        assert read.edges[kind].src.tolist() == edge.src.tolist()
        assert read.edges[kind].dst.tolist() == edge.dst.tolist()


def test_a_cache_in_a_file_is_not_believed(tmp_path):
    """It says that `y`, which has no row for each node, is an attribute of nodes."""
    data = asked(plain())
    data._store._mapping["y"] = torch.arange(3)
    torch.save(data, tmp_path / "g.pt")
    assert set(read_source(str(tmp_path / "g.pt")).nodes[NODE].attrs) == {"x"}


@pytest.mark.parametrize("factory", [Bomb, Data, print])
def test_a_hostile_cache(tmp_path, monkeypatch, factory):
    """A defaultdict calls what the file names, when a key is missing: here it is a dict."""
    monkeypatch.chdir(tmp_path)
    data = plain()
    data._store.__dict__["_cached_attr"] = collections.defaultdict(factory)
    torch.save(data, "g.pt")
    if factory is Data:
        assert read_saved(Path("g.pt")).num_nodes == 4
    else:
        with pytest.raises(ValueError, match=f"it needs '.*{factory.__name__}'"):
            read_saved(Path("g.pt"))
    assert not Path("exploded").exists()


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Data.__new__(Data), "holds a damaged graph"),
        (lambda: HeteroData.__new__(HeteroData), "holds a damaged graph"),
        (lambda: Calls(Batch, plain()), "or damaged"),
        (lambda: Calls(type(Batch), "name", (), {}), "khop runs no pickled code"),
    ],
)
def test_objects_without_their_content(tmp_path, make, message):
    torch.save(make(), tmp_path / "g.pt")
    with pytest.raises(ValueError, match=message):
        read_saved(tmp_path / "g.pt")


@pytest.mark.parametrize("mapping", [5, {3: 4}, {"_mapping": 5, "edge_index": 5}])
def test_a_store_of_something_else(tmp_path, mapping):
    data = plain()
    data.__dict__["_store"] = store = GlobalStorage(_parent=data)
    store.__dict__["_mapping"] = mapping
    torch.save(data, tmp_path / "g.pt")
    with pytest.raises(ValueError, match="damaged"):
        read_saved(tmp_path / "g.pt")


def test_what_others_admitted_stays(tmp_path):
    """Also after an error."""
    before = torch.serialization.get_safe_globals()
    torch.save(plain(), tmp_path / "g.pt")
    read_saved(tmp_path / "g.pt")
    with pytest.raises(ZeroDivisionError), containers_admitted():
        1 / 0  # noqa: B018
    assert set(torch.serialization.get_safe_globals()) == set(before)


class Own(Data):
    """A class that only its module knows."""


def test_the_reason_is_torch_s(tmp_path):
    """Not that a file that is whole is damaged."""
    torch.save(Own(edge_index=torch.from_numpy(EDGES), x=torch.zeros(4, 1)), tmp_path / "g.pt")
    with pytest.raises(ValueError, match=r"it needs '[\w.]*Own', .* torch\.save\(data\.to_dict"):
        read_saved(tmp_path / "g.pt")
    torch.save(Own(edge_index=torch.from_numpy(EDGES)).to_dict(), tmp_path / "g.pt")
    assert read_saved(tmp_path / "g.pt").num_edges == 4
    names = np.array(["a", "b"])
    torch.save(Data(edge_index=torch.from_numpy(EDGES), names=names), tmp_path / "g.pt")
    with pytest.raises(ValueError, match=r"it holds a '.*[sS]tr"):
        read_saved(tmp_path / "g.pt")


@pytest.mark.parametrize("text", ["src,dst\n0,1\n", "edges\n0,1\n", "nodes\n0,1\n", "0,1\n", ""])
def test_a_text_file(tmp_path, text):
    """Unpicklers take letters for operations: none of their complaints would tell a user more."""
    (tmp_path / "g.pt").write_text(text)
    with pytest.raises(
        ValueError, match=r"is not a file of torch\.save: it begins with b'"
    ) as raised:
        read_saved(tmp_path / "g.pt")
    assert "operand" not in str(raised.value)
