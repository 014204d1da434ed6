"""Tensors whose rows are on disk: values as of tensors in memory, whatever the cache."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from khop.data import RowFormat
from khop.distributed import DistDataset, GraphStore, shutdown_worker_group
from khop.distributed.rpc.frame_handler import finish
from khop.distributed.tensors.disk_rows import FOLDER_VARIABLE, DiskRows
from khop.distributed.tensors.shard import Shard
from khop.distributed.tensors.tensor_requests import (
    CreateTensor,
    DeleteTensor,
    EndStep,
    PullRows,
    PushRows,
    RowUpdate,
    TensorSpec,
)
from khop.partition import PartitionFolder, RandomPartitioner
from khop.storage.part import Part
from support.cluster import jobs, store_jobs

SMALL = 8 * (512 + 16)  # a cache of 8 sectors


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    root, graph = tmp_path_factory.mktemp("disk"), jobs.make_graph()
    for num_parts in (1, 3):
        RandomPartitioner.from_data(graph, root / str(num_parts), num_parts).partition()
    return lambda num_parts: root / str(num_parts)


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """Folder of the files. No file ever has a name there."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "disk"))
    (tmp_path / "disk").mkdir()
    yield tmp_path / "disk"
    assert list((tmp_path / "disk").iterdir()) == []


@pytest.fixture
def store(roots, disk):
    dataset = DistDataset().load(roots(3), 0, also_serve=[1, 2])
    with GraphStore(dataset, timeout=30) as store:
        yield store
    shutdown_worker_group()


def files_of(store, folder):
    """Return the open files of the store's servers that lie in the folder, as /proc has them."""
    servers = store._client.access.service.endpoint_registry.supervisor.servers
    paths = [Path(f"/proc/{server.process.pid}/fd") for server in servers.values()]
    entries = [entry for path in paths for entry in path.iterdir()]
    return [entry for entry in entries if str(entry.readlink()).startswith(str(folder))]


@pytest.mark.parametrize("shape", [(3,), (64,), (300,)])
def test_rows_are_those_of_a_tensor_in_memory(store, shape):
    """Several pushes per step. Rows are padded (3 values), fit (64), or take sectors (300)."""
    cache = SMALL if shape < (300,) else 8 * (1536 + 16)
    tensors = [
        store.create_node_tensor(f"rows {cache}", shape=shape, init=("normal", 5), on_disk=cache)
        for cache in (None, cache)
    ]
    rng = np.random.default_rng(0)
    for step in range(3):
        for reduce in ("add", "set", "max", "add"):
            ids = rng.integers(0, 500, 700)
            values = rng.standard_normal((700, *shape)).astype(np.float32)
            for rows in tensors:
                rows.push(ids, values, reduce, relaxed=step == 1)
        store.step()
        in_memory, on_disk = (rows.pull() for rows in tensors)
        assert torch.equal(in_memory, on_disk) and in_memory.isfinite().all()
    ids = torch.tensor([7, 499, 7])
    assert torch.equal(tensors[1][ids], tensors[0][ids])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16])
def test_any_dtype_of_edges(store, dtype):
    first = (torch.arange(3000) % 7).to(dtype)
    rows = store.create_edge_tensor("rows", dtype=dtype, init=first, on_disk=SMALL)
    assert torch.equal(rows.pull(), first)
    rows.push([2999, 0, 0], torch.tensor([1, 1, 1]).to(dtype), "add").wait()
    store.step()
    assert torch.equal(rows[[2999, 0]], (first[[2999, 0]] + torch.tensor([1, 2])).to(dtype))


def test_files_are_private_and_end_with_their_tensor(store, disk):
    store.create_node_tensor("kept", on_disk=SMALL)
    store.create_node_tensor("gone", on_disk=SMALL)
    kept = files_of(store, disk)
    # A file, and the descriptor that reads it.
    assert len(kept) == 2 * 2 * store._meta.num_parts
    for path in kept:
        status = path.stat()
        assert status.st_nlink == 0 and stat.S_IMODE(status.st_mode) == 0o600
        assert status.st_uid == os.getuid()
    store.delete("gone")
    assert len(files_of(store, disk)) == 2 * store._meta.num_parts
    assert list(disk.iterdir()) == []


def test_checkpoints_have_rows_on_disk(store, roots, tmp_path):
    """A checkpoint of rows on disk is read into memory, and back to disk."""
    rows = store.create_node_tensor("h", shape=(64,), init=("normal", 1), on_disk=SMALL)
    before = rows.pull()
    store.save(tmp_path / "saved")
    rows.push(None, torch.zeros(500, 64))
    store.step()
    store.load(tmp_path / "saved")
    assert torch.equal(rows.pull(), before) and store.version == 0
    store.delete("h")
    store.load(tmp_path / "saved")
    assert torch.equal(store["h"].pull(), before) and store["h"].spec.cache_bytes is None


def test_a_server_that_is_killed_leaves_the_last_checkpoint(roots, disk):
    """No value of its file is taken for one: the trainers get an exception, as of memory."""
    arguments = {"root": str(roots(1)), "homes": [0, 0], "how": "server", "on_disk": SMALL}
    trainers = jobs.start_trainers("lose", arguments, 2, program=store_jobs.__name__)
    for result in jobs.finish_trainers(trainers):
        assert result["error"] is not None and result["seconds"] < 15


@pytest.mark.unit
def test_a_changed_piece_is_planned_once(roots, disk, monkeypatch):
    """Its blocks are looked up when it is read. Its new values go to the same memory."""
    shard, calls, plan = Shard(Part(PartitionFolder(roots(1)), 0)), [], DiskRows._positions

    def count(rows, ids, changes):
        calls.append(changes)
        return plan(rows, ids, changes)

    for name in ("t", "sum"):
        finish(
            shard.create(CreateTensor(name, TensorSpec("node", 0, "float32", [2], None, SMALL)), [])
        )
    monkeypatch.setattr(DiskRows, "_positions", count)
    ids, values = np.array([3, 499, 3]), np.ones((3, 2), np.float32)
    shard.push(PushRows("t", "gradient", 0, 0, 0), [ids, values])
    shard.push(PushRows("sum", "add", 0, 0, 1), [ids, values])
    update = RowUpdate("t", "adagrad", ["sum"], 1.0, 0.0, 0.0, 0.0, 1.0)
    finish(shard.end_step(EndStep(0, [update]), []))
    assert calls == [True] * 3  # of the push, and of the row and its state
    (sums,) = finish(shard.pull(PullRows("sum"), [np.array([3, 499, 0])]))
    assert sums[:, 0].tolist() == [2 + 4, 1 + 1, 0]
    for name in ("t", "sum"):
        shard.delete(DeleteTensor(name), [])


@pytest.mark.unit
def test_rows_that_do_not_fit_and_errors_of_the_disk(disk):
    with pytest.raises(ValueError, match="fewer than 8 blocks"):
        DiskRows(500, RowFormat("float32", (64,)), 1000)
    with pytest.raises(ValueError, match="1 byte to 1 MiB"):
        DiskRows(500, RowFormat("float32", (0,)), 1000)
    with pytest.raises(OSError, match=r"No space left|too large"):
        DiskRows(2**36, RowFormat("float32", (2**10,)), 1 << 20)
    rows = DiskRows(500, RowFormat("float32", (128,)), SMALL)
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, rows._file.fileno())
    os.close(full)
    with pytest.raises(OSError, match="No space left"):
        for first in range(0, 500, rows.most_rows):
            piece = np.arange(first, min(first + rows.most_rows, 500))
            rows.write(piece, np.ones((len(piece), 128), np.float32))
    with pytest.raises(OSError, match="rows on disk were lost"):
        rows.read(np.arange(1))
    rows.close()
    rows.close()
