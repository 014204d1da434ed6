"""Packs: the same batches, read in sequence. A pack that does not fit, or is damaged, says so."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import khop
from khop.cli.main import main
from khop.distributed import (
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    pack_epochs,
    shutdown_worker_group,
)
from khop.errors import FolderError, RowStoreError
from khop.loader import NeighborLoader
from khop.storage import pack_writer
from khop.storage.pack import Pack
from support.cluster import jobs

SEEDS = jobs.seeds_of_rank(0)
COMMON = {"batch_size": 16, "shuffle": True, "seed": 3}
NAMES = ("n_id", "edge_index", "x", "edge_attr", "brain", "y")
ATTRIBUTES = ["x", "edge_attr", "brain"]


def load(root, **options):
    num_parts = khop.partition.PartitionFolder(root).num_parts
    return DistDataset().load(root, 0, also_serve=range(1, num_parts), **options)


def loader_of(dataset, num_workers=None, **options):
    if num_workers is not None:
        options["worker_options"] = MpDistSamplingWorkerOptions(num_workers=num_workers)
    return DistNeighborLoader(dataset, jobs.FANOUTS, SEEDS, **{**COMMON, **options})


def pack_of(dataset, path, epochs=1, **options):
    chosen = {"attributes": ATTRIBUTES, "hot_memory": 1000, **options}
    return pack_epochs(loader_of(dataset), path, epochs, **chosen)


@pytest.fixture(scope="module")
def packed(folder_of, tmp_path_factory):
    """Folder of one part, and a pack of two epochs of it."""
    root, path = folder_of("random", 1), tmp_path_factory.mktemp("packs") / "pack"
    pack_of(load(root), path, 2)
    shutdown_worker_group()  # whichever test comes first
    return root, path


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("num_parts,num_workers", [(1, None), (1, 2), (3, None), (3, 1)])
def test_batches_are_the_same(graph, folder_of, tmp_path, num_parts, num_workers, on_disk):
    """Two packed epochs, and one that is not packed, whichever process reads them."""
    options = {"features_on_disk": ATTRIBUTES, "disk_memory": "16MB"} if on_disk else {}
    dataset = load(folder_of("random", num_parts), **options)
    pack = pack_of(dataset, tmp_path / "pack", 2)
    assert pack.hot_rows > 0 and 0 < pack.packed_rows < pack.rows
    files = (tmp_path / "pack").rglob("*.npy")
    assert pack.nbytes == pytest.approx(sum(file.stat().st_size for file in files), abs=20_000)
    ours = loader_of(dataset, num_workers, packed=tmp_path / "pack")
    theirs = NeighborLoader(graph, jobs.FANOUTS, SEEDS, **COMMON)
    for epoch in range(3):
        assert jobs.same_batches(ours, theirs, NAMES) > 5
        disk = ours.stats().disk
        assert disk["packed"] == (pack.rows if epoch else pytest.approx(pack.rows / 2, rel=0.2))
        assert disk["packed"] == disk["asked"] or (on_disk and epoch == 2)
    assert "of a pack" in str(ours.stats())
    assert disk["missed"] - (disk["asked"] - disk["packed"]) <= pack.packed_rows
    ours.shutdown()


def test_an_epoch_is_read_in_sequence(packed):
    """Each packed row is read once, in few reads."""
    root, path = packed
    ours = loader_of(load(root), packed=path)
    for _ in range(2):
        list(ours)
    disk = ours.stats().disk
    sizes = [(path / f"{i}" / "rows.npy").stat().st_size for i in range(3)]
    assert disk["missed"] == sum(table.num_rows for table in Pack(path).meta.tables)
    # At most a read per batch and table, of the rows and what aligns them.
    assert disk["reads"] <= 3 * 2 * len(ours)
    assert disk["bytes"] <= sum(sizes) + 8192 * disk["reads"]


def test_hot_rows_are_the_ones_that_are_read_most(folder_of, tmp_path):
    dataset = load(folder_of("random", 1))
    pack_of(dataset, tmp_path / "pack", attributes=["x"], hot_memory=28 * 50)
    uses = np.zeros(500, int)
    for batch in loader_of(dataset):
        uses[batch.n_id] += 1
    (table,) = Pack(tmp_path / "pack").meta.tables
    hot = np.load(tmp_path / "pack" / "0" / "hot_id.npy")
    assert table.num_hot == len(hot) == 50
    new_uses = uses[dataset.opened.original_ids("node")]
    assert sorted(new_uses[hot]) == sorted(np.sort(uses)[-50:])
    assert table.num_rows == uses.sum() - new_uses[hot].sum()


@pytest.mark.parametrize("hot_memory,hot", [(0, 0), ("1GB", None)])
def test_no_hot_rows_and_all(graph, folder_of, tmp_path, hot_memory, hot):
    dataset = load(folder_of("random", 1))
    pack = pack_of(dataset, tmp_path / "pack", hot_memory=hot_memory, memory=1000)
    assert pack.hot_rows == hot or (hot is None and pack.packed_rows < pack.hot_rows)
    theirs = NeighborLoader(graph, jobs.FANOUTS, SEEDS, **COMMON)
    assert jobs.same_batches(loader_of(dataset, packed=tmp_path / "pack"), theirs, NAMES) > 5


def test_links_and_encoded_rows(tmp_path):
    """A link loader's batches, of rows that are stored in fewer bits."""
    data = jobs.make_graph()
    khop.partition_graph(data, tmp_path / "parts", 1, feature_dtype={"x": "int8"})
    dataset = load(tmp_path / "parts")
    options = {"edge_label_index": data.edge_index[:, :100], "seed": 1, "batch_size": 20}
    pack_epochs(
        DistLinkNeighborLoader(dataset, [3, 2], neg_sampling="binary", **options),
        tmp_path / "pack",
        attributes=["x"],
    )
    loaders = [
        DistLinkNeighborLoader(dataset, [3, 2], neg_sampling="binary", packed=packed, **options)
        for packed in (tmp_path / "pack", None)
    ]
    for ours, theirs in zip(*loaders, strict=True):
        assert torch.equal(ours.x, theirs.x) and torch.equal(ours.n_id, theirs.n_id)
    assert loaders[0].stats().disk["packed"] == loaders[0].stats().nodes


def test_a_resumed_epoch_is_packed_too(graph, packed):
    root, path = packed
    dataset = load(root)
    first = loader_of(dataset, packed=path)
    epoch = iter(first)
    head = [next(epoch) for _ in range(3)]
    state = first.state_dict()
    second = loader_of(dataset, packed=path)
    second.load_state_dict(state)
    theirs = list(NeighborLoader(graph, jobs.FANOUTS, SEEDS, **COMMON))
    for ours, other in zip([*head, *second], theirs, strict=True):
        assert torch.equal(ours.x, other.x)
    assert second.stats().disk["packed"] == second.stats().disk["asked"] > 0


@pytest.mark.parametrize(
    "options,message",
    [
        ({"batch_size": 17}, r"batch_size=16 \(here 17\)"),
        ({"seed": 4}, r"seed=3 \(here 4\)"),
        ({"seed": None}, "make the loader with seed="),
        ({"shuffle": False}, r"shuffle=True \(here False\)"),
        ({"stream": 5}, r"stream=0 \(here 5\)"),
        ({"replace": True}, "other options of sampling"),
        ({"num_virtual_ranks": 2}, "without num_virtual_ranks"),
    ],
)
def test_other_arguments_are_an_error_at_once(packed, options, message):
    root, path = packed
    with pytest.raises(ValueError, match=message):
        loader_of(load(root), packed=path, **options)


def test_other_seeds_hops_and_folders_are_errors(packed, folder_of):
    root, path = packed
    dataset = load(root)
    with pytest.raises(ValueError, match="other seeds"):
        DistNeighborLoader(dataset, jobs.FANOUTS, SEEDS[:-1], packed=path, **COMMON)
    with pytest.raises(ValueError, match="other options of sampling"):
        DistNeighborLoader(dataset, [4, 4], SEEDS, packed=path, **COMMON)
    with pytest.raises(ValueError, match="another partition folder"):
        loader_of(load(folder_of("random", 3)), packed=path)
    with pytest.raises(FolderError, match="no pack"):
        loader_of(dataset, packed=root)


def test_epochs_that_are_not_packed_are_reported(packed, caplog):
    root, path = packed
    loader = loader_of(load(root), packed=path)
    with caplog.at_level(logging.WARNING, "khop"):
        for epoch in range(3):
            next(iter(loader))
            assert ("has epochs 0 to 1" in caplog.text) == (epoch == 2)


def damage(path, name, change):
    content = bytearray((path / name).read_bytes())
    change(content)
    (path / name).write_bytes(content)


@pytest.mark.parametrize(
    "name,change,message",
    [
        ("0/rows.npy", lambda content: content.pop(), "bytes instead of"),
        ("0/first.npy", lambda content: content.__setitem__(-1, 1), "first.npy' is damaged"),
        ("0/hot.npy", lambda content: content.__setitem__(slice(0, 6), b"pickle"), "not an .npy"),
        ("pack.json", lambda content: content.__setitem__(-40, 48), "damaged"),
        ("pack.json", lambda content: content.clear(), "damaged"),
        ("pack.json", lambda content: content.__setitem__(slice(None), b"[" * 9999), "damaged"),
    ],
)
def test_damage_is_an_error_before_anything_is_read(packed, tmp_path, name, change, message):
    root, path = packed
    shutil.copytree(path, tmp_path / "pack")
    damage(tmp_path / "pack", name, change)
    with pytest.raises(FolderError, match=message):
        loader_of(load(root), packed=tmp_path / "pack")


def test_a_link_out_of_the_pack_is_refused(packed, tmp_path):
    root, path = packed
    shutil.copytree(path, tmp_path / "pack")
    shutil.move(tmp_path / "pack" / "0" / "rows.npy", tmp_path / "rows.npy")
    (tmp_path / "pack" / "0" / "rows.npy").symlink_to(tmp_path / "rows.npy")
    with pytest.raises(FolderError, match="link"):
        loader_of(load(root), packed=tmp_path / "pack")


def test_verify_finds_changed_bytes(packed, tmp_path, capsys):
    _, path = packed
    shutil.copytree(path, tmp_path / "pack")
    assert main(["verify", str(tmp_path / "pack")]) == 0
    assert "all sound" in capsys.readouterr().out
    damage(tmp_path / "pack", "1/rows.npy", lambda content: content.__setitem__(-1, 77))
    assert main(["verify", str(tmp_path / "pack")]) == 1
    assert "1/rows.npy: its checksum" in capsys.readouterr().out


def test_a_pack_that_is_cut_off_while_it_is_read_fails_its_batches(packed, tmp_path):
    root, path = packed
    shutil.copytree(path, tmp_path / "pack")
    epoch = iter(loader_of(load(root), packed=tmp_path / "pack"))
    next(epoch)
    os.truncate(tmp_path / "pack" / "0" / "rows.npy", 4096)
    with pytest.raises(RowStoreError, match="ends before its rows"):
        list(epoch)


def test_the_size_is_told_beforehand_and_bounded(folder_of, tmp_path):
    dataset, path = load(folder_of("random", 1)), tmp_path / "pack"
    plan = pack_of(dataset, path, plan=True)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="more than max_bytes=1000"):
        pack_of(dataset, path, max_bytes=1000)
    assert list(tmp_path.iterdir()) == []
    assert pack_of(dataset, path, max_bytes=plan.nbytes) == plan
    with pytest.raises(FileExistsError, match="overwrite"):
        pack_of(dataset, path)
    pack_of(dataset, path, overwrite=True)
    (tmp_path / "other").mkdir()
    with pytest.raises(FileExistsError, match="is no pack"):
        pack_of(dataset, tmp_path / "other", overwrite=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["other", "pack"]


@pytest.mark.parametrize(
    "options,message",
    [({"attributes": ["nothing"]}, "there are"), ({"epochs": 0}, "1 or more")],
)
def test_bad_arguments(folder_of, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        pack_of(load(folder_of("random", 1)), tmp_path / "pack", **options)


def test_nothing_to_pack_is_an_error(folder_of, tmp_path):
    with pytest.raises(ValueError, match="no attribute to pack"):
        pack_epochs(loader_of(load(folder_of("random", 1))), tmp_path / "pack")


def test_draws_that_differ_are_an_error(folder_of, tmp_path, monkeypatch):
    """A method whose draws depend on more than seed, epoch and batch leaves nothing behind."""
    keys = iter(range(10**6))
    monkeypatch.setattr(pack_writer, "key_of", lambda ids: next(keys).to_bytes(16, "little"))
    with pytest.raises(RuntimeError, match="drawn twice and differ"):
        pack_of(load(folder_of("random", 1)), tmp_path / "pack")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(folder_of, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    dataset = load(folder_of("random", 1))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="Nothing of it is kept"):
        pack_of(dataset, tmp_path / "pack")
    assert list(tmp_path.iterdir()) == []


KILLED = """
# forked
import os, signal, sys
from khop.storage import pack_writer
number = getattr(signal, sys.argv.pop())
pack_writer._TableWriter.close = lambda self: os.kill(os.getpid(), number)
from khop.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_run_that_is_ended_leaves_no_pack(packed, tmp_path, name):
    """The folder of a killed run is private. The next run begins anew in it."""
    root, _ = packed
    command = ["pack", str(root), str(tmp_path / "pack"), "--seed", "1", "--fanout", "2"]
    command += ["--attr", "x", "--batch-size", "50", "--quiet"]
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, *command, name],
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )
    left = list(tmp_path.iterdir())
    if name == "SIGTERM":
        assert ended.returncode == 143 and left == []
        assert "begins anew" in ended.stderr
    else:
        assert ended.returncode == -signal.SIGKILL
        assert [entry.name for entry in left] == [".pack.pack.tmp"]
        assert left[0].stat().st_mode & 0o077 == 0
    assert main(command) == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["pack"]
    dataset = load(root)
    loaders = [
        DistNeighborLoader(
            dataset, [2], "train_mask", batch_size=50, seed=1, shuffle=True, packed=packed
        )
        for packed in (None, tmp_path / "pack")
    ]
    for theirs, ours in zip(*loaders, strict=True):
        assert torch.equal(ours.x, theirs.x)
    assert loaders[1].stats().disk["packed"] == loaders[1].stats().nodes


def test_two_runs_do_not_write_the_same_pack(folder_of, tmp_path):
    dataset = load(folder_of("random", 1))
    with pack_writer.PackWriter(tmp_path / "pack", {}, {}, 1), pytest.raises(BlockingIOError):
        pack_of(dataset, tmp_path / "pack")


def test_the_command_prints_a_summary(packed, tmp_path, capsys):
    root, _ = packed
    command = ["pack", str(root), str(tmp_path / "pack"), "--seed", "1", "--attr", "x"]
    assert main([*command, "--json", "--batch-size", "50"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] > told["packed_rows"] and told["epochs"] == 1
    assert time.time() - (tmp_path / "pack" / "pack.json").stat().st_mtime < 60


def test_the_command_packs_seeds_of_a_type(tmp_path):
    """Rows of both types are packed."""
    data, ids = HeteroData(), torch.arange(40)
    data["a"].x, data["b"].x = torch.rand(40, 20), torch.rand(30, 20)
    data["a"].train_mask = ids < 20
    data["a", "to", "b"].edge_index = torch.stack([ids, ids % 30])
    data["b", "of", "a"].edge_index = torch.stack([ids % 30, ids])
    khop.partition_graph(data, tmp_path / "parts", 1)
    command = ["pack", str(tmp_path / "parts"), str(tmp_path / "pack"), "--seed", "1", "--quiet"]
    assert main([*command, "--fanout", "3,3", "--batch-size", "8", "--seed-type", "a"]) == 0
    dataset = load(tmp_path / "parts")
    options = {"batch_size": 8, "shuffle": True, "seed": 1}
    loaders = [
        DistNeighborLoader(dataset, [3, 3], ("a", "train_mask"), packed=packed, **options)
        for packed in (tmp_path / "pack", None)
    ]
    for ours, theirs in zip(*loaders, strict=True):
        assert torch.equal(ours["a"].x, theirs["a"].x) and torch.equal(ours["b"].x, theirs["b"].x)
    assert loaders[0].stats().disk["packed"] == loaders[0].stats().nodes > 0
