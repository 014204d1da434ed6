"""What a new user gets wrong first: each error says what was wrong and what to do."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import khop
from khop.distributed import DistDataset, DistNeighborLoader
from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.sampler import Labor

IDS = torch.arange(40)
RING = torch.stack([IDS, (IDS + 1) % 40])


@pytest.fixture(scope="module")
def data():
    return Data(x=IDS[:, None].float(), edge_index=RING, train_mask=IDS < 20)


@pytest.fixture(scope="module")
def hetero():
    graph = HeteroData()
    graph["a"].num_nodes = graph["b"].num_nodes = 40
    graph["a", "to", "b"].edge_index = graph["b", "of", "a"].edge_index = RING
    return graph


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    root = tmp_path_factory.mktemp("mistakes") / "parts"
    khop.partition_graph(data, root, 2)
    return root


IN_MEMORY = {
    "one number": (lambda d: NeighborLoader(d, 10), r"a list of fan-outs, one per hop \(got 10\)"),
    "a data set": (lambda d: NeighborLoader([d], [2]), r"pass its graph, dataset\[0\]"),
    "edge_index alone": (lambda d: NeighborLoader(RING, [2]), "expected a PyG Data"),
    "the name of a mask": (
        lambda d: NeighborLoader(d, [2], input_nodes="train_mask"),
        r"pass data\['name'\]",
    ),
    "a mask of another graph": (
        lambda d: NeighborLoader(d, [2], input_nodes=torch.ones(39, dtype=torch.bool)),
        "39 entries for 40 nodes: it needs one for each, or pass ids",
    ),
    "floats": (lambda d: NeighborLoader(d, [2], input_nodes=torch.ones(3)), r"as \.long\(\)"),
    "ids from 1": (
        lambda d: NeighborLoader(d, [2], input_nodes=IDS + 1),
        "id 40 at position 39, but ids run from 0 to 39",
    ),
    "transposed edges": (
        lambda d: NeighborLoader(Data(edge_index=RING.t().contiguous(), num_nodes=40), [2]),
        r"shape \[2, num_edges\], sources and destinations \(got \[40, 2\]\)",
    ),
    "fewer nodes than ids": (
        lambda d: next(iter(NeighborLoader(Data(edge_index=RING, num_nodes=10), [2]))),
        "an id is negative or not below the number of nodes",
    ),
    "times that are not there": (
        lambda d: NeighborLoader(d, [2], time_attr="time"),
        r"neither of nodes nor of edges: set it, as in data\.time",
    ),
    "weights that are not there": (
        lambda d: NeighborLoader(d, [2], weight_attr="w"),
        r"not an attribute of edges: set it, a number for each",
    ),
    "one row of links": (
        lambda d: LinkNeighborLoader(d, [2], edge_label_index=IDS),
        r"shape \[2, num_links\]",
    ),
    "a mistyped mode": (
        lambda d: LinkNeighborLoader(d, [2], neg_sampling="binry"),
        "must be 'binary' or 'triplet'",
    ),
    "too few labels": (
        lambda d: LinkNeighborLoader(d, [2], edge_label_index=RING, edge_label=IDS[:3]),
        "an entry for each of 40 links",
    ),
    "no batch size": (lambda d: NeighborLoader(d, [2], batch_size=0), "batch_size"),
    "a name of the wrong module": (
        lambda d: khop.NeighborLoader,
        r"it is khop\.loader\.NeighborLoader",
    ),
    "a mistyped option": (
        lambda d: NeighborLoader(d, [2], batchsize=2),
        r"no option 'batchsize': did you mean 'batch_size'\?",
    ),
    "a mistyped name": (lambda d: khop.partitoin, r"did you mean 'partition'\?"),
    "a mistyped name of a module below": (
        lambda d: khop.distributed.DistNeighbourLoader,
        r"did you mean 'DistNeighborLoader'\?",
    ),
}


@pytest.mark.parametrize("mistake", IN_MEMORY)
def test_in_memory(data, mistake):
    make, message = IN_MEMORY[mistake]
    with pytest.raises((TypeError, ValueError, IndexError, AttributeError), match=message):
        make(data)


@pytest.mark.parametrize("seeds", [None, IDS, "c", ("c", None)])
def test_heterogeneous_seeds_need_their_type(hetero, seeds):
    with pytest.raises(ValueError, match=r"must be a node type, or \(node type, seeds\)") as caught:
        NeighborLoader(hetero, [2], input_nodes=seeds)
    assert len(str(caught.value)) < 250  # ids are not listed


def test_all_edge_types_need_fan_outs(hetero):
    with pytest.raises(ValueError, match=r"no fan-outs for edge types \[\('b', 'of', 'a'\)\]"):
        NeighborLoader(hetero, {("a", "to", "b"): [2]}, input_nodes="a")


PARTITIONED = {
    "a path": (lambda f, d: DistNeighborLoader(f, [2]), r"pass DistDataset\(\)\.load\(folder\)"),
    "a graph": (lambda f, d: DistNeighborLoader(Data(), [2]), r"have loaders in khop\.loader"),
    "nothing loaded": (lambda f, d: DistNeighborLoader(DistDataset(), [2]), r"call load\(\) first"),
    "no folder": (lambda f, d: DistDataset().load(f / "x"), "no partition folder at"),
    "no such part": (lambda f, d: DistDataset().load(f, 2), r"has 2 partitions \(0 to 1\)"),
    "a mistyped split": (
        lambda f, d: DistNeighborLoader(d, [2], "train_maks"),
        r"there are \['train_mask'\]",
    ),
    "no times in the folder": (
        lambda f, d: DistNeighborLoader(d, [2], time_attr="t"),
        "partition again with time_attr='t'",
    ),
    "no neighbours' ids": (lambda f, d: DistNeighborLoader(d, Labor([2])), "neighbor_ids=True"),
    "no servers": (lambda f, d: DistNeighborLoader(None, [2]), "Call init_client first"),
    "the folder is there": (lambda f, d: khop.partition_graph(Data(), f, 2), "pass overwrite=True"),
    "no folder to open": (
        lambda f, d: DistDataset.from_folder(f / "x"),
        "make one with `khop part",
    ),
    "the folder of a part": (
        lambda f, d: DistDataset.from_folder(f / "part-0"),
        r"it has no meta\.json\. Make one with",
    ),
    "parts in words": (
        lambda f, d: khop.partition_graph(Data(), f / "x", "2"),
        r"num_parts must be an integer, 2 for example \(got '2'\)",
    ),
    "nowhere to write to": (
        lambda f, d: khop.partition_graph(Data(), None, 2),
        r"call khop\.partition_graph\(data, 'parts', num_parts=2\)",
    ),
    "folder and graph swapped": (
        lambda f, d: khop.partition_graph(f / "x", Data(), 2),
        r"output_dir must be the path .* \(got <class 'torch_geometric",
    ),
    "a method that is not there": (
        lambda f, d: khop.partition_graph(Data(), f / "x", 2, method="metys"),
        r"no method 'metys': did you mean 'metis'\? there are assigned, .*stream",
    ),
    "an option that is not there": (
        lambda f, d: khop.partition_graph(Data(), f / "x", 2, time_atr="t"),
        r"no option 'time_atr' of method='random': there are \[.*'time_attr'",
    ),
    "another name of an option": (
        lambda f, d: khop.partition_graph(Data(), f / "x", 2, method="frequency", fanout=[3]),
        r"no option 'fanout' of method='frequency': there are \[.*'num_neighbors'",
    ),
    "a path to partition": (
        lambda f, d: khop.partition_graph(f, f / "x", 2),
        "command `khop partition`",
    ),
}


@pytest.mark.parametrize("mistake", PARTITIONED)
def test_partitioned(folder, mistake):
    make, message = PARTITIONED[mistake]
    with pytest.raises(
        (TypeError, ValueError, KeyError, RuntimeError, OSError, IndexError), match=message
    ):
        make(folder, DistDataset().load(folder))


PICTURES = {
    "a graph for a folder": (khop.plot.balance, r"khop\.partition writes one"),
    "edges for a folder": (lambda d: khop.plot.degrees(RING), r"khop\.partition writes one"),
    "a loader for its stats": (
        lambda d: khop.plot.time(NeighborLoader(d, [2])),
        r"expected the result of loader\.stats\(\)",
    ),
    "a loader for its hotness": (
        lambda d: khop.plot.hotness(NeighborLoader(d, [2])),
        r"NeighborSampler\.sample_prob estimates them",
    ),
    "a graph for a batch": (khop.plot.batch, "take one of a loader with"),
}


@pytest.mark.parametrize("mistake", PICTURES)
def test_pictures(data, mistake):
    pytest.importorskip("matplotlib")
    draw, message = PICTURES[mistake]
    with pytest.raises((TypeError, ValueError), match=message):
        draw(data)
