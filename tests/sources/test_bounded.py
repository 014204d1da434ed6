"""Sources in bounded memory: the same folders, bit for bit; what is unpacked is found again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import given, settings, strategies as st

import khop
from khop.data.files import mapped_file
from khop.data.joined import JoinedFeature
from khop.partition import GraphSource
from khop.partition.out_of_core.effort import left_overs
from khop.partition.source import EdgeSource
from khop.sources import Scratch, read_source, scratch as scratch_module
from khop.sources.columns import JoinedEdges, flat_labels, mask_between, mask_of
from khop.sources.symmetrized import symmetrized
from khop.typing import EDGE, NODE

RNG = np.random.default_rng(0)
ENDS, X = RNG.integers(40, size=(2, 300)), RNG.random((40, 3), np.float32)
WEIGHT = RNG.random(300)


def npz(folder):
    np.savez_compressed(folder / "g.npz", edge_index=ENDS, x=X, edge_w=WEIGHT)
    return folder / "g.npz"


def stored(folder):
    np.savez(folder / "g.npz", a=np.int8(1).reshape(1), edge_index=ENDS, x=X, edge_w=WEIGHT)
    with np.load(folder / "g.npz") as arrays:
        np.savez(folder / "g.npz", **{n: arrays[n] for n in ("edge_w", "edge_index", "x")})
    return folder / "g.npz"


def text(folder):
    frame = pandas.DataFrame({"src": ENDS[0], "dst": ENDS[1], "edge_w": WEIGHT})
    (folder / "in" / "edges").mkdir(parents=True)
    for i in range(3):
        part = frame.iloc[100 * i : 100 * i + 100]
        part.to_csv(folder / "in" / "edges" / f"{i}.csv.gz", index=False)
    np.save(folder / "in" / "x.npy", X)
    return folder / "in"


def shards(folder):
    (folder / "in").mkdir()
    for i in range(3):
        np.save(folder / "in" / f"edges-{i}-of-3.npy", ENDS[:, 100 * i : 100 * i + 100])
        np.save(folder / "in" / f"edge_w-{i}-of-3.npy", WEIGHT[100 * i : 100 * i + 100])
        np.save(folder / "in" / f"x-{i}-of-3.npy", X[14 * i : 14 * i + 14])
    return folder / "in"


def files_of(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def no_sync(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("make", [npz, stored, text, shards])
@pytest.mark.parametrize("undirected", [False, True])
def test_the_folder_does_not_depend_on_layout_and_memory(tmp_path, no_sync, make, undirected):
    spec = str(make(tmp_path))
    plain = GraphSource.from_arrays(40, ENDS, {"x": X}, {"edge_w": WEIGHT})
    options = {"weight_attr": "edge_w", "neighbor_ids": True}
    plain = symmetrized(plain) if undirected else plain
    khop.partition_graph(plain, tmp_path / "wanted", 3, **options)
    for memory, jobs in ((None, 2), (80_000, 1), (200_000, 2)):
        with Scratch.beside(tmp_path / "out", memory=memory) as scratch:
            source = read_source(spec, undirected=undirected, scratch=scratch)
            khop.partition_graph(
                source, tmp_path / "out", 3, memory=memory, jobs=jobs, overwrite=True, **options
            )
        assert files_of(tmp_path / "out") == files_of(tmp_path / "wanted")
        assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(0, 90), st.sampled_from([1, 9000]))
def test_undirected_against_brute_force(tmp_path_factory, seed, num_nodes, num_edges, memory):
    rng = np.random.default_rng(seed)
    ends = rng.integers(num_nodes, size=(2, num_edges))
    first = {}
    for i, (src, dst) in enumerate([*zip(*ends, strict=True), *zip(*ends[::-1], strict=True)]):
        first.setdefault((int(src), int(dst)), i % num_edges)
    source = GraphSource.from_arrays(num_nodes, ends, None, {"w": np.arange(num_edges)})
    for folder in (None, tmp_path_factory.mktemp("scratch") / "unpacked"):
        edge = symmetrized(source, Scratch(folder, memory)).edges[EDGE]
        assert [*zip(edge.src.tolist(), edge.dst.tolist(), strict=True)] == sorted(first)
        assert edge.attrs["w"].array.tolist() == [first[pair] for pair in sorted(first)]


def test_a_run_that_goes_on_unpacks_nothing_again(tmp_path, monkeypatch):
    """Also where another one opens the same source, with the same folder."""
    spec = str(npz(tmp_path))
    monkeypatch.setattr(scratch_module, "_write", counted := Counted(scratch_module._write))
    with pytest.raises(KeyboardInterrupt), Scratch.beside(tmp_path / "out") as scratch:
        read_source(spec, scratch=scratch)
        raise KeyboardInterrupt
    assert left_overs(tmp_path / "out") == [scratch.folder]
    (scratch.folder / "killed.new").mkdir()
    times = counted.times
    with Scratch.beside(tmp_path / "out") as scratch:
        source = read_source(spec, scratch=scratch)
        assert left_overs(tmp_path / "out") == []  # it is at work
        assert not (scratch.folder / "killed.new").exists()
        assert mapped_file(source.nodes[NODE].attrs["x"].array) is not None
        elsewhere = read_source(spec, scratch=Scratch(scratch.folder))
        assert elsewhere.edges[EDGE].src.tolist() == ENDS[0].tolist()
        assert counted.times == times
        with pytest.raises(BlockingIOError), Scratch.beside(tmp_path / "out"):
            pass
        np.savez_compressed(spec, edge_index=ENDS[:, :9], x=X)
        assert read_source(spec, scratch=scratch).edges[EDGE].num_edges == 9
        assert counted.times > times
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.npz"]


class Counted:
    def __init__(self, function):
        self.function, self.times = function, 0

    def __call__(self, *arguments):
        self.times += 1
        return self.function(*arguments)


def test_clear(tmp_path):
    scratch = Scratch(tmp_path / "unpacked")
    scratch.clear()
    scratch.table(["a"], lambda: [{"x": np.arange(3)}])
    with Scratch(tmp_path / "unpacked"):
        scratch.clear()
        assert scratch.folder.exists()
    scratch.table(["a"], lambda: [{"x": np.arange(3)}])
    scratch.clear()
    assert not scratch.folder.exists()


def test_no_room(tmp_path, monkeypatch):
    """Known before anything is unpacked if sizes are, as those of archives."""
    spec = str(npz(tmp_path))
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(scratch_module.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(OSError, match=r"must be unpacked to .*has 10 free: --tmp names another"):
        read_source(spec, scratch=Scratch(tmp_path / "unpacked"))


def test_tables_that_do_not_fit(tmp_path):
    for folder in (None, tmp_path / "unpacked"):
        table = Scratch(folder).table
        with pytest.raises(ValueError, match="columns differ in length"):
            table(["length"], lambda: [{"a": np.arange(2), "b": np.arange(3)}])
        with pytest.raises(ValueError, match=r"differ in shape: \[2\], then \[\]"):
            table(["shape"], lambda: [{"a": np.zeros((1, 2))}, {"a": np.zeros(1)}])
        with pytest.raises(TypeError, match="dtype 'complex128' is not supported"):
            table(["dtype"], lambda: [{"a": np.zeros(1, complex)}])
        assert table(["none"], lambda: ()) == {}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(0, 2**32))
def test_joined_rows_and_edges(lengths, seed):
    """Any rows in any order, any piece of edges, over shards some of which are empty."""
    rng = np.random.default_rng(seed)
    shards = [rng.random((n, 2)) for n in lengths]
    whole = np.concatenate(shards)
    joined = JoinedFeature([khop.data.Feature(rows) for rows in shards])
    rows = rng.integers(max(1, len(whole)), size=9 if len(whole) else 0)
    assert joined.gather(rows).tolist() == whole[rows].tolist()
    out, places = np.zeros((len(rows), 2)), rng.permutation(len(rows))
    joined.gather(rows, out, places)
    assert out[places].tolist() == whole[rows].tolist()
    for bad in (-1, len(whole)):
        with pytest.raises(IndexError):
            joined.gather(np.array([bad]))
    ends = [rng.integers(9, size=(2, n)) for n in lengths]
    edges = JoinedEdges([EdgeSource(*pair) for pair in ends], {})
    whole = np.concatenate(ends, axis=1)
    assert np.stack([edges.src, edges.dst]).tolist() == whole.tolist()
    assert np.stack(edges.endpoints()).tolist() == whole.tolist()
    first, last = sorted(rng.integers(whole.shape[1] + 1, size=2).tolist())
    assert np.stack(edges.piece(first, last - first)).tolist() == whole[:, first:last].tolist()


def test_labels_and_masks():
    scratch = Scratch()
    for values, dtype in (
        (np.array([[1.0], [2.0]]), np.int64),
        (np.array([1, 2], np.int8), np.int64),
        (np.array([1.0, np.nan]), np.float32),
        (np.array([0.5, 1]), np.float32),
        (np.array([[True, False]]), np.int64),
        (np.empty((0, 1)), np.int64),
    ):
        found = flat_labels(values, "key", scratch)
        assert found.dtype == dtype
        assert found.shape == (values.shape if values.shape[1:] == (2,) else values.shape[:1])
        assert np.array_equal(found, values.reshape(found.shape), equal_nan=dtype == np.float32)
    assert mask_of(np.array([2, 0, 2]), 4, "key", scratch, "it").tolist() == [1, 0, 1, 0]
    assert mask_between(1, 3, 4, scratch).tolist() == [0, 1, 1, 0]
    assert len(mask_of(np.empty(0, int), 0, "key", scratch, "it")) == 0


WITHIN = """
import resource, sys, json
from khop.sources import Scratch, read_source
from khop.partition import partition_graph
import pyarrow.parquet, pandas, multiprocessing
kind, spec, out = sys.argv[1:]
def held():
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) << 10
import threading, time
most, done = [0], threading.Event()
def watch():
    while not done.is_set():
        most[0] = max(most[0], held()); time.sleep(0.005)
before = held()
thread = threading.Thread(target=watch); thread.start()
with Scratch.beside(out, memory="16MB") as scratch:
    source = read_source(spec, undirected=kind == "undirected", scratch=scratch)
    partition_graph(source, out, 2, memory="16MB", jobs=1)
done.set(); thread.join()
print(json.dumps(most[0] - before))
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", ["deflated", "stored", "parquet", "undirected"])
def test_memory_is_bounded(tmp_path, kind):
    """64 MB of features and 24 MB of edges, in less than half of that."""
    rng = np.random.default_rng(0)
    ends, x = rng.integers(50_000, size=(2, 1_500_000)), np.zeros((50_000, 320), np.float32)
    spec = tmp_path / "g.npz"
    if kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        spec = tmp_path / "in"
        spec.mkdir()
        table = pyarrow.table({"src": ends[0], "dst": ends[1]})
        parquet.write_table(table, spec / "edges.parquet", row_group_size=len(ends[0]))
        np.save(spec / "x.npy", x)
    else:
        save = np.savez if kind != "deflated" else np.savez_compressed
        if kind == "deflated":  # what takes little time to pack
            ends = np.repeat(ends[:, :15_000], 100, axis=1)
        save(spec, edge_index=ends, x=x)
    done = subprocess.run(
        [sys.executable, "-c", WITHIN, kind, str(spec), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(khop.__file__).parents[1])},
    )
    assert json.loads(done.stdout) < 40 << 20
