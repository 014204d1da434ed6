"""OGB's data sets: read from what is downloaded, and by OGB's own package, the oracle."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from khop.data.files import mapped_file
from khop.partition import GraphSource
from khop.sources import Scratch, read_source
from khop.sources.ogb import read_with_ogb
from khop.typing import NODE
from support.formats import ogb_saved
from support.formats.sources import assert_same, edges_of

pytest.importorskip("ogb")


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def write_csv(file, rows):
    """A gzipped CSV without names, as OGB has them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame(rows).to_csv(file, header=False, index=False, compression="gzip")


def write_split(folder, count, version=1, node_type=""):
    """A split by thirds, and the file by which OGB knows the version."""
    for name, ids in ogb_saved.thirds(count).items():
        write_csv(folder / node_type / f"{name}.csv.gz", ids)
    dataset = folder.parents[1]
    (dataset / f"RELEASE_v{version}.txt").touch()


def papers(root, save):
    """papers100M's layout: NumPy's archive, labels with NaN for nodes without."""
    rng = np.random.default_rng(0)
    raw = root / "ogbn_papers100M" / "raw"
    raw.mkdir(parents=True)
    save(
        raw / "data.npz",
        edge_index=rng.integers(50, size=(2, 400)),
        num_nodes_list=np.array([50]),
        num_edges_list=np.array([400]),
        node_feat=rng.random((50, 8), np.float32),
        node_year=rng.integers(1990, 2020, size=(50, 1)),
    )
    labels = rng.integers(5, size=(50, 1)).astype(np.float32)
    labels[rng.random(50) < 0.5] = np.nan
    save(raw / "node-label.npz", node_label=labels)
    write_split(raw.parent / "split" / "time", 50)
    return "ogbn-papers100M"


def products(root):
    """Text, one direction of each edge."""
    rng = np.random.default_rng(1)
    raw = root / "ogbn_products" / "raw"
    write_csv(raw / "edge.csv.gz", rng.integers(30, size=(200, 2)))
    write_csv(raw / "num-node-list.csv.gz", [30])
    write_csv(raw / "num-edge-list.csv.gz", [200])
    write_csv(raw / "node-feat.csv.gz", rng.normal(size=(30, 4)).round(6))
    write_csv(raw / "node-label.csv.gz", rng.integers(47, size=30))
    write_split(raw.parent / "split" / "sales_ranking", 30)
    return "ogbn-products"


def proteins(root):
    """Text; edge features, several labels a node, no node features."""
    rng = np.random.default_rng(2)
    raw = root / "ogbn_proteins" / "raw"
    write_csv(raw / "edge.csv.gz", rng.integers(20, size=(60, 2)))
    write_csv(raw / "edge-feat.csv.gz", rng.random((60, 8)).round(3))
    write_csv(raw / "num-node-list.csv.gz", [20])
    write_csv(raw / "num-edge-list.csv.gz", [60])
    write_csv(raw / "species.csv.gz", rng.integers(9999, size=20))
    write_csv(raw / "node-label.csv.gz", rng.integers(2, size=(20, 112)))
    write_split(raw.parent / "split" / "species", 20)
    return "ogbn-proteins"


def mag(root):
    """Text of several types: papers alone have features, years, labels and a split."""
    rng = np.random.default_rng(3)
    counts = {"author": 12, "field_of_study": 5, "institution": 3, "paper": 20}
    raw = root / "ogbn_mag" / "raw"
    raw.mkdir(parents=True)
    frame = pandas.DataFrame({node_type: [count] for node_type, count in counts.items()})
    frame.to_csv(raw / "num-node-dict.csv.gz", index=False, compression="gzip")
    triplets = [
        ("author", "affiliated_with", "institution"),
        ("author", "writes", "paper"),
        ("paper", "cites", "paper"),
        ("paper", "has_topic", "field_of_study"),
    ]
    write_csv(raw / "triplet-type-list.csv.gz", triplets)
    for i, (src, name, dst) in enumerate(triplets):
        folder = raw / "relations" / f"{src}___{name}___{dst}"
        ends = rng.integers([counts[src], counts[dst]], size=(40, 2))
        write_csv(folder / "edge.csv.gz", ends)
        write_csv(folder / "num-edge-list.csv.gz", [40])
        write_csv(folder / "edge_reltype.csv.gz", np.full(40, i))
    write_csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", rng.random((20, 6)).round(5))
    write_csv(raw / "node-feat" / "paper" / "node_year.csv.gz", rng.integers(2020, size=20))
    write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", rng.integers(349, size=20))
    has = pandas.DataFrame({node_type: [node_type == "paper"] for node_type in counts})
    split = raw.parent / "split" / "time"
    write_split(split, 20, 2, "paper")
    for file in (raw / "nodetype-has-label.csv.gz", split / "nodetype-has-split.csv.gz"):
        has.to_csv(file, index=False, compression="gzip")
    return "ogbn-mag"


DATASETS = {
    "papers100M, stored": lambda root: papers(root, np.savez),
    "papers100M, deflated": lambda root: papers(root, np.savez_compressed),
    "products": products,
    "proteins": proteins,
    "mag": mag,
}


@pytest.mark.parametrize("case", DATASETS)
@pytest.mark.parametrize("unpacked", ["memory", "folder"])
def test_as_ogb_s_own_loader_reads_it(tmp_path, case, unpacked):
    name = DATASETS[case](tmp_path)
    scratch = Scratch(None if unpacked == "memory" else tmp_path / "unpacked", 1 << 16)
    found = read_source(f"ogb:{name}", str(tmp_path), scratch=scratch)
    folder = tmp_path / name.replace("-", "_")
    assert_same(read_source(str(folder), scratch=scratch), found)
    assert_same(found, GraphSource.from_data(read_with_ogb(name, tmp_path)))


def test_papers_are_mapped_or_unpacked_to_files(tmp_path):
    """Nothing that has many rows is in memory."""
    for i, save in enumerate((np.savez, np.savez_compressed)):
        name = papers(tmp_path / str(i), save)
        source = read_source(
            f"ogb:{name}", str(tmp_path / str(i)), scratch=Scratch(tmp_path / "unpacked")
        )
        (edge,) = source.edges.values()
        (node,) = source.nodes.values()
        for array in (edge.src, edge.dst, *(f.array for f in node.attrs.values())):
            assert mapped_file(array) is not None
    assert not [*(tmp_path / "unpacked").glob("*.new")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_nodes_list": np.array([50, 3])}, "has 2 graphs: khop partitions one"),
        ({"num_edges_list": np.array([7])}, "has 400 edges, not 7"),
        ({"edge_index": np.zeros((2, 400))}, "must hold integer node ids"),
        ({"edge_index": np.zeros((3, 400), int)}, r"must have shape \[2, E\]"),
        ({"node_feat": np.zeros((51, 2))}, "has 51 rows for 50 nodes"),
        ({"graph_attr": np.zeros(3)}, "'graph_attr' of .* is neither of nodes nor of edges"),
    ],
)
def test_papers_that_do_not_fit(tmp_path, change, message):
    name = papers(tmp_path, np.savez)
    file = tmp_path / "ogbn_papers100M" / "raw" / "data.npz"
    with np.load(file) as arrays:
        np.savez(file, **{**arrays, **change})
    with pytest.raises((ValueError, TypeError), match=message):
        read_source(f"ogb:{name}", str(tmp_path))


def test_a_split_that_does_not_fit(tmp_path):
    name = products(tmp_path)
    write_csv(tmp_path / "ogbn_products" / "split" / "sales_ranking" / "test.csv.gz", [3, 30])
    with pytest.raises(IndexError, match=r"test.csv.gz' names node .*not one of 30"):
        read_source(f"ogb:{name}", str(tmp_path))


@pytest.fixture
def ogb_root(tmp_path, monkeypatch):
    """A data set of six nodes, as OGB's own tool for contributors saves it."""
    monkeypatch.chdir(tmp_path)
    graph = {
        "num_nodes": 6,
        "edge_index": np.array([[0, 1, 2, 3], [1, 2, 3, 4]]),
        "node_feat": np.arange(12.0, dtype=np.float32).reshape(6, 2),
        "edge_feat": None,
    }
    ids = {"train": np.array([0, 1, 2]), "valid": np.array([3]), "test": np.array([4, 5])}
    return ogb_saved.save(tmp_path, "ogbn-tiny", graph, np.array([0, 1, 0, 1, 0, 1]), ids, 2)


def test_ogb(ogb_root):
    for _ in ("processed by OGB", "as OGB stored it"):
        source = read_source("ogb:ogbn-tiny", str(ogb_root))
        node = source.nodes[NODE]
        assert edges_of(source) == [[0, 1, 2, 3], [1, 2, 3, 4]]
        assert node.attrs["y"].array.tolist() == [0, 1, 0, 1, 0, 1]
        assert node.attrs["x"].array.shape == (6, 2)
        masks = {
            n: np.flatnonzero(node.attrs[f"{n}_mask"].array).tolist() for n in ("train", "val")
        }
        assert masks == {"train": [0, 1, 2], "val": [3]}
        assert node.attrs["test_mask"].dtype == "bool"


def test_ogb_heterogeneous(tmp_path):
    """Two authors who wrote three papers; papers alone have features, labels and a split."""
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    graph = {
        "num_nodes_dict": {"author": 2, "paper": 3},
        "edge_index_dict": {
            writes: np.array([[0, 0, 1], [0, 1, 2]]),
            cites: np.array([[2], [0]]),
        },
        "node_feat_dict": {"paper": np.arange(6.0, dtype=np.float32).reshape(3, 2)},
        "edge_feat_dict": {cites: np.array([[0.5]], dtype=np.float32)},
    }
    ids = {name: {"paper": np.array([i])} for i, name in enumerate(("train", "valid", "test"))}
    labels = {"paper": np.array([2, 0, 1])}
    root = ogb_saved.save(tmp_path, "ogbn-works", graph, labels, ids, 3)
    for _ in ("processed by OGB", "as OGB stored it"):
        source = read_source("ogb:ogbn-works", str(root))
        author, paper = source.nodes["author"], source.nodes["paper"]
        assert (author.count, author.attrs) == (2, {})
        assert paper.attrs["x"].array.tolist() == [[0, 1], [2, 3], [4, 5]]
        assert paper.attrs["y"].array.tolist() == [2, 0, 1]
        masks = [paper.attrs[f"{n}_mask"].array.tolist() for n in ("train", "val", "test")]
        assert masks == np.eye(3, dtype=bool).tolist()
        assert set(paper.attrs) == {"x", "y", "train_mask", "val_mask", "test_mask"}
        assert set(source.edges) == {writes, cites}
        assert source.edges[writes].src.tolist() == [0, 0, 1]
        assert source.edges[writes].dst.tolist() == [0, 1, 2]
        assert source.edges[cites].attrs["edge_attr"].array.tolist() == [[0.5]]


def test_a_split_of_torch_is_not_unpickled(ogb_root):
    (stored,) = ogb_root.rglob("split_dict.pt")
    torch.save(Bomb(), stored)
    with pytest.raises(ValueError, match="holds more than numbers, or is damaged"):
        read_source("ogb:ogbn-tiny", str(ogb_root))
    assert not Path("exploded").exists()


@pytest.mark.parametrize("setting", ["unset", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"])
@pytest.mark.parametrize(
    "name",
    ["geometric_data_processed.pt", "split_dict.pt", "pre_transform.pt", "pre_filter.pt"],
)
def test_ogb_files_are_not_unpickled(ogb_root, monkeypatch, name, setting):
    """Neither where PyG asks for it, nor where users have set what is advised for OGB's sake."""
    read_with_ogb("ogbn-tiny", ogb_root)
    place = "split" if name == "split_dict.pt" else "processed"
    (folder,) = [path for path in ogb_root.rglob(place) if path.is_dir()]
    if place == "split":
        folder = next(path.parent for path in folder.rglob("*") if path.is_file())
    torch.save(Bomb(), folder / name)
    monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", raising=False)
    if setting != "unset":
        monkeypatch.setenv(setting, "1")
    before = dict(os.environ)
    with pytest.raises(ValueError, match="holds more than a graph, or is damaged"):
        read_with_ogb("ogbn-tiny", ogb_root)
    assert not Path("exploded").exists()
    assert dict(os.environ) == before


def test_a_fifo_among_the_files_of_ogb(ogb_root):
    read_with_ogb("ogbn-tiny", ogb_root)
    stored = next(ogb_root.rglob("geometric_data_processed.pt"))
    stored.unlink()
    os.mkfifo(stored)
    with pytest.raises(ValueError, match="is no regular file"):
        read_with_ogb("ogbn-tiny", ogb_root)


def test_ogb_of_another_name(ogb_root):
    with pytest.raises(FileNotFoundError, match="holds data set 'tiny', not 'ogbn-huge'"):
        read_source("ogb:ogbn-huge", str(ogb_root))
    with pytest.raises(ValueError, match=r"Invalid dataset name ogbn-huge"):
        read_source("ogb:ogbn-huge", "nowhere")
