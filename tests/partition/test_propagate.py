"""Attributes of neighbours in a folder, against PyG's message passing on the whole graph."""

from __future__ import annotations

import fcntl
import os
import signal

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SGConv, SimpleConv

import khop
from khop.distributed import DistDataset, DistNeighborLoader, shutdown_worker_group
from khop.errors import FolderError
from khop.partition import PartitionFolder, propagate, propagation, verify_folder
from khop.partition.out_of_core import folder_checksums, workspace
from khop.partition.out_of_core.effort import left_overs
from khop.storage import aggregation
from khop.storage.folder import META_FILE, RANGES_FILE, checksums, writer
from support.cut_graphs import files_of


def graph():
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 90, (2, 800), generator=generator)
    x = torch.randn(100, 7, generator=generator)
    weight = torch.rand(800, generator=generator) + 0.1
    return Data(edge_index=edge_index, x=x, weight=weight, num_nodes=100)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(aggregation, "EDGES_AT_ONCE", 37)
    monkeypatch.setattr(aggregation, "ROWS_AT_ONCE", 11)
    monkeypatch.setattr(workspace, "_CHECKPOINT_BYTES", 1)


@pytest.fixture
def root(tmp_path):
    khop.partition_graph(graph(), tmp_path / "f", 3, order="degree")
    return tmp_path / "f"


def values(root, name, node_type="node"):
    """Return an attribute of all nodes by original id."""
    folder = PartitionFolder(root)
    count = folder.meta.node_type(node_type).count
    shape = folder.meta.node_type(node_type).attrs[name].shape
    rows = torch.empty(count, *shape)
    for part in range(folder.num_parts):
        ids = torch.from_numpy(folder.node_ids(part, node_type).astype(np.int64))
        rows[ids] = torch.from_numpy(folder.node_feature(part, node_type, name).array.copy())
    return rows


def sgc(hops, weight=None, self_loops=True):
    data = graph()
    conv = SGConv(7, 7, K=hops, bias=False, add_self_loops=self_loops)
    conv.lin.weight.data = torch.eye(7)
    return conv(data.x, data.edge_index, weight and data[weight]).detach()


@pytest.mark.parametrize("weight", [None, "weight"])
@pytest.mark.parametrize("self_loops", [False, True])
def test_hops_are_sgc(root, weight, self_loops):
    options = {"norm": "sym", "weight": weight, "self_loops": self_loops}
    before = PartitionFolder(root)
    propagate(root, "x", "out", hops=3, **options, jobs=2)
    torch.testing.assert_close(values(root, "out"), sgc(3, weight, self_loops))
    assert verify_folder(root) == []
    after = PartitionFolder(root)
    assert list(after.meta.node_type("node").attrs) == ["x", "out"]
    assert after.fingerprint != before.fingerprint
    assert {**after.files, **before.files} == after.files
    assert [path.name for path in root.parent.iterdir()] == ["f"]


def test_every_hop_is_the_input_of_sign(root):
    propagate(root, "x", "x", hops=3, norm="sym", self_loops=True, every_hop=True)
    for hop in (1, 2, 3):
        torch.testing.assert_close(values(root, f"x{hop}"), sgc(hop))
    assert verify_folder(root) == []


@pytest.mark.parametrize("weight", [None, "weight"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_one_hop_is_pygs(root, reduce, weight):
    propagate(root, "x", "out", reduce=reduce, weight=weight)
    data = graph()
    expected = SimpleConv(reduce)(data.x, data.edge_index, weight and data[weight])
    torch.testing.assert_close(values(root, "out"), expected)


def test_row_norm_is_a_weighted_mean(root):
    propagate(root, "x", "out", norm="row", weight="weight")
    data = graph()
    matrix = torch.zeros(100, 100).index_put_(
        (data.edge_index[1], data.edge_index[0]), data.weight, accumulate=True
    )
    sums = matrix.sum(dim=1, keepdim=True).clamp(min=1e-9)
    torch.testing.assert_close(values(root, "out"), matrix @ data.x / sums)


def test_bits_depend_on_neither_parts_nor_memory_nor_threads(root, tmp_path):
    khop.partition_graph(graph(), tmp_path / "one", 1)
    options = {"hops": 2, "norm": "sym", "weight": "weight"}
    propagate(root, "x", "a", **options)
    propagate(root, "x", "b", **options, memory="4KB", jobs=3)
    propagate(root, "x", "c", **options, memory="10KB", jobs=1, tmp=tmp_path)
    propagate(tmp_path / "one", "x", "a", **options)
    expected = values(root, "a")
    assert all(torch.equal(values(root, name), expected) for name in "bc")
    assert torch.equal(values(tmp_path / "one", "a"), expected)


def test_edges_between_two_types_drawn_by_source(tmp_path):
    data = HeteroData()
    data["a"].x = torch.arange(6, dtype=torch.int64)
    data["b"].num_nodes = 4
    data["b"].y = torch.arange(8, dtype=torch.bfloat16).view(4, 2)
    edge_index = torch.tensor([[0, 1, 5, 5], [3, 3, 0, 0]])
    data["a", "to", "b"].edge_index = edge_index
    data["b", "of", "a"].edge_index = edge_index.flip(0)
    for edge_dir in ("in", "out"):
        khop.partition_graph(data, tmp_path / edge_dir, 2, edge_dir=edge_dir)
    propagate(tmp_path / "in", "x", "sum", edge_type=("a", "to", "b"))
    assert values(tmp_path / "in", "sum", "b").tolist() == [10, 0, 0, 1]
    propagate(tmp_path / "out", "y", "sum", edge_type="a to b")
    expected = torch.tensor([[6, 7], [6, 7], [0, 0], [0, 0], [0, 0], [0, 2]])
    assert torch.equal(values(tmp_path / "out", "sum", "a"), expected.float())
    with pytest.raises(ValueError, match="need edges within one node type"):
        propagate(tmp_path / "in", "x", "z", edge_type="a to b", hops=2)
    with pytest.raises(KeyError, match="one of 'a to b', 'b of a'"):
        propagate(tmp_path / "in", "x", "z")


def test_copies_of_other_parts_nodes_have_the_attribute(tmp_path):
    options = {"num_neighbors": [3, 3], "cache_ratio": 0.2, "seeds": ("node", None)}
    khop.partition_graph(graph(), tmp_path / "f", 3, method="frequency", **options)
    propagate(tmp_path / "f", "x", "out", memory="5KB")
    assert verify_folder(tmp_path / "f") == []


@pytest.mark.process
def test_sign_trains_on_batches_without_neighbours(root):
    """A linear layer over three hops learns a label that is a column of one of them."""
    propagate(root, "x", "x", hops=2, norm="sym", self_loops=True, every_hop=True)
    dataset = DistDataset().load(root, 0, also_serve=[1, 2])
    loader = DistNeighborLoader(dataset, [0], np.arange(100), batch_size=50, shuffle=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(21, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    label = sgc(2)[:, 3] > 0
    for _ in range(40):
        for batch in loader:
            rows = torch.cat([batch.x, batch.x1, batch.x2], dim=1)
            torch.testing.assert_close(batch.x2, sgc(2)[batch.n_id])
            logits = model(rows).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, label[batch.n_id].float()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert ((logits > 0) == label[batch.n_id]).float().mean() > 0.9
    shutdown_worker_group()


def ended(root, step, done):
    """Propagate in a process that is killed at a step. Return True if it came there."""
    child = os.fork()
    if child == 0:

        def die(what, now, total):
            if what == step and now == done:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            propagate(root, "x", "x", hops=2, every_hop=True, memory="3KB", jobs=1, progress=die)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.process
def test_a_run_that_is_killed_goes_on(root, monkeypatch):
    whole = files_of(root)
    for step in [("columns", 1), ("columns", 3), ("writing", 0), ("writing", 1)]:
        assert ended(root, *step), step
        assert files_of(root) == whole
        assert len(left_overs(root)) == 2
    monkeypatch.setattr(propagation._Run, "_read", None)  # all columns are done
    propagate(root, "x", "x", hops=2, every_hop=True, memory="3KB")
    torch.testing.assert_close(values(root, "x2"), values_after(2))
    assert verify_folder(root) == [] and left_overs(root) == []


@pytest.mark.process
def test_a_clean_run_begins_anew(root):
    assert ended(root, "columns", 1)
    propagate(root, "x", "y", clean=True)
    assert left_overs(root) == []


def values_after(hops):
    data = graph()
    rows = data.x
    for _ in range(hops):
        rows = SimpleConv("sum")(rows, data.edge_index)
    return rows


def test_killed_before_the_last_file_the_folder_is_the_old_one(root, monkeypatch):
    """meta.json comes last, and the digests of the old files stay where they were."""
    for module in (checksums, folder_checksums):
        monkeypatch.setattr(module, "RANGE_BYTES", 100)
    khop.partition_graph(graph(), root, 3, overwrite=True)
    before, replaced = PartitionFolder(root), []
    described = writer.describe

    def die_before_meta(*arguments):
        files = writer.description_of(*arguments[1:])
        (root / RANGES_FILE).write_bytes(files[RANGES_FILE])
        replaced.append(len(files[META_FILE]))
        raise SystemExit

    monkeypatch.setattr(writer, "describe", die_before_meta)
    with pytest.raises(SystemExit):
        propagate(root, "x", "out")
    monkeypatch.setattr(writer, "describe", described)
    after = PartitionFolder(root)
    assert replaced and after.fingerprint == before.fingerprint
    assert after.written() == before.written()
    assert all(
        problem.endswith("out.npy: not part of the folder") for problem in verify_folder(root)
    )
    propagate(root, "x", "out")
    assert verify_folder(root) == []
    torch.testing.assert_close(values(root, "out"), values_after(1))


@pytest.mark.process
def test_a_damaged_stage_file_is_found(root):
    assert ended(root, "columns", 3)
    (stage,) = root.parent.glob(".khop-f-*.stage")
    (stage / "0.stage").write_bytes(bytes((stage / "0.stage").stat().st_size))
    with pytest.raises(ValueError, match=r"stage file .* is damaged.*run the same again"):
        propagate(root, "x", "x", hops=2, every_hop=True, memory="3KB")
    assert left_overs(root) == []


def test_a_neighbour_that_does_not_exist_is_an_error(root):
    file = next(root.glob("part-1/edge/*/indices.npy"))
    array = np.load(file)
    array[5] = 100
    np.save(file, array)
    whole = files_of(root)
    with pytest.raises(FolderError, match="neighbour 100 is outside"):
        propagate(root, "x", "out")
    assert files_of(root) == whole and left_overs(root) == []


def test_one_process_at_a_time(root):
    descriptor = os.open(root, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError, match="another process changes"):
        propagate(root, "x", "out")
    os.close(descriptor)
    propagate(root, "x", "out")


def test_a_full_disk_changes_nothing(root, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    whole = files_of(root)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="run the same again"):
        propagate(root, "x", "out")
    assert files_of(root) == whole


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"attr": "y"}, KeyError, "no attribute 'y'"),
        ({"out": "x"}, ValueError, "an attribute 'x' already"),
        ({"out": "id"}, ValueError, "reserved name"),
        ({"reduce": "std"}, ValueError, "got 'std'"),
        ({"norm": "sym", "reduce": "max"}, ValueError, "of sums"),
        ({"hops": 0, "every_hop": True}, ValueError, "got 0"),
        ({"weight": "y"}, KeyError, "no attribute 'y'"),
        ({"edge_type": "a b c"}, KeyError, "one of 'node to node'"),
        ({"memory": "1KB"}, ValueError, "raise memory"),
        ({"jobs": 0}, ValueError, "at least 1"),
    ],
)
def test_bad_arguments_change_nothing(root, options, error, text):
    whole = files_of(root)
    with pytest.raises(error, match=text):
        propagate(root, **{"attr": "x", "out": "y"} | options)
    assert files_of(root) == whole and left_overs(root) == []
