"""`NeighborSampler` as PyG's `BaseSampler`."""

import pickle

import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NodeSamplerInput

from khop.data import Graph, Topology
from khop.sampler import NeighborSampler
from support.reference import oracle
from support.reference.sampler import sample_one_type

_SEEDS = torch.tensor([7, 3, 150])


def draw(sampler, seeds=_SEEDS):
    return sampler.sample_from_nodes(NodeSamplerInput(torch.arange(len(seeds)), seeds))


def same(a, b):
    return all(torch.equal(getattr(a, k), getattr(b, k)) for k in ("node", "row", "col", "edge"))


def test_full_neighborhood(data):
    """All fields of the output, against a walk along the edge list."""
    out = draw(NeighborSampler(data, [-1, -1]))
    nodes, edges, nodes_per_hop, edges_per_hop = oracle.full_neighborhood(
        data.edge_index, _SEEDS.tolist(), 2
    )
    assert out.node.tolist() == nodes
    ends = zip(
        out.node[out.row].tolist(), out.node[out.col].tolist(), out.edge.tolist(), strict=True
    )
    assert list(ends) == edges
    assert out.num_sampled_nodes == nodes_per_hop
    assert out.num_sampled_edges == edges_per_hop
    assert out.metadata[0].tolist() == [0, 1, 2]
    assert out.metadata[1] is out.batch is out.orig_row is out.orig_col is None


@pytest.mark.parametrize("replace", [False, True])
def test_equals_the_reference(data, replace):
    """The draws of call i are those of batch i of epoch 0."""
    sampler = NeighborSampler(data, [4, 3, -1], replace=replace, seed=5, stream=2)
    indptr, indices, ids = oracle.csr(data.edge_index[1], data.edge_index[0], 200)
    for call in range(3):
        run = oracle.run_key(5, 0, 2)
        want = sample_one_type(indptr, indices, _SEEDS.tolist(), [4, 3, -1], replace, run, call)
        got = draw(sampler)
        assert got.node.tolist() == want.node
        assert (got.row.tolist(), got.col.tolist()) == (want.row, want.col)
        assert got.edge.tolist() == ids[want.edge].tolist()


def test_seed_and_stream(data):
    """Equal ones make equal sequences of draws; others others; none follows torch's generator."""
    a, b = (NeighborSampler(data, [3, 3], seed=4) for _ in range(2))
    first, second = draw(a), draw(a)
    assert same(first, draw(b))
    assert same(second, draw(b))
    assert not same(first, second)
    assert not same(first, draw(NeighborSampler(data, [3, 3], seed=5)))
    assert not same(first, draw(NeighborSampler(data, [3, 3], seed=4, stream=1)))
    free = NeighborSampler(data, [3, 3])
    torch.manual_seed(3)
    first = draw(free)
    assert not same(first, draw(free))
    torch.manual_seed(3)
    assert same(first, draw(free))


def test_own_edge_ids(data):
    """Where a graph names its edges, `edge` holds those names."""
    names = torch.randperm(data.num_edges) + 10_000
    plain = draw(NeighborSampler(data, [3, 3], seed=1))
    graph = Graph(Topology(data.edge_index, edge_ids=names, num_src=200))
    named = draw(NeighborSampler(graph, [3, 3], seed=1))
    assert torch.equal(named.edge, names[plain.edge])
    in_order = Graph(Topology(torch.tensor([[1, 0], [0, 1]]), edge_ids=[5, 6]))
    assert draw(NeighborSampler(in_order, [1]), torch.tensor([1])).edge.tolist() == [6]


def test_out_neighbors(data):
    """With edge_dir 'out' rows are sources: destinations are drawn."""
    graph = Graph(Topology(data.edge_index, num_src=200, edge_dir="out"))
    out = draw(NeighborSampler(graph, [-1]))
    flipped = draw(NeighborSampler(Data(edge_index=data.edge_index.flip(0), num_nodes=200), [-1]))
    assert same(out, flipped)


def test_without_edges(data):
    assert draw(NeighborSampler(data, [2], with_edge=False)).edge is None


def test_pickles(data):
    """A copy in another process draws the same, by its own count of calls."""
    sampler = NeighborSampler(data, [3, 3], seed=4)
    first = draw(sampler)
    copy = pickle.loads(pickle.dumps(sampler))
    assert same(first, draw(copy))
    assert copy.num_neighbors == [3, 3]


def test_fanouts_may_be_changed(data):
    sampler = NeighborSampler(data, [3, 3])
    sampler.num_neighbors = [-1]
    assert len(sampler.num_neighbors) == 1
    assert len(draw(sampler).num_sampled_edges) == 1
    with pytest.raises(ValueError, match="holds -5"):
        sampler.num_neighbors = [-5]


def test_sampler_has_the_interface_of_pyg(data):
    sampler = NeighborSampler(data, [2])
    assert isinstance(sampler, BaseSampler)
    assert sampler.edge_permutation is None
    assert draw(sampler, torch.tensor([5, 5])).node[:2].tolist() == [5, 5]


@pytest.mark.process
@pytest.mark.parametrize("loader", ["NodeLoader", "NeighborLoader"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_in_pygs_own_loaders(data, loader, num_workers):
    """PyG's loaders take it, also in worker processes: attributes belong to their ids."""
    sampler = NeighborSampler(data, [4, 4])
    options = {"batch_size": 30, "shuffle": True, "num_workers": num_workers}
    if loader == "NodeLoader":
        batches = torch_geometric.loader.NodeLoader(data, sampler, **options)
    else:
        batches = torch_geometric.loader.NeighborLoader(
            data, num_neighbors=[4, 4], neighbor_sampler=sampler, **options
        )
    seeds = []
    for batch in batches:
        seeds += batch.n_id[: batch.batch_size].tolist()
        assert torch.equal(batch.x[:, 0].long(), batch.n_id)
        assert torch.equal(batch.edge_attr.view(-1).long(), batch.e_id)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert sorted(seeds) == list(range(200))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"subgraph_type": "full"}, "subgraph_type must be of"),
        ({"temporal_strategy": "first"}, "temporal_strategy must be of"),
        ({"temporal_strategy": "last"}, "needs times: pass time_attr"),
        ({"time_attr": "when"}, "time_attr='when' is an attribute neither of nodes nor of edges"),
        ({"weight_attr": "x"}, "weight_attr='x' is not an attribute of edges"),
        ({"sample_direction": "sideways"}, "sample_direction must be"),
    ],
)
def test_bad_options(data, option, message):
    with pytest.raises(ValueError, match=message):
        NeighborSampler(data, [2], **option)


def test_times_of_seeds_without_times(data):
    edge = torch.tensor([0])
    sampler = NeighborSampler(data, [2])
    with pytest.raises(ValueError, match="'input_time' is set, 'time_attr' is not set"):
        sampler.sample_from_nodes(NodeSamplerInput(None, edge, edge))
    with pytest.raises(ValueError, match="'edge_label_time' is set, 'time_attr' is not set"):
        sampler.sample_from_edges(EdgeSamplerInput(None, edge, edge, time=edge))


def test_bad_input(data):
    for seed in (-1, 200):
        with pytest.raises(IndexError, match=f"seeds holds id {seed}"):
            draw(NeighborSampler(data, [2]), torch.tensor([seed]))
    with pytest.raises(TypeError, match="integers"):
        draw(NeighborSampler(data, [2]), torch.tensor([0.5]))
    with pytest.raises(TypeError, match="expected a PyG Data"):
        NeighborSampler(data.edge_index, [2])
    with pytest.raises(ValueError, match="transpose it into an 'adj_t'"):
        NeighborSampler(Data(x=data.x, adj=data.edge_index), [2])
    with pytest.raises(IndexError, match=r"and node 200 \(of 200\)"):
        NeighborSampler(Data(edge_index=data.edge_index + 1, num_nodes=200), [2])
