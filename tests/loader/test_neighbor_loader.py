"""What PyG asserts of its `NeighborLoader`, asserted of khop's: here, in threads, in workers."""

import inspect

import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv, GraphSAGE
from torch_geometric.utils import k_hop_subgraph, trim_to_layer

from khop.loader import NeighborLoader
from support.reference import oracle

_WORKERS = [(0, "thread"), (2, "thread"), (2, "process")]
workers = pytest.mark.parametrize(
    "workers",
    [{"num_workers": n, "worker_type": kind} for n, kind in _WORKERS],
    ids=["none", "threads", "processes"],
)


def test_is_pygs():
    """The same arguments in the same order, the same defaults, then khop's own."""
    ours = inspect.signature(NeighborLoader).parameters
    theirs = inspect.signature(torch_geometric.loader.NeighborLoader).parameters
    shared = [name for name in theirs if name != "kwargs"]
    assert list(ours)[: len(shared)] == shared
    assert all(ours[name].default == theirs[name].default for name in shared)
    assert issubclass(NeighborLoader, torch_geometric.loader.NeighborLoader)
    assert str(NeighborLoader.__init__.__doc__) != ""


@workers
@pytest.mark.parametrize("replace", [False, True])
def test_basics(data, check_batch, workers, replace):
    """Seeds first and in order, attributes with their ids, edges the graph's, every hop bounded."""
    loader = NeighborLoader(data, [5, 3], batch_size=30, replace=replace, **workers)
    assert str(loader) == "NeighborLoader()"
    assert len(loader) == 7
    batches = list(loader)
    assert len(batches) == 7
    for i, batch in enumerate(batches):
        check_batch(data, batch)
        assert isinstance(batch, Data)
        seeds = torch.arange(30 * i, min(30 * i + 30, 200))
        assert torch.equal(batch.n_id[: batch.batch_size], seeds)
        assert torch.equal(batch.input_id, seeds)
        assert len(batch.n_id.unique()) == len(batch.n_id)
        assert batch.num_sampled_edges[0] <= 5 * len(seeds)
        assert batch.num_sampled_edges[1] <= 3 * batch.num_sampled_nodes[1]
        if not replace:
            assert len(batch.e_id.unique()) == len(batch.e_id)
        # Messages flow towards the seeds: an edge of hop h ends in a node of hop h.
        ends = batch.edge_index[1].split(batch.num_sampled_edges)
        assert all(e < batch.num_sampled_nodes[0] for e in ends[0])
        assert all(e >= batch.num_sampled_nodes[0] for e in ends[1])


@workers
def test_all_neighbors(data, check_batch, workers):
    """At -1: nodes, edges and counts of the k-hop neighbourhood, in the order of the walk."""
    for batch in NeighborLoader(data, [-1, -1], torch.arange(0, 200, 3), batch_size=9, **workers):
        check_batch(data, batch)
        seeds = batch.n_id[: batch.batch_size].tolist()
        want = oracle.full_neighborhood(data.edge_index, seeds, 2)
        got = zip(*batch.n_id[batch.edge_index].tolist(), batch.e_id.tolist(), strict=True)
        assert (batch.n_id.tolist(), list(got)) == want[:2]
        assert (batch.num_sampled_nodes, batch.num_sampled_edges) == want[2:]
        subset = k_hop_subgraph(torch.tensor(seeds), 2, data.edge_index, num_nodes=200)[0]
        assert torch.equal(batch.n_id.sort()[0], subset)


@workers
def test_shuffle_hands_out_each_seed_once(data, check_batch, workers):
    """Another order each epoch; no seed twice, none left out; input_id its place in the input."""
    nodes = torch.randperm(200)[:101]
    loader = NeighborLoader(data, [2], nodes, batch_size=10, shuffle=True, seed=1, **workers)
    orders = []
    for _ in range(3):
        order = []
        for batch in loader:
            check_batch(data, batch)
            assert torch.equal(batch.n_id[: batch.batch_size], nodes[batch.input_id])
            order += batch.input_id.tolist()
        assert sorted(order) == list(range(101))
        orders.append(order)
    assert orders[0] != orders[1] != orders[2] != orders[0]


@workers
def test_drop_last(data, workers):
    for drop_last, expected in ((False, [64, 64, 64, 8]), (True, [64, 64, 64])):
        loader = NeighborLoader(
            data, [2], batch_size=64, drop_last=drop_last, shuffle=True, **workers
        )
        assert len(loader) == len(expected)
        assert [batch.batch_size for batch in loader] == expected


@pytest.mark.parametrize("kind", ["ids", "int32", "list", "numpy", "duplicates", "all", "empty"])
def test_input_nodes(data, kind):
    nodes = {
        "ids": torch.tensor([5, 199, 0]),
        "int32": torch.tensor([5, 199, 0], dtype=torch.int32),
        "list": [5, 199, 0],
        "numpy": torch.tensor([5, 199, 0]).numpy(),
        "duplicates": torch.tensor([7, 7, 3, 7]),
        "all": None,
        "empty": torch.empty(0, dtype=torch.long),
    }[kind]
    expected = list(range(200)) if nodes is None else [int(v) for v in nodes]
    got = [
        v
        for batch in NeighborLoader(data, [3], nodes, batch_size=2)
        for v in batch.n_id[: batch.batch_size].tolist()
    ]
    assert got == expected


def test_masks(data):
    """Seeds are where the mask is true; input_id are then their ids; the last batch is short."""
    mask = torch.zeros(200, dtype=torch.bool)
    mask[torch.arange(3, 200, 7)] = True
    for given in (mask, mask.numpy()):
        batches = list(NeighborLoader(data, [3], given, batch_size=8, shuffle=True))
        assert [b.batch_size for b in batches] == [8, 8, 8, 5]
        seeds = torch.cat([b.n_id[: b.batch_size] for b in batches])
        assert torch.equal(seeds.sort()[0], mask.nonzero().view(-1))
        assert torch.equal(torch.cat([b.input_id for b in batches]), seeds)


def test_input_id(data):
    """Given ones name the seeds."""
    nodes, names = torch.tensor([4, 2, 9]), torch.tensor([70, 80, 90])
    (batch,) = NeighborLoader(data, [3], nodes, input_id=names, batch_size=5)
    assert torch.equal(batch.input_id, names)


@pytest.mark.parametrize("fanouts", [[], [0], [0, 3], [3, 0], [-1, 0, 2]])
def test_hops_that_draw_nothing(data, check_batch, fanouts):
    for batch in NeighborLoader(data, fanouts, batch_size=50):
        check_batch(data, batch)
        assert len(batch.num_sampled_edges) == len(fanouts) == len(batch.num_sampled_nodes) - 1
        stop = fanouts.index(0) if 0 in fanouts else 0
        assert not any(batch.num_sampled_edges[stop:])
        assert not any(batch.num_sampled_nodes[stop + 1 :])


def test_isolated_nodes():
    """Nodes without neighbours, a graph without edges, a graph without nodes."""
    no_edges = torch.empty((2, 0), dtype=torch.long)
    batches = list(NeighborLoader(Data(x=torch.eye(5), edge_index=no_edges), [3, 3], batch_size=2))
    assert [b.n_id.tolist() for b in batches] == [[0, 1], [2, 3], [4]]
    assert all(b.edge_index.shape == (2, 0) and len(b.e_id) == 0 for b in batches)
    assert list(NeighborLoader(Data(edge_index=no_edges, num_nodes=0), [3])) == []


@workers
def test_a_gnn_sees_what_it_would_see_of_the_whole_graph(data, workers):
    """Two layers over the 2-hop neighbourhood: the whole graph's output, edge weights included."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([GraphConv(5, 8), GraphConv(8, 4)])

        def forward(self, x, edge_index, weight):
            x = self.layers[0](x, edge_index, weight).relu()
            return self.layers[1](x, edge_index, weight)

    torch.manual_seed(0)
    data.x = torch.randn(200, 5)
    data.edge_weight = torch.rand(1600)
    net = Net()
    with torch.no_grad():
        expected = net(data.x, data.edge_index, data.edge_weight)
        for batch in NeighborLoader(data, [-1, -1], batch_size=40, **workers):
            got = net(batch.x, batch.edge_index, batch.edge_weight)[: batch.batch_size]
            torch.testing.assert_close(got, expected[batch.input_id], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_inference_of_pygs_models(data, num_workers):
    """`model.inference(loader)` gives each node's embedding as the whole graph does."""
    torch.manual_seed(0)
    data.x = torch.randn(200, 5)
    model = GraphSAGE(5, 8, num_layers=2, out_channels=3).eval()
    loader = NeighborLoader(data, [-1], batch_size=32, num_workers=num_workers)
    with torch.no_grad():
        expected = model(data.x, data.edge_index)
    torch.testing.assert_close(model.inference(loader), expected, rtol=1e-4, atol=1e-4)


def test_trim_to_layer(data):
    """Hop counts fit PyG's trimming: a layer drops the outermost hop, the seeds' output stays."""
    torch.manual_seed(0)
    layers = [GraphConv(5, 5), GraphConv(5, 5)]
    (batch,) = NeighborLoader(data, [4, 4], torch.arange(20), batch_size=20, seed=1)
    x, whole = batch.x, batch.x
    edge_index = batch.edge_index
    for i, layer in enumerate(layers):
        x, edge_index, _ = trim_to_layer(
            i, batch.num_sampled_nodes, batch.num_sampled_edges, x, edge_index
        )
        x = layer(x, edge_index)
        whole = layer(whole, batch.edge_index)
    assert len(x) == sum(batch.num_sampled_nodes[:2])
    torch.testing.assert_close(x[:20], whole[:20], rtol=1e-4, atol=1e-2)


def test_data_without_edges():
    """A `Data` without `edge_index` is a graph without edges, as PyG has it."""
    loader = NeighborLoader(Data(x=torch.arange(5.0).view(-1, 1)), [3, 2], batch_size=2)
    batches = list(loader)
    assert [b.n_id.tolist() for b in batches] == [[0, 1], [2, 3], [4]]
    assert all(b.num_sampled_edges == [0, 0] and b.e_id.numel() == 0 for b in batches)
