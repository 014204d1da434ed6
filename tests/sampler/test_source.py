"""What users hand over, found by type and name in one way."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from khop.sampler.pyg.source import as_input, graph_of, open_input
from khop.typing import EDGE, NODE


@pytest.fixture
def small():
    """0 -> 1, 2 -> 1, 0 -> 2 with times of nodes and weights of edges."""
    return Data(
        edge_index=torch.tensor([[0, 2, 0], [1, 1, 2]]),
        time=torch.tensor([5, 6, 7, 8]),
        weight=torch.tensor([0.1, 0.2, 0.3]),
        num_nodes=4,
    )


@pytest.fixture
def typed():
    """a -> b and b -> a; only 'a' has times, only a -> b has weights."""
    data = HeteroData()
    data["a"].x = torch.zeros(2)
    data["a"].time = torch.tensor([1, 2])
    data["b"].num_nodes = 3
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 1], [0, 1, 2]])
    data["a", "to", "b"].weight = np.array([1.0, 2.0, 3.0])
    data["b", "to", "a"].edge_index = torch.tensor([[2], [0]])
    return data


def as_stores(data):
    """The same graph in PyG's example stores."""
    features, graph = MyFeatureStore(), MyGraphStore()
    if isinstance(data, Data):
        features.put_tensor(data.time, None, "time", None)
        features.put_tensor(data.weight, None, "weight", None)
        graph.put_edge_index(tuple(data.edge_index), edge_type=None, layout="coo", size=(4, 4))
    else:
        features.put_tensor(data["a"].time, "a", "time", None)
        weight = torch.from_numpy(data["a", "to", "b"].weight)
        features.put_tensor(weight, ("a", "to", "b"), "weight", None)
        for t in data.edge_types:
            size = tuple(data[end].num_nodes for end in (t[0], t[2]))
            graph.put_edge_index(tuple(data[t].edge_index), edge_type=t, layout="coo", size=size)
    return features, graph


@pytest.mark.parametrize("wrap", [lambda d: d, as_stores], ids=["data", "stores"])
def test_attributes_by_name(small, typed, wrap):
    """Types that have no such attribute are not there; one level does not show at the other."""
    source = open_input(wrap(small))
    assert source.node_attribute("time")[NODE].tolist() == [5, 6, 7, 8]
    assert source.edge_attribute("weight")[EDGE].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert source.node_attribute("weight") == source.edge_attribute("time") == {}
    source = open_input(wrap(typed))
    assert {t: v.tolist() for t, v in source.node_attribute("time").items()} == {"a": [1, 2]}
    found = {t: list(v) for t, v in source.edge_attribute("weight").items()}
    assert found == {("a", "to", "b"): [1.0, 2.0, 3.0]}
    assert source.node_attribute("none") == source.edge_attribute("none") == {}


@pytest.mark.parametrize("wrap", [lambda d: d, as_stores], ids=["data", "stores"])
def test_graphs(small, typed, wrap):
    """Compressed by destination; isolated nodes and types count."""
    graph = graph_of(wrap(small))
    assert not graph.is_heterogeneous and graph.num_nodes == {NODE: 4}
    assert graph.topologies[EDGE].indptr.tolist() == [0, 0, 2, 3, 3]
    assert graph.topologies[EDGE].indices.tolist() == [0, 2, 0]
    graph = graph_of(wrap(typed))
    assert graph.num_nodes == {"a": 2, "b": 3}
    assert graph.edge_types == [("a", "to", "b"), ("b", "to", "a")]


def test_short_pointers():
    """Row pointers may leave out trailing nodes without edges."""
    for layout, arrays in (("csc", ([1, 2], [0, 2])), ("csr", ([0, 2], [1, 2]))):
        graph = MyGraphStore()
        row, col = (torch.tensor(a) for a in arrays)
        graph.put_edge_index((row, col), edge_type=None, layout=layout, size=(3, 3))
        topology = graph_of((MyFeatureStore(), graph)).topologies[EDGE]
        wanted = [[0, 2, 2, 2], [1, 2]] if layout == "csc" else [[0, 0, 1, 2], [0, 0]]
        assert [topology.indptr.tolist(), topology.indices.tolist()] == wanted


def test_numbers_of_nodes():
    """Sizes of edge types, else pointers, else rows of attributes."""
    ring = torch.tensor([[0, 1], [1, 0]])
    features, graph = MyFeatureStore(), MyGraphStore()
    graph.put_edge_index(tuple(ring), edge_type=None, layout="coo", size=(2, 5))
    assert open_input((features, graph)).num_nodes == {NODE: 5}
    graph = MyGraphStore()
    graph.put_edge_index((ring[0], torch.tensor([0, 1, 2, 2])), edge_type=None, layout="csc")
    assert open_input((features, graph)).num_nodes == {NODE: 3}
    graph = MyGraphStore()
    graph.put_edge_index(tuple(ring), edge_type=None, layout="coo")
    features.put_tensor(torch.arange(2), None, "weight", None)  # as many as edges
    features.put_tensor(torch.arange(7), None, "x", None)
    assert open_input((features, graph)).num_nodes == {NODE: 7}


def test_forms(small):
    """One object that is both stores is a pair; a Data as a pair is that Data."""
    features, graph = as_stores(small)
    assert as_input((features, graph)) == as_input([features, graph]) == (features, graph)
    assert as_input((small, small)) is as_input(small) is small
    with pytest.raises(ValueError, match="number of nodes of type 'a' is not known"):
        graph_of(HeteroData({"a": {"y": torch.zeros(2)}}))
    for wrong in (None, small.edge_index, (features,), (features, graph, graph), (graph, features)):
        with pytest.raises(TypeError, match="FeatureStore, GraphStore"):
            as_input(wrong)
