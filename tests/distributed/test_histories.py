"""Histories over partitions: values as PyG-AutoScale's, prefetched rows of a stated age."""

import time

import pytest
import torch

from khop import nn
from khop.distributed import DistDataset, DistNeighborLoader, GraphStore, shutdown_worker_group
from khop.distributed.partitions.service import PartitionService
from khop.partition import RandomPartitioner
from support.cluster import jobs, store_jobs


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    root = tmp_path_factory.mktemp("histories")
    graph = jobs.make_graph()
    for num_parts in (1, 3):
        RandomPartitioner.from_data(graph, root / str(num_parts), num_parts).partition()
    return lambda num_parts: root / str(num_parts)


@pytest.fixture(params=[(1, "shared"), (3, "requested")], ids=str)
def dataset(request, roots, monkeypatch):
    """One trainer's dataset. Rows of its servers are in shared memory, or requested."""
    num_parts, way = request.param
    if way == "requested":
        monkeypatch.setattr(PartitionService, "is_near", lambda *_: False)
    yield DistDataset().load(roots(num_parts), 0, also_serve=range(1, num_parts))
    shutdown_worker_group()


@pytest.fixture
def store(dataset):
    with GraphStore(dataset, timeout=30) as store:
        yield store


class PygHistory:
    """The arithmetic of PyG-AutoScale's `History`, on one tensor."""

    def __init__(self, num_embeddings, embedding_dim):
        self.emb = torch.zeros(num_embeddings, embedding_dim)

    def pull(self, n_id=None):
        return self.emb.clone() if n_id is None else self.emb[n_id]

    def push(self, x, n_id=None, offset=None, count=None):
        if n_id is None and offset is None:
            self.emb = x.clone()
        elif offset is None:
            self.emb[n_id] = x
        else:
            done = 0
            for first, size in zip(offset.tolist(), count.tolist(), strict=True):
                self.emb[first : first + size] = x[done : done + size]
                done += size


@pytest.mark.parametrize("relaxed", [False, True])
def test_pushes_and_pulls_are_pygs(store, relaxed):
    """Of all rows, of some, and of runs with rows of the halo behind, which are not pushed."""
    mine, theirs = nn.History(500, 4, store, "h", relaxed=relaxed), PygHistory(500, 4)
    assert torch.equal(mine.pull(), theirs.pull())
    runs = {"offset": torch.tensor([490, 3]), "count": torch.tensor([10, 20])}
    for n_id, size, more in (
        (torch.tensor([5, 499, 17]), 3, {}),
        (None, 500, {}),
        (torch.arange(35), 35, runs),
        (torch.tensor([], dtype=torch.int64), 0, {}),
    ):
        x = torch.randn(size, 4, requires_grad=True)
        theirs.push(x.detach(), n_id, **more)
        push = mine.push(x, n_id, **more)
        if relaxed:
            push.wait()
        else:
            store.step()
        ids = torch.tensor([3, 499, 0, 3])
        assert torch.equal(mine.pull(ids), theirs.pull(ids)) and mine.age == 0
        assert torch.equal(mine.pull(), theirs.pull()) and not mine.pull().requires_grad
    mine.reset_parameters()
    assert not mine.pull().any()
    assert not list(mine.parameters()) and "GraphTensor('h'" in repr(mine)


def test_prefetched_rows_have_the_age_that_is_stated(store):
    """They lack the steps that end in between, whole: each step adds one to every row."""
    history = nn.History(500, 64, store, "h")
    ids = torch.arange(499, -1, -1)
    one = torch.ones(500, 64)
    for steps in range(4):
        version = store.version
        store._client.threads.submit(time.sleep, 0.05)  # the rows are read late, or after a step
        history.prefetch(ids)
        for _ in range(steps):
            store["h"].push(None, one, "add")
            store.step()
        other = history.pull(ids[:3])
        assert history.age == 0 and torch.equal(other, torch.full((3, 64), float(store.version)))
        rows = history.pull(ids)
        assert history.age == steps and torch.equal(rows, torch.full((500, 64), float(version)))
        rows = history.pull(ids)
        assert history.age == 0 and torch.equal(rows, torch.full((500, 64), float(store.version)))


def test_a_second_prefetch_replaces_the_first(store):
    history = nn.History(500, 2, store, "h")
    for _ in range(2):
        history.prefetch(torch.tensor([4]))
        store["h"].push([4], [[1.0, 1.0]], "add")
        store.step()
    assert history.pull(torch.tensor([4])).tolist() == [[1.0, 1.0]] and history.age == 1
    with pytest.raises(IndexError):
        history.prefetch(torch.tensor([500]))


def test_a_pull_that_began_before_the_store_was_closed_ends(store):
    pull = store.create_node_tensor("h").start_pull()
    store.close()
    with pytest.raises(RuntimeError, match="closed"):
        pull.wait()


def test_batches_with_rows_one_batch_ahead(dataset, store):
    """Each batch has the rows of the version that it states, one step before the last."""
    for name in ("h", "g"):
        store.create_node_tensor(name, shape=(3,))
    store.create_edge_tensor("e", dtype=torch.int64)
    loader = DistNeighborLoader(dataset, [3], torch.arange(100), batch_size=30, seed=1)
    known = {0: torch.zeros(500, 3)}
    versions = []
    for batch in store.prefetch(loader, ["h", "g", "e"]):
        assert torch.equal(batch.h, known[batch.store_version][batch.n_id])
        assert batch.g.shape == batch.h.shape and batch.e.shape == batch.e_id.shape
        versions.append(store.version - batch.store_version)
        store["h"].push(batch.n_id, torch.rand(batch.num_nodes, 3), "add")
        store.step()
        known[store.version] = store["h"].pull()
    assert versions == [0, 1, 1, 1]
    assert list(store.prefetch([], ["h"])) == []


def test_bfloat16_rows_and_types(store):
    history = nn.History(500, 2, store, "h", dtype=torch.bfloat16)
    history.push(torch.tensor([[1.0, 1 / 3]]), torch.tensor([7]))
    store.step()
    expected = torch.tensor([[1.0, 1 / 3]]).bfloat16().float()
    assert torch.equal(history.pull(torch.tensor([7])), expected)
    assert nn.History(500, 2, store, "h", dtype=torch.bfloat16).emb is store["h"]
    with pytest.raises(ValueError, match="499 rows fit the node types"):
        nn.History(499, 2, store, "other")
    with pytest.raises(ValueError, match="one per node"):
        nn.History(500, 3, store, "h", dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="rows are float32 or bfloat16"):
        nn.History(500, 2, store, "h", dtype=torch.float64)


def test_batches_with_mutable_attributes_are_the_same_in_each_run(roots):
    """All tensors of all batches, and the rows afterwards, also over other parts."""
    runs = []
    for num_parts in (1, 3, 3):
        homes = [rank % num_parts for rank in range(2)]
        rest = [part for part in range(num_parts) if part not in homes]
        arguments = {"root": str(roots(num_parts)), "homes": homes, "also_serve": {"0": rest}}
        runs.append(jobs.start_trainers("batches", arguments, 2, program=store_jobs.__name__))
    first, second, third = (jobs.finish_trainers(trainers) for trainers in runs)
    assert first == second == third and first[0]["digest"] != first[1]["digest"]
    assert all(result["versions"] == [0, 1, 2, 3] for result in first)


def test_prefetched_rows_of_two_trainers_are_the_same_over_any_parts(roots):
    """Each trainer's rows are one step old, and the same bits over one part and three."""
    runs = []
    for num_parts in (1, 3):
        homes = [rank % num_parts for rank in range(2)]
        rest = [part for part in range(num_parts) if part not in homes]
        arguments = {"root": str(roots(num_parts)), "homes": homes, "also_serve": {"0": rest}}
        runs.append(jobs.start_trainers("prefetch", arguments, 2, program=store_jobs.__name__))
    first, second = (jobs.finish_trainers(trainers) for trainers in runs)
    assert first == second and first[0]["digest"] != first[1]["digest"]
    assert all(result["ages"] == [0, 1, 1, 1, 1, 1] for result in first)
