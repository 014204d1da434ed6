"""Sampling along the edges: neighbours are destinations, as PyG's `sample_direction='backward'`."""

import itertools

import pytest
import torch
import torch_geometric.sampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from khop.loader import NeighborLoader
from khop.sampler import NeighborSampler
from support.loaders import random_graphs
from support.reference import walks

HETERO = pytest.mark.parametrize("hetero", [False, True], ids=["homogeneous", "heterogeneous"])
pytestmark = pytest.mark.filterwarnings("ignore:.* reverse:UserWarning")


def reversed_graph(data):
    """The same with edges turned round; edge types in the same order."""
    if not isinstance(data, HeteroData):
        data = data.clone()
        data.edge_index = data.edge_index.flip(0)
        return data
    out = HeteroData()
    for t in data.node_types:
        out[t].update(data[t])
    for src, name, dst in data.edge_types:
        out[dst, name, src].update(data[src, name, dst])
        out[dst, name, src].edge_index = data[src, name, dst].edge_index.flip(0)
    return out


OPTIONS = [
    {},
    {"replace": True},
    {"disjoint": True},
    {"weight_attr": "edge_weight"},
    {"time_attr": "time"},
    {"time_attr": "edge_time", "temporal_strategy": "last"},
    {"subgraph_type": "induced"},
    {"subgraph_type": "bidirectional"},
    {"subgraph_type": "induced", "time_attr": "time"},
]


@HETERO
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("fanouts", [[-1, -1], [3, 2]], ids=str)
def test_is_the_reversed_graph_with_ends_exchanged(hetero, options, fanouts):
    """The same draws, bit for bit: nodes, edges, trees, counts; only rows and columns change."""
    times = {None: None, "time": "node", "edge_time": "edge"}[options.get("time_attr")]
    kind = random_graphs.heterogeneous if hetero else random_graphs.homogeneous
    data = kind(times=times, weights="weight_attr" in options)
    node = torch.tensor([2, 7, 2, 20])
    time = torch.tensor([3, 1, 4, 2]) if times else None
    index = NodeSamplerInput(None, node, time, "a" if hetero else None)
    ours, theirs = (
        NeighborSampler(graph, fanouts, seed=3, sample_direction=direction, **options)
        for graph, direction in ((data, "backward"), (reversed_graph(data), "forward"))
    )
    a, b = ours.sample_from_nodes(index), theirs.sample_from_nodes(index)
    if not hetero:
        assert torch.equal(a.node, b.node)
        assert a.num_sampled_nodes == b.num_sampled_nodes
        assert a.num_sampled_edges == b.num_sampled_edges
        assert torch.equal(a.row, b.col) and torch.equal(a.col, b.row)
        assert torch.equal(a.edge, b.edge)
        assert (a.batch is b.batch is None) or torch.equal(a.batch, b.batch)
        return
    assert a.num_sampled_nodes == b.num_sampled_nodes
    for t in data.node_types:
        assert torch.equal(a.node[t], b.node[t])
        assert a.batch is b.batch is None or torch.equal(a.batch[t], b.batch[t])
    for t in data.edge_types:
        back = t[::-1]
        if "bidirectional" in options.values() and "rev_" in t[1]:
            continue  # what reverses what goes by names, which mean another thing in either graph
        if a.num_sampled_edges is not None:
            assert a.num_sampled_edges[t] == b.num_sampled_edges[back]
        assert torch.equal(a.row[t], b.col[back]) and torch.equal(a.col[t], b.row[back])
        assert (a.edge[t] is None) == (b.edge[back] is None)
        assert a.edge[t] is None or torch.equal(a.edge[t], b.edge[back])


@HETERO
@pytest.mark.parametrize("options", OPTIONS[:6], ids=str)
@pytest.mark.parametrize("fanouts", [[-1, -1], [3, 2], [1]], ids=str)
def test_in_a_loader(hetero, options, fanouts):
    """Every attribute of a batch follows from the graph and from what was drawn."""
    times = {None: None, "time": "node", "edge_time": "edge"}[options.get("time_attr")]
    kind = random_graphs.heterogeneous if hetero else random_graphs.homogeneous
    data = kind(times=times, weights="weight_attr" in options)
    view = walks.View(data, options.get("time_attr"), options.get("weight_attr"), backward=True)
    sampler = NeighborSampler(data, fanouts, sample_direction="backward", **options)
    ids, given = [2, 7, 2, 20], [3, 1, 4, 2] if times else None
    seeds = ("a", ids) if hetero else ids
    (batch,) = NeighborLoader(
        data,
        fanouts,
        seeds,
        None if given is None else torch.tensor(given),
        time_attr=options.get("time_attr"),
        neighbor_sampler=sampler,
        batch_size=4,
    )
    walks.check(view, batch, fanouts, seeds, given, **options)


def test_by_hand():
    """From node 0 along the edges; messages still flow from row to column.

    0 -> 1    0 -> 2    2 -> 3    3 -> 0
    """
    data = Data(edge_index=torch.tensor([[0, 0, 2, 3], [1, 2, 3, 0]]), num_nodes=4)
    sampler = NeighborSampler(data, [-1, -1], sample_direction="backward")
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([0])))
    assert out.node.tolist() == [0, 1, 2, 3]
    assert out.row.tolist() == [0, 0, 2] and out.col.tolist() == [1, 2, 3]
    assert out.edge.tolist() == [0, 1, 2]
    links = EdgeSamplerInput(None, torch.tensor([2]), torch.tensor([3]))
    out = sampler.sample_from_edges(links, exclude_seed_edges="self")
    assert out.node.tolist() == [2, 3, 0, 1]  # not by 2 -> 3, but by 3 -> 0
    assert out.edge.tolist() == [3, 0, 1]


def test_by_edge_type():
    """Fan-outs go by the types as the user names them."""
    data = random_graphs.heterogeneous()
    fanouts = {t: [i % 3, 2] for i, t in enumerate(data.edge_types)}
    view = walks.View(data, backward=True)
    sampler = NeighborSampler(data, fanouts, sample_direction="backward")
    assert sampler.num_neighbors == fanouts
    loader = NeighborLoader(data, fanouts, "a", neighbor_sampler=sampler, batch_size=30)
    walks.check(view, next(iter(loader)), fanouts, ("a", list(range(30))))


@HETERO
@pytest.mark.parametrize("kind", ["directional", "bidirectional"])
def test_as_pygs(hetero, kind):
    """The same edges and nodes as PyG's sampler, all neighbours."""
    pytest.importorskip("torch_sparse")
    data = random_graphs.heterogeneous() if hetero else random_graphs.homogeneous()
    index = NodeSamplerInput(None, torch.arange(0, 30, 4), input_type="a" if hetero else None)
    ours, theirs = (
        made(data, [-1, -1], subgraph_type=kind, sample_direction="backward")
        for made in (NeighborSampler, torch_geometric.sampler.NeighborSampler)
    )
    a, b = ours.sample_from_nodes(index), theirs.sample_from_nodes(index)
    if not hetero:
        assert edges_of(a.node, a.node, a.row, a.col) == edges_of(b.node, b.node, b.row, b.col)
        assert a.node.sort()[0].tolist() == b.node.sort()[0].tolist()
        return
    for t in data.edge_types:
        found = [edges_of(o.node[t[0]], o.node[t[2]], o.row[t], o.col[t]) for o in (a, b)]
        assert found[0] == found[1]


def edges_of(src, dst, row, col):
    return sorted(zip(src[row].tolist(), dst[col].tolist(), strict=True))


def test_directions_differ():
    """Both are tested: a graph whose in- and out-neighbours are not the same."""
    data = random_graphs.homogeneous()
    index = NodeSamplerInput(None, torch.arange(10))
    nodes = [
        NeighborSampler(data, [-1], sample_direction=d).sample_from_nodes(index).node.tolist()
        for d in ("forward", "backward")
    ]
    assert all(x != y for x, y in itertools.combinations(nodes, 2))
