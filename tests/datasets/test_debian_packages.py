"""The bundled graph is what its docstring says; the script that makes it reads an index right."""

import hashlib
import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.utils import coalesce, scatter

import khop.datasets
from khop.datasets import DebianPackages
from support.versions import reading_torch_files

SNAPSHOT = Path(khop.datasets.__file__).parent / "snapshot" / "debian-12.npz"
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_debian_packages.py"


@pytest.fixture(scope="module")
def dataset():
    return DebianPackages()


@pytest.fixture(scope="module")
def data(dataset):
    return dataset[0]


@pytest.fixture(scope="module")
def undirected():
    return DebianPackages(undirected=True)[0]


def test_sizes_and_dtypes(dataset, data):
    data.validate(raise_on_error=True)
    assert len(dataset) == 1
    assert (dataset.num_classes, dataset.num_features) == (58, 128)
    assert (data.num_nodes, data.num_edges) == (63_666, 316_108)
    assert (data.x.dtype, tuple(data.x.shape)) == (torch.float32, (63_666, 128))
    assert (data.edge_index.dtype, data.edge_kind.dtype, data.y.dtype) == (torch.int64,) * 3
    assert data.is_edge_attr("edge_kind")
    assert not data.is_edge_attr("y")


def test_every_class_and_every_kind_occurs(dataset, data):
    assert len(dataset.section_names) == 58
    assert data.y.bincount().min() > 0
    assert len(data.y.bincount()) == 58
    kinds = ["pre_depends", "depends", "recommends", "suggests", "enhances"]
    assert dataset.edge_kind_names == kinds
    assert data.edge_kind.bincount().tolist() == [998, 263_763, 28_053, 22_366, 928]


def test_a_package_that_is_easy_to_check(dataset, data):
    """`gitk` is built from git, is in section vcs and depends on git and tk, suggesting git-doc."""
    gitk = dataset.names.index("gitk")
    needs = data.edge_index[0] == gitk
    kind = {
        dataset.names[v]: dataset.edge_kind_names[k]
        for v, k in zip(data.edge_index[1, needs], data.edge_kind[needs], strict=True)
    }
    assert kind == {"git": "depends", "tk": "depends", "git-doc": "suggests"}
    assert dataset.section_names[data.y[gitk]] == "vcs"
    assert dataset.source_names[dataset.source_id[gitk]] == "git"
    tags = dataset.tag_index[1, dataset.tag_index[0] == gitk]
    assert "implemented-in::tcl" in [dataset.tag_names[t] for t in tags]


def test_the_c_library_is_what_most_packages_need(dataset, data):
    assert dataset.names[data.edge_index[1].bincount().argmax()] == "libc6"


def test_names_are_sorted_and_unique(dataset):
    assert dataset.names == sorted(set(dataset.names))
    assert len(dataset.names) == 63_666


def test_edges_are_sorted_unique_and_without_self_loops(data, undirected):
    for graph in (data, undirected):
        assert torch.equal(coalesce(graph.edge_index), graph.edge_index)
        assert not graph.has_self_loops()


def test_undirected_adds_each_reverse_with_its_kind(data, undirected):
    assert undirected.num_edges == 623_076
    assert torch.equal(undirected.x, data.x)
    kind = dict(_edges_with_kind(undirected))
    assert all(kind[v, u] == k for (u, v), k in kind.items())
    declared = dict(_edges_with_kind(data))
    assert kind.keys() == declared.keys() | {(v, u) for u, v in declared}
    # Where two packages need each other, both directions carry the stronger (smaller) kind.
    assert all(kind[u, v] == min(k, declared.get((v, u), k)) for (u, v), k in declared.items())


def _edges_with_kind(data):
    u, v = data.edge_index.tolist()
    return zip(zip(u, v, strict=True), data.edge_kind.tolist(), strict=True)


def test_splits_cover_the_packages_and_never_part_siblings(dataset, data):
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert (masks.sum(0) == 1).all()
    assert masks.float().mean(1).tolist() == pytest.approx([0.6, 0.2, 0.2], abs=0.02)
    split = masks.int().argmax(0)
    of_source = torch.zeros(len(dataset.source_names), dtype=torch.long)
    of_source[dataset.source_id] = split
    assert torch.equal(of_source[dataset.source_id], split)


def test_split_is_a_hash_of_the_source_name(dataset, data):
    for node in range(0, data.num_nodes, 997):
        name = dataset.source_names[dataset.source_id[node]]
        share = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32
        assert data.train_mask[node] == (share < 0.6)
        assert data.test_mask[node] == (share >= 0.8)


def test_features_are_the_same_on_every_machine(data):
    assert data.x.square().mean().item() == pytest.approx(1, abs=1e-3)
    digest = hashlib.sha256(data.x.numpy().astype("<f4").tobytes()).hexdigest()
    assert digest.startswith("4c300e67aed09df1")


def test_features_are_projected_tfidf(data):
    """Row 7 worked out the long way."""
    with np.load(SNAPSHOT) as snapshot:
        start = int(snapshot["term_count"][:7].sum())
        terms = snapshot["term"][start : start + snapshot["term_count"][7]]
        idf, vector = snapshot["term_idf"].astype(float), snapshot["term_vector"].astype(float)
    row = (idf[terms] @ vector[terms]) / np.linalg.norm(idf[terms])
    np.testing.assert_allclose(data.x[7], row, rtol=1e-4, atol=1e-5)


def test_descriptions_tell_the_section_and_neighbours_tell_it_better(data, undirected):
    """A linear model by least squares: what there is to learn is in the features and the edges."""
    source, destination = undirected.edge_index
    mean = scatter(data.x[source], destination, dim_size=data.num_nodes, reduce="mean")
    alone = _least_squares_accuracy(data, data.x)
    assert alone > 0.45
    assert _least_squares_accuracy(data, torch.cat([data.x, mean], dim=1)) > alone + 0.1


def _least_squares_accuracy(data, x):
    x = torch.cat([x, torch.ones(len(x), 1)], dim=1).double()
    known = x[data.train_mask]
    target = torch.nn.functional.one_hot(data.y[data.train_mask], 58).double()
    weight = torch.linalg.solve(known.T @ known + torch.eye(x.shape[1]), known.T @ target)
    correct = (x @ weight).argmax(1) == data.y
    return correct[data.test_mask].double().mean().item()


def test_snapshot_is_small_plain_and_names_nobody():
    assert SNAPSHOT.stat().st_size <= 8_000_000
    with np.load(SNAPSHOT, allow_pickle=False) as snapshot:
        for key in snapshot.files:
            assert not snapshot[key].dtype.hasobject
            if key.endswith("name"):
                assert b"@" not in snapshot[key].tobytes()


def test_without_a_root_nothing_is_written(tmp_path, monkeypatch):
    before = sorted(SNAPSHOT.parent.parent.rglob("*.pt"))
    monkeypatch.chdir(tmp_path)
    DebianPackages()
    assert not list(tmp_path.iterdir())
    assert sorted(SNAPSHOT.parent.parent.rglob("*.pt")) == before


def test_transform_at_each_access_and_pre_transform_once():
    calls = []
    dataset = DebianPackages(
        transform=lambda d: (calls.append("transform"), d)[1],
        pre_transform=lambda d: (calls.append("pre"), d)[1],
    )
    dataset[0], dataset[0]
    assert calls == ["pre", "transform", "transform"]


class _Mark:
    """A pre_transform that counts how often it runs and leaves a mark."""

    def __init__(self, name="mark"):
        self.name, self.calls = name, 0

    def __call__(self, data):
        self.calls += 1
        data.mark = torch.tensor(self.calls)
        return data

    def __repr__(self):
        return self.name


@reading_torch_files
def test_a_root_caches(tmp_path, data):
    mark = _Mark()
    first = DebianPackages(str(tmp_path), pre_transform=mark)
    assert [p.name for p in (tmp_path / "processed").iterdir()] == ["debian-12.pt"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = DebianPackages(str(tmp_path), pre_transform=mark)
    assert mark.calls == 1
    for key, value in data.to_dict().items():
        assert torch.equal(again[0][key], value)
        assert torch.equal(first[0][key], value)
    assert (again.num_classes, again.names[0]) == (58, "0ad")

    with pytest.warns(UserWarning, match="force_reload=True"):
        DebianPackages(str(tmp_path), pre_transform=_Mark("another"))
    DebianPackages(str(tmp_path), pre_transform=mark, force_reload=True)
    assert mark.calls == 2


def test_directed_and_undirected_are_cached_apart(tmp_path):
    assert DebianPackages(str(tmp_path), undirected=True)[0].num_edges == 623_076
    assert DebianPackages(str(tmp_path))[0].num_edges == 316_108
    assert DebianPackages(str(tmp_path), undirected=True)[0].num_edges == 623_076


class _Bomb:
    """Leaves a file when it is unpickled."""

    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


@reading_torch_files
def test_a_cache_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = tmp_path / "processed" / "debian-12.pt"
    cache.parent.mkdir()
    torch.save(_Bomb(), cache)
    with pytest.raises(RuntimeError, match="force_reload"):
        DebianPackages(str(tmp_path))
    assert not Path("exploded").exists()
    torch.load(cache, weights_only=False)
    assert Path("exploded").exists(), "the bomb is one"


@reading_torch_files
@pytest.mark.parametrize("content", [b"", b"not a cache"])
def test_a_damaged_cache_is_told(tmp_path, content):
    cache = tmp_path / "processed" / "debian-12.pt"
    cache.parent.mkdir()
    cache.write_bytes(content)
    with pytest.raises(RuntimeError, match="force_reload"):
        DebianPackages(str(tmp_path))


INDEX = """\
Package: app
Source: suite (1.0-2)
Filename: pool/main/s/suite/app_1.deb
Section: utils
Maintainer: A
Description: tool for tables
 A longer text that plays no part.
Pre-Depends: libc (>= 2.36)
Depends: lib:any (= 1.0), app (>= 1), libc | other, mta [amd64] <!nocheck>,
 nowhere
Recommends: lib, extra
Tag: role::program, use::editing

Package: extra
Filename: pool/updates/main/e/extra/extra_1.deb
Section: contrib/utils
Maintainer: B
Description: more tables
Provides: mta (= 2), page
Enhances: app

Package: foreign
Filename: pool/non-free/f/foreign/foreign_1.deb
Section: utils
Maintainer: B
Description: nothing

Package: lib
Source: suite
Filename: pool/main/s/suite/lib_1.deb
Section: libs
Maintainer: A
Description: tables
Provides: mta

Package: libc
Filename: pool/main/l/libc/libc_1.deb
Section: libs
Maintainer: C
Description: library
"""


@pytest.fixture(scope="module")
def script():
    pytest.importorskip("scipy")
    spec = importlib.util.spec_from_file_location("make_debian_packages", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_script_selects_main_and_reads_ids(script):
    packages = script.select_main(script.parse_index(INDEX))
    arrays = script.package_arrays(packages)
    assert arrays["name"].tobytes() == b"app\nextra\nlib\nlibc"
    assert arrays["source_name"].tobytes() == b"extra\nlibc\nsuite"
    assert arrays["source"].tolist() == [2, 0, 2, 1]
    assert arrays["section_name"].tobytes() == b"libs\nutils"
    assert arrays["section"].tolist() == [1, 1, 0, 0]
    assert arrays["maintainer"].tolist() == [0, 1, 0, 2]
    assert arrays["tag_name"].tobytes() == b"role::program\nuse::editing"
    assert (arrays["tag_count"].tolist(), arrays["tag"].tolist()) == ([2, 0, 0, 0], [0, 1])


def test_script_resolves_relations(script):
    """Nodes: app 0, extra 1, lib 2, libc 3.

    app -> libc by Pre-Depends (kind 0) and Depends: the stronger one stays. app -> lib by Depends
    (1) and Recommends. app -> extra by Depends (1) on the virtual mta, which lib provides too but
    comes later, and by Recommends. extra -> app by Enhances (4). app's dependency on itself and the
    one on nowhere are left out.
    """
    arrays = script.edge_arrays(script.select_main(script.parse_index(INDEX)))
    assert arrays["edge_count"].tolist() == [3, 1, 0, 0]
    assert arrays["edge_destination"].tolist() == [1, 2, 3, 0]
    assert arrays["edge_kind"].tolist() == [1, 1, 0, 4]


def test_script_keeps_terms_of_three_descriptions(script, monkeypatch):
    """Of the words only `tables` is in three one-line descriptions; its rows have norm 1."""
    monkeypatch.setattr(script, "NUM_COMPONENTS", 1)
    packages = script.select_main(script.parse_index(INDEX))
    monkeypatch.setattr(script, "svds", _one_by_one_svd)
    arrays = script.text_arrays(packages)
    assert arrays["term_count"].tolist() == [1, 1, 1, 0]
    assert arrays["term"].tolist() == [0, 0, 0]
    np.testing.assert_allclose(arrays["term_idf"], [np.log(5 / 4) + 1], rtol=1e-6)
    # Three features of size v and one of 0 have mean square 1.
    np.testing.assert_allclose(arrays["term_vector"], [[np.sqrt(4 / 3)]], rtol=1e-3)


def _one_by_one_svd(matrix, k, v0):
    u, s, vt = np.linalg.svd(matrix.toarray(), full_matrices=False)
    return u[:, :k], s[:k], vt[:k]
