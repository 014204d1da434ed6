"""PyG's models on khop's batches: the whole graph's output, trimmed or not, layer by layer or not.

At full fan-out a batch of k hops holds all that k layers see of its seeds, so the seeds' output is
that of the whole graph.
"""

import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import (
    GAT,
    GIN,
    PNA,
    GATConv,
    GraphSAGE,
    HeteroConv,
    HGTConv,
    RGCNConv,
    SAGEConv,
    to_hetero,
)
from torch_geometric.utils import trim_to_layer

from khop.loader import NeighborLoader
from support.versions import with_to_hetero

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(autouse=True)
def seeded():
    """The same weights on each run, and nothing to differentiate."""
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def graph(data):
    """200 nodes with random features and a few kinds of edges."""
    data.x = torch.randn(200, 5)
    data.edge_attr = torch.randn(1600, 3)
    data.edge_type = torch.randint(4, (1600,))
    return data


@pytest.fixture
def hetero():
    """Three node types; a self-relation, an edge type without edges, isolated nodes."""
    sizes = {"paper": 80, "author": 50, "venue": 6}
    graph = HeteroData()
    for name, size in sizes.items():
        graph[name].x = torch.randn(size, 4)
    for src, relation, dst, count in (
        ("author", "writes", "paper", 260),
        ("paper", "rev_writes", "author", 260),
        ("paper", "cites", "paper", 200),
        ("venue", "prints", "paper", 80),
        ("paper", "rev_prints", "venue", 80),
        ("author", "never", "venue", 0),
    ):
        ends = [torch.randint(sizes[t] - 2, (count,)) for t in (src, dst)]
        graph[src, relation, dst].edge_index = torch.stack(ends)
    return graph


@pytest.mark.parametrize("make", [
    lambda: GraphSAGE(5, 8, num_layers=3, out_channels=3, aggr="max"),
    lambda: GraphSAGE(5, 8, num_layers=2, out_channels=3, norm="BatchNorm", jk="last"),
    lambda: GAT(5, 8, num_layers=2, out_channels=3, heads=2, v2=True),
    lambda: GIN(5, 8, num_layers=1),
    lambda: PNA(5, 8, 2, 3, aggregators=["mean", "std"], scalers=["identity", "linear"],
                deg=torch.ones(200, dtype=torch.long)),
])  # fmt: skip
def test_inference(graph, make):
    """`model.inference(loader)` over all nodes, whose last batch is short."""
    model = make().eval()
    loader = NeighborLoader(graph, [-1], batch_size=64)
    expected = model(graph.x, graph.edge_index)
    torch.testing.assert_close(model.inference(loader), expected, **CLOSE)
    if isinstance(model, GIN):
        torch.testing.assert_close(model.inference(loader, cache=True), expected, **CLOSE)


def test_inference_needs_one_hop_of_all_nodes(graph):
    """What PyG asserts of the loader holds, and fails, for the loader's own reasons."""
    model = GraphSAGE(5, 8, num_layers=2).eval()
    for wrong in (
        NeighborLoader(graph, [-1, -1], batch_size=64),
        NeighborLoader(graph, [-1], torch.arange(10), batch_size=64),
    ):
        with pytest.raises(AssertionError):
            model.inference(wrong)


@pytest.mark.parametrize(
    "make,fanouts",
    [
        *((make, [-1, -1, -1]) for make in (GraphSAGE, GAT, GIN)),
        *((GraphSAGE, [4, 3, 2]), (GAT, [3, 0, 2])),
    ],
)
def test_trimmed_models(graph, make, fanouts):
    """Models that trim by hop counts: what they give seeds untrimmed, at -1 the graph's output."""
    model = make(5, 8, num_layers=3, out_channels=3).eval()
    expected = model(graph.x, graph.edge_index)
    for batch in NeighborLoader(graph, fanouts, torch.arange(0, 200, 3), batch_size=25, seed=1):
        size = batch.batch_size
        trimmed = model(
            batch.x,
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )
        assert len(trimmed) == sum(batch.num_sampled_nodes[:2])
        untrimmed = model(batch.x, batch.edge_index)[:size]
        torch.testing.assert_close(trimmed[:size], untrimmed, **CLOSE)
        if fanouts == [-1] * 3:
            torch.testing.assert_close(untrimmed, expected[batch.n_id[:size]], **CLOSE)


def test_trimmed_edge_attributes(graph):
    """Edge attributes and edge types are trimmed along with their edges."""
    layers = [GATConv(5, 5, edge_dim=3).eval() for _ in range(2)]
    relational = [RGCNConv(5, 5, num_relations=4).eval() for _ in range(2)]
    whole = graph.x
    for gat, rgcn in zip(layers, relational, strict=True):
        whole = gat(whole, graph.edge_index, graph.edge_attr)
        whole = rgcn(whole, graph.edge_index, graph.edge_type)
    for batch in NeighborLoader(graph, [-1] * 4, torch.arange(30), batch_size=10):
        x, edge_index = batch.x, batch.edge_index
        attrs, types = batch.edge_attr, batch.edge_type
        counts = (batch.num_sampled_nodes, batch.num_sampled_edges)
        for i in range(4):
            _, _, types = trim_to_layer(i, *counts, x, edge_index, types)
            x, edge_index, attrs = trim_to_layer(i, *counts, x, edge_index, attrs)
            x = (
                layers[i // 2](x, edge_index, attrs)
                if i % 2 == 0
                else relational[i // 2](x, edge_index, types)
            )
        torch.testing.assert_close(x[: batch.batch_size], whole[batch.input_id], **CLOSE)


def make_convs(hetero):
    """Two heterogeneous layers of different kinds for each edge type."""
    return [
        HeteroConv({
            t: SAGEConv(4, 4) if t[1] != "cites" else GATConv(4, 4) for t in hetero.edge_types
        }).eval()
        for _ in range(2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "seed_type,fanouts",
    [("paper", [-1, -1]), ("author", [-1, -1]), ("venue", [-1, -1]), ("paper", [3, 2])],
)
def test_heterogeneous_layers(hetero, seed_type, fanouts):
    """HeteroConv trimmed by dictionaries, and HGT: the same for seeds, at -1 the graph's output."""
    convs = make_convs(hetero)
    attention = HGTConv(4, 4, hetero.metadata(), heads=2).eval()

    def forward(graph, counts=None):
        x, edges = graph.x_dict, graph.edge_index_dict
        for i, conv in enumerate([*convs[: len(fanouts) - 1], attention]):
            if counts is not None:
                x, edges, _ = trim_to_layer(i, *counts, x, edges)
            x = {t: rows.relu() for t, rows in conv(x, edges).items()}
        return x[seed_type]

    expected = forward(hetero)
    loader = NeighborLoader(hetero, fanouts, seed_type, batch_size=16, seed=3)
    for batch in loader:
        size = batch[seed_type].batch_size
        counts = (batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict)
        whole, trimmed = forward(batch)[:size], forward(batch, counts)[:size]
        torch.testing.assert_close(trimmed, whole, **CLOSE)
        if fanouts == [-1, -1]:
            seeds = batch[seed_type].n_id[:size]
            torch.testing.assert_close(whole, expected[seeds], **CLOSE)


@with_to_hetero
@pytest.mark.parametrize("seed_type,make", [
    ("paper", lambda: GraphSAGE((-1, -1), 8, num_layers=2, out_channels=3)),
    ("venue", lambda: GAT((-1, -1), 8, num_layers=2, out_channels=3, add_self_loops=False)),
])  # fmt: skip
def test_to_hetero(hetero, seed_type, make):
    """A model turned heterogeneous gives seeds of full batches what the whole graph gives them."""
    model = to_hetero(make().eval(), hetero.metadata())
    expected = model(hetero.x_dict, hetero.edge_index_dict)[seed_type]
    seen = 0
    for batch in NeighborLoader(hetero, [-1, -1], seed_type, batch_size=7, shuffle=True):
        size = batch[seed_type].batch_size
        got = model(batch.x_dict, batch.edge_index_dict)[seed_type][:size]
        torch.testing.assert_close(got, expected[batch[seed_type].input_id], **CLOSE)
        seen += size
    assert seen == len(expected)
