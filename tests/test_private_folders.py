"""Work folders and files that another user has planted: refused by name, neither read nor written.

Tests in which the folder belongs to another user (65534) need root.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

import khop
from khop.distributed.inference.files import RowSpec, RowWriter
from khop.errors import SecurityError
from khop.partition import GraphSource, verify_folder
from khop.partition.out_of_core import workspace
from khop.partition.out_of_core.effort import left_overs
from khop.partition.out_of_core.journal import Journal, read_journal, write_journal
from khop.partition.out_of_core.stage import Filled
from khop.private_folders import PrivateFolder, written_whole
from khop.sources import Scratch
from khop.storage.folder import AttemptWriter

STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")


def partition(place, **options):
    """Cuts a ring of 60 nodes in little memory: a run that goes on if it was ended."""
    ring = np.stack([np.arange(600) % 60, (np.arange(600) * 7 + 1) % 60])
    source = GraphSource.from_arrays(60, ring, {"x": np.arange(60)})
    khop.partition_graph(source, place / "out", 2, memory="30KB", jobs=1, **options)


def unpack(place):
    with Scratch.beside(place / "out") as scratch:
        return scratch.table(["key"], lambda: [{"x": np.arange(3)}])


def interrupt(what, done, total):
    if what.startswith("edges") and done == 1:
        raise KeyboardInterrupt


@pytest.fixture(params=["stage", "output", "scratch"])
def left(request, tmp_path, monkeypatch):
    """A work folder that a run left when it was ended, and the function that finds it again."""
    if request.param == "scratch":
        with pytest.raises(KeyboardInterrupt), Scratch.beside(tmp_path / "out") as scratch:
            scratch.table(["key"], lambda: [{"x": np.arange(3)}])
            raise KeyboardInterrupt
        return scratch.folder, lambda: unpack(tmp_path)
    monkeypatch.setattr(workspace, "_CHECKPOINT_BYTES", 1)
    with pytest.raises(KeyboardInterrupt):
        partition(tmp_path, progress=interrupt)
    (folder,) = tmp_path.glob(".khop-out-*.stage" if request.param == "stage" else ".out.*.tmp")
    return folder, lambda: partition(tmp_path)


def of_a_stranger(folder):
    os.chown(folder, STRANGER, STRANGER)
    return f"'{folder}' belongs to user {STRANGER}, not to you"


def that_others_may_write(folder):
    folder.chmod(0o777)
    return f"'{folder}' has mode 0777"


def behind_a_link(folder):
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")
    return f"'{folder}' is a link"


def files_of(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize(
    "plant",
    [pytest.param(of_a_stranger, marks=needs_root), that_others_may_write, behind_a_link],
)
def test_a_planted_folder_is_refused_by_name(tmp_path, left, plant):
    """All that is in it would fit: it is that of a run of one's own."""
    folder, run = left
    before = files_of(folder)
    message = plant(folder)
    with pytest.raises(SecurityError) as raised:
        run()
    assert str(raised.value).startswith(message)
    assert files_of(folder) == before
    assert not (tmp_path / "out").exists()


def test_what_a_run_leaves_is_its_own_and_goes_on(tmp_path, left):
    folder, run = left
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)  # as earlier versions made it: others could read, not change it
    columns = run()
    if columns is None:
        assert verify_folder(tmp_path / "out") == []
    else:
        assert columns["x"].tolist() == [0, 1, 2]
    assert left_overs(tmp_path / "out") == []


def as_link(path, victim):
    path.symlink_to(victim)


def as_second_name(path, victim):
    path.hardlink_to(victim)


@pytest.mark.parametrize("plant", [as_link, as_second_name])
def test_files_inside_that_lead_elsewhere_are_not_written(tmp_path, left, plant):
    """Each in turn has what belongs there. It is refused, or removed and made anew."""
    folder, run = left
    kept, outcomes = tmp_path / "kept", set()
    shutil.copytree(folder, kept)
    for path in [*files_of(folder), folder / "journal.new"]:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(kept, folder)
        victim = tmp_path / "victim"
        victim.write_bytes(path.read_bytes() if path.exists() else b"secret")
        before = victim.read_bytes(), victim.stat().st_mtime_ns
        path.unlink(missing_ok=True)
        plant(path, victim)
        try:
            run()
            outcomes.add("removed")
        except SecurityError as error:
            assert str(path) in str(error)
            outcomes.add("refused")
        assert (victim.read_bytes(), victim.stat().st_mtime_ns) == before
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        victim.unlink()
    assert ("refused" in outcomes) == (folder.suffix != ".tmp")  # there all is written anew


def test_a_folder_inside_that_is_a_link(tmp_path, left):
    folder, run = left
    for path in [path for path in folder.iterdir() if path.is_dir()][:1]:
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
        before = files_of(tmp_path / path.name)
        with pytest.raises(SecurityError, match=f"{path.name}' is a link"):
            run()
        assert files_of(tmp_path / path.name) == before


@needs_root
def test_strangers_folders_are_no_left_overs(tmp_path, left):
    """`--clean` removes one's own alone."""
    folder, _ = left
    assert folder in left_overs(tmp_path / "out")
    of_a_stranger(folder)
    assert folder not in left_overs(tmp_path / "out")
    behind_a_link(folder)
    assert folder not in left_overs(tmp_path / "out")


@needs_root
def test_tasks_on_other_machines_check_as_well(tmp_path):
    (tmp_path / "out.tmp" / ".attempts").mkdir(parents=True)
    message = of_a_stranger(tmp_path / "out.tmp")
    with pytest.raises(SecurityError, match=message):
        AttemptWriter(tmp_path / "out.tmp")


def test_names_stay_within(tmp_path):
    (tmp_path / "secret").write_text("")
    with PrivateFolder.make(tmp_path / "work") as work:
        for name in ("../secret", "/etc/passwd", "a/../../secret", ".."):
            with pytest.raises(ValueError, match="leads out of"):
                work.read(name)
        os.mkfifo(tmp_path / "work" / "fifo")
        with pytest.raises(SecurityError, match="no regular file"):
            work.read("fifo")
        assert work.size("fifo") is None
        work.make_folder("a/b")
        with work.create("a/b/file") as file:
            file.write(b"12")
        assert (work.size("a/b/file"), work.size("a"), work.size("a/c")) == (2, None, None)
        work.remove("a")
        assert work.names() == ["fifo"]


@needs_root
def test_what_strangers_have_put_inside(tmp_path):
    with PrivateFolder.make(tmp_path / "work") as work:
        work.make_folder("a")
        work.create("a/file").close()
        os.chown(tmp_path / "work/a/file", STRANGER, STRANGER)
        for use in (work.read, work.update):
            with pytest.raises(SecurityError, match=r"work/a/file' belongs to user 65534"):
                use("a/file")
        os.chown(tmp_path / "work/a", STRANGER, STRANGER)
        with pytest.raises(SecurityError, match=r"work/a' belongs to user 65534"):
            work.create("a/new")


GOOD = {
    **{"format": 4, "writes": 3, "done": ["a"], "stage": None, "complete": {}, "begun": {}},
    "arrays": {"owners": {"file": "2-0.npy", "checksum": 7}},
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": 1},
        {"writes": -1},
        {"done": [1]},
        {"arrays": {"owners": {"file": "../../.bashrc", "checksum": 7}}},
        {"arrays": {"owners": {"file": "2-0.npy", "checksum": "7"}}},
        {"stage": {"key": "a", "filled": {"pieces": 1, "cursors": [-8], "checksums": {}}}},
        {"begun": {"map/x.npy": {"bytes": -1, "ranges": []}}},
        {"begun": {"map/x.npy": {"bytes": 8, "ranges": []}}},
        {"begun": {"map/x.npy": {"bytes": 8, "ranges": ["no digest"]}}},
        {"more": 1},
    ],
)
def test_a_journal_is_checked(tmp_path, wrong):
    """What is no journal of this version counts as none: the run begins anew."""
    with PrivateFolder.make(tmp_path / "work") as work:
        for content in (GOOD, {**GOOD, **wrong}):
            with work.create("journal.json") as file:
                file.write(json.dumps(content).encode())
            found = read_journal(work, Journal)
            assert (found is None) == (content is not GOOD)
        write_journal(work, Journal(done=["b"]))
        assert read_journal(work, Journal) == Journal(done=["b"])
        assert work.names() == ["journal.json"]


@pytest.mark.parametrize(
    "filled",
    [
        Filled(1, [0, 3], {"row": [1, 2]}),  # the second block begins at 4
        Filled(1, [5, 4], {"row": [1, 2]}),
        Filled(1, [0], {"row": [1]}),
        Filled(1, [0, 4], {"row": [1]}),
        Filled(1, [0, 4], {"column": [1, 2]}),
    ],
)
def test_a_stage_that_does_not_fit_its_journal(filled):
    """Two blocks of 4 edges: where the next edge goes lies within its block."""
    places = np.array([0, 4, 8])
    Filled(1, [4, 4], {"row": [1, 2]}).check(["row"], places)
    with pytest.raises(ValueError, match="the journal does not fit"):
        filled.check(["row"], places)


@pytest.mark.parametrize(
    "entry", [["int64", [2]], ["object", [3]], ["int64", []], ["int64", [-3]], ["float32", [3]]]
)
def test_an_index_of_columns_is_checked(tmp_path, entry):
    scratch = Scratch(tmp_path / "unpacked")
    scratch.table(["key"], lambda: [{"x": np.arange(3)}])
    (index,) = tmp_path.glob("unpacked/*/columns.json")
    index.write_text(json.dumps({"x": entry}))
    with pytest.raises(ValueError, match=r"is damaged|a length in"):
        scratch.table(["key"], lambda: [{"x": np.arange(3)}])


def test_a_file_written_whole(tmp_path):
    """It replaces a link, and is not written through it; after an error nothing has changed."""
    (tmp_path / "victim").write_text("old")
    (tmp_path / "out").symlink_to("victim")
    with pytest.raises(KeyboardInterrupt), written_whole(tmp_path / "out") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert (tmp_path / "out").is_symlink()
    with written_whole(tmp_path / "out") as file:
        file.write(b"new")
    assert (tmp_path / "victim").read_text() == "old"
    assert (tmp_path / "out").read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "victim"]


def test_outputs_of_inference_go_through_no_link(tmp_path):
    (tmp_path / "victim").write_text("old")
    (tmp_path / ".part-0.npy.tmp").symlink_to("victim")
    writer = RowWriter(tmp_path / "part-0.npy", RowSpec("float32", "float32", (2,)), 3)
    writer.append(np.zeros((3, 2), np.float32))
    writer.finish()
    assert (tmp_path / "victim").read_text() == "old"
    assert np.load(tmp_path / "part-0.npy").shape == (3, 2)


def test_modes_of_files_are_those_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with PrivateFolder.make(tmp_path / "work") as work:
            work.publish()
            with written_whole(Path(tmp_path / "file")) as file:
                file.write(b"")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("work", "file")]
    assert modes == [0o750, 0o640]
