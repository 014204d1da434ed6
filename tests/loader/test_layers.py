"""Layers of batches, and draws in which all nodes take part in each hop."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv, SAGEConv

from khop.loader import NeighborLoader, ToLayers
from khop.sampler import FastGcn, Labor, Ladies, NeighborSampling, PoissonLadies
from support.cluster import twins
from support.programs import Smallest
from support.reference import oracle, sampler
from support.users_methods import TopDegree

SEEDS = torch.tensor([3, 77, 12, 149, 40, 41])


def reference(data, fanouts, seeds, batch, replace=False):
    """The batch that the plain-Python sampler draws."""
    rows = {v: [] for v in range(data.num_nodes)}
    for edge, (u, v) in enumerate(data.edge_index.T.tolist()):
        rows[v].append(sampler.Entry(u, edge))
    kind = sampler.EdgeType(0, 0, {v: sampler.Row(v, entries) for v, entries in rows.items()})
    run = oracle.run_key(5, 0, 0)
    options = sampler.Options([fanouts], [False], replace, run=run, batch=batch, layer_wise=True)
    return sampler.sample(1, [kind], [sampler.Seeds(0, seeds.tolist())], options)


@pytest.mark.parametrize("replace", [False, True])
def test_all_nodes_draw_in_each_hop(replace):
    data = twins.homogeneous()
    data = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    method = NeighborSampling([3, 2, 4], layer_wise=True)
    loader = NeighborLoader(data, method, SEEDS, batch_size=3, seed=5, replace=replace)
    for number, batch in enumerate(loader):
        seeds = SEEDS[3 * number : 3 * number + 3]
        wanted = reference(data, [3, 2, 4], seeds, number, replace)
        assert batch.n_id.tolist() == wanted.nodes[0]
        assert batch.num_sampled_nodes == wanted.nodes_per_hop[0]
        assert batch.num_sampled_edges == wanted.edges_per_hop[0]
        assert batch.e_id.tolist() == [edge for _, _, edge in wanted.edges[0]]
        assert batch.edge_index.T.tolist() == [[row, col] for row, col, _ in wanted.edges[0]]


def whole(data, convs):
    """A model's output for all nodes."""
    x = data.x
    for conv in convs:
        x = conv(x, data.edge_index).relu()
    return x


@pytest.mark.parametrize("layer_wise", [False, True])
def test_layers_compute_the_whole_graphs_result(layer_wise):
    data = twins.homogeneous()
    data = Data(x=torch.randn(data.num_nodes, 4), edge_index=data.edge_index)
    torch.manual_seed(0)
    convs = nn.ModuleList([SAGEConv(4, 8), SAGEConv(8, 8), SAGEConv(8, 3)])
    method = NeighborSampling([-1, -1, -1], layer_wise=layer_wise)
    split = ToLayers()
    wanted = whole(data, convs)
    for batch in NeighborLoader(data, method, SEEDS, batch_size=3, transform=split):
        x = batch.x
        assert "edge_index" not in batch
        for conv, (edge_index, e_id, size) in zip(convs, batch.adjs, strict=True):
            assert len(x) == size[0]
            assert edge_index.size(1) == e_id.numel()
            x = conv((x, x[: size[1]]), edge_index).relu()
        assert torch.allclose(x, wanted[batch.n_id[: batch.batch_size]], atol=1e-5)


def one_neighbor_each():
    """150 nodes with one in-neighbour each, so that weights that add up to a row's edges are 1."""
    generator = torch.Generator().manual_seed(2)
    nodes = torch.arange(150)
    ends = torch.stack([torch.randint(150, (150,), generator=generator), nodes])
    return Data(x=torch.randn(150, 4), edge_index=ends, num_nodes=150)


def many_neighbors():
    data = twins.homogeneous()
    return Data(x=torch.randn(data.num_nodes, 4), edge_index=data.edge_index)


ALWAYS = [5000, 5000, 5000]
DRAWS = 200_000


@pytest.mark.parametrize(
    ("method", "graph"),
    [
        ([-1, -1, -1], many_neighbors),
        (NeighborSampling([-1, -1, -1], layer_wise=True), many_neighbors),
        (Labor([99, 99, 99]), many_neighbors),
        (Labor([99, 99, 99], layer_wise=True), many_neighbors),
        (Labor([99, 99, 99], importance=1, edge_norm="ht"), many_neighbors),
        (Labor([99] * 3, importance=1, edge_norm="ht", layer_wise=True), many_neighbors),
        (PoissonLadies(ALWAYS, edge_norm="ht"), many_neighbors),
        (PoissonLadies(ALWAYS), many_neighbors),
        (PoissonLadies(ALWAYS), one_neighbor_each),
        (Ladies(ALWAYS), one_neighbor_each),
        (FastGcn([DRAWS] * 3), one_neighbor_each),
        (Smallest(99, 3), many_neighbors),
        (TopDegree(99, 3), many_neighbors),
    ],
)
def test_sums_of_layers_are_those_over_all_neighbours(method, graph):
    """Every method that draws hops, with so many draws that all neighbours are there."""
    data = graph()
    wanted = data.x
    for _ in range(3):
        src, dst = data.edge_index
        wanted = torch.zeros_like(wanted).index_add_(0, dst, wanted[src])
    loader = NeighborLoader(data, method, SEEDS, batch_size=3, transform=ToLayers(), seed=1)
    for batch in loader:
        x = batch.x
        for (edge_index, _, size), place in zip(batch.adjs, batch.edge_ranges, strict=True):
            src, dst = edge_index
            weights = batch.edge_norm[place].view(-1, 1) if "edge_norm" in batch else 1
            x = torch.zeros(size[1], 4).index_add_(0, dst, x[src] * weights)
        assert torch.allclose(x, wanted[batch.n_id[:3]], rtol=1e-4, atol=1e-3)


def without_the_mark(batch):
    del batch.layer_wise
    return ToLayers()(batch)


@pytest.mark.parametrize(
    ("data", "seeds", "method"),
    [
        (twins.homogeneous(), SEEDS, NeighborSampling([2, 2], layer_wise=True)),
        (twins.homogeneous(), SEEDS, FastGcn([200, 200])),
        (twins.heterogeneous(), ("paper", SEEDS[::2]), Smallest(2, 2)),
    ],
)
def test_hops_are_not_mixed_without_a_word(data, seeds, method):
    """Batches whose nodes draw in each hop, and that have lost the mark that says so."""
    loader = NeighborLoader(data, method, seeds, batch_size=3, transform=without_the_mark)
    with pytest.raises(ValueError, match=r"draw in several hops, .* no `layer_wise`"):
        next(iter(loader))


def test_layers_of_a_path():
    """0 <- 1 <- 2 <- 3: the outer layer of FastGCN's two has an edge for each node so far."""
    data = Data(edge_index=torch.tensor([[1, 2, 3], [0, 1, 2]]), num_nodes=4)
    loader = NeighborLoader(data, FastGcn([DRAWS] * 2), torch.tensor([0]), transform=ToLayers())
    outer, inner = next(iter(loader)).adjs
    assert outer.edge_index.tolist() == [[1, 2], [0, 1]]
    assert inner.edge_index.tolist() == [[1], [0]]


def test_a_layers_edges_are_those_of_its_hops():
    data = twins.homogeneous()
    method = PoissonLadies([20, 30], edge_norm="hajek")
    data = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    options = {"batch_size": 6, "seed": 1}
    merged = next(iter(NeighborLoader(data, method, SEEDS, **options)))
    split = ToLayers()
    batch = next(iter(NeighborLoader(data, method, SEEDS, transform=split, **options)))
    first, second = batch.num_sampled_edges
    outer, inner = batch.adjs
    assert torch.equal(outer.edge_index, merged.edge_index[:, first:])
    assert torch.equal(inner.e_id, merged.e_id[:first])
    assert batch.edge_ranges == [slice(first, first + second), slice(0, first)]
    for adj, place in zip(batch.adjs, batch.edge_ranges, strict=True):
        assert int(adj.edge_index[1].max()) < adj.size[1]
        sums = torch.zeros(adj.size[1]).index_add_(0, adj.edge_index[1], batch.edge_norm[place])
        counts = torch.bincount(adj.edge_index[1], minlength=adj.size[1])
        assert torch.allclose(sums, counts.float(), atol=1e-4)
    moved = batch.to("cpu")
    conv = GraphConv((1, 1), 2, aggr="mean")
    x = torch.randn(batch.n_id.numel(), 1)
    out = conv(
        (x, x[: outer.size[1]]), moved.adjs[0].edge_index, batch.edge_norm[batch.edge_ranges[0]]
    )
    assert out.shape == (outer.size[1], 2)


@pytest.mark.parametrize("layer_wise", [False, True])
def test_layers_of_edge_types(layer_wise):
    data = twins.heterogeneous()
    method = NeighborSampling([-1, -1], layer_wise=layer_wise)
    seeds = ("paper", torch.arange(10))
    options = {"batch_size": 5, "weight_attr": None}
    split = ToLayers()
    for batch in NeighborLoader(data, method, seeds, transform=split, **options):
        assert len(batch.adjs) == 2
        for adjs, ranges in zip(batch.adjs, batch.edge_ranges, strict=True):
            for (src, relation, dst), (edge_index, e_id, size) in adjs.items():
                kind = (src, relation, dst)
                ends = data[kind].edge_index[:, e_id]
                found = torch.stack(
                    [batch[src].n_id[edge_index[0]], batch[dst].n_id[edge_index[1]]]
                )
                assert torch.equal(found, ends)
                assert ranges[kind].stop - ranges[kind].start == e_id.numel()
                assert edge_index.numel() == 0 or int(edge_index[1].max()) < size[1]
                drawn = torch.bincount(edge_index[1], minlength=size[1])
                degree = torch.bincount(data[kind].edge_index[1], minlength=data[dst].num_nodes)
                assert torch.equal(drawn, degree[batch[dst].n_id[: size[1]]])


def picks_of_seeds(method, seeds):
    """For each hop and seed, the edges that it drew."""
    data = twins.homogeneous()
    data = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    found = []
    for batch in NeighborLoader(data, method, seeds, batch_size=len(seeds), seed=3):
        ends = [0, *torch.tensor(batch.num_sampled_edges).cumsum(0).tolist()]
        for begin, end in pairwise(ends):
            col, edge = batch.edge_index[1, begin:end], batch.e_id[begin:end]
            found.append([sorted(edge[col == place].tolist()) for place in range(len(seeds))])
    return found


def test_hops_are_independent_or_the_same():
    """What a node draws in a hop says nothing of the next hop, or everything."""
    seeds = torch.arange(100)
    apart = picks_of_seeds(NeighborSampling([2, 2], layer_wise=True), seeds)
    equal = sum(a == b for a, b in zip(*apart, strict=True))
    degree = torch.bincount(twins.homogeneous().edge_index[1], minlength=150)[:100].clamp(min=2)
    chances = 2 / (degree * (degree - 1))
    spread = (chances * (1 - chances)).sum().sqrt()
    assert abs(equal - chances.sum()) < 4 * spread + 1
    same = picks_of_seeds(Labor([2, 2], layer_dependency=True, layer_wise=True), seeds)
    assert same[0] == same[1]
    apart = picks_of_seeds(Labor([2, 2], layer_dependency=False, layer_wise=True), seeds)
    assert apart[0] != apart[1]


def test_what_cannot_be_split_is_refused():
    data = twins.homogeneous()
    induced = NeighborLoader(data, [2, 2], SEEDS, subgraph_type="induced", transform=ToLayers())
    with pytest.raises(ValueError, match="directional"):
        next(iter(induced))
