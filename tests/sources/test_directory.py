"""Folders of tables and of shards: the same graph as in one array, read some rows at a time."""

from __future__ import annotations

import gzip
from itertools import pairwise

import numpy as np
import pandas
import pyarrow
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import parquet

from khop.data.files import mapped_file
from khop.partition import GraphSource
from khop.sources import Scratch, read_source, tables
from khop.sources.tables import read_columns, read_rows
from khop.typing import EDGE, NODE
from support.formats.sources import assert_same, edges_of

RNG = np.random.default_rng(0)
ENDS = RNG.integers(40, size=(300, 2))
WEIGHT = RNG.random(300)
X = RNG.random((40, 3), np.float32)


@pytest.fixture(params=["memory", "folder"])
def scratch(request, tmp_path):
    return Scratch(None if request.param == "memory" else tmp_path / "unpacked", memory=1 << 15)


def table(first=0, last=300):
    columns = {"src": ENDS[first:last, 0], "dst": ENDS[first:last, 1], "w": WEIGHT[first:last]}
    return pandas.DataFrame(columns)


def write(frame, file):
    """A table, in the format of the file's name."""
    file.parent.mkdir(exist_ok=True)
    if file.suffix == ".parquet":
        frame.to_parquet(file, index=False, row_group_size=50)
    elif file.suffix == ".npy":
        np.save(file, frame[["src", "dst"]].to_numpy())
    else:
        frame.to_csv(file, index=False)


def wanted(weights=True):
    attrs = {"w": WEIGHT} if weights else None
    return GraphSource.from_arrays(40, ENDS.T, {"x": X}, attrs)


BOUNDS = [0, 100, 101, 250, 300]
NAMES = {
    "one file": lambda i: "edges",
    "a folder": lambda i: f"edges/part-{3 * i}",  # 0, 3, 6, 9
    "many in a folder": lambda i: f"edges/part-{i + 8}",  # 8, 9, 10, 11: in order of numbers
    "shards": lambda i: f"edges-{i:05}-of-00004",
}


@pytest.mark.parametrize("kind", [".npy", ".csv", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("layout", NAMES)
def test_edges_in_parts(tmp_path, scratch, kind, layout):
    folder = tmp_path / "in"
    folder.mkdir()
    np.save(folder / "x.npy", X)
    bounds = [0, 300] if layout == "one file" else BOUNDS
    for i, (first, last) in enumerate(pairwise(bounds)):
        name = "edge_index" if layout == "one file" and kind == ".npy" else NAMES[layout](i)
        write(table(first, last), folder / f"{name}{kind}")
    if layout.endswith("folder"):
        (folder / "edges" / "_SUCCESS").touch()
        (folder / "edges" / ".part-0.crc").touch()
    assert_same(read_source(str(folder), scratch=scratch), wanted(kind != ".npy"))


def test_a_parquet_data_set(tmp_path, scratch):
    """A folder of parts that is called as a file is, with rows of lists; nodes, too."""
    folder = tmp_path / "in"
    for i, (first, last) in enumerate(pairwise(BOUNDS)):
        (folder / "edges.parquet").mkdir(parents=True, exist_ok=True)
        write(table(first, last), folder / "edges.parquet" / f"part-{i:05}-9f3c.snappy.parquet")
    (folder / "nodes").mkdir()
    for i, rows in enumerate(np.array_split(X, 3)):
        lists = (
            pyarrow.array(list(rows))
            if i
            else pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.reshape(-1)), 3)
        )
        parquet.write_table(pyarrow.table({"x": lists}), folder / "nodes" / f"{i}.parquet")
    assert_same(read_source(str(folder), scratch=scratch), wanted())


def test_shards_of_attributes_are_mapped(tmp_path):
    np.save(tmp_path / "edge_index.npy", ENDS.T)
    for i, rows in enumerate(np.array_split(X, 3)):
        np.save(tmp_path / f"x-{i:05}-of-00003.npy", rows)
    source = read_source(str(tmp_path))
    assert_same(source, wanted(False))
    content = source.nodes[NODE].attrs["x"].content()
    assert len(content) == 3
    assert all(mapped_file(rows) is not None for rows in content)


def test_shards_by_columns(tmp_path):
    """[2, E] and [E, 2]; two edges in one are told apart by the others."""
    for i, last in enumerate((2, 7, 9)):
        np.save(tmp_path / f"edges-{i}-of-3.npy", ENDS[[0, 2, 7][i] : last].T)
    assert edges_of(read_source(str(tmp_path))) == ENDS[:9].T.tolist()
    for i, last in enumerate((2, 7, 9)):
        np.save(tmp_path / f"edges-{i}-of-3.npy", ENDS[[0, 2, 7][i] : last])
    assert edges_of(read_source(str(tmp_path))) == ENDS[:9].T.tolist()


def bad_missing(folder):
    write(table(), folder / "edges-0-of-2.csv")


def bad_kinds(folder):
    write(table(), folder / "edges" / "0.csv")
    write(table(), folder / "edges" / "1.parquet")


def bad_two(folder):
    write(table(), folder / "edges.csv")
    write(table(), folder / "edges-0-of-1.csv")


def bad_inside(folder):
    (folder / "edges" / "year=2020").mkdir(parents=True)


def bad_columns(folder):
    write(table(), folder / "edges" / "0.csv")
    write(table().rename(columns={"w": "v"}), folder / "edges" / "1.csv")


def bad_gzip(folder):
    (folder / "edges.csv.gz").write_bytes(gzip.compress(b"0,1\n1,2\n" * 1000)[:-20])


def bad_lists(folder):
    lists = pyarrow.table({"src": [0, 1], "dst": [1, 0], "w": [[1.0], [1.0, 2.0]]})
    parquet.write_table(lists, folder / "edges.parquet")


def bad_shards(folder):
    np.save(folder / "edge_index.npy", ENDS.T)
    np.save(folder / "x-0-of-2.npy", X[:9])
    np.save(folder / "x-1-of-2.npy", X[9:, :2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (bad_missing, "holds 1 of the 2 files that 'edges-0-of-2.csv' is one of"),
        (bad_kinds, r"edges/\*\.csv and edges/\*\.parquet: keep one"),
        (bad_two, "keep one of them"),
        (bad_inside, "year=2020' is not one of .npy"),
        (bad_columns, r"columns differ .*\['src', 'dst', 'w'\], then \['src', 'dst', 'v'\]"),
        (bad_gzip, "is not a CSV file of numbers, or damaged"),
        (bad_lists, "lists of column 'w' of .* differ in length"),
        (bad_shards, r"pieces of one feature differ: rows of float32 \[3\] and of float32 \[2\]"),
    ],
)
def test_bad_parts(tmp_path, make, message):
    make(tmp_path)
    with pytest.raises(ValueError, match=message):
        read_source(str(tmp_path))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["1", "-7", "0.5", "", "1e3"]), min_size=1, max_size=60))
def test_dtypes_of_pieces(tmp_path_factory, values):
    """Whatever a column turns out to be late in a file: as pandas reads all of it at once."""
    file = tmp_path_factory.mktemp("csv") / "t.csv"
    file.write_text("i,v\n" + "".join(f"{i},{v}\n" for i, v in enumerate(values)))
    whole = pandas.read_csv(file)["v"].to_numpy()
    found = read_columns([file], Scratch(file.parent / "unpacked", memory=1))["v"]
    assert found.dtype == whole.dtype
    assert found.tobytes() == whole.tobytes()
    frame = pandas.read_csv(file, header=None, skiprows=1).to_numpy()
    file.write_text("".join(f"{i},{v}\n" for i, v in enumerate(values)))
    rows = read_rows([file], Scratch(file.parent / "unpacked", memory=1))
    assert (rows.dtype, rows.tobytes()) == (frame.dtype, frame.tobytes())


def test_missing_values_of_parquet(tmp_path):
    """Integers with gaps are floats, also those of parts without any."""
    for i, rows in enumerate(([1, 2], [3, None])):
        columns = {"src": [0, 1], "dst": [1, 0], "w": pyarrow.array(rows, pyarrow.int64())}
        (tmp_path / "edges").mkdir(exist_ok=True)
        parquet.write_table(pyarrow.table(columns), tmp_path / "edges" / f"{i}.parquet")
    source = read_source(str(tmp_path), scratch=Scratch(memory=1))
    assert source.edges[EDGE].attrs["w"].array[:3].tolist() == [1, 2, 3]
    assert np.isnan(source.edges[EDGE].attrs["w"].array[3])


@pytest.mark.parametrize("endless", [b"7" * (4 << 20), b'"' + b"7,7\n" * (1 << 20)])
def test_rows_without_an_end(tmp_path, monkeypatch, endless):
    """4 MB in 4 kB: a line that does not end, and a quote that is not closed."""
    monkeypatch.setattr(tables, "_MOST_READ", 1 << 20)
    with gzip.open(tmp_path / "edges.csv.gz", "wb") as file:
        file.write(b"0,1\n1,0\n" + endless)
    with pytest.raises(ValueError, match="its rows are longer than any of numbers"):
        read_columns([tmp_path / "edges.csv.gz"], Scratch(memory=1))


def test_the_bound_of_rows_is_for_those_read_at_a_time(tmp_path, monkeypatch):
    """Files are longer: 2 MB, of which 256 KiB are read at a time."""
    monkeypatch.setattr(tables, "_MOST_READ", 1 << 19)
    with gzip.open(tmp_path / "edges.csv.gz", "wb") as file:
        file.write(b"10,21\n" * 300_000)
    assert (
        len(read_columns([tmp_path / "edges.csv.gz"], Scratch(memory=1 << 22))["edge_attr_0"])
        == 300_000
    )
