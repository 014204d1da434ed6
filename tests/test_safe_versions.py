"""Versions of packages that would run code in what khop reads: not allowed, or refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import zmq

import khop
from khop.data.files import load_torch
from khop.datasets import DebianPackages
from khop.distributed import DistDataset
from khop.errors import SecurityError
from khop.glt.sampler import RemoteNodePathSamplerInput
from khop.glt.utils.common import load_ckpt, save_ckpt
from khop.loader import ClusterData
from khop.safe_versions import FIRST_SAFE, check_safe, number_of
from khop.sources import read_source
from khop.sources.ogb import read_with_ogb
from khop.sources.tables import package_for
from khop.sources.torch_files import load_numbers

ROOT = Path(khop.__file__).parents[2]
"""Checkout; tests of an installed khop leave out what needs it."""

in_checkout = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="needs the checkout"
)


def floors():
    """{package: oldest version that pyproject allows}, extras included."""
    text = (ROOT / "pyproject.toml").read_text()
    return {name: number_of(first) for name, first in re.findall(r'"([\w-]+)>=([\d.]+)"', text)}


@in_checkout
def test_no_version_is_allowed_that_is_not_safe():
    """But torch's, whose files are refused; libzmq comes with pyzmq."""
    allowed = floors()
    for package, safe in FIRST_SAFE.items():
        if package not in ("torch", "libzmq"):
            assert allowed[package] >= safe.version, package
    assert zmq.zmq_version_info() >= FIRST_SAFE["libzmq"].version


@in_checkout
def test_the_oldest_that_is_tested_is_the_oldest_that_is_allowed():
    allowed = floors()
    for line in (ROOT / "scripts" / "oldest.txt").read_text().splitlines():
        if not line.startswith("#"):
            package, version = line.removesuffix(".*").split("==")
            oldest = allowed[package]
            assert number_of(version)[: len(oldest)] == oldest, package


def test_numbers_of_versions():
    assert number_of("2.10.0+cpu") == (2, 10, 0)
    assert number_of("2.9.1a0+git1234") == (2, 9, 1)
    assert number_of("unknown") == ()


@pytest.mark.parametrize(
    ("package", "version", "is_safe"),
    [
        *(("pyarrow", "14.0.0", False), ("pyarrow", "14.0.1", True), ("pyarrow", "26.0", True)),
        *(("torch", "2.9.1+cu130", False), ("torch", "2.10.0a0", True), ("torch", "3.0", True)),
        *(("pyyaml", "5.3.1", False), ("pyyaml", "6.0", True), ("pandas", "0.1", True)),
    ],
)
def test_older_versions_are_refused(package, version, is_safe):
    if is_safe:
        check_safe(package, version, "file")
        return
    first = ".".join(map(str, FIRST_SAFE[package].version))
    message = rf"^'file' is not read with {package} .*CVE-.*Install '{package}>={first}', or wait$"
    with pytest.raises(SecurityError, match=message):
        check_safe(package, version, "file", "wait")


@pytest.mark.parametrize("name", ["edges.parquet", "graph.yaml"])
def test_modules_are_checked_where_they_are_imported(tmp_path, monkeypatch, name):
    """Extras of pyproject are not enforced."""
    (tmp_path / name).write_text("")
    pyarrow, yaml = (pytest.importorskip(module) for module in ("pyarrow", "yaml"))
    monkeypatch.setattr(pyarrow, "__version__", "14.0.0")
    monkeypatch.setattr(yaml, "__version__", "5.3.1")
    source = tmp_path if name.endswith("parquet") else tmp_path / name
    with pytest.raises(SecurityError, match=rf"{name}' is not read with (pyarrow|pyyaml)"):
        read_source(str(source))
    assert package_for("pandas", "pandas", Path("x")).__version__


@pytest.fixture
def old_torch(monkeypatch):
    """What khop takes torch for: the newest version in which `weights_only` is no protection."""
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")


@pytest.fixture
def labels(tmp_path):
    """A file of torch.save."""
    torch.save(torch.arange(3), tmp_path / "labels.pt")
    return tmp_path / "labels.pt"


READERS = {
    "load_torch": lambda path: load_torch(path, "pass the tensor"),
    "FILE.pt": lambda path: read_source(str(path)),
    "OGB's splits, MAG240M": load_numbers,
    "GLT's seeds": lambda path: RemoteNodePathSamplerInput(path).to_local_sampler_input(None),
}


@pytest.mark.parametrize("reader", READERS)
def test_files_of_torch_are_refused_by_each_reader(labels, old_torch, reader):
    message = r"labels\.pt' is not read with torch 2\.9\.1\+cpu.*Install 'torch>=2\.10', or pass "
    with pytest.raises(SecurityError, match=message):
        READERS[reader](labels)


def test_further_readers_of_files_of_torch(tmp_path, old_torch, labels):
    model = torch.nn.Linear(2, 2)
    save_ckpt(1, tmp_path, model)
    with pytest.raises(SecurityError, match=r"or read a checkpoint of your own by torch\.load"):
        load_ckpt(1, tmp_path, model)
    khop.partition_graph(read_ring(), tmp_path / "parts", 1)
    with pytest.raises(SecurityError, match=r"labels\.pt' is not read with torch .* or an \.npy"):
        DistDataset().load(tmp_path / "parts", 0, whole_node_label_file=labels)


def test_the_package_of_ogb_is_not_asked(tmp_path, old_torch, monkeypatch):
    pytest.importorskip("ogb")
    with pytest.raises(SecurityError, match="ogbn_arxiv' is not read with torch"):
        read_with_ogb("ogbn-arxiv", tmp_path)


def read_ring():
    from khop.partition import GraphSource

    return GraphSource.from_arrays(3, np.array([[0, 1, 2], [1, 2, 0]]))


def test_what_khop_wrote_itself_is_there_with_older_versions(tmp_path, old_torch, monkeypatch):
    """The bundled graph is no file of torch's, its cache is made anew; clusters are NumPy's."""
    first = DebianPackages(root=str(tmp_path / "debian"))[0]
    again = DebianPackages(root=str(tmp_path / "debian"))[0]
    assert torch.equal(first.edge_index, again.edge_index)
    found = []
    monkeypatch.setattr(
        "khop.loader.induced.cluster_loader.metis_clusters",
        lambda *args: found.append(args) or np.arange(again.num_nodes) % 4,
    )
    for _ in range(2):
        made = ClusterData(again, 4, save_dir=str(tmp_path), log=False)
    assert (len(found), len(made)) == (1, 4)
