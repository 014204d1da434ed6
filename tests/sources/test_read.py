"""What the command line reads as a graph; in this process, the commands themselves elsewhere."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.transforms import ToUndirected

from khop.partition import GraphSource
from khop.sources import read_source
from khop.sources.symmetrized import symmetrized
from khop.typing import EDGE, NODE
from support.formats.bomb import Bomb

EDGES = np.array([[0, 1, 2, 2], [1, 2, 0, 3]])


def edges_of(source):
    return np.stack([source.edges[EDGE].src, source.edges[EDGE].dst]).tolist()


def directory(tmp_path, **arrays):
    for name, values in arrays.items():
        np.save(tmp_path / f"{name}.npy", values)
    return str(tmp_path)


@pytest.mark.parametrize("layout", [EDGES, EDGES.T, EDGES.astype(np.int32), EDGES.astype("u2")])
def test_edge_index_npy(tmp_path, layout):
    source = read_source(directory(tmp_path, edge_index=layout))
    assert edges_of(source) == EDGES.tolist()
    assert source.nodes[NODE].count == 4  # the largest id and one


def test_npy_attributes_are_mapped(tmp_path):
    x, mask = np.arange(12.0).reshape(6, 2), np.arange(6) < 3
    path = directory(tmp_path, edge_index=EDGES, x=x, train_mask=mask, edge_time=np.arange(4))
    source = read_source(path)
    assert source.nodes[NODE].count == 6
    assert set(source.nodes[NODE].attrs) == {"x", "train_mask"}
    assert source.nodes[NODE].attrs["train_mask"].dtype == "bool"
    assert set(source.edges[EDGE].attrs) == {"edge_time"}
    base = source.nodes[NODE].attrs["x"].array
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap) or type(base).__name__ == "mmap"


@pytest.mark.parametrize("head", ["src,dst,weight\n", "a,b,weight\n", "dst,weight,src\n"])
def test_csv_with_names(tmp_path, head):
    rows = [f"{s},{d},{i / 4}" for i, (s, d) in enumerate(EDGES.T)]
    if head.startswith("dst"):
        rows = [",".join([r.split(",")[i] for i in (1, 2, 0)]) for r in rows]
    (tmp_path / "edges.csv").write_text(head + "\n".join(rows) + "\n")
    source = read_source(str(tmp_path))
    assert edges_of(source) == EDGES.tolist()
    assert source.edges[EDGE].attrs["weight"].array.tolist() == [0, 0.25, 0.5, 0.75]


def test_csv_without_names(tmp_path):
    (tmp_path / "edges.csv").write_text("0, 1, 7\n1, 2, 8\n")
    source = read_source(str(tmp_path))
    assert edges_of(source) == [[0, 1], [1, 2]]
    assert source.edges[EDGE].attrs["edge_attr_2"].array.tolist() == [7, 8]


@pytest.mark.parametrize(
    "text",
    [
        '"0","1"\n"1","2"\n"2","0"\n',
        "\ufeff0,1\n1,2\n2,0\n",
        '\ufeff"0","1"\n1,2\n2,0',
        "\n\n0,1\n1,2\n2,0\n",
        "0,1\r\n1,2\r\n2,0\r\n",
        "0 , 1\n1, 2\n2 ,0\n",
        "src,dst\n0,1\n1,2\n2,0\n",
        '\ufeff"src", "dst"\n"0","1"\n1,2\n2,0\n',
        "\nfrom,to\n0,1\n1,2\n2,0\n",
    ],
)
def test_no_edge_of_a_csv_is_lost(tmp_path, text):
    """However its first line is written: 0 -> 1 -> 2 -> 0."""
    (tmp_path / "edges.csv").write_bytes(text.encode())
    assert edges_of(read_source(str(tmp_path))) == [[0, 1, 2], [1, 2, 0]]


@pytest.mark.parametrize("text", ["0,1", '"0","1"', "\ufeff0,1\n", "src,dst\n0,1"])
def test_a_csv_of_one_edge(tmp_path, text):
    (tmp_path / "edges.csv").write_bytes(text.encode())
    assert edges_of(read_source(str(tmp_path))) == [[0], [1]]


def test_a_first_line_with_a_value_missing(tmp_path):
    """It is an edge all the same."""
    (tmp_path / "edges.csv").write_text("0,1,\n1,2,0.5\n")
    values = read_source(str(tmp_path)).edges[EDGE].attrs["edge_attr_2"].array
    assert np.isnan(values[0])
    assert values[1] == 0.5


def test_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"kind": [1, 2, 3, 4], "dst": EDGES[1], "src": EDGES[0]})
    table.to_parquet(tmp_path / "edges.parquet")
    source = read_source(str(tmp_path))
    assert edges_of(source) == EDGES.tolist()
    assert source.edges[EDGE].attrs["kind"].array.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("file", "content", "error", "message"),
    [
        ("x.npy", np.zeros(3), FileNotFoundError, "holds none of edge_index.npy"),
        ("edge_index.npy", np.zeros((2, 3)), TypeError, "must hold integer node ids"),
        ("edge_index.npy", np.zeros((3, 4), int), ValueError, r"\[2, E\] or \[E, 2\].*\[3, 4\]"),
        ("edge_index.npy", np.array([{}]), ValueError, "cannot be read as an array of numbers"),
        ("edge_index.npy", b"no array", ValueError, "cannot be read as an array of numbers"),
        ("edges.csv", b"", ValueError, "is empty"),
        ("edges.csv", b"0\n1\n", ValueError, "two columns or more"),
        ("edges.csv", b"src,dst\n0,1\n2,\n", TypeError, "must hold integer node ids"),
        (
            "edges.csv",
            b"src,dst,name\n0,1,bob\n",
            TypeError,
            r"'name' of .* holds text \('bob'\)",
        ),
        ("edges.csv", b"0,1\n1,2,3,4\n", ValueError, "is not a CSV file"),
        ("edges.csv", b"#0,1\n1,2\n", ValueError, "neither names columns nor is an edge"),
        ("edges.csv", b"src,dst\n0,1,7\n1,2,8\n", ValueError, "is not a CSV file"),
        ("edges.csv", b"0,1\n\xff,2\n", ValueError, "is not a CSV file in UTF-8"),
        ("edges.parquet", b"PAR", ValueError, "is not a Parquet file"),
    ],
)
def test_bad_directories(tmp_path, file, content, error, message):
    if isinstance(content, bytes):
        (tmp_path / file).write_bytes(content)
    else:
        np.save(tmp_path / file, content, allow_pickle=True)
    with pytest.raises(error, match=message):
        read_source(str(tmp_path))


@pytest.mark.parametrize("content", ["objects", "a pickle", "a long header", "code"])
def test_numpy_s_advice_is_not_passed_on(tmp_path, content):
    """It is to allow pickles."""
    np.save(tmp_path / "edge_index.npy", EDGES)
    file = tmp_path / "x.npy"
    if content == "objects":
        np.save(file, np.array([Bomb()]), allow_pickle=True)
    elif content == "a pickle":
        file.write_bytes(pickle.dumps(Bomb()))
    elif content == "a long header":
        file.write_bytes(b"\x93NUMPY\x02\x00" + (20_000).to_bytes(4, "little") + b" " * 20_000)
    else:
        header = b"{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,)}\n"
        file.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(ValueError, match=r"x\.npy' cannot be read as an array") as raised:
        read_source(str(tmp_path))
    assert not any(word in str(raised.value) for word in ("pickle", "trust", "unsafe"))
    assert not Path("exploded").exists()


@pytest.mark.parametrize("name", ["x.npy", "edge_weight.npy", "x.npy of a link"])
def test_a_fifo_is_not_waited_for(tmp_path, name):
    np.save(tmp_path / "edge_index.npy", EDGES)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "fifo").rename(tmp_path / name) if "link" not in name else (
        tmp_path / "x.npy"
    ).symlink_to(tmp_path / "fifo")
    with pytest.raises(ValueError, match=r"\.npy' is no regular file"):
        read_source(str(tmp_path))


def test_links_are_followed(tmp_path):
    """Large files may lie elsewhere."""
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "elsewhere.npy", EDGES)
    (tmp_path / "in" / "edge_index.npy").symlink_to(tmp_path / "elsewhere.npy")
    assert edges_of(read_source(str(tmp_path / "in"))) == EDGES.tolist()


def test_attributes_that_do_not_fit(tmp_path):
    path = directory(tmp_path, edge_index=EDGES, x=np.zeros((4, 2)), train_idx=np.arange(2))
    with pytest.raises(ValueError, match="'train_idx' of node type 'node' has 2 rows for 4 nodes"):
        read_source(path)


def test_two_edge_files(tmp_path):
    (tmp_path / "edges.csv").write_text("0,1\n")
    with pytest.raises(ValueError, match=r"edge_index.npy and edges.csv: keep one"):
        read_source(directory(tmp_path, edge_index=EDGES))


def test_without_the_packages_that_a_file_needs(tmp_path, monkeypatch):
    (tmp_path / "edges.csv").write_text("0,1\n")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs package pandas: pip install pandas"):
        read_source(str(tmp_path))


def test_missing_source_is_refused():
    with pytest.raises(FileNotFoundError, match="'nowhere' does not exist: a source is a file or"):
        read_source("nowhere")


def test_undirected():
    """0 -> 1, 1 -> 0 (another weight), 1 -> 2, 2 -> 2: of equal edges the first stays."""
    edges = np.array([[0, 1, 1, 2], [1, 0, 2, 2]])
    weight = {"w": np.array([10, 20, 30, 40])}
    source = symmetrized(GraphSource.from_arrays(3, edges, None, weight))
    assert edges_of(source) == [[0, 1, 1, 2, 2], [1, 0, 2, 1, 2]]
    assert source.edges[EDGE].attrs["w"].array.tolist() == [10, 20, 30, 30, 40]


def test_undirected_without_edges_and_with_bad_ones():
    nothing = np.empty((2, 0), np.int64)
    assert edges_of(symmetrized(GraphSource.from_arrays(0, nothing))) == [[], []]
    with pytest.raises(IndexError, match="not one of the 3 nodes"):
        symmetrized(GraphSource.from_arrays(3, [[0], [3]]))


def test_undirected_heterogeneous():
    """Within a type as in a homogeneous graph; between types a type of its own, as PyG has it."""
    edges = {("a", "to", "a"): [[0, 1], [1, 0]], ("a", "of", "b"): [[1, 0, 1], [0, 2, 2]]}
    weight = {"w": {("a", "of", "b"): np.array([5, 6, 7])}}
    source = GraphSource.from_arrays({"a": 2, "b": 3}, edges, None, weight)
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 2, 3
    for edge_type, ends in edges.items():
        data[edge_type].edge_index = torch.tensor(ends)
    wanted = GraphSource.from_data(ToUndirected()(data))
    both = symmetrized(source)
    assert set(both.edges) == set(wanted.edges)
    for edge_type, edge in both.edges.items():
        assert edge.src.tolist() == wanted.edges[edge_type].src.tolist()
        assert edge.dst.tolist() == wanted.edges[edge_type].dst.tolist()
    assert both.edges["b", "rev_of", "a"].attrs["w"].array.tolist() == [5, 6, 7]
    with pytest.raises(ValueError, match=r"rev_of.* is there already"):
        symmetrized(both)
