"""An error names the argument, what was received, and what to pass instead."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.sampler import NeighborSampler

IDS = torch.tensor([1, 2])


@pytest.mark.parametrize(
    ("nodes", "error", "message"),
    [
        ("train_mask", TypeError, r"input_nodes .*\(got 'train_mask'\).*data\['name'\]"),
        (["a.pt", "b.pt"], TypeError, r"input_nodes .*'a.pt'.*torch.load"),
        (("paper", None), ValueError, r"input_nodes names node type 'paper'.*homogeneous"),
        (("paper", IDS), ValueError, r"input_nodes names node type 'paper'.*homogeneous"),
        (3, TypeError, r"input_nodes must be .*\(got 3\)"),
        ([None], TypeError, r"input_nodes must be .*\(got \[None\]\)"),
        ([[1, 2], [3]], TypeError, r"input_nodes must be .*got \[\[1, 2\]"),
        ([2**70], TypeError, r"input_nodes must be .*got \[1180"),
        ({"a": IDS}, TypeError, r"input_nodes must be .*got \{'a'"),
        (np.array(["2020"], "datetime64[D]"), TypeError, "input_nodes must be"),
    ],
    ids=str,
)
def test_seeds(data, nodes, error, message):
    with pytest.raises(error, match=message):
        NeighborLoader(data, [2], nodes)


def test_typed_seeds(shop):
    with pytest.raises(TypeError, match=r"input_nodes .*'train_mask'"):
        NeighborLoader(shop, [2], ("user", "train_mask"))


@pytest.mark.parametrize(
    ("links", "error", "message"),
    [
        ("edge_index", TypeError, r"edge_label_index .*'edge_index'.*data\['name'\]"),
        (["a.pt", "b.pt"], TypeError, r"edge_label_index .*'a.pt'.*torch.load"),
        ((("a", "to", "b"), None), ValueError, r"edge_label_index names edge type \('a', 'to'"),
        (3, TypeError, r"edge_label_index must be .*got 3"),
        ([[None], [3]], TypeError, r"edge_label_index must be .*got \[None\]"),
        (torch.ones(7, 2).long(), ValueError, r"shape \[2, num_links\] \(got \[7, 2\]\): transp"),
    ],
    ids=str,
)
def test_links(data, links, error, message):
    with pytest.raises(error, match=message):
        LinkNeighborLoader(data, [2], links)


@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ({"input_id": ["a"] * 200}, TypeError, "input_id must be .*'a'"),
        ({"input_time": "now", "time_attr": "y"}, TypeError, "input_time must be .*'now'"),
        ({"transform": 3}, TypeError, r"transform must be a function .*got 3"),
        ({"transform_sampler_output": 3}, TypeError, "transform_sampler_output must be a function"),
        ({"neighbor_sampler": [5, 5]}, TypeError, r"neighbor_sampler must be a sampler.*\[5, 5\]"),
        ({"neighbor_sampler": NeighborSampler}, TypeError, "neighbor_sampler must be a sampler"),
        ({"num_workers": "2"}, TypeError, "num_workers must be an integer .*'2'"),
        ({"num_workers": 1.5}, TypeError, "num_workers must be an integer .*1.5"),
        ({"timeout": "x"}, TypeError, "timeout must be .*'x'"),
        ({"sampler": 3}, TypeError, "sampler must be iterable .*3"),
        ({"sampler": ["a"]}, TypeError, r"one position after the other \(got \['a'\]\)"),
        ({"sampler": [0.5]}, TypeError, r"one position after the other \(got \[0.5\]\)"),
        ({"batch_sampler": [1, 2]}, TypeError, r"a list of positions for each batch.*got 1\)"),
        ({"sampler": [200]}, IndexError, "position 200, but the loader has 200"),
    ],
    ids=str,
)
def test_options(data, option, error, message):
    with pytest.raises(error, match=message):
        next(iter(NeighborLoader(data, [2], **option)))


@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ({"edge_label": "y"}, TypeError, "edge_label must be .*'y'"),
        ({"neg_sampling": "ternary"}, ValueError, "neg_sampling must be 'binary' or .*'ternary'"),
        ({"neg_sampling": {"a": 1}}, TypeError, r"neg_sampling must be .*got \{'a': 1\}"),
        ({"neg_sampling": {"mode": "binary", "amount": "2"}}, TypeError, "neg_sampling must be"),
        ({"neg_sampling": {"mode": "triplet", "dst_weight": "w"}}, TypeError, "dst_weight .*'w'"),
        ({"neg_sampling_ratio": "1"}, ValueError, "neg_sampling_ratio must be a number.*'1'"),
        ({"neg_sampling_ratio": -1}, ValueError, "neg_sampling_ratio must be a number.*-1"),
        ({"neighbor_sampler": 3}, TypeError, r"neighbor_sampler must be a sampler.*got 3"),
    ],
    ids=str,
)
def test_options_of_links(data, option, error, message):
    with pytest.raises(error, match=message):
        LinkNeighborLoader(data, [2], **option)


def test_a_sampler_of_another_kind_of_graph(data, shop):
    with pytest.raises(ValueError, match="a homogeneous graph, but data is heterogeneous"):
        NeighborLoader(shop, [2], "user", neighbor_sampler=NeighborSampler(data, [2]))
    with pytest.raises(ValueError, match="a heterogeneous graph, but data is homogeneous"):
        NeighborLoader(data, [2], neighbor_sampler=NeighborSampler(shop, [2]))


def test_node_types_without_nodes():
    """An edge type names them, nothing says how many there are."""
    graph = HeteroData()
    graph["a"].num_nodes = 3
    graph["a", "to", "b"].edge_index = torch.tensor([[0], [1]])
    with pytest.raises(ValueError, match=r"joins nodes of type 'b'.*set data\['b'\].num_nodes"):
        NeighborLoader(graph, [2], "a")


@pytest.mark.parametrize(
    ("edges", "error", "message"),
    [
        ([[0], [1]], TypeError, "edge_index of the data object must be a tensor .*list"),
        (IDS, ValueError, r"edge_index of the data object must have shape .*got \[2\]"),
        (torch.ones(5, 2).long(), ValueError, r"shape \[2, num_edges\].*got \[5, 2\]"),
    ],
    ids=str,
)
def test_edges(edges, error, message):
    with pytest.raises(error, match=message):
        NeighborLoader(Data(num_nodes=3, edge_index=edges), [2])


def test_attributes_that_have_no_such_rows(data):
    """The attribute is named: one that was cut short, and a list, which has no rows."""
    loader = NeighborLoader(data, [2], torch.tensor([150]))
    data.x = data.x[:50]
    with pytest.raises(IndexError, match=r"'x' must have a row for each node.*table of 50 rows"):
        next(iter(loader))
    for value, found in (
        (["one"] * 200, "a list: pass a tensor of numbers"),
        (np.array(["one"] * 200), r"an array of dtype '<U3': replace what is no number"),
        (np.array([None] * 200), r"an array of dtype 'object': replace what is no number"),
        (torch.eye(200).to_sparse_csr(), r"a tensor of layout torch\.sparse_csr: pass a dense one"),
    ):
        data.x = value
        with pytest.raises(TypeError, match=f"'x' has an entry for each node, .* is {found}"):
            next(iter(loader))


def test_two_graphs(data):
    """A list of graphs, for training and for tests, is no pair of stores of one graph."""
    for two in ([data, data.clone()], (data, data.clone()), [data, HeteroData()]):
        with pytest.raises(ValueError, match=r"got two graphs, a Data and a .* loader of each"):
            NeighborLoader(two, [2])
    assert next(iter(NeighborLoader((data, data), [2], IDS))).n_id.numel() > 0


def test_samplers(data, shop):
    """Called by hand, with something else than PyG's inputs."""
    sampler = NeighborSampler(data, [2])
    with pytest.raises(TypeError, match=r"takes a .*NodeSamplerInput \(got Tensor"):
        sampler.sample_from_nodes(IDS)
    with pytest.raises(TypeError, match=r"takes a .*EdgeSamplerInput \(got NodeSamplerInput"):
        sampler.sample_from_edges(NodeSamplerInput(None, IDS))
    typed = NeighborSampler(shop, [2])
    with pytest.raises(ValueError, match=r"need an edge type .*got \('user', 'item'\)"):
        typed.sample_from_edges(EdgeSamplerInput(None, IDS, IDS, input_type=("user", "item")))
    with pytest.raises(TypeError, match=r"seed must be an integer .*'x'"):
        NeighborSampler(data, [2], seed="x")
    with pytest.raises(ValueError, match=r"batch_size must be .*'a'"):
        sampler.sample_prob(IDS, batch_size="a")
    with pytest.raises(TypeError, match="seeds: dtype 'str"):
        sampler.sample_prob("nodes")
