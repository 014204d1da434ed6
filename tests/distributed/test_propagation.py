"""Propagation over the whole graph, against PyG's message passing."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv, MessagePassing, SGConv

from khop.distributed import DistDataset, GraphStore, shutdown_worker_group
from khop.distributed.tensors.store_client import StoreClient
from khop.errors import RendezvousError
from khop.partition import RandomPartitioner
from khop.storage import aggregation
from support.cluster import jobs, store_jobs


def graph():
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 90, (2, 800), generator=generator)
    weight = torch.rand(800, generator=generator) + 0.1
    x = torch.randn(100, 5, generator=generator)
    return Data(edge_index=edge_index, edge_attr=weight, x=x, num_nodes=100)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("propagation")
    for num_parts in (1, 3):
        RandomPartitioner.from_data(graph(), root / str(num_parts), num_parts).partition()
    return lambda num_parts: root / str(num_parts)


@pytest.fixture(params=[1, 3])
def store(request, root, monkeypatch):
    monkeypatch.setattr(aggregation, "EDGES_AT_ONCE", 37)
    monkeypatch.setattr(aggregation, "ROWS_AT_ONCE", 11)
    dataset = DistDataset().load(root(request.param), 0, also_serve=range(1, request.param))
    with GraphStore(dataset) as store:
        yield store
    shutdown_worker_group()


class Aggregation(MessagePassing):
    def __init__(self, aggr):
        super().__init__(aggr=aggr)

    def forward(self, x, edge_index, weight=None):
        return self.propagate(edge_index, x=x, weight=weight)

    def message(self, x_j, weight):
        return x_j if weight is None else weight.view(-1, 1) * x_j


@pytest.mark.parametrize("weight", [None, "edge_attr"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_one_hop_is_pygs(store, reduce, weight):
    data = graph()
    source = store.create_node_tensor("x", shape=(5,), init=data.x)
    out = store.create_node_tensor("out", shape=(5,))
    assert store.update_all("x", "out", reduce, weight=weight) == 1
    expected = Aggregation(reduce)(data.x, data.edge_index, weight and data.edge_attr)
    torch.testing.assert_close(out.pull(), expected)
    assert torch.equal(source.pull(), data.x) and list(store.tensors()) == ["x", "out"]
    if reduce == "sum":  # U0 = A X
        entries = torch.ones(800) if weight is None else data.edge_attr
        matrix = torch.sparse_coo_tensor(
            data.edge_index.flip(0), entries, (100, 100), check_invariants=True
        )
        torch.testing.assert_close(out.pull(), torch.sparse.mm(matrix, data.x))


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("in_place", [False, True])
def test_hops_with_symmetric_norm_are_sgc(store, hops, in_place):
    data = graph()
    tensor = store.create_node_tensor("x", shape=(5,), init=data.x)
    if not in_place:
        tensor = store.create_node_tensor("out", shape=(5,))
    store.update_all("x", tensor.name, norm="sym", weight="edge_attr", hops=hops)
    conv = SGConv(5, 5, K=hops, add_self_loops=False, bias=False)
    conv.lin.weight.data = torch.eye(5)
    expected = conv(data.x, data.edge_index, data.edge_attr)
    torch.testing.assert_close(tensor.pull(), expected.detach())


@pytest.mark.parametrize("weight", [None, "edge_attr"])
def test_self_loops_are_pygs(store, weight):
    """Nodes that have an edge to themselves keep it, others get one of weight 1."""
    data = graph()
    assert (data.edge_index[0] == data.edge_index[1]).any()
    store.create_node_tensor("x", shape=(5,), init=data.x)
    store.update_all("x", "x", norm="sym", weight=weight, self_loops=True, hops=2)
    conv = SGConv(5, 5, K=2, bias=False)
    conv.lin.weight.data = torch.eye(5)
    expected = conv(data.x, data.edge_index, weight and data.edge_attr)
    torch.testing.assert_close(store["x"].pull(), expected.detach())


@pytest.mark.parametrize("memory", [[], [1]])
def test_rows_of_other_hosts_are_requested(store, monkeypatch, memory):
    """With the same bits. The rows of no part, or of part 1 alone, are in memory of this host."""
    bits, read = [], StoreClient.shared_rows

    def in_memory(*call):
        return {part: rows for part, rows in read(*call).items() if part in memory}

    for is_shared in (True, False):
        for name in ("x", "y"):
            store.create_node_tensor(f"{name}{is_shared}", shape=(5,), init=graph().x)
        store.update_all(f"x{is_shared}", f"y{is_shared}", norm="sym", weight="edge_attr", hops=2)
        bits.append(store[f"y{is_shared}"].pull())
        monkeypatch.setattr(StoreClient, "shared_rows", in_memory)
    assert torch.equal(*bits)


def test_row_norm_and_apply(store):
    """APPNP's hop: a mix of the weighted mean and the node's own row."""
    data = graph()
    tensor = store.create_node_tensor("x", shape=(5,), init=data.x)
    store.update_all(
        "x", "x", norm="row", weight="edge_attr", hops=2, apply=lambda new, own: new + own / 2
    )
    expected = data.x
    sums = torch.zeros(100).index_add(0, data.edge_index[1], data.edge_attr)
    sums[sums == 0] = 1
    for _ in range(2):
        total = Aggregation("sum")(expected, data.edge_index, data.edge_attr)
        expected = total / sums.view(-1, 1) + expected / 2
    torch.testing.assert_close(tensor.pull(), expected)


def test_apply_may_change_the_shape(store):
    store.create_node_tensor("x", shape=(5,), init=graph().x)
    out = store.create_node_tensor("out", shape=(2,))
    store.update_all("x", "out", apply=lambda new, own: (new + own)[:, :2])
    expected = Aggregation("sum")(graph().x, graph().edge_index) + graph().x
    torch.testing.assert_close(out.pull(), expected[:, :2])


def test_edges_between_two_types(tmp_path):
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 6, 4
    edge_index = torch.tensor([[0, 1, 5, 5], [3, 3, 0, 0]])
    data["a", "to", "b"].edge_index = edge_index
    data["b", "to", "b"].edge_index = torch.tensor([[0], [1]])
    RandomPartitioner.from_data(data, tmp_path / "parts", 2).partition()
    x = torch.arange(12.0).view(6, 2)
    with GraphStore(DistDataset().load(tmp_path / "parts", 0, also_serve=[1])) as store:
        store.create_node_tensor("x", "a", (2,), init=x)
        out = store.create_node_tensor("out", "b", (2,))
        store.update_all("x", "out", edge_type=("a", "to", "b"))
        expected = Aggregation("sum")((x, torch.zeros(4, 2)), edge_index)
        assert torch.equal(out.pull(), expected)
        with pytest.raises(KeyError, match="edge_type must be one of"):
            store.update_all("x", "out")
        with pytest.raises(ValueError, match="need edges within one node type"):
            store.update_all("x", "out", edge_type=("a", "to", "b"), hops=2)
        with pytest.raises(ValueError, match="lead from 'b' to 'b'"):
            store.update_all("x", "out", edge_type=("b", "to", "b"))
    shutdown_worker_group()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"out": "y"}, KeyError, "no tensor 'y'"),
        ({"out": "wide"}, ValueError, "differ in the shape"),
        ({"out": "whole"}, TypeError, "float32"),
        ({"reduce": "std"}, ValueError, "got 'std'"),
        ({"norm": "both"}, ValueError, "got 'both'"),
        ({"norm": "sym", "reduce": "max"}, ValueError, "of sums"),
        ({"hops": 0}, ValueError, "got 0"),
        ({"weight": "y"}, KeyError, "no attribute 'y'"),
    ],
)
def test_bad_arguments_change_nothing(store, options, error, text):
    store.create_node_tensor("x", shape=(5,))
    store.create_node_tensor("wide", shape=(6,))
    store.create_node_tensor("whole", shape=(5,), dtype=torch.int64)
    with pytest.raises(error, match=text):
        store.update_all(**{"source": "x", "out": "x"} | options)
    assert store.step() == 1


def test_an_error_of_apply_ends_the_store(store):
    store.create_node_tensor("x", shape=(5,))
    with pytest.raises(ValueError, match="apply must return a tensor of shape"):
        store.update_all("x", "x", apply=lambda new, own: new[:0])
    with pytest.raises(RendezvousError, match="cannot be used any more"):
        store.step()


def test_three_trainers_give_the_bits_of_one(root):
    runs = [([0], {}, 1), ([0, 1, 2], {}, 3), ([2, 0], {"0": [1]}, 3)]
    results = []
    for homes, also_serve, num_parts in runs:
        arguments = {"root": str(root(num_parts)), "homes": homes, "also_serve": also_serve}
        trainers = jobs.start_trainers(
            "propagate", arguments, len(homes), program=store_jobs.__name__
        )
        results += jobs.finish_trainers(trainers)
    assert len({result["digest"] for result in results}) == 1
    conv = GCNConv(5, 5, add_self_loops=False, bias=False)
    conv.lin.weight.data = torch.eye(5)
    data = graph()
    expected = conv(data.x, data.edge_index)
    torch.testing.assert_close(torch.tensor(results[0]["values"]), expected.detach())
