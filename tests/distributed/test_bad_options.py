"""Options and links that cannot be: an error when the loader is made, that says what to do."""

from pathlib import Path

import pytest
import torch
from torch_geometric.sampler import NegativeSampling

from khop.distributed import (
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    MpDistSamplingWorkerOptions,
    link_split,
)
from support.cluster import twins
from support.cluster.twins import CITES, PRINTS, WRITES

LINKS = twins.homogeneous().edge_index[:, :6]
NEW = ("venue", "likes", "paper")
ONE = torch.tensor([[0], [0]])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """{name of a graph, kind}: a folder of one part."""
    base = tmp_path_factory.mktemp("bad")
    return {
        (graph, kind): twins.partitioned(getattr(twins, graph)(), base / (graph + kind), 1, kind)
        for graph in ("homogeneous", "heterogeneous")
        for kind in ("plain", "time", "edge_time")
    }


@pytest.fixture
def datasets(folders):
    """Datasets by a letter for the graph and the kind: P plain, T time, E edge_time; H typed."""
    names = {"P": "plain", "T": "time", "E": "edge_time"}
    found = {n: DistDataset().load(folders["homogeneous", kind]) for n, kind in names.items()}
    for n, kind in names.items():
        found[f"H{n}"] = DistDataset().load(folders["heterogeneous", kind])
    return found


def refused(make, cases):
    """Asserts that each case is refused: (arguments, options, error, match)."""
    for *arguments, options, error, match in cases:
        with pytest.raises(error, match=match):
            make(*arguments, **options)


def test_times_and_weights_of_nodes(datasets):
    """What the folder was not partitioned with, half of what belongs together, wrong lengths."""
    timed = {"time_attr": "time"}
    refused(lambda name, seeds, **o: DistNeighborLoader(datasets[name], [2], seeds, **o), [
        ("P", None, timed, ValueError, "without time_attr: partition again with time_attr='time'"),
        ("E", None, timed, ValueError, "with time_attr='edge_time': partition again"),
        ("P", None, {"weight_attr": "w"}, ValueError, r"without weight_attr.*\(--weight-attr w\)"),
        ("T", None, {"weight_attr": "w"}, ValueError, "with weight_attr='edge_weight': partition"),
        ("P", None, {"weight_attr": True}, ValueError, "without weights: partition again"),
        ("T", None, {"input_time": torch.zeros(150)}, ValueError, "'time_attr' is not set"),
        ("T", [0], {**timed, "input_time": [1, 2]}, ValueError, r"of 1 seeds \(got shape \[2\]"),
        ("T", None, {**timed, "input_time": 5}, ValueError, "input_time must hold an entry"),
        ("T", [0], {**timed, "input_time": [float("nan")]}, ValueError, "input_time holds nan at"),
        ("T", [0], {**timed, "input_time": [True]}, TypeError, "input_time must hold integers or"),
        ("E", [0], {"time_attr": "edge_time"}, ValueError, "those of edges.*'input_time'"),
        ("HT", "venue", timed, ValueError, "not of nodes of type 'venue': pass the time"),
        ("T", [0], {**timed, "temporal_strategy": "first"}, ValueError, "got 'first'"),
        ("T", [0], {"temporal_strategy": "last"}, ValueError, "needs times: pass time_attr, too"),
        ("P", [0], {"subgraph_type": "all"}, ValueError, "subgraph_type must be of.*got 'all'"),
    ])  # fmt: skip
    refused(lambda nodes: DistNeighborLoader(datasets["P"], [2], nodes), [
        (["a.pt", "b.pt"], {}, TypeError, r"input_nodes.*'a.pt'.*: paths are not read.*torch.load"),
        (Path("a.pt"), {}, TypeError, r"input_nodes.*'a.pt'.*: paths are not read.*torch.load"),
        ("a.pt", {}, KeyError, r"input_nodes='a.pt' is no boolean.*Paths are not read.*torch.load"),
        (("paper", None), {}, ValueError, "names node type 'paper', but the graph is homogeneous"),
        ([None], {}, TypeError, r"input_nodes must be .*\(got \[None\]"),
    ])  # fmt: skip
    with pytest.raises(TypeError, match="leave subgraph_type out"):
        DistSubGraphLoader(datasets["P"], [0], subgraph_type="induced")


def test_times_and_labels_of_links(datasets):
    """Half-given times, wrong lengths, labels with triplets."""
    six, time = torch.zeros(6), {"time_attr": "time"}
    refused(lambda name, **o: DistLinkNeighborLoader(datasets[name], [2], LINKS, **o), [
        ("T", {"edge_label_time": six}, ValueError, "'time_attr' is not set"),
        ("T", time, ValueError, "'edge_label_time' is not set"),
        ("P", {**time, "edge_label_time": six}, ValueError, "without time_attr: partition again"),
        ("T", {**time, "edge_label_time": six[1:]}, ValueError, r"each of 6 links \(got shape \[5"),
        ("T", {**time, "edge_label_time": 3}, ValueError, "edge_label_time must hold an entry for"),
        ("P", {"weight_attr": "w"}, ValueError, "without weight_attr: partition again"),
        ("P", {"edge_label": six[1:]}, ValueError, r"each of 6 links \(got shape \[5\]\)"),
        ("P", {"edge_label": torch.tensor(1)}, ValueError, r"each of 6 links \(got shape \[\]\)"),
        ("P", {"edge_label": six, "neg_sampling": "triplet"}, ValueError, "'edge_label' needs"),
    ])  # fmt: skip


def test_links(datasets):
    """Links that are none, or join nodes that do not exist: for the loader and for shares alike."""

    def both(name, links):
        data = datasets[name]
        typed = data.meta.heterogeneous and isinstance(links, tuple)
        link_type, ends = links if typed else (None, links)
        with pytest.raises((ValueError, TypeError, IndexError)) as error:
            link_split(ends, data, link_type=link_type)
        with pytest.raises(type(error.value)):
            DistLinkNeighborLoader(data, [2], batch_size=2, edge_label_index=links)
        raise error.value

    refused(both, [
        ("P", LINKS[:1], {}, ValueError, r"shape \[2, num_links\] \(got \[1, 6\]\)"),
        ("P", torch.zeros(3, 3).long(), {}, ValueError, r"\[2, num_links\] \(got \[3, 3\]\)"),
        ("P", torch.tensor([1, 2]), {}, ValueError, r"\[2, num_links\] \(got \[2\]\)"),
        ("P", [[1, 2], [3]], {}, ValueError, "2 sources, but 1 destinations"),
        ("P", [[1, 2]], {}, ValueError, r"got \[1, 2\]"),
        ("P", ["a.pt", "b.pt"], {}, TypeError, r"edge_label_index.*'a.pt'.*: paths are not read"),
        ("P", "a.pt", {}, TypeError, r"edge_label_index.*'a.pt'.*: paths are not read"),
        ("P", LINKS.float(), {}, TypeError, r"edge_label_index must hold integers.*float32"),
        ("P", torch.tensor([[150], [0]]), {}, IndexError, r"\(sources\) holds id 150.*0 to 149"),
        ("P", torch.tensor([[0], [-1]]), {}, IndexError, r"\(destinations\) holds id -1"),
        ("HP", (WRITES, torch.tensor([[80], [0]])), {}, IndexError, "id 80 .*0 to 79"),
        ("HP", (("a", "to", "paper"), ONE), {}, ValueError, "nodes of type 'a', but there are"),
        ("HP", ("paper", ONE), {}, ValueError, "heterogeneous graph"),
        ("HP", LINKS, {}, ValueError, "heterogeneous graph"),
    ])  # fmt: skip
    refused(lambda links: DistLinkNeighborLoader(datasets["HP"], [2], links), [
        (None, {}, ValueError, r"an edge type, or \(edge type, links\); there are the types"),
        (NEW, {}, ValueError, r"takes all edges of type \('venue', 'likes', 'paper'\), but"),
    ])  # fmt: skip
    with pytest.raises(ValueError, match="rank 3 is not one of 1 trainers"):
        link_split(LINKS, datasets["P"], rank=3)


def test_no_links(datasets):
    """No links make no batches."""
    for links in ([[], []], torch.empty(2, 0, dtype=torch.int64)):
        loader = DistLinkNeighborLoader(
            datasets["P"], [2], batch_size=2, edge_label_index=links, neg_sampling="binary"
        )
        assert len(loader) == len(list(loader)) == 0


@pytest.mark.parametrize("num_workers", [None, 1])
def test_negatives(datasets, num_workers):
    """Amounts, modes and weights; weights are checked before samplers see them."""
    options = {} if num_workers is None else {"worker_options": MpDistSamplingWorkerOptions(1)}

    def make(link_type=None, weights=None, **kwargs):
        if weights is not None:
            kwargs["neg_sampling"] = NegativeSampling("binary", 1, *weights)
        data, links = (datasets["P"], LINKS) if link_type is None else (datasets["HP"], ONE)
        given = links if link_type is None else (link_type, links)
        DistLinkNeighborLoader(data, [2], batch_size=2, edge_label_index=given, **kwargs, **options)

    every, binary = torch.ones(150), {"neg_sampling": "binary"}
    refused(make, [
        ({**binary, "neg_sampling_ratio": 1.0}, ValueError, "not both"),
        ({"neg_sampling": "some"}, ValueError, "some"),
        ({"neg_sampling": {"mode": "binary", "amount": 0}}, ValueError, "amount.*positive"),
        ({"neg_sampling": {"mode": "triplet", "amount": 1.5}}, ValueError, "amount.*1.5"),
        ({"weights": (every[1:], None)}, ValueError, r"src_weight.*150 nodes \(got shape \(149,"),
        ({"weights": (None, every.view(-1, 1))}, ValueError, r"dst_weight.*got shape \(150, 1\)"),
        ({"weights": (-every, None)}, ValueError, "src_weight must be finite and not negative"),
        ({"weights": (None, every / 0)}, ValueError, "dst_weight must be finite"),
        ({"weights": (0 * every, None)}, ValueError, "src_weight must have a positive"),
        ({"strict_negatives": True}, ValueError, "need negatives: pass neg_sampling"),
        (NEW, {**binary, "strict_negatives": True}, ValueError, "no edges of type.*graph has only"),
        (NEW, {"weights": (every[:5], None)}, ValueError, "src_weight.*each of the 6 nodes"),
    ])  # fmt: skip


def test_exclusion(datasets):
    """Edges that do not exist, or do not reverse the links."""

    def make(link_type, exclude):
        DistLinkNeighborLoader(
            datasets["HP"],
            [2],
            batch_size=2,
            edge_label_index=(link_type, ONE),
            exclude_seed_edges=exclude,
        )

    refused(make, [
        (WRITES, "back", {}, ValueError, "must be False, 'self'.*got 'back'"),
        (WRITES, 3, {}, ValueError, "must be False, 'self'.*got 3"),
        (WRITES, NEW, {}, ValueError, "must be False, 'self'.*got"),
        (WRITES, CITES, {}, ValueError, "do not reverse links of type"),
        (NEW, True, {}, ValueError, "are no edges of the graph"),
    ])  # fmt: skip
    make(PRINTS, "reverse")  # there is an edge type from paper to venue, if without edges


def test_what_is_no_dataset():
    """None, or something else."""
    with pytest.raises(RuntimeError, match=r"data=None.*no client.*init_client"):
        DistLinkNeighborLoader(None, [2], batch_size=2, edge_label_index=LINKS)
    with pytest.raises(TypeError, match="must be a DistDataset"):
        DistLinkNeighborLoader(twins.homogeneous(), [2], batch_size=2, edge_label_index=LINKS)
