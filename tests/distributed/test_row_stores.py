"""Attributes whose rows are in a user's store: in memory, over partitions, and with faults."""

import sqlite3
import time
from functools import partial

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import khop
from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
)
from khop.errors import PartitionUnavailableError, RowStoreError
from khop.loader import NeighborLoader
from support.cluster import jobs
from support.row_stores import HeldRows, ThreadRows, WrongRows, rows_of

SEEDS = jobs.seeds_of_rank(0)
COMMON = {"batch_size": 16, "seed": 3}
NAMES = ("n_id", "edge_index", "rows", "edge_rows")


@pytest.fixture(scope="module")
def graph():
    """The graph of other tests, and the values of both stores as tensors."""
    graph = jobs.make_graph()
    graph.rows = torch.from_numpy(rows_of(np.arange(500)))
    graph.edge_rows = torch.from_numpy(rows_of(np.arange(3000)))
    return graph


@pytest.fixture(scope="module")
def folder_without(tmp_path_factory, graph):
    """folder_without(number of parts): the same graph without them; parts hold rows at random."""

    def folder_without(num_parts):
        root = tmp_path_factory.getbasetemp() / f"without-{num_parts}"
        if not root.exists():
            khop.partition_graph(jobs.make_graph(), root, num_parts)
        return root

    return folder_without


def stores_in(folder):
    """What `load` gets: a store of the nodes, by its name alone, and one of the edges."""
    return {
        "rows": partial(ThreadRows, str(folder), 500),
        (khop.typing.EDGE, "edge_rows"): partial(ThreadRows, str(folder), num_rows=3000),
    }


def load(root, num_parts, stores):
    return DistDataset().load(root, 0, also_serve=range(1, num_parts), stores=stores)


def loader_of(dataset, workers, **options):
    return DistNeighborLoader(
        dataset,
        jobs.FANOUTS,
        SEEDS,
        with_edge=True,
        collect_features=True,
        worker_options=workers,
        **{**COMMON, **options},
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_in_memory(graph, tmp_path, num_workers):
    """A store in place of a tensor, of nodes and of edges; also in threads of a loader."""
    data = jobs.make_graph()
    data.rows, data.edge_rows = ThreadRows(tmp_path, 500), ThreadRows(tmp_path, 3000)
    ours = NeighborLoader(data, jobs.FANOUTS, SEEDS, num_workers=num_workers, **COMMON)
    theirs = NeighborLoader(graph, jobs.FANOUTS, SEEDS, **COMMON)
    assert jobs.same_batches(ours, theirs, NAMES) > 5
    data.rows = ThreadRows(tmp_path, 501)
    with pytest.raises(ValueError, match="'rows' has 501 rows for 500 nodes and 3000 edges"):
        next(iter(ours))


def test_types_in_memory(tmp_path):
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 10, 4
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 9], [0, 0, 3]])
    data["a"].rows = ThreadRows(tmp_path, 10)
    data["a", "to", "b"].rows = ThreadRows(tmp_path, 3)
    batch = next(iter(NeighborLoader(data, [-1], ("b", torch.tensor([3, 0])), batch_size=2)))
    assert batch["a"].rows.tolist() == rows_of(batch["a"].n_id).tolist()
    edges = batch["a", "to", "b"]
    assert edges.rows.tolist() == rows_of(edges.e_id).tolist()


@pytest.mark.parametrize("num_parts,num_workers", [(1, None), (1, 1), (2, None), (2, 2)])
def test_over_partitions(graph, folder_without, tmp_path, num_parts, num_workers):
    """Read by the trainer or its samplers, and served by partition servers: the same batches."""
    workers = CollocatedDistSamplingWorkerOptions()
    if num_workers is not None:
        workers = MpDistSamplingWorkerOptions(num_workers=num_workers, worker_concurrency=3)
    dataset = load(folder_without(num_parts), num_parts, stores_in(tmp_path))
    ours = loader_of(dataset, workers)
    theirs = NeighborLoader(graph, jobs.FANOUTS, SEEDS, **COMMON)
    assert jobs.same_batches(ours, theirs, (*NAMES, "x", "edge_attr")) > 5
    opened = len([*tmp_path.glob("opened-*")])
    assert opened == 1 + (num_workers or 0) + (num_parts - 1)
    some = torch.tensor([3, 499, 3])
    assert torch.equal(dataset.get_tensor(None, "rows", some), graph.rows[some])
    assert torch.equal(dataset.get_tensor(None, "rows", None), graph.rows)
    ours.shutdown()


@pytest.mark.parametrize("num_parts", [1, 2])
def test_a_slow_read_delays_its_own_batch(folder_without, tmp_path, num_parts):
    """One sampler with several batches in flight: batch 1 waits, and batches 2 and 3 arrive.

    With two parts, the server of the other part reads; its other replies are not held up either.
    """
    dataset = load(folder_without(num_parts), num_parts, stores_in(tmp_path))
    first, held, *last = ids_of_part(dataset, num_parts - 1)[:4]
    (tmp_path / f"hold-{held}").touch()
    loader = single(dataset, [first, held, *last])
    epoch = iter(loader)
    assert next(epoch).rows.tolist() == rows_of([first]).tolist()
    wait_for((tmp_path / f"held-{held}").exists)
    number, backend = max(loader._backend._epochs), loader._backend
    wait_for(lambda: backend.has_arrived(number, 2) and backend.has_arrived(number, 3))
    assert not backend.has_arrived(number, 1)
    (tmp_path / f"hold-{held}").unlink()
    left = [batch.rows.tolist() for batch in epoch]
    assert left == [rows_of([node]).tolist() for node in (held, *last)]
    loader.shutdown()


@pytest.mark.parametrize("num_parts", [1, 2])
def test_faults_of_a_store(folder_without, tmp_path, num_parts):
    """Its error fails its batch alone; a read without an end fails in time; both epochs go on.

    The read of an epoch that is given up ends later, and no batch after it has its rows.
    """
    dataset = load(folder_without(num_parts), num_parts, stores_in(tmp_path))
    nodes = ids_of_part(dataset, num_parts - 1)[:8]
    (tmp_path / f"fail-{nodes[2]}").touch()
    loader = single(dataset, nodes, cache_memory=0, timeout=1.0)  # each epoch reads all rows
    epoch = iter(loader)
    assert [next(epoch).n_id.item() for _ in range(2)] == nodes[:2]
    # The trainer has imported sqlite3: of its own processes it takes any type that is there.
    kind = sqlite3.OperationalError if num_parts == 1 else RuntimeError
    with pytest.raises(kind, match=f"row {nodes[2]} is locked"):
        next(epoch)
    (tmp_path / f"fail-{nodes[2]}").unlink()
    (tmp_path / f"hold-{nodes[5]}").touch()
    epoch = iter(loader)
    assert [next(epoch).n_id.item() for _ in range(5)] == nodes[:5]
    late = RowStoreError if num_parts == 1 else PartitionUnavailableError
    with pytest.raises(late, match=r"more than the 1 s that a request may take \(timeout\)"):
        next(epoch)
    (tmp_path / f"hold-{nodes[0]}").touch()
    given_up = iter(loader)
    wait_for((tmp_path / f"held-{nodes[0]}").exists)
    del epoch, given_up
    for file in tmp_path.glob("hold-*"):
        file.unlink()
    assert [batch.rows.tolist() for batch in loader] == [rows_of([n]).tolist() for n in nodes]
    loader.shutdown()


def single(dataset, nodes, cache_memory=None, **options):
    """A loader with a node a batch, no neighbours, and one sampler."""
    workers = MpDistSamplingWorkerOptions(num_workers=1, worker_concurrency=3, **options)
    return DistNeighborLoader(
        dataset,
        [0],
        torch.tensor(nodes),
        batch_size=1,
        collect_features=True,
        cache_memory=cache_memory,
        worker_options=workers,
    )


def ids_of_part(dataset, part):
    """Original ids of the nodes of a part."""
    return dataset.opened.node_ids(part, "node").tolist()


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


@pytest.mark.parametrize(
    "stores,error,text",
    [
        ({"x": partial(ThreadRows, "{}", 500)}, ValueError, "has 'x' of 'node' itself"),
        ({"rows": partial(ThreadRows, "{}", 499)}, ValueError, "has 499 rows .*, not 500"),
        ({"rows": HeldRows()}, TypeError, "must be a function that opens it"),
        ({"rows": lambda: np.zeros(500)}, TypeError, r"RowStore \(got 'ndarray'\)"),
        ({("paper", "rows"): HeldRows}, KeyError, r"got \('paper', 'rows'\)"),
    ],
)
def test_mistakes_are_seen_before_anything_starts(folder_without, tmp_path, stores, error, text):
    for opener in stores.values():
        if isinstance(opener, partial):
            opener.__setstate__((opener.func, (str(tmp_path), *opener.args[1:]), {}, None))
    with pytest.raises(error, match=text):
        load(folder_without(1), 1, stores)


def test_what_samplers_cannot_open(folder_without, tmp_path):
    """A function that no module has, arguments that are no text; another format there than here."""
    workers = MpDistSamplingWorkerOptions(num_workers=1)
    for opener, text in (
        (
            lambda: ThreadRows(tmp_path, 500),
            "<lambda> of .*, which sampler .* cannot import",
        ),
        (partial(ThreadRows, tmp_path, 500), "arguments that are not texts, numbers"),
    ):
        dataset = load(folder_without(1), 1, {"rows": opener})
        assert next(iter(loader_of(dataset, None))).rows.shape[1] == 3  # this process can
        with pytest.raises(ValueError, match=text):
            loader_of(dataset, workers)
    [file.unlink() for file in tmp_path.iterdir()]
    dataset = load(folder_without(1), 1, {"rows": partial(WrongRows, str(tmp_path), 500)})
    loader = loader_of(dataset, workers)
    with pytest.raises(ValueError, match=r"500 rows of float32 \[4\], not 500 of .* \[3\]"):
        next(iter(loader))
    loader.shutdown()
