"""Batches are PyG's own in every respect, whatever happens to the graph while a loader lives."""

import copy

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader.utils import filter_data, filter_hetero_data

from khop.loader import LinkNeighborLoader, NeighborLoader


class Molecule(Data):
    """A user's own kind of graph, whose `ports` has a row an entry of its last axis."""

    def __cat_dim__(self, key, value, *args, **kwargs):
        return -1 if key == "ports" else super().__cat_dim__(key, value, *args, **kwargs)

    def __copy__(self):
        out = super().__copy__()
        out.__dict__["copies"] = self.__dict__.get("copies", 0) + 1
        return out


@pytest.fixture
def hetero():
    """Two node types, one of which has but a number of nodes, and three edge types."""
    data = HeteroData(name="graph")
    data["a"].x, data["a"].y = torch.randn(40, 3), torch.arange(40)
    data["b"].num_nodes = 30
    for edge_type, sizes in (
        (("a", "to", "b"), (40, 30)),
        (("b", "back", "a"), (30, 40)),
        (("a", "none", "a"), (1, 1)),
    ):
        count = 0 if edge_type[1] == "none" else 200
        ends = [torch.randint(size, (count,)) for size in sizes]
        data[edge_type].edge_index = torch.stack(ends)
    data["a", "to", "b"].weight = torch.rand(200)
    return data


def stores_of(data):
    return [*data.stores] if isinstance(data, HeteroData) else [data._store]


def assert_same_make(batch, want):
    """Same classes and fields; PyG's keys first, in PyG's order, with its values."""
    assert type(batch) is type(want)
    assert batch.__dict__.keys() == want.__dict__.keys()
    for store, wanted in zip(stores_of(batch), stores_of(want), strict=True):
        assert type(store) is type(wanted)
        assert list(store.__dict__) == list(wanted.__dict__)
        assert store._parent() is batch
        assert list(store.keys())[: len(wanted)] == list(wanted.keys())
        for name, value in wanted.items():
            same = torch.equal if isinstance(value, torch.Tensor) else (lambda a, b: a == b)
            assert same(store[name], value), name


@pytest.mark.parametrize("kind", [Data, Molecule])
def test_homogeneous_batches_are_made_as_pygs(data, kind):
    graph = kind(**data.to_dict(), name="graph", num_nodes=200, batch=torch.zeros(200))
    if kind is Molecule:
        graph.ports = torch.randn(2, 200)
    for batch in NeighborLoader(graph, [4, 4], batch_size=50, subgraph_type="induced"):
        want = filter_data(graph, batch.n_id, *batch.edge_index, batch.e_id)
        del want.batch  # PyG's loader takes it away, where batches are not disjoint
        assert_same_make(batch, want)
        added = list(batch._store.keys())[len(want._store) :]
        assert added == ["n_id", "e_id", "input_id", "batch_size"]
        assert batch.__dict__.get("copies") == want.__dict__.get("copies")


def test_a_batch_of_graphs_as_graph(data):
    """Classes that PyG makes at run time, with fields of their own."""
    graph = Batch.from_data_list([data, data])
    for batch in NeighborLoader(graph, [4], torch.arange(200), batch_size=50):
        want = filter_data(graph, batch.n_id, *batch.edge_index, batch.e_id)
        del want.batch
        assert_same_make(batch, want)
        assert batch.num_graphs == 2


def test_heterogeneous_batches_are_made_as_pygs(hetero):
    for batch in NeighborLoader(hetero, [4, 4], "b", batch_size=10):
        drawn = [
            {t: batch[t].edge_index[i] for t in hetero.edge_types} for i in (0, 1)
        ]  # rows, columns
        edges = {t: batch[t].e_id for t in hetero.edge_types}
        nodes = {t: batch[t].n_id for t in hetero.node_types}
        want = filter_hetero_data(hetero, nodes, *drawn, edges)
        assert_same_make(batch, want)
        assert list(batch["a"].keys()) == ["x", "y", "n_id", "num_sampled_nodes"]
        assert batch["a"].is_node_attr("x") and not batch["a"].is_node_attr("num_sampled_nodes")
        copied = copy.copy(batch)
        copied["a"].x = None
        assert "x" in batch["a"]


def changes():
    """What a user may do to a graph."""

    def exchange(data):
        data.x = data.x + 1000

    def write(data):
        data.x += 1000

    def swap(data):
        data.x.data = data.x.data + 1000

    def learn(data):
        data.x.requires_grad_()

    def reshape(data):
        data.x = data.x.view(200, 1, -1)

    def add(data):
        data.z = torch.randn(200, 2)

    def remove(data):
        del data.y

    def rename(data):
        data.z = data.y
        del data.y

    def keep(data):
        data.y = torch.zeros(7)  # of no node any more

    return [exchange, write, swap, learn, reshape, add, remove, rename, keep]


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
@pytest.mark.parametrize("workers", [0, 2])
def test_graphs_that_change(data, change, workers):
    """In an epoch and between two: the batches that are made from then on have what there is."""
    data.y = torch.arange(200)
    loader = NeighborLoader(data, [4], batch_size=50, num_workers=workers)
    epoch = iter(loader)
    next(epoch)
    change(data)
    batches = list(epoch) if workers == 0 else []
    for batch in (*batches, *loader):
        want = filter_data(data, batch.n_id, *batch.edge_index, batch.e_id)
        assert set(want.keys()) <= set(batch.keys())
        assert batch.x.requires_grad == data.x.requires_grad
        for name in ("x", "y", "z"):
            assert (name in batch) == (name in want)
            assert name not in want or torch.equal(batch[name], want[name])


def test_types_that_appear(hetero):
    """A type more than the sampler knows: as PyG has it, whose batches then have it empty."""
    loader = NeighborLoader(hetero, [4], "b", batch_size=10)
    hetero["c"].x = torch.randn(5, 2)
    for batch in loader:
        assert batch["c"].x.shape == (0, 2)


def test_links_of_triplets_take_names_away(data):
    """What a graph has by the names of links' labels is no label of a batch of triplets."""
    data.edge_label_index, data.edge_label_time = torch.arange(3), torch.arange(3)
    loader = LinkNeighborLoader(data, [2], neg_sampling="triplet", batch_size=100)
    batch = next(iter(loader))
    assert "edge_label_index" not in batch and "edge_label_time" not in batch
    assert "edge_label_index" in data
