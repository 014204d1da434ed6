"""What all loaders have in common that choose nodes: threads, processes, resuming, statistics.

And `RandomNodeLoader`, the least of them.
"""

import inspect
import json

import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader as PygRandomNodeLoader

import khop
from khop.loader import (
    ClusterData,
    ClusterLoader,
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    HGTLoader,
    RandomNodeLoader,
    ShaDowKHopSampler,
)
from support.cluster import twins
from support.loaders import random_graphs

GRAPH = random_graphs.homogeneous(60, 300)
CLUSTERS = torch.arange(60) % 7
COVERED = {"num_steps": 4, "sample_coverage": 3, "log": False}
PROCESSES = {"num_workers": 1, "worker_type": "process"}

LOADERS = {
    "cluster": lambda **o: ClusterLoader(
        ClusterData(GRAPH, 7, assignment=CLUSTERS), batch_size=2, shuffle=True, **o
    ),
    "saint nodes": lambda **o: GraphSAINTNodeSampler(GRAPH, 9, **COVERED, **o),
    "saint edges": lambda **o: GraphSAINTEdgeSampler(GRAPH, 9, **COVERED, **o),
    "saint walks": lambda **o: GraphSAINTRandomWalkSampler(GRAPH, 9, 2, **COVERED, **o),
    "shadow": lambda **o: ShaDowKHopSampler(GRAPH, 2, 2, batch_size=16, shuffle=True, **o),
    "hgt": lambda **o: HGTLoader(
        twins.heterogeneous(), [9, 9], ("paper", None), batch_size=30, shuffle=True, **o
    ),
    "random": lambda **o: RandomNodeLoader(GRAPH, 4, shuffle=True, **o),
    "random, types": lambda **o: RandomNodeLoader(twins.heterogeneous(), 4, shuffle=True, **o),
}

quietly = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
ALL = pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)


def same(ours, theirs):
    """Whether two lists of batches are equal in all that they hold."""
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        twins.same_batch(mine, other)
    return True


@ALL
def test_threads_and_resuming(make):
    """Epochs follow from the seed; a stopped loader goes on, with threads or without."""
    whole = make(seed=5)
    epochs = [list(whole) for _ in range(2)]
    assert len(whole) == len(epochs[0]) == 4
    beside = make(seed=5, num_workers=2)
    assert all(same(list(beside), epoch) for epoch in epochs)
    with pytest.raises(AssertionError):
        same(epochs[1], epochs[0])
    stopped = make(seed=5, num_workers=2)
    batches = iter(stopped)
    for _ in range(3):
        next(batches)
    resumed = make(seed=5)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert same(list(resumed), epochs[0][3:])
    assert same(list(resumed), epochs[1])
    assert whole.stats().batches == 8
    assert whole.stats().nodes == sum(b.num_nodes for epoch in epochs for b in epoch)
    with pytest.raises(ValueError, match="another loader"):
        make(seed=6).load_state_dict(stopped.state_dict())


@ALL
@pytest.mark.process
@quietly
def test_worker_processes(make):
    assert same(list(make(seed=5, **PROCESSES)), list(make(seed=5)))


@ALL
def test_torchs_seed_and_transforms(make):
    def mark(batch):
        batch.marked = True
        return batch

    torch.manual_seed(3)
    first = list(make(transform=mark))
    torch.manual_seed(3)
    assert same(list(make(transform=mark)), first)
    assert all(batch.marked for batch in first)


PYGS = (
    *("ClusterData", "ClusterLoader", "GraphSAINTNodeSampler", "GraphSAINTEdgeSampler"),
    *("GraphSAINTRandomWalkSampler", "RandomNodeLoader", "ShaDowKHopSampler"),
    "HGTLoader",
)


@pytest.mark.parametrize("name", PYGS)
def test_arguments_are_pygs(name):
    """All of PyG's arguments in PyG's order, with PyG's defaults; khop's own by name alone."""
    ours, theirs = (
        inspect.signature(getattr(module, name)).parameters.values()
        for module in (khop.loader, torch_geometric.loader)
    )
    theirs = [(p.name, p.default) for p in theirs if p.kind is not p.VAR_KEYWORD]
    ours = [(p.name, p.default) for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert ours == theirs


def test_states_tell_loaders_apart():
    """Other clusters, other walks, another class: their states are refused."""
    given = {"num_steps": 4, "seed": 1}
    states = {
        "cluster": LOADERS["cluster"](seed=1).state_dict(),
        "walks": GraphSAINTRandomWalkSampler(GRAPH, 9, 2, **given).state_dict(),
    }
    others = ClusterData(GRAPH, 7, assignment=CLUSTERS.flip(0))
    for loader, state in (
        (ClusterLoader(others, batch_size=2, shuffle=True, seed=1), "cluster"),
        (GraphSAINTRandomWalkSampler(GRAPH, 9, 3, **given), "walks"),
        (GraphSAINTRandomWalkSampler(GRAPH, 8, 2, **given), "walks"),
        (GraphSAINTEdgeSampler(GRAPH, 9, **given), "walks"),
    ):
        with pytest.raises(ValueError, match="another loader"):
            loader.load_state_dict(states[state])


# RandomNodeLoader ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_parts", [1, 4, 7, 60, 100])
def test_parts_are_pygs(num_parts):
    ours, theirs = RandomNodeLoader(GRAPH, num_parts), PygRandomNodeLoader(GRAPH, num_parts)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine.x, other.x)
        assert sorted(mine.edge_attr.view(-1).tolist()) == sorted(other.edge_attr.view(-1).tolist())
        assert torch.equal(mine.n_id[mine.edge_index], GRAPH.edge_index[:, mine.e_id])


def test_parts_of_types_are_pygs():
    data = twins.heterogeneous()
    ours, theirs = RandomNodeLoader(data, 5), PygRandomNodeLoader(data, 5)
    for mine, other in zip(ours, theirs, strict=True):
        for node_type in data.node_types:
            assert mine[node_type].num_nodes == other[node_type].num_nodes
            if "x" in data[node_type]:
                assert torch.equal(mine[node_type].x, other[node_type].x)
        for edge_type in data.edge_types:
            store, want = mine[edge_type], other[edge_type]
            assert sorted(store.edge_index.T.tolist()) == sorted(want.edge_index.T.tolist())


def test_parts_of_types_cover_all_nodes():
    data = twins.heterogeneous()
    batches = list(RandomNodeLoader(data, 5, shuffle=True, seed=1))
    for node_type in data.node_types:
        ids = torch.cat([batch[node_type].n_id for batch in batches])
        assert ids.sort().values.tolist() == list(range(data[node_type].num_nodes))
    assert len({tuple(b["paper"].n_id.tolist()) for b in batches}) == 5


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"data": [GRAPH]}, TypeError, "takes a Data or a HeteroData"),
        ({"num_parts": 0}, ValueError, "num_parts must be at least 1"),
        ({"num_parts": 2.0}, TypeError, "num_parts must be an integer"),
        ({"batch_size": 3}, TypeError, "leave batch_size out"),
        ({"num_neighbors": [2]}, TypeError, "has no arguments"),
        ({"worker_type": "fiber"}, ValueError, "worker_type must be"),
        ({"transform": 3}, TypeError, "transform must be a function"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        RandomNodeLoader(**{"data": GRAPH, "num_parts": 4, **arguments})


def test_a_graph_without_nodes():
    assert list(RandomNodeLoader(Data(num_nodes=0), 3)) == []
