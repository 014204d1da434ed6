"""Comparison of methods, on a graph and on a sample of it."""

import json

import networkx as nx
import numpy as np
import pytest
import torch

import khop
from khop.cli.main import main
from khop.partition import CutReport, PartitionFolder, compare_methods
from khop.partition.report.comparison import sampled
from khop.partition.source import GraphSource
from support.cluster import twins

DRAWN = {"num_neighbors": [3, 2], "batch_size": 8}
METHODS = ["random", "stream", "frequency", "frequency+stream"]


@pytest.fixture(scope="module")
def data():
    data = twins.homogeneous()
    data.train_mask = torch.arange(150) % 2 == 0
    return data


def test_reports_are_those_of_the_folders(tmp_path, data):
    """Options go to the methods that have them."""
    options = {**DRAWN, "cache_ratio": 0.1, "balance": ["nodes", "train"]}
    found = compare_methods(data, 3, METHODS, seed=2, **options)
    for of in found.methods:
        method, _, base = of.method.partition("+")
        own = {"balance": options["balance"]} if method == "stream" else {}
        if method == "frequency":
            own = {**DRAWN, "cache_ratio": 0.1, "base": base or None}
        khop.partition_graph(data, tmp_path / of.method, 3, method=method, seed=2, **own)
        folder = PartitionFolder(tmp_path / of.method)
        assert of.report == CutReport.of(folder, [3, 2], batch_size=8)
    cut = {of.method: of.report.edge_cut for of in found.methods}
    assert cut["stream"] < cut["random"]
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines] == ["method", *METHODS]


def test_several_types(tmp_path):
    """Without a train_mask nothing is drawn; with a named type its nodes are the seeds."""
    data = twins.heterogeneous()
    found = compare_methods(data, 2, ["random", "stream"], edge_dir="out")
    assert [of.report.remote for of in found.methods] == [None, None]
    (of,) = compare_methods(data, 2, ["random"], seeds=("paper", None), **DRAWN).methods
    khop.partition_graph(data, tmp_path / "parts", 2)
    folder = PartitionFolder(tmp_path / "parts")
    assert of.report == CutReport.of(folder, [3, 2], batch_size=8, seed_type="paper")


def test_a_sample_is_an_induced_subgraph():
    """Of a path of 400 nodes 40 in a row, or nearly; attributes go along."""
    ends = np.stack([np.arange(399), np.arange(1, 400)])
    source = GraphSource.from_arrays(400, ends, {"y": np.arange(400)}, {"w": np.arange(399)})
    sample = sampled(source, 40, seed=1)
    kept = sample.nodes["node"].attrs["y"].array
    (edge,) = sample.edges.values()
    want = nx.path_graph(400).subgraph(kept.tolist())
    assert len(kept) == len(set(kept.tolist())) == 40
    assert set(zip(kept[edge.src].tolist(), kept[edge.dst].tolist(), strict=True)) == {
        tuple(sorted(pair)) for pair in want.edges
    }
    assert edge.attrs["w"].array.tolist() == kept[edge.src].tolist()
    assert nx.number_connected_components(want) <= 2
    assert sampled(source, 400, seed=1) is source
    isolated = GraphSource.from_arrays(9, [[], []], {"y": np.arange(9)})
    assert sampled(isolated, 5, seed=1).nodes["node"].count == 5


def test_what_cannot_be_compared(data):
    for method, message in (
        ("assigned", "no method 'assigned' to compare: frequency alone has a base"),
        ("random+metis", "no method 'random.metis' to compare"),
        ("frequency+random", "base must be 'stream', 'metis', 'cluster-metis' or another"),
        ("fast", "no method 'fast': there are assigned"),
        ("", "no method ''"),
    ):
        with pytest.raises(ValueError, match=message):
            compare_methods(data, 2, [method])
    with pytest.raises(ValueError, match="at least one method"):
        compare_methods(data, 2, [])
    with pytest.raises(TypeError, match=r"none of the methods has options \['balance'\]"):
        compare_methods(data, 2, ["random"], balance=["nodes"])
    with pytest.raises(ValueError, match="sample must be a number of nodes above 0"):
        compare_methods(data, 2, ["random"], sample=0)
    with pytest.raises(ValueError, match="a sample has other seeds"):
        compare_methods(data, 2, ["random"], sample=50, seeds=torch.arange(3))


@pytest.fixture
def run(capsys):
    """Returns run(words): a command's exit code and output."""

    def run(*words):
        code = main(["partition", "debian", *words, "--num-parts", "2"])
        return code, capsys.readouterr()

    return run


def test_command(run):
    words = ["-", "--compare", "random,stream", "--sample", "500", "--batch-size", "64"]
    code, printed = run(*words, "--json", "--passes", "2")
    found = json.loads(printed.out)
    assert (code, found["nodes"], len(found["methods"])) == (0, 500, 2)
    assert "remote" in run(*words)[1].out
    for wrong, message in (
        (["out", "--compare", "random"], "OUTPUT is a picture (.png, .svg, .pdf), or - for none"),
        (["-", "--compare", "random", "--order", "degree"], "leave --order out"),
        (["-", "--compare", "random", "--passes", "3"], "--passes needs --method stream"),
        (["out", "--sample", "3"], "--sample needs --compare"),
    ):
        code, printed = run(*wrong)
        assert code == 2
        assert message in printed.err
