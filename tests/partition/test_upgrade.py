"""Folders of earlier versions: read as before, and upgraded; a run that is killed goes on."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from khop.errors import FolderError
from khop.partition import PartitionFolder, folder_source, repartition, verify_folder
from khop.partition.formats import upgrade
from khop.partition.formats.upgrade import upgrade_folder
from khop.partition.out_of_core import folder_checksums, workspace
from khop.storage.folder import RANGES_FILE, checksums
from support.cut_graphs import files_of
from support.formats.folders import earlier_folders


@pytest.fixture
def old(tmp_path):
    return earlier_folders(tmp_path / "old")


@pytest.fixture
def short_ranges(monkeypatch):
    """Ranges of 100 bytes, and an entry in the journal for each."""
    for module in (checksums, folder_checksums):
        monkeypatch.setattr(module, "RANGE_BYTES", 100)
    for module in (folder_checksums, workspace):
        monkeypatch.setattr(module, "_CHECKPOINT_BYTES", 1)
    monkeypatch.setattr(upgrade, "_CHUNK_BYTES", 100)


def arrays_of(root):
    """Content of all arrays, by path; not what describes them."""
    return {p: c for p, c in files_of(root).items() if p not in ("meta.json", RANGES_FILE)}


def test_earlier_versions_are_read_as_before(old):
    """What was written into them, from the values that the fixture was made of."""
    one, two = (PartitionFolder(old[version]) for version in (1, 2))
    assert [one.version, two.version] == [1, 2]
    for folder in (one, two):
        assert verify_folder(folder.root) == []
        text = (folder.root / "meta.json").read_bytes()
        assert folder.fingerprint == hashlib.sha256(text).hexdigest()[:16]
    source = folder_source(one)
    assert source.nodes["node"].attrs["y"].array.tolist() == [i % 3 for i in range(40)]
    assert source.nodes["node"].attrs["train_mask"].array.tolist() == [
        i % 2 == 0 for i in range(40)
    ]
    edges = source.edges["node", "to", "node"]
    assert edges.attrs["edge_attr"].array.tolist() == [[float(i)] for i in range(120)]
    meta = two.meta
    paper = meta.node_type("paper")
    assert (paper.attrs["x"].stored, paper.attrs["x"].delivered) == (("bfloat16", (4,)),) * 2
    assert (meta.order, meta.time_attr.name, meta.knows_neighbors) == ("degree", "year", True)
    assert all(t.edge_ids for t in (*one.meta.edge_types, *meta.edge_types))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("in_place", [True, False])
def test_an_upgrade_keeps_arrays_and_identity(old, tmp_path, version, in_place, short_ranges):
    root, before = old[version], PartitionFolder(old[version])
    kept, plans = files_of(root), []
    output = None if in_place else tmp_path / "new"
    summary = upgrade_folder(root, output, on_plan=plans.append, jobs=2)
    after = PartitionFolder(output or root)
    assert (summary.version, after.version) == (3, 3)
    assert after.fingerprint == before.fingerprint
    assert after.meta == before.meta
    assert (
        arrays_of(after.root)
        == arrays_of(root)
        == {p: c for p, c in kept.items() if p != "meta.json"}
    )
    assert verify_folder(after.root) == []
    (plan,) = plans
    written = sum(map(len, files_of(after.root).values())) - in_place * sum(
        map(len, arrays_of(root).values())
    )
    assert written <= plan.disk_bytes <= written + 100_000
    if not in_place:
        assert files_of(root) == kept
    # Nothing is left beside them.
    assert {p.name for p in tmp_path.iterdir()} <= {"old", "new"}
    assert sorted(p.name for p in (tmp_path / "old").iterdir()) == ["version-1", "version-2"]
    with pytest.raises(ValueError, match="has format version 3 already"):
        upgrade_folder(after.root)


def test_checksums_are_those_of_hashlib(old, short_ranges):
    """A long file's is the SHA-256 of its ranges' digests, which lie in ranges.npy."""
    root = old[1]
    upgrade_folder(root)
    files = json.loads((root / "meta.json").read_text())["files"]
    digests = []
    for path, known in files.items():
        content = (root / path).read_bytes()
        pieces = [content[i : i + 100] for i in range(0, len(content), 100)]
        ranges = [hashlib.sha256(piece).digest() for piece in pieces]
        assert known["bytes"] == len(content)
        assert known["sha256"] == hashlib.sha256(b"".join(ranges)).hexdigest()
        digests += ranges
    assert np.load(root / RANGES_FILE).tobytes() == b"".join(digests)


def killed(run, module, name, after, told=lambda *args: True):
    """Runs in a process that is killed at the n-th call of a function; returns True if it was."""
    child = os.fork()
    if child == 0:
        real, calls = getattr(module, name), []

        def die(*args, **keywords):
            if told(*args):
                calls.append(1)
            if len(calls) == after:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **keywords)

        setattr(module, name, die)
        try:
            run()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("in_place", [True, False])
def test_killed_at_each_entry_of_the_journal_it_goes_on(old, tmp_path, in_place, short_ranges):
    """Each run gets two entries further than the last; the old folder is whole all the time."""
    root, kept = old[1], files_of(old[1])
    output, kills = None if in_place else tmp_path / "new", {}
    for module in (folder_checksums, workspace):
        kills[module] = 0
        # Checksums are killed some times, then copying, until there is nothing left to do.
        while (module is workspace or kills[module] < 6) and killed(
            lambda: upgrade_folder(root, output, jobs=1), module, "write_journal", 3
        ):
            kills[module] += 1
            assert files_of(root) == kept
            assert output is None or not output.exists()
    assert kills[folder_checksums] == 6
    assert in_place or kills[workspace] > 20
    assert verify_folder(output or root) == []
    assert arrays_of(output or root) == {p: c for p, c in kept.items() if p != "meta.json"}
    assert [p.name for p in tmp_path.iterdir() if p.name not in ("old", "new")] == []


@pytest.mark.parametrize("name", ["fsync", "write_journal"])
def test_killed_while_the_description_is_replaced(old, name, short_ranges):
    """Before each fsync, and each journal, the folder is the old or the new one, and sound."""
    root, kept = old[2], files_of(old[2])
    for calls in itertools.count(1):
        module = os if name == "fsync" else folder_checksums
        was_killed = killed(lambda: upgrade_folder(root), module, name, calls)
        assert verify_folder(root) == []
        if PartitionFolder(root).version == 3:
            break
        assert was_killed
        found = files_of(root)
        found.pop(RANGES_FILE, None)
        assert {p: c for p, c in found.items() if not p.startswith(".")} == kept
    assert calls > 3


def test_no_room(old, tmp_path, monkeypatch):
    """It is told before anything is written."""
    usage = SimpleNamespace(free=20_000)
    monkeypatch.setattr(upgrade.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(
        ValueError, match=r"too full for .*version 1 to 3: reads .*needs .*upgrade in"
    ):
        upgrade_folder(old[1], tmp_path / "new")
    assert [p.name for p in tmp_path.iterdir()] == ["old"]


def test_damage_is_found_and_nothing_is_written(old, tmp_path):
    root = old[1]
    file = root / "part-1/node/node/x.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    kept = files_of(root)
    for output in (None, tmp_path / "new"):
        with pytest.raises(FolderError, match=r"cannot be converted: part-1/node/node/x\.npy: its"):
            upgrade_folder(root, output)
    file.unlink()
    with pytest.raises(FolderError, match=r"x\.npy: missing\. All parts must be on this machine"):
        upgrade_folder(root)
    assert files_of(root) == {p: c for p, c in kept.items() if p != "part-1/node/node/x.npy"}
    assert [p.name for p in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("where", ["within", "above"])
def test_a_copy_within_the_folder(old, where):
    output = old[1] / "new" if where == "within" else old[1].parent
    with pytest.raises((ValueError, FileExistsError), match=r"lie within each other|exists"):
        upgrade_folder(old[1], output)


def test_a_repartition_of_an_earlier_folder_is_of_this_version(old, tmp_path):
    repartition(old[1], tmp_path / "new", 2)
    assert arrays_of(tmp_path / "new") == arrays_of(old[1])
    assert PartitionFolder(tmp_path / "new").version == 3
