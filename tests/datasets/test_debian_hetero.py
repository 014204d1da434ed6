"""The heterogeneous view of the bundled graph says what the snapshot says, no more and no less."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.transforms import ToUndirected

import khop.datasets
from khop.datasets import DebianPackages, DebianPackagesHetero
from khop.loader import NeighborLoader

SNAPSHOT = Path(khop.datasets.__file__).parent / "snapshot" / "debian-12.npz"
KINDS = ["pre_depends", "depends", "recommends", "suggests", "enhances"]
TO_OTHERS = [
    ("package", "built_from", "source"),
    ("package", "maintained_by", "maintainer"),
    ("package", "tagged", "tag"),
]


@pytest.fixture(scope="module")
def dataset():
    return DebianPackagesHetero()


@pytest.fixture(scope="module")
def data(dataset):
    return dataset[0]


@pytest.fixture(scope="module")
def undirected():
    return DebianPackagesHetero(undirected=True)[0]


@pytest.fixture(scope="module")
def raw():
    with np.load(SNAPSHOT, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def lists(count, values):
    """The list of each package."""
    return np.split(values.astype(int), np.cumsum(count.astype(int))[:-1])


def pairs_of(store):
    return list(zip(*store.edge_index.tolist(), strict=True))


def test_types_and_numbers_of_nodes(dataset, data, raw):
    data.validate(raise_on_error=True)
    assert data.node_types == ["package", "source", "maintainer", "tag"]
    assert data.edge_types == [("package", kind, "package") for kind in KINDS] + TO_OTHERS
    assert {t: data[t].num_nodes for t in data.node_types} == {
        "package": len(raw["section"]),
        "source": raw["source_name"].tobytes().count(b"\n") + 1,
        "maintainer": len(set(raw["maintainer"].tolist())),
        "tag": raw["tag_name"].tobytes().count(b"\n") + 1,
    }
    assert all(list(data[t].keys()) == ["num_nodes"] for t in data.node_types[1:])
    assert dataset.num_classes == 58
    assert dataset.num_features == {"package": 128, "source": 0, "maintainer": 0, "tag": 0}


def test_packages_are_those_of_the_homogeneous_view(data):
    other = DebianPackages()[0]
    names = ["test_mask", "train_mask", "val_mask", "x", "y"]
    assert sorted(data["package"].keys()) == names
    assert all(torch.equal(data["package"][name], other[name]) for name in names)


def test_relations_are_those_of_the_snapshot(data, raw):
    """Each edge type on its own, read off the lists of the packages one by one."""
    wanted = {kind: [] for kind in KINDS}
    named = lists(raw["edge_count"], raw["edge_destination"])
    kinds = lists(raw["edge_count"], raw["edge_kind"])
    for package in range(len(named)):
        for other, kind in zip(named[package].tolist(), kinds[package].tolist(), strict=True):
            wanted[KINDS[kind]].append((package, other))
    for kind in KINDS:
        assert pairs_of(data["package", kind, "package"]) == wanted[kind]


def test_sources_maintainers_and_tags_are_those_of_the_snapshot(data, raw):
    for edge_type in TO_OTHERS[:2]:
        wanted = list(enumerate(raw[edge_type[2]].tolist()))
        assert pairs_of(data[edge_type]) == wanted
    tags = enumerate(lists(raw["tag_count"], raw["tag"]))
    wanted = [(package, tag) for package, of_one in tags for tag in of_one.tolist()]
    assert pairs_of(data["package", "tagged", "tag"]) == wanted


def test_a_package_that_is_easy_to_check(dataset, data):
    """`gitk` is built from git, depends on git and tk, suggests git-doc, is written in Tcl."""
    gitk = dataset.names.index("gitk")

    def others(relation, names):
        store = data[next(t for t in data.edge_types if t[1] == relation)]
        return [names[v] for v in store.edge_index[1, store.edge_index[0] == gitk]]

    assert others("depends", dataset.names) == ["git", "tk"]
    assert others("suggests", dataset.names) == ["git-doc"]
    assert others("built_from", dataset.source_names) == ["git"]
    assert "implemented-in::tcl" in others("tagged", dataset.tag_names)


def test_undirected_is_what_pyg_makes_of_it(data, undirected):
    """Reverses of relations between packages stay apart: what needs a package is not its needs."""
    wanted = ToUndirected(merge=False)(data.clone())
    assert undirected.edge_types == wanted.edge_types
    assert len(undirected.edge_types) == 2 * len(data.edge_types)
    for edge_type in wanted.edge_types:
        edge_index = undirected[edge_type].edge_index
        assert edge_index.is_contiguous()
        assert torch.equal(edge_index, wanted[edge_type].edge_index)


def test_a_source_is_on_one_side_of_the_split_and_maintainers_and_tags_are_not(data):
    package = data["package"]
    split = torch.stack([package.train_mask, package.val_mask, package.test_mask]).int().argmax(0)
    sides = {}
    for source, relation, destination in TO_OTHERS:
        ends = data[source, relation, destination].edge_index
        seen = torch.zeros(data[destination].num_nodes, 3, dtype=torch.bool)
        seen[ends[1], split[ends[0]]] = True
        sides[destination] = seen.sum(1)
    assert (sides["source"] == 1).all()
    assert (sides["maintainer"] == 3).sum() > 500
    assert (sides["tag"] == 3).float().mean() > 0.75


def test_a_root_caches_each_view_apart(tmp_path, undirected):
    first = DebianPackagesHetero(str(tmp_path), undirected=True)[0]
    again = DebianPackagesHetero(str(tmp_path), undirected=True)[0]
    DebianPackages(str(tmp_path))
    names = sorted(p.name for p in (tmp_path / "processed").iterdir())
    assert names == ["debian-12-hetero-undirected.pt", "debian-12.pt"]
    for made in (first, again):
        assert made.edge_types == undirected.edge_types
        assert torch.equal(made["package"].x, undirected["package"].x)
        assert made["tag"].num_nodes == 597


def test_a_loader_reaches_types_without_features(dataset, undirected):
    """All that is one step away from gitk, drawn at once."""
    gitk = torch.tensor([dataset.names.index("gitk")])
    batch = next(iter(NeighborLoader(undirected, [-1], ("package", gitk), batch_size=1)))
    assert [dataset.source_names[v] for v in batch["source"].n_id] == ["git"]
    assert batch["source"].num_nodes == batch["maintainer"].num_nodes == 1
    tags = batch["tag", "rev_tagged", "package"].edge_index
    assert tags.tolist() == [list(range(batch["tag"].num_nodes)), [0] * batch["tag"].num_nodes]
    needs = batch["package", "rev_depends", "package"].edge_index[0]
    assert sorted(dataset.names[v] for v in batch["package"].n_id[needs]) == ["git", "tk"]
