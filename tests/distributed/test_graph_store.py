"""Tensors that trainers write to: values as NumPy makes them, whatever the partitions."""

import gc
import hashlib
import itertools
import json
import multiprocessing
import os
import pickle
import signal
import zlib

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData, TensorAttr
from torch_geometric.loader import NodeLoader

from khop.channel.arena import SlotAllocator
from khop.data import RowFormat
from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    GraphStore,
    GraphStoreReader,
    PartitionSampler,
    StoreFeatures,
    request_server,
    shutdown_worker_group,
)
from khop.distributed.remote.client.served_access import ServedAccess
from khop.distributed.rpc.frame_handler import finish
from khop.distributed.tensors import (
    checkpoint,
    checkpoint_files,
    graph_tensor as tensor_module,
    shard as shard_module,
)
from khop.distributed.tensors.shard import Shard
from khop.distributed.tensors.store_access import TrainerAccess
from khop.distributed.tensors.tensor_requests import (
    STAGED_BYTES,
    CreateTensor,
    DeleteTensor,
    EndStep,
    MakeStagingArea,
    PullRows,
    PushRows,
    ShareTensor,
    TensorSpec,
    normal_rows,
    rows_in,
    stored_numbers,
)
from khop.errors import FolderError, ProtocolError, RendezvousError, StateLostError
from khop.partition import PartitionFolder, RandomPartitioner
from khop.storage.folder import checksums
from khop.storage.part import Part
from support.cluster import jobs, servers, store_jobs, twins


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Folders of one graph, by number of parts."""
    root = tmp_path_factory.mktemp("store")
    graph = jobs.make_graph()
    for num_parts in (1, 2, 3, 5):
        RandomPartitioner.from_data(graph, root / str(num_parts), num_parts).partition()
    return lambda num_parts: root / str(num_parts)


@pytest.fixture(scope="module")
def graph_servers(roots):
    """Two graph servers of three parts, for any number of clients."""
    with servers.cluster(roots(3), [[1], [0, 2]], lease=5.0) as cluster:
        yield cluster


WAYS = [(1, "shared"), (3, "shared"), (3, "requested"), (3, "served"), (3, "served, requested")]


@pytest.fixture(params=WAYS, ids=str)
def store(request, roots, monkeypatch, graph_servers):
    """A store of one trainer, whose own servers or graph servers have all parts.

    It maps its servers' memory, or may not.
    """
    num_parts, way = request.param
    if "requested" in way:  # as over several hosts
        for access in (TrainerAccess, ServedAccess):
            monkeypatch.setattr(access, "is_near", lambda *_: False)
    if "served" in way:
        with (
            graph_servers.client(),
            GraphStore(None, timeout=30, clients=[0]) as store,
        ):
            yield store
            store.close()
            assert [request_server(rank, "statistics")["stores"] for rank in (0, 1)] == [[], []]
        return
    dataset = DistDataset().load(roots(num_parts), 0, also_serve=range(1, num_parts))
    with GraphStore(dataset, timeout=30) as store:
        yield store
    shutdown_worker_group()


# One trainer ------------------------------------------------------------------------------------


def test_pushes_are_applied_in_order_when_the_step_ends(store):
    rows = store.create_node_tensor("rows", shape=(3,))
    assert rows.shape == (500, 3) and rows.nbytes == 6000 and store.version == 0
    expected = np.zeros((500, 3), np.float32)
    for version in (1, 2):
        for ids, values, reduce in store_jobs.pushes_of(0):
            rows.push(ids, torch.from_numpy(values), reduce)
        assert np.array_equal(rows.pull().numpy(), expected)
        for ids, values, reduce in store_jobs.pushes_of(0):
            if reduce == "set":
                for i, value in zip(ids, values, strict=True):
                    expected[i] = value
            else:
                {"add": np.add, "max": np.maximum}[reduce].at(expected, ids, values)
        assert store.step() == version
        assert np.array_equal(rows.pull().numpy(), expected)
    ids = torch.tensor([7, 499, 7])
    assert torch.equal(rows[ids], torch.from_numpy(expected[[7, 499, 7]]))
    assert torch.equal(rows[10:20:3], torch.from_numpy(expected[10:20:3]))
    assert torch.equal(rows[3], torch.from_numpy(expected[3]))


@pytest.mark.parametrize("size", [1 << 13, STAGED_BYTES])
def test_values_go_through_a_staging_area_or_by_message(store, monkeypatch, size):
    """Pieces of a push are staged until the area is full. Further ones go by message."""
    for name in ("_PUSH_BYTES", "_PUSH_BYTES_OF_JOB"):
        monkeypatch.setattr(tensor_module, name, 1 << 10)
    monkeypatch.setattr(tensor_module, "FRAME_BYTES", 1 << 8)
    rows = store.create_node_tensor("rows", shape=(4,))
    used = list(store._client.staging_areas.values())
    for area in used:
        area._slots = SlotAllocator(size)
    expected, rng = np.zeros((500, 4), np.float32), np.random.default_rng(0)
    for step in range(1, 3):
        for _ in range(3):
            ids, values = rng.integers(0, 500, 900), rng.random((900, 4), np.float32)
            np.add.at(expected, ids, values)
            rows.push(ids, values, "add").wait()
            values[:] = np.nan  # they were copied
        assert all(area._slots.num_taken > 0 for area in used)
        assert store.step() == step
        assert all(area._slots.num_taken == 0 for area in used)
        assert np.array_equal(rows.pull(), expected)
    for _ in range(2):
        rows.push([7], [[1.0] * 4], "set", relaxed=True).wait()
    assert sum(area._slots.num_taken for area in used) == (1 if used else 0)
    assert rows[7].tolist() == [1.0] * 4 and len(used) in (0, store._meta.num_parts)


def test_a_relaxed_push_is_applied_when_it_arrives(store):
    rows = store.create_node_tensor("rows", dtype=torch.int64)
    push = rows.push([4, 4, 9], [1, 2, 3], "add", relaxed=True)
    push.wait()
    assert push.done and rows[[4, 9, 0]].tolist() == [3, 3, 0] and store.version == 0


def test_pushes_of_many_bytes(store):
    """They take several messages, and graph servers refuse those of more than 4 MiB."""
    num_values = (1 << 22) // store.node_counts["node"]  # 5 MiB per partition, of three
    tensor = store.create_node_tensor("wide", shape=(num_values,))
    values = torch.arange(tensor.shape.numel(), dtype=torch.float32).view(tensor.shape)
    for relaxed in (False, True):
        tensor.push(None, values, "add", relaxed=relaxed)
    store.step()
    assert torch.equal(tensor.pull(), 2 * values)


def test_edges_have_rows_by_original_id(store):
    first = torch.arange(3000) * 10
    rows = store.create_edge_tensor("rows", dtype=torch.int64, init=first)
    assert torch.equal(rows.pull(), first)
    rows.push([2999, 0], [1, 2]).wait()
    store.step()
    assert rows[[0, 1, 2999]].tolist() == [2, 10, 1]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float16, torch.bfloat16])
def test_any_dtype(store, dtype):
    values = torch.tensor([[1, 0], [3, 2], [1, 1]]).to(dtype)
    rows = store.create_node_tensor("rows", shape=(2,), dtype=dtype)
    for reduce in ("set", "add", "min", "max"):
        rows.push([5, 6, 5], values, reduce)
    store.step()
    a, b, c = values
    first = torch.maximum(torch.maximum(torch.minimum(c + a + c, torch.minimum(a, c)), a), c)
    assert rows.pull().dtype == dtype
    assert torch.equal(rows[5], first) and torch.equal(rows[6], b)


def test_normal_values_depend_on_the_id_alone(store):
    rows = store.create_node_tensor("rows", shape=(4, 2), init=("normal", 3))
    values = rows.pull().numpy()
    assert np.array_equal(values, normal_rows(3, np.arange(500), RowFormat("float32", (4, 2))))
    assert abs(values.mean()) < 0.1 and abs(values.std() - 1) < 0.1
    assert len(np.unique(values)) == values.size


def test_empty_pushes_pulls_and_rows(store):
    rows = store.create_node_tensor("rows", shape=(0,))
    assert rows.pull().shape == (500, 0)
    rows.push([], torch.empty(0, 0)).wait()
    store.step()
    assert rows[[]].shape == (0, 0)


def test_tensors_are_listed_and_deleted(store):
    kept, gone = store.create_node_tensor("kept"), store.create_node_tensor("gone")
    assert store.tensors() == {"kept": kept, "gone": gone} and "gone" in store
    gone.push([1], [1.0])
    kept.push([1], [1.0])
    store.delete("gone")
    store.step()
    assert list(store.tensors()) == ["kept"] and kept[[1]].tolist() == [1]
    with pytest.raises(KeyError, match="no tensor 'gone'"):
        store["gone"]
    store.create_node_tensor("gone", dtype=torch.int8)
    assert store["gone"].pull().sum() == 0
    assert "GraphTensor('kept', 'node', [500], float32)" in repr(store)


def test_batches_get_rows_with_their_version(store):
    rows = store.create_node_tensor("h", init=torch.arange(500.0))
    edges = store.create_edge_tensor("w", init=torch.arange(3000.0))
    graph = store._client.access.graph
    dataset = graph if isinstance(graph, DistDataset) else None
    loader = DistNeighborLoader(
        dataset, [3, 2], torch.arange(64), batch_size=32, transform=store.transform(["h", "w"])
    )
    for version, batch in enumerate(loader):
        assert batch.store_version == version
        assert torch.equal(batch.h, batch.n_id + 1000.0 * version)
        assert torch.equal(batch.w, batch.e_id.float())
        rows.push(None, torch.full((500,), 1000.0), "add")
        store.step()
    assert edges.dtype == torch.float32
    loader.shutdown()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda s, t: t.push([500], [1.0]), IndexError, "ids of 't'"),
        (lambda s, t: t.pull([-1]), IndexError, "ids of 't'"),
        (lambda s, t: t.push([1], [1.0, 2.0]), ValueError, r"the shape \[1\].*got \[2\]"),
        (lambda s, t: t.push([1], torch.tensor([1])), TypeError, "float32 values .got int64"),
        (lambda s, t: t.push([1], [1.0], "mean"), ValueError, "got 'mean'"),
        (lambda s, t: s.create_node_tensor("t"), ValueError, "name of a tensor already"),
        (lambda s, t: s.create_node_tensor("u", "x"), KeyError, r"one of \['node'\]"),
        (lambda s, t: s.create_node_tensor("u", shape=(-1,)), ValueError, "0 or more"),
        (lambda s, t: s.create_node_tensor("u", init="ones"), ValueError, "got 'ones'"),
        (lambda s, t: s.create_node_tensor("u", init=[1.0]), ValueError, r"\[500\].*got \[1\]"),
        (lambda s, t: s.create_node_tensor("u", dtype=torch.cfloat), ValueError, "not supported"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_sent(store, call, error, text):
    tensor = store.create_node_tensor("t", dtype=torch.float32)
    with pytest.raises(error, match=text):
        call(store, tensor)
    assert store.step() == 1


def test_readers_see_completed_steps_and_change_nothing(store):
    """In this process and in another one, which gets a pickled reader."""
    store.create_node_tensor("rows", shape=(2,), init=torch.arange(1000.0).view(500, 2))
    edges = store.create_edge_tensor("edges", dtype=torch.int64, init=torch.arange(3000))
    reader = store.reader()
    assert reader.names == ["rows", "edges"] and "rows" in reader and "x" not in reader
    rows = reader["rows"]
    store["rows"].push(None, torch.ones(500, 2), "add")
    edges.push([7], [0])
    store._client.settle()
    assert rows[3].tolist() == [6.0, 7.0] and reader.version == 0
    store.step()
    assert rows[[3, 0]].tolist() == [[7.0, 8.0], [1.0, 2.0]] and reader.version == 1
    pulled = reader.pull(["edges", "edges"], [7, 8])
    assert [values.tolist() for values in pulled] == [[0, 8], [0, 8]]
    assert not hasattr(rows, "push") and rows.pull([]).shape == (0, 2)
    with pytest.raises(IndexError, match="ids of 'rows'"):
        rows.pull([500])
    with pytest.raises(KeyError, match="no tensor 'x'"):
        reader["x"]
    with pickle.loads(pickle.dumps(reader)) as other:
        assert torch.equal(other["rows"].pull(), store["rows"].pull()) and other.version == 1
    fork = multiprocessing.get_context("fork")
    values = fork.SimpleQueue()
    child = fork.Process(target=store_jobs.read, args=(reader, "rows", values))
    child.start()
    assert values.get() == (store["rows"].pull().tolist(), 1)
    child.join()
    reader.close()


def test_the_feature_store_does_what_pygs_data_does(store):
    """Puts, updates, views and removals, in any form of index, against `Data`."""
    features, data = StoreFeatures(store), HeteroData()
    data["node"].num_nodes = 500
    first = torch.arange(1000.0).view(500, 2)
    both = (features, data)
    mask = torch.arange(500) > 497
    puts = [
        (first, "h", None),
        (torch.arange(500), "g", None),
        (torch.zeros(2, 2), "h", torch.tensor([7, 3])),
        (torch.ones(10, 2), "h", slice(10, 20)),
        (torch.full((2,), 8.0), "h", 5),
        (torch.tensor([-1, -2]), "g", mask),
    ]
    for put, (values, name, index) in itertools.product(both, puts):
        assert put.put_tensor(values, group_name="node", attr_name=name, index=index)
    features[None, "h", [4]] = first[:1]
    data["node"].h[4] = first[0]
    assert store.version == 0
    indices = (None, slice(2, 12, 3), torch.tensor([5, 499, 5]), mask, np.array([3]))
    for index, name in itertools.product(indices, ("h", "g")):
        expected = data.get_tensor("node", name, index)
        assert torch.equal(features[None, name, index], expected), (index, name)
        assert torch.equal(features.view(None, name)[index], expected)
    assert torch.equal(features[None, "h", 5], data["node"].h[5])
    array = features.get_tensor(None, "h", index=np.array([3]), convert_type=True)
    assert isinstance(array, np.ndarray)
    got = features.multi_get_tensor([TensorAttr(None, n, torch.tensor([1])) for n in ("g", "h")])
    assert [value.tolist() for value in got] == [[1], [[2.0, 3.0]]]
    assert features.update_tensor(torch.zeros(1, 2), None, "h", index=[9])
    assert features[None, "h", 9].tolist() == [0.0, 0.0]
    for put in both:
        assert put.remove_tensor("node", "g", None)
        assert not put.remove_tensor("node", "g", None)
    names = {attr.attr_name for attr in features.get_all_tensor_attrs()}
    assert "h" in names and "g" not in names and features.get_tensor_size(None, "h") == (500, 2)
    features[("a", "b"), "w", None] = torch.arange(3000)
    assert features[(None, None), "w", [2999]].tolist() == [2999]
    elsewhere = pickle.loads(pickle.dumps(features))
    for call, error in (
        (lambda: features.get_tensor(None, "none", index=None), KeyError),
        (lambda: features.update_tensor(first, None, "none", index=None), KeyError),
        (lambda: features.put_tensor(first[:1], None, "none", index=[1]), ValueError),
        (lambda: features.put_tensor(first[:9], None, "h", index=None), ValueError),
        (lambda: features.remove_tensor(None, "h", index=[1]), ValueError),
        (lambda: features.get_tensor(None, "h", index=[500]), IndexError),
        (
            lambda: pickle.loads(pickle.dumps(features)).put_tensor(first, None, "h", 1),
            RuntimeError,
        ),
    ):
        with pytest.raises(error):
            call()
    assert torch.equal(elsewhere[None, "h", [5]], data["node"].h[[5]])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_pygs_loader_gets_tensors_and_attributes(roots, num_workers):
    dataset = DistDataset().load(roots(3), 0, also_serve=[1, 2])
    with GraphStore(dataset) as store:
        features = StoreFeatures(store)
        features[None, "h", None] = torch.arange(500.0)
        features[(None, None), "w", None] = torch.arange(3000)
        sampler = PartitionSampler(dataset, [3, 2], with_edge=True)
        loader = NodeLoader(
            (features, dataset), sampler, torch.arange(8), batch_size=4, num_workers=num_workers
        )
        for batch in loader:
            assert torch.equal(batch.h, batch.n_id.float()) and torch.equal(batch.w, batch.e_id)
            assert torch.equal(batch.x[:, 0], batch.n_id.float())
        with pytest.raises(RuntimeError, match="read-only"):
            features[None, "x", None] = torch.zeros(500, 5)
    shutdown_worker_group()


def test_a_tensor_that_does_not_fit_in_memory(store):
    with pytest.raises((MemoryError, ProtocolError), match="MiB"):
        store.create_node_tensor("huge", shape=(2**31,))
    with pytest.raises(RendezvousError, match="cannot be used any more"):
        store.step()


def test_a_closed_store_and_other_data(roots):
    store = GraphStore(DistDataset.from_folder(roots(1)))
    store.close()
    store.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        store.create_node_tensor("rows")
    shutdown_worker_group()
    with pytest.raises(TypeError, match="must be a DistDataset"):
        GraphStore(roots(1))
    with pytest.raises(TypeError, match="call init_client first"):
        GraphStore(None)
    with pytest.raises(RuntimeError, match="call init_client, or in worker mode"):
        GraphStoreReader()
    with pytest.raises(ValueError, match="are for clients"):
        GraphStore(DistDataset.from_folder(roots(1)), clients=[0])


def test_heterogeneous_tensors_and_batches(tmp_path):
    root = twins.partitioned(twins.heterogeneous(), tmp_path / "parts", 2, "plain")
    dataset = DistDataset().load(root, 0, also_serve=[1])
    node_type, edge_type = dataset.meta.node_types[-1], dataset.meta.edge_types[0]
    with GraphStore(dataset) as store:
        count = node_type.count
        nodes = store.create_node_tensor("h", node_type.name, init=torch.arange(count))
        nodes = store.create_node_tensor("n", node_type.name, (), torch.int64, torch.arange(count))
        edges = store.create_edge_tensor("w", edge_type.name, (2,))
        assert torch.equal(nodes.pull(), torch.arange(count))
        assert edges.shape == (edge_type.count, 2)
        with pytest.raises(KeyError, match="node_type must be one of"):
            store.create_node_tensor("x")
        loader = DistNeighborLoader(
            dataset, [2], node_type.name, batch_size=4, transform=store.transform(["n"])
        )
        batch = next(iter(loader))
        assert torch.equal(batch[node_type.name].n, batch[node_type.name].n_id)
        loader.shutdown()
        features, other = StoreFeatures(store), dataset.meta.node_types[0]
        features[other.name, "n", None] = -torch.arange(other.count)
        assert features[other.name, "n", [2]].tolist() == [-2] and f"{other.name}/n" in store
        assert features[node_type.name, "n", [2]].tolist() == [2]
        assert features[edge_type.name, "w", None].shape == (edge_type.count, 2)
        listed = {(a.group_name, a.attr_name) for a in features.get_all_tensor_attrs()}
        assert listed >= {(other.name, "n"), (node_type.name, "n"), (edge_type.name, "w")}
    shutdown_worker_group()


def test_a_checkpoint_is_read_over_other_parts(roots, tmp_path):
    """With optimiser state, and in place of the values that tensors have."""
    saved = tmp_path / "saved"
    dataset = DistDataset().load(roots(3), 0, also_serve=[1, 2])
    with GraphStore(dataset) as store:
        rows = store.create_node_tensor("rows", shape=(3,), init=("normal", 1))
        edges = store.create_edge_tensor("edges", dtype=torch.int64, init=torch.arange(3000))
        half = store.create_node_tensor("a/half", dtype=torch.bfloat16)
        half.push([7], [1.5])
        store.step()
        store.save(saved)
        expected = {name: tensor.pull() for name, tensor in store.tensors().items()}
        rows.push(None, torch.zeros(500, 3))
        edges.push([5], [0])
        store.step()
        store.load(saved)
        assert store.version == 1
        assert all(torch.equal(store[name].pull(), expected[name]) for name in expected)
        with pytest.raises(FileExistsError, match="choose another folder"):
            store.save(saved)
        assert store.step() == 2  # nothing has been begun
        assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    shutdown_worker_group()
    with GraphStore(DistDataset.from_folder(roots(1))) as store:
        store.load(saved)
        assert all(torch.equal(store[name].pull(), expected[name]) for name in expected)
        assert store.version == 1 and store["a/half"][7] == 1.5
        assert store.step() == 2
    shutdown_worker_group()


def test_parts_without_nodes_and_checkpoints_of_two_parts_under_three(tmp_path):
    """Four nodes in five parts: ids of a part that has none are not asked for there."""
    graph = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=4)
    for num_parts in (2, 3, 5):
        RandomPartitioner.from_data(graph, tmp_path / str(num_parts), num_parts).partition()

    def store_of(num_parts):
        also_serve = range(1, num_parts)
        return GraphStore(DistDataset().load(tmp_path / str(num_parts), 0, also_serve=also_serve))

    for before, after in ((2, 3), (3, 5), (5, 2)):
        with store_of(before) as store:
            rows = store.create_node_tensor("rows", shape=(2,), init=("normal", 1))
            edges = store.create_edge_tensor("edges", dtype=torch.int64)
            expected = rows.pull() + 1
            rows.push(None, torch.ones(4, 2), "add")
            edges.push([2, 0, 2], [5, 6, 7], "add")
            store.step()
            assert torch.equal(rows.pull(), expected) and edges.pull().tolist() == [6, 0, 12]
            store.save(tmp_path / f"saved {before}")
        shutdown_worker_group()
        with store_of(after) as store:
            store.load(tmp_path / f"saved {before}")
            assert torch.equal(store["rows"].pull(), expected)
            assert store["edges"].pull().tolist() == [6, 0, 12]
        shutdown_worker_group()


@pytest.mark.parametrize("harm", ["byte", "missing", "json", "shape", "graph", "path"])
def test_a_damaged_checkpoint_is_refused(roots, tmp_path, harm):
    saved = tmp_path / "saved"
    with GraphStore(DistDataset.from_folder(roots(1))) as store:
        store.create_node_tensor("rows", dtype=torch.int64, init=torch.arange(500))
        store.save(saved)
        file, meta = saved / "t0/rows-0.npy", saved / "checkpoint.json"
        if harm == "byte":
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)
        elif harm == "missing":
            file.unlink()
        elif harm == "json":
            meta.write_text("{}")
        elif harm == "path":
            meta.write_text(meta.read_text().replace("t0/rows-0.npy", "../pipe"))
        elif harm == "shape":
            meta.write_text(meta.read_text().replace('"int64"', '"int32"'))
        else:
            meta.write_text(meta.read_text().replace('"node"', '"paper"'))
        with pytest.raises((FolderError, KeyError), match=r"saved|paper"):
            store.load(saved)
    shutdown_worker_group()


def test_a_checkpoint_of_many_ranges(roots, tmp_path, monkeypatch):
    """Rows lie across the ends of ranges. Files are plain .npy files. Damage is found anywhere."""
    for module in (checkpoint, checkpoint_files, checksums):
        monkeypatch.setattr(module, "RANGE_BYTES", 8192)
    saved, values = tmp_path / "saved", torch.arange(500 * 37.0).view(500, 37)
    with GraphStore(DistDataset().load(roots(3), 0, also_serve=[1, 2])) as store:
        store.create_node_tensor("rows", shape=(37,), init=values)
        store.create_node_tensor("disk", shape=(37,), init=values, on_disk=1 << 14)
        store.save(saved)
    shutdown_worker_group()
    for tensor, part in itertools.product((0, 1), range(3)):
        ids = np.load(saved / f"t{tensor}/ids-{part}.npy")
        rows = np.load(saved / f"t{tensor}/rows-{part}.npy")
        assert np.array_equal(rows, values.numpy()[ids])
    older = json.loads((saved / "checkpoint.json").read_text())
    for path, file in older["files"].items():
        content = (saved / path).read_bytes()
        ranges = [content[first : first + 8192] for first in range(0, len(content), 8192)]
        assert file["ranges"] == [f"{zlib.crc32(part):08x}" for part in ranges]
        file["ranges"] = [hashlib.sha256(part).hexdigest() for part in ranges]
    for at in (None, 4100, 8192, None, 20_000, -1):
        if at is None:  # later ones have the checksums of older checkpoints
            with GraphStore(DistDataset.from_folder(roots(1))) as store:
                store.load(saved)
                assert all(torch.equal(store[name].pull(), values) for name in ("rows", "disk"))
            shutdown_worker_group()
            (saved / "checkpoint.json").write_text(json.dumps(older))
            continue
        file = saved / "t0/rows-1.npy"
        content = bytearray(sound := file.read_bytes())
        content[at] ^= 1
        file.write_bytes(content)
        store = GraphStore(DistDataset.from_folder(roots(1)))
        with store, pytest.raises(FolderError, match=r"rows-1.npy.*damaged"):
            store.load(saved)
        file.write_bytes(sound)
        shutdown_worker_group()


@pytest.mark.fault
def test_a_server_that_is_killed_in_a_load(roots, tmp_path, monkeypatch):
    """Rows that its memory had are no checkpoint."""
    load = checkpoint.load
    with GraphStore(DistDataset.from_folder(roots(1))) as store:
        store.create_node_tensor("rows", init=torch.rand(500))
        store.save(tmp_path / "saved")

        def load_and_kill(*call):
            load(*call)
            supervisor = store.client.access.service.endpoint_registry.supervisor
            os.kill(supervisor.servers[0].process.pid, signal.SIGKILL)

        monkeypatch.setattr(checkpoint, "load", load_and_kill)
        with pytest.raises(StateLostError, match="partition 0"):
            store.load(tmp_path / "saved")
    shutdown_worker_group()


# Several trainers -------------------------------------------------------------------------------


def run(roots, job, num_parts, homes, also_serve, **arguments):
    arguments |= {"root": str(roots(num_parts)), "homes": homes, "also_serve": also_serve}
    return jobs.start_trainers(job, arguments, len(homes), program=store_jobs.__name__)


def test_three_trainers_give_the_same_bits_over_any_parts(roots):
    """Sums of floats in the order of trainers and pushes, as NumPy makes them; integers exact."""
    runs = [
        run(roots, "push", 1, [0, 0, 0], {}),
        run(roots, "push", 2, [1, 0, 0], {}),
        run(roots, "push", 3, [0, 1, 2], {}),
        run(roots, "push", 5, [4, 1, 2], {"0": [0], "2": [3]}),
    ]
    digest = hashlib.sha256(store_jobs.expected(3).tobytes()).hexdigest()
    total = 2000 * store_jobs.PUSHES * (1 + 2 + 3)
    for trainers in runs:
        for result in jobs.finish_trainers(trainers, silent=True):
            assert result == {"digest": digest, "total": total, "before": 0.0, "version": 1}


@pytest.mark.fault
def test_a_server_that_is_killed_between_push_and_wait(roots):
    """Its rows are lost: the pusher and all others get an exception that says so, within 5 s."""
    results = jobs.finish_trainers(run(roots, "lose", 2, [0, 1], {}, how="server"))
    assert "StateLostError" in results[0]["error"] and "partition 0" in results[0]["error"]
    assert (
        "has failed with StateLostError" in results[1]["error"]
        or "StateLost" in (results[1]["error"])
    )
    assert all(result["seconds"] < 5 for result in results)


@pytest.mark.fault
def test_a_trainer_that_is_killed_in_a_step(roots):
    trainers = run(roots, "lose", 3, [0, 1, 2], {}, how="trainer")
    results = jobs.finish_trainers([trainers[0], trainers[2]])
    assert trainers[1].wait() == -9
    for result in results:
        assert "trainer 1" in result["error"] and result["seconds"] < 5


def test_trainers_that_make_different_calls(roots):
    for result in jobs.finish_trainers(run(roots, "differ", 2, [0, 1], {})):
        assert "different calls" in result["error"] and "create rows" in result["error"]


# The server -------------------------------------------------------------------------------------


@pytest.fixture
def shard(roots):
    shard = Shard(Part(PartitionFolder(roots(2)), 0))
    finish(shard.create(CreateTensor("t", TensorSpec("node", 0, "float32", [2])), []))
    yield shard
    shard.delete(DeleteTensor("t"), [])
    shard._areas.clear()
    gc.collect()  # a test's error may keep the rows


def push_of(**fields):
    return PushRows(**{"name": "t", "reduce": "add", "step": 0, "rank": 0, "position": 0} | fields)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("request_", "arrays", "error"),
    [
        (push_of(name="u"), [np.zeros(1, np.int64), np.zeros((1, 2), np.float32)], KeyError),
        (push_of(step=1), [np.zeros(1, np.int64), np.zeros((1, 2), np.float32)], ProtocolError),
        (push_of(), [np.array([-1]), np.zeros((1, 2), np.float32)], IndexError),
        (push_of(), [np.array([2**40]), np.zeros((1, 2), np.float32)], IndexError),
        (push_of(), [np.zeros(1, np.int64)], ProtocolError),
        (push_of(), [np.zeros(1, np.int32), np.zeros((1, 2), np.float32)], ProtocolError),
        (push_of(), [np.zeros(1, np.int64), np.zeros((1, 2))], ProtocolError),
        (push_of(), [np.zeros(1, np.int64), np.zeros((2, 2), np.float32)], ProtocolError),
        (push_of(), [np.zeros(1, np.int64), np.zeros((1, 3), np.float32)], ProtocolError),
        (push_of(area=0), [np.zeros(1, np.int64)], ProtocolError),
        (push_of(area=1, offset=32), [np.zeros(1, np.int64)], ProtocolError),
        (push_of(area=1, offset=STAGED_BYTES), [np.zeros(1, np.int64)], ProtocolError),
        (push_of(area=1), [np.zeros(1, np.int64), np.zeros((1, 2), np.float32)], ProtocolError),
        (push_of(area=1, offset=64), [np.array([2**40])], IndexError),
        (PullRows("t"), [np.array([-1])], IndexError),
        (PullRows("u"), [np.array([0])], KeyError),
        (PullRows("t"), [], ProtocolError),
        (PullRows("t"), [np.zeros(9_000_000, np.int64)], ProtocolError),
        (EndStep(1), [], ProtocolError),
        (DeleteTensor("u"), [], KeyError),
        (CreateTensor("t", TensorSpec("node", 0, "int8", [])), [], ProtocolError),
        (CreateTensor("v", TensorSpec("node", 9, "int8", [])), [], ProtocolError),
        (CreateTensor("v", TensorSpec("node", 0, "int8", [], seed=1)), [], ProtocolError),
        (CreateTensor("v", TensorSpec("node", 0, "int8", [2**31, 2**31])), [], MemoryError),
    ],
)
def test_requests_that_do_not_fit_change_nothing(shard, request_, arrays, error):
    answers = {t.message: t.answer for t in shard.types()}
    if getattr(request_, "area", None):
        for area in range(2):
            assert shard.make_area(MakeStagingArea(), [])[0][2] == area
    with pytest.raises(error):
        finish(answers[type(request_)](request_, arrays))
    finish(shard.end_step(EndStep(0), []))
    (rows,) = finish(shard.pull(PullRows("t"), [np.arange(200)]))
    assert not rows.any()


@pytest.mark.unit
def test_memory_that_a_liar_names_is_not_mapped(shard, tmp_path):
    """A pipe, a file, and memory that can be made smaller or is too short."""
    process, descriptor = shard.share(ShareTensor("t"), [])[0]
    rows = shard._specs["t"].rows
    valid = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    assert rows_in(valid, 1, rows).shape == (1, 2)
    with pytest.raises(ValueError, match="buffer is smaller"):
        rows_in(valid, 10**6, rows)
    (tmp_path / "file").write_bytes(bytes(4096))
    file = os.open(tmp_path / "file", os.O_RDWR)
    unsealed = os.memfd_create("unsealed")
    os.ftruncate(unsealed, 4096)
    pipe, other_end = os.pipe()
    for memory in (pipe, file, unsealed):
        with pytest.raises(ProtocolError, match="made smaller"):
            rows_in(memory, 1, rows)
    for descriptor in (valid, file, unsealed, pipe, other_end):
        os.close(descriptor)


@pytest.mark.unit
def test_held_bytes_are_bounded(shard, monkeypatch):
    monkeypatch.setattr(shard_module, "HELD_BYTES", 40)
    arrays = [np.zeros(2, np.int64), np.ones((2, 2), np.float32)]
    shard.push(push_of(), arrays)
    with pytest.raises(ProtocolError, match=r"call step\(\) more often"):
        shard.push(push_of(position=1), arrays)
    finish(shard.end_step(EndStep(0), []))
    shard.push(push_of(step=1), arrays)


@pytest.mark.process
def test_rows_that_a_server_sends_are_checked(roots):
    """Too few, too many, of another dtype or shape, or no rows at all."""
    with GraphStore(DistDataset.from_folder(roots(1))) as store:
        rows, out = store.create_node_tensor("rows", shape=(2,)), np.ones((2, 2), np.float32)
        for shapes, dtype in (
            ([], "f4"), ([(1, 2)], "f4"), ([(2, 2), (1, 2)], "f4"), ([(2, 2)], "f8"),
            ([(2, 3)], "f4"), ([()], "f4"), ([(2,)], "f4"),
        ):  # fmt: skip
            with pytest.raises(ProtocolError, match="another format"):
                rows._store([np.zeros(shape, dtype) for shape in shapes], np.arange(2), out)
        assert (out == 1).all()
        rows._store([out[1:] + 1, out[:1] + 2], np.array([1, 0]), out)
        assert out.tolist() == [[3.0, 3.0], [2.0, 2.0]]
    shutdown_worker_group()


@pytest.mark.unit
def test_bfloat16_is_rounded_as_torch_rounds():
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    rounded = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(stored_numbers(values, "bfloat16"), rounded)
