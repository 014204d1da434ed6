"""`collate_fn` and `filter_fn` that a subclass or a user replaces: called as PyG calls them."""

import sqlite3
import threading

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import SamplerOutput
from torch_geometric.testing import MyGraphStore

from khop.loader import (
    ClusterData,
    ClusterLoader,
    GraphSAINTNodeSampler,
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
    SubGraphLoader,
)
from khop.sampler import NeighborSampler
from support.cluster import twins
from support.loaders.stores import RowStore

SEEDS = torch.tensor([3, 77, 12, 149, 40])
OPTIONS = {"batch_size": 2, "seed": 7}
WORKERS = pytest.mark.parametrize("num_workers", [0, 2])
PLACES = pytest.mark.parametrize("filter_per_worker", [True, False])


@pytest.fixture(scope="module")
def data():
    full = twins.homogeneous()
    return Data(edge_index=full.edge_index, num_nodes=150, x=full.x, y=full.y)


class Recorded:
    """Mixin that notes the calls of both methods, and marks batches."""

    calls: list

    def collate_fn(self, index):
        self.calls.append(("collate", type(index), list(index)))
        return super().collate_fn(index)

    def filter_fn(self, out):
        self.calls.append(("filter", isinstance(out, SamplerOutput), out.node[:1].tolist()))
        batch = super().filter_fn(out)
        batch.mine = True
        return batch


def recorded(kind, *arguments, **options):
    loader = type("Mine", (Recorded, kind), {})(*arguments, **options)
    loader.calls = []
    return loader


def once(batch):
    assert "transformed" not in batch
    batch.transformed = True
    return batch


@PLACES
@WORKERS
def test_calls_are_pygs(data, num_workers, filter_per_worker):
    options = {"batch_size": 2, "filter_per_worker": filter_per_worker, "transform": once}
    sampler = NeighborSampler(data, [2, 2])
    theirs = recorded(NodeLoader, data, sampler, SEEDS, **options)
    assert all(batch.mine and batch.transformed for batch in theirs)
    ours = recorded(NeighborLoader, data, [2, 2], SEEDS, num_workers=num_workers, seed=7, **options)
    plain = NeighborLoader(data, [2, 2], SEEDS, **OPTIONS)
    for batch, reference in zip(ours, plain, strict=True):
        assert batch.mine
        assert batch.transformed
        assert torch.equal(batch.n_id, reference.n_id)
        assert torch.equal(batch.x, reference.x)
    assert len(theirs.calls) == 6
    if num_workers == 0:
        assert ours.calls == theirs.calls
    assert sorted(map(repr, ours.calls)) == sorted(map(repr, theirs.calls))


LOADERS = {
    "links": lambda kind, d, **o: kind(LinkNeighborLoader)(
        d, [2], d.edge_index[:, :5], neg_sampling="binary", **OPTIONS, **o
    ),
    "hgt": lambda kind, d, **o: kind(HGTLoader)(d, [2], SEEDS, **OPTIONS, **o),
    "shadow": lambda kind, d, **o: kind(ShaDowKHopSampler)(d, 1, 2, SEEDS, **OPTIONS, **o),
    "subgraphs": lambda kind, d, **o: kind(SubGraphLoader)(d, SEEDS, [2], **OPTIONS, **o),
    "random": lambda kind, d, **o: kind(RandomNodeLoader)(d, 3, seed=1, **o),
    "saint": lambda kind, d, **o: kind(GraphSAINTNodeSampler)(d, 5, 3, seed=1, **o),
    "clusters": lambda kind, d, **o: kind(ClusterLoader)(
        ClusterData(d, 3, assignment=torch.arange(150) % 3), seed=1, **o
    ),
}


@pytest.mark.parametrize("name", LOADERS)
@WORKERS
def test_all_loaders(data, name, num_workers):
    make, made = LOADERS[name], []

    def mine(kind):
        return lambda *args, **options: recorded(kind, *args, **options)

    loader = make(mine, data, num_workers=num_workers)
    for batch, reference in zip(loader, make(lambda kind: kind, data), strict=True):
        assert batch.mine
        assert torch.equal(batch.n_id, reference.n_id)
        assert set(batch.keys()) - {"mine"} == set(reference.keys())
        made.append(batch)
    assert [call[0] for call in loader.calls].count("collate") == len(made) > 1
    assert [call[0] for call in loader.calls].count("filter") == len(made)


@WORKERS
def test_set_on_an_instance(data, num_workers):
    """Also between epochs, and taken away again."""
    loader = NeighborLoader(data, [2], SEEDS, num_workers=num_workers, **OPTIONS)
    loader.filter_fn = lambda out: ("filtered", out.node.numel())
    assert [batch[0] for batch in loader] == ["filtered"] * 3
    loader.collate_fn = tuple
    assert list(loader) == [(0, 1), (2, 3), (4,)]
    del loader.filter_fn, loader.collate_fn
    assert [batch.batch_size for batch in loader] == [2, 2, 1]
    assert loader.stats().batches == 9


@pytest.mark.parametrize(
    "way",
    [
        {"worker_type": "process"},
        {"worker_type": "process", "filter_per_worker": False},
        {"worker_type": "process", "persistent_workers": True},
    ],
)
def test_worker_processes(data, way):
    ours = recorded(NeighborLoader, data, [2, 2], SEEDS, num_workers=1, **way, **OPTIONS)
    plain = NeighborLoader(data, [2, 2], SEEDS, **OPTIONS)
    for _ in range(2):
        for batch, reference in zip(ours, plain, strict=True):
            assert batch.mine
            assert torch.equal(batch.n_id, reference.n_id)


class TwoViews(NeighborLoader):
    def collate_fn(self, index):
        return super().collate_fn(index), super().collate_fn(index)


@pytest.mark.parametrize("way", [{}, {"num_workers": 2}, {"worker_type": "process"}])
def test_two_draws_of_a_batch(data, way):
    """They differ, and are the same in each run."""
    options = {"num_workers": 1 if "worker_type" in way else 0, **way, **OPTIONS}
    plain = NeighborLoader(data, [4, 4], SEEDS, **OPTIONS)
    runs = [list(TwoViews(data, [4, 4], SEEDS, **options)) for _ in range(2)]
    for (first, second), (again, once_more), reference in zip(*runs, plain, strict=True):
        assert torch.equal(first.e_id, reference.e_id)
        assert first.e_id.tolist() != second.e_id.tolist()
        assert torch.equal(first.e_id, again.e_id)
        assert torch.equal(second.e_id, once_more.e_id)


def test_a_sampler_outside_of_batches_has_its_own_keys(data):
    """The scope of a batch ends with the batch."""
    sampler = NeighborSampler(data, [4, 4], seed=3)
    theirs = NodeLoader(data, sampler, SEEDS, batch_size=5)
    list(recorded(NeighborLoader, data, [4], SEEDS, **OPTIONS))
    drawn = next(iter(theirs)).e_id
    alone = NodeLoader(data, NeighborSampler(data, [4, 4], seed=3), SEEDS, batch_size=5)
    assert torch.equal(next(iter(alone)).e_id, drawn)


class SqliteStore(RowStore):
    """Rows of a table; the connection refuses other threads than the one that made it."""

    def __init__(self, x):
        super().__init__()
        self.put_tensor(x, group_name=None, attr_name="x", index=None)
        self.rows = sqlite3.connect(":memory:")
        self.rows.execute("create table x (id integer primary key, value real)")
        self.rows.executemany("insert into x values (?, ?)", enumerate(x[:, 0].tolist()))

    def _get_tensor(self, attr):
        query = "select value from x where id = ?"
        found = [self.rows.execute(query, (i,)).fetchone() for i in attr.index.tolist()]
        return torch.tensor(found)


def test_stores_that_are_bound_to_a_thread(data):
    """`filter_per_worker=False` reads them in the thread that iterates, which made them."""
    graph = MyGraphStore()
    graph.put_edge_index(data.edge_index, edge_type=None, layout="coo", size=(150, 150))
    stores = SqliteStore(data.x), graph
    options = {"num_workers": 2, **OPTIONS}
    loader = NeighborLoader(stores, [2], SEEDS, filter_per_worker=False, **options)
    for batch, reference in zip(loader, NeighborLoader(data, [2], SEEDS, **OPTIONS), strict=True):
        assert torch.equal(batch.n_id, reference.n_id)
        assert torch.equal(batch.x, reference.x[:, :1])
    with pytest.raises(sqlite3.ProgrammingError, match="same thread"):
        list(NeighborLoader(stores, [2], SEEDS, **options))


@PLACES
def test_threads_of_both_steps(data, filter_per_worker):
    seen = {"collate": set(), "filter": set()}

    class Mine(NeighborLoader):
        def collate_fn(self, index):
            seen["collate"].add(threading.get_ident())
            return super().collate_fn(index)

        def filter_fn(self, out):
            seen["filter"].add(threading.get_ident())
            return super().filter_fn(out)

    list(Mine(data, [2], SEEDS, num_workers=1, filter_per_worker=filter_per_worker, **OPTIONS))
    here = {threading.get_ident()}
    assert seen["collate"].isdisjoint(here)
    assert (seen["filter"] == here) is not filter_per_worker
