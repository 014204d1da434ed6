"""Layouts of other projects: DGL's chunked format, MAG240M, IGB; against NumPy's plain reading."""

from __future__ import annotations

import json
import os

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from pyarrow import parquet

from khop.data.files import mapped_file
from khop.partition import GraphSource
from khop.sources import Scratch, igb, read_source
from khop.sources.torch_files import containers_admitted
from khop.typing import EDGE, NODE
from support.formats.sources import assert_same


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


@pytest.fixture(params=["memory", "folder"])
def scratch(request, tmp_path):
    return Scratch(None if request.param == "memory" else tmp_path / "unpacked", memory=1 << 15)


# DGL's chunked format.

CITES, WRITES = "paper:cites:paper", "author:writes:paper"


def write_rows(file, rows, form, delimiter):
    """One chunk, as DGL's own writers of arrays do it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if form == "numpy":
        with file.open("wb") as opened:
            np.save(opened, rows)
    elif form == "csv":
        flat = rows.reshape(len(rows), -1)
        pandas.DataFrame(flat).to_csv(file, header=False, index=False, sep=delimiter)
    else:
        table = pyarrow.Table.from_pandas(pandas.DataFrame(rows.reshape(len(rows), -1)))
        shape = {"shape": str(rows.shape)}
        parquet.write_table(table.replace_schema_metadata(shape), file, row_group_size=7)


def entry(root, name, rows, form, chunks, delimiter):
    """Writes chunks of an array and returns what metadata.json says of them."""
    paths = [f"{name}/{i}.{form}" for i in range(chunks)]
    for path, piece in zip(paths, np.array_split(rows, chunks), strict=True):
        write_rows(root / path, piece, form, delimiter)
    return {"format": {"name": form, "delimiter": delimiter}, "data": paths}


def chunked(root, form, chunks, keys="chunk", delimiter=","):
    """Papers that cite and are written; returns the graph that it is."""
    rng = np.random.default_rng(0)
    counts = {"paper": 60, "author": 25}
    edges = {CITES: rng.integers(60, size=(200, 2)), WRITES: rng.integers(25, size=(90, 2))}
    x, year = rng.random((60, 4)), rng.integers(2000, size=60)
    cube, weight = rng.random((25, 2, 3)), rng.random(90)
    nested = cube if form != "csv" else cube.reshape(25, 6)
    describe = lambda name, rows, n=chunks: entry(root, name, rows, form, n, delimiter)  # noqa: E731
    numbers = {
        f"num_{of}s_per_{keys}": [
            n if keys == "type" else [len(p) for p in np.array_split(range(n), chunks)]
            for n in sizes
        ]
        for of, sizes in (("node", counts.values()), ("edge", map(len, edges.values())))
    }
    description = {
        "graph_name": "tiny",
        "node_type": [*counts],
        "edge_type": [*edges],
        **numbers,
        "edges": {name: describe(f"edges-{i}", edges[name]) for i, name in enumerate(edges)},
        "node_data": {
            "paper": {"feat": describe("feat", x, 1), "year": describe("year", year)},
            "author": {"cube": describe("cube", cube, 3)},
        },
        "edge_data": {WRITES: {"weight": describe("weight", weight)}},
    }
    (root / "metadata.json").write_text(json.dumps(description))
    types = {name: tuple(name.split(":")) for name in edges}
    return description, GraphSource.from_arrays(
        counts,
        {types[name]: ends.T for name, ends in edges.items()},
        {"feat": {"paper": x}, "year": {"paper": year}, "cube": {"author": nested}},
        {"weight": {types[WRITES]: weight}},
    )


@pytest.mark.parametrize("form", ["numpy", "csv", "parquet"])
@pytest.mark.parametrize(
    ("chunks", "keys", "delimiter"), [(1, "chunk", ","), (3, "type", " "), (11, "chunk", "|")]
)
def test_chunked(tmp_path, scratch, form, chunks, keys, delimiter):
    _, wanted = chunked(tmp_path / "in", form, chunks, keys, delimiter)
    assert_same(read_source(str(tmp_path / "in"), scratch=scratch), wanted)
    assert_same(read_source(str(tmp_path / "in" / "metadata.json"), scratch=scratch), wanted)


def test_chunked_with_one_type_of_each_is_homogeneous(tmp_path):
    description, _ = chunked(tmp_path, "numpy", 2)
    for key in ("node_type", "edge_type", "num_nodes_per_chunk", "num_edges_per_chunk"):
        del description[key][1]
    (tmp_path / "metadata.json").write_text(json.dumps(description))
    source = read_source(str(tmp_path))
    assert ([*source.nodes], [*source.edges], source.heterogeneous) == ([NODE], [EDGE], False)


BAD = [
    ({"num_nodes_per_chunk": [[30, 31], [25]]}, "has 60 rows for 61 nodes"),
    ({"num_edges_per_chunk": [[200], [91]]}, f"files of '{WRITES}' hold 90 edges, not 91"),
    ({"num_edges_per_chunk": [[200]]}, "for each of 2 types"),
    ({"num_nodes_per_chunk": [[60], ["x"]]}, "must be an integer"),
    ({"num_nodes_per_chunk": [[60], [-1]]}, "must be from 0"),
    ({"num_nodes_per_chunk": [[60], [2**70]]}, "must be from 0"),
    ({"node_type": 5}, "no list of names 'node_type'"),
    ({"edge_type": ["cites", WRITES]}, "is no edge type SOURCE:RELATION:DESTINATION"),
    ({"edges": {}}, "'paper:cites:paper' of 'edges' of .*must be an object"),
    ({"edges": []}, "must be an object"),
    ({"edges": {CITES: {"format": {"name": "pickle"}, "data": ["a"]}}}, "format 'pickle'"),
    ({"edges": {CITES: {"format": {"name": "csv"}, "data": []}}}, "must name files"),
    ({"edges": {CITES: {"format": {"name": "csv"}, "data": ["../.."]}}}, "no regular file"),
    ({"edges": {CITES: {"format": {"name": "csv", "delimiter": ".*"}, "data": ["a"]}}}, "one char"),
    ({"edges": {CITES: {"format": {"name": "csv"}, "data": ["gone.csv"]}}}, "gone.csv"),
    (
        {
            "edges": {
                CITES: {"format": {"name": "csv"}, "data": ["metadata.json", "./metadata.json"]}
            }
        },
        "a file twice",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_descriptions(tmp_path, change, message):
    description, _ = chunked(tmp_path, "numpy", 1)
    (tmp_path / "metadata.json").write_text(json.dumps({**description, **change}))
    with pytest.raises((ValueError, TypeError, OSError), match=message):
        read_source(str(tmp_path))


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000, b"\xff", b"[]"])
def test_no_description(tmp_path, content):
    (tmp_path / "metadata.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"metadata\.json' (is no JSON|must be an object)"):
        read_source(str(tmp_path))


def test_a_shape_that_does_not_fit(tmp_path):
    chunked(tmp_path, "parquet", 1)
    table = parquet.read_table(tmp_path / "cube" / "0.parquet")
    table = table.replace_schema_metadata({"shape": "(25, 5)"})
    parquet.write_table(table, tmp_path / "cube" / "0.parquet")
    with pytest.raises(ValueError, match=r"has 6 values a row, but its 'shape' says \[5\]"):
        read_source(str(tmp_path))


# MAG240M.


def mag240m(root):
    """Forty papers, ten authors, three institutions."""
    rng = np.random.default_rng(1)
    counts = {"paper": 40, "author": 10, "institution": 3}
    folder = root / "mag240m_kddcup2021"
    for src, name, dst in (
        ("author", "affiliated_with", "institution"),
        ("author", "writes", "paper"),
        ("paper", "cites", "paper"),
    ):
        path = folder / "processed" / f"{src}___{name}___{dst}"
        path.mkdir(parents=True)
        ends = np.stack([rng.integers(counts[src], size=70), rng.integers(counts[dst], size=70)])
        np.save(path / "edge_index.npy", ends)
    papers = folder / "processed" / "paper"
    papers.mkdir()
    np.save(papers / "node_feat.npy", rng.random((40, 8)).astype(np.float16))
    np.save(papers / "node_label.npy", np.where(np.arange(40) < 25, np.arange(40) % 4, np.nan))
    np.save(papers / "node_year.npy", rng.integers(1990, 2021, size=40))
    torch.save({**counts, "num_classes": 4}, folder / "meta.pt")
    names = ("train", "valid", "test-dev", "test-challenge", "test-whole")
    ids = (np.arange(10), np.arange(10, 15), np.arange(15, 20), np.arange(20, 25))
    split = dict(zip(names, (*ids, np.arange(15, 25)), strict=True))
    torch.save(split, folder / "split_dict.pt")
    (folder / "RELEASE_v1.txt").touch()
    return folder


def test_mag240m_as_ogb_reads_it(tmp_path, scratch):
    lsc = pytest.importorskip("ogb.lsc")
    folder = mag240m(tmp_path)
    source = read_source("ogb:mag240m", str(tmp_path), scratch=scratch)
    assert_same(read_source(str(folder), scratch=scratch), source)
    with containers_admitted():
        oracle = lsc.MAG240MDataset(str(tmp_path))
    edges = {e: oracle.edge_index(e[0], e[1], e[2]) for e in source.edges}
    masks = {}
    for mask, split in (
        ("train_mask", "train"),
        ("val_mask", "valid"),
        ("test_mask", "test-whole"),
    ):
        masks[mask] = {"paper": np.isin(np.arange(40), oracle.get_idx_split(split))}
    attrs = {"x": oracle.paper_feat, "year": oracle.paper_year}
    attrs["y"] = oracle.paper_label.astype(np.float32)
    wanted = GraphSource.from_arrays(
        {"author": 10, "institution": 3, "paper": 40},
        edges,
        {**{name: {"paper": rows} for name, rows in attrs.items()}, **masks},
    )
    assert_same(source, wanted)
    assert mapped_file(source.nodes["paper"].attrs["x"].array) is not None


@pytest.mark.parametrize("file", ["meta.pt", "split_dict.pt"])
def test_mag240m_s_pickles_are_not_run(tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)
    folder = mag240m(tmp_path)
    torch.save({"train": Bomb()}, folder / file)
    with pytest.raises(ValueError, match="holds more than numbers, or is damaged"):
        read_source(str(folder))
    assert not (tmp_path / "exploded").exists()
    torch.save([1], folder / file)
    with pytest.raises(ValueError, match="holds no"):
        read_source(str(folder))


# IGB.

TYPES = {"paper": 50, "author": 30, "institute": 4, "fos": 9}
RELATIONS = [
    ("paper", "cites", "paper"),
    ("paper", "written_by", "author"),
    ("author", "affiliated_to", "institute"),
    ("paper", "topic", "fos"),
]


def igb_data(root, size, bare):
    """A data set of a size, some of its arrays without NumPy's header; returns its arrays."""
    rng = np.random.default_rng(2)
    processed = root / size / "processed"
    arrays = {}
    for name, count in TYPES.items():
        (processed / name).mkdir(parents=True)
        arrays[f"{name}/node_feat"] = rng.random((count, 1024), np.float32)
    for stem, classes in (("node_label_19", 19), ("node_label_2K", 2983)):
        arrays[f"paper/{stem}"] = rng.integers(classes, size=50).astype(np.float32)
    for src, name, dst in RELATIONS:
        ends = np.stack([rng.integers(TYPES[src], size=80), rng.integers(TYPES[dst], size=80)], 1)
        (processed / f"{src}__{name}__{dst}").mkdir()
        arrays[f"{src}__{name}__{dst}/edge_index"] = ends
    for name, rows in arrays.items():
        if bare and name.startswith(("paper/", "author/")):
            rows.tofile(processed / f"{name}.npy")
        else:
            np.save(processed / f"{name}.npy", rows)
    return arrays


@pytest.mark.parametrize("size", ["small", "large", "full"])
def test_igb(tmp_path, monkeypatch, scratch, size):
    monkeypatch.setattr(igb, "COUNTS", {s: {"paper": 50, "author": 30} for s in ("large", "full")})
    monkeypatch.setattr(igb, "LABELLED", {"full": 40})
    arrays = igb_data(tmp_path, size, bare=size != "small")
    labelled = 40 if size == "full" else 50
    train, val = int(labelled * 0.6), int(labelled * 0.2)
    ids = np.arange(50)
    of_papers = {
        "x": arrays["paper/node_feat"],
        "y": arrays["paper/node_label_19"].astype(np.int64),
        "y_2K": arrays["paper/node_label_2K"].astype(np.int64),
        "train_mask": ids < train,
        "val_mask": (ids >= train) & (ids < train + val),
        "test_mask": (ids >= train + val) & (ids < labelled),
    }
    edges = {e: arrays[f"{'__'.join(e)}/edge_index"].T for e in RELATIONS}
    homogeneous = GraphSource.from_arrays(50, edges[RELATIONS[0]], of_papers)
    attrs = {name: {"paper": rows} for name, rows in of_papers.items()}
    attrs["x"] = {name: arrays[f"{name}/node_feat"] for name in TYPES}
    wanted = GraphSource.from_arrays(TYPES, edges, attrs)
    assert_same(read_source(f"igb:{size}", str(tmp_path), scratch=scratch), homogeneous)
    found = read_source(f"igbh:{size}", str(tmp_path), scratch=scratch)
    assert_same(found, wanted)
    assert_same(read_source(str(tmp_path / size), scratch=scratch), wanted)
    for node in found.nodes.values():
        assert mapped_file(node.attrs["x"].array) is not None
    both = read_source(f"igbh:{size}", str(tmp_path), undirected=True, scratch=scratch)
    reverse = both.edges["author", "rev_written_by", "paper"]
    assert [reverse.dst.tolist(), reverse.src.tolist()] == edges[RELATIONS[1]].tolist()


def test_igb_of_the_wrong_size(tmp_path, monkeypatch):
    igb_data(tmp_path, "large", bare=True)
    with pytest.raises(ValueError, match=r"204,800 bytes: 100,000,000 rows of 4096 bytes are 409,"):
        read_source("igb:large", str(tmp_path))
    monkeypatch.setattr(igb, "COUNTS", {})
    file = tmp_path / "large" / "processed" / "author" / "node_feat.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="has no header of NumPy, and 122,879 bytes"):
        read_source("igbh:large", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="is no data set of IGB"):
        read_source("igb:tiny", str(tmp_path))
