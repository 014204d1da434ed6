"""Checksums by ranges: against hashlib, resumed, and damage named by file and bytes."""

from __future__ import annotations

import hashlib
import json
import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

import khop
from khop.errors import FolderError
from khop.partition import GraphSource, PartitionFolder, verify_folder
from khop.partition.out_of_core import folder_checksums
from khop.partition.report import verify
from khop.storage.folder import RANGES_FILE, checksums, node_path
from khop.storage.folder.checksums import RangeHash, Written, hash_ranges
from khop.typing import NODE

RANGE = 1000
X = node_path(1, NODE, "x")


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch):
    """Ranges of a thousand bytes, and an entry in the journal for each."""
    for module in (checksums, folder_checksums, verify):
        monkeypatch.setattr(module, "RANGE_BYTES", RANGE)
    monkeypatch.setattr(folder_checksums, "_CHECKPOINT_BYTES", 1)


@pytest.fixture
def root(tmp_path):
    rng = np.random.default_rng(0)
    source = GraphSource.from_arrays(
        200, rng.integers(200, size=(2, 900)), {"x": rng.random((200, 8))}
    )
    khop.partition_graph(source, tmp_path / "f", 2)
    return tmp_path / "f"


def digests_of(content):
    return [
        hashlib.sha256(content[i : i + RANGE]).hexdigest() for i in range(0, len(content), RANGE)
    ]


@given(
    sizes=st.lists(st.sampled_from([1, 7, 999, 1000, 1001, 2500]), max_size=6),
    kept=st.integers(0, 6),
    threads=st.sampled_from([1, 3]),
)
def test_written_resumed_and_read_alike(tmp_path_factory, sizes, kept, threads):
    """Pieces of any size, a writer that goes on, and readers in threads: hashlib's digests."""
    content = np.random.default_rng(len(sizes)).bytes(sum(sizes))
    first, place = RangeHash(), 0
    for size in sizes[:kept]:
        first.update(memoryview(content[place : place + size]))
        place += size
    file = tmp_path_factory.mktemp("checksums") / "file"
    file.write_bytes(content)
    with file.open("rb") as opened:
        second = RangeHash()
        assert second.resume(opened.fileno(), first.written())
        second.update(memoryview(content[place:]))
        assert second.written() == Written(len(content), digests_of(content))
        assert hash_ranges(opened.fileno(), len(content), threads) == digests_of(content)
        if place:
            other = first.written()
            wrong = Written(place, [*other.ranges[:-1], "0" * 64])
            assert not RangeHash().resume(opened.fileno(), wrong)


def test_a_folder_that_is_written(root):
    """The digests of long files, in the order of meta.json; short files have plain checksums."""
    files = json.loads((root / "meta.json").read_text())["files"]
    rows = []
    for path, known in files.items():
        digests = digests_of((root / path).read_bytes())
        joined = hashlib.sha256(bytes.fromhex("".join(digests))).hexdigest()
        assert known["sha256"] == (digests[0] if len(digests) == 1 else joined)
        rows += digests if len(digests) > 1 else []
    assert np.load(root / RANGES_FILE).tobytes().hex() == "".join(rows)
    assert len(rows) > 10
    assert verify_folder(root) == verify_folder(root, jobs=3) == []


def flip(file, *places):
    content = bytearray(file.read_bytes())
    for place in places:
        content[place] ^= 1
    file.write_bytes(content)


def test_damage_is_named_by_file_and_bytes(root):
    size = (root / X).stat().st_size
    flip(root / X, 2500, size - 1)
    last = size - size % RANGE
    (problem,) = verify_folder(root, jobs=2)
    spans = f"2,000 to 2,999, {last:,} to {size - 1:,}"
    assert problem == f"{X}: its bytes have changed (checksum differs in bytes {spans})"
    flip(root / X, *range(500, size, RANGE))
    (problem,) = verify_folder(root)
    assert problem.endswith("0 to 999, 1,000 to 1,999, 3,000 to 3,999 and 3 more ranges)")


@pytest.mark.parametrize("change", ["damaged", "missing", "longer"])
def test_digests_that_are_not_sound(root, change):
    """It is a problem of its own; damage of other files is found still, without its place."""
    file = root / RANGES_FILE
    if change == "damaged":
        flip(file, file.stat().st_size - 1)
    elif change == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes() + bytes(32))
    (problem,) = verify_folder(root)
    assert RANGES_FILE in problem
    flip(root / X, 2500)
    assert verify_folder(root)[1:] == [f"{X}: its bytes have changed (checksum differs)"]
    PartitionFolder(root)  # only what verifies needs the digests


def test_a_length_without_end_takes_no_memory(root):
    """Digests are as many as their file holds, whatever meta.json says."""
    from support.formats.forging import forge, set_in

    forge(root, set_in("files", X, "bytes", value=2**56 - 1))
    with pytest.raises(FolderError, match=re.escape(f"{RANGES_FILE}' has ")):
        PartitionFolder(root).written()


def test_a_check_that_was_ended_goes_on(root, tmp_path, monkeypatch):
    """Files that have changed since then are read anew; no journal is left of a whole check."""
    (tmp_path / "tmp").mkdir()
    read, hash_range = [], checksums.hash_range

    def counted(descriptor, nbytes, first):
        read.append(descriptor)
        return hash_range(descriptor, nbytes, first)

    monkeypatch.setattr(folder_checksums, "hash_range", counted)

    def interrupt(what, done, total):
        if what == "checksums" and done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_folder(root, interrupt, jobs=1, tmp=tmp_path / "tmp")
    (work,) = (tmp_path / "tmp").iterdir()
    assert work.stat().st_mode & 0o77 == 0
    read.clear()
    assert verify_folder(root, tmp=tmp_path / "tmp") == []
    total = sum(-(-f.bytes // RANGE) for f in PartitionFolder(root).files.values())
    assert 0 < len(read) < total * 0.6
    assert list((tmp_path / "tmp").iterdir()) == []

    with pytest.raises(KeyboardInterrupt):
        verify_folder(root, interrupt, jobs=1, tmp=tmp_path / "tmp")
    first = next(iter(PartitionFolder(root).files))
    flip(root / first, -1)
    (problem,) = verify_folder(root, tmp=tmp_path / "tmp")
    assert problem.startswith(f"{first}: its bytes have changed")


def test_a_journal_of_a_stranger(root, tmp_path):
    """What is no journal counts as none; a link in its place is refused."""
    folder = PartitionFolder(root)
    name = folder_checksums.run_name([str(folder.root), folder.fingerprint])
    work = tmp_path / f".khop-{folder.root.name}-{name}.stage"
    work.mkdir()
    for content in (
        "[]",
        '{"format": 1, "files": {"x": {"stamp": [-1], "ranges": []}}}',
        "{" * 999,
    ):
        (work / "journal.json").write_text(content)
        assert verify_folder(root, tmp=tmp_path) == []
        work.mkdir(exist_ok=True)
    work.rmdir()
    work.symlink_to(root)
    with pytest.raises(khop.errors.SecurityError, match="is a link"):
        verify_folder(root, tmp=tmp_path)


def test_options(root, tmp_path):
    with pytest.raises(ValueError, match="jobs must be at least 1"):
        verify_folder(root, jobs=0)
    with pytest.raises(NotADirectoryError, match="tmp must be a folder that exists"):
        verify_folder(root, tmp=tmp_path / "nowhere")
