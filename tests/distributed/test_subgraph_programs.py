"""Programs that choose nodes, over partitions: the batches of the in-memory loaders."""

import pytest
import torch

from khop.distributed import DistNeighborLoader, DistSubGraphLoader
from khop.loader import HGTLoader, NeighborLoader, SubGraphLoader
from khop.sampler import Hgt, RippleWalk, SaintEdges, SaintNodes, SaintWalks
from khop.sampler.drawing import graph_rows
from support.cluster import twins

SEEDS = torch.tensor([*range(0, 60, 3), 149, 11])
PAPERS = ("paper", torch.tensor([3, 119, *range(20)]))
SAMPLES = {"paper": [6, 4], "author": [5, 9], "venue": [2, 0], "ghost": [1, 1]}
COMMON = {"batch_size": 8, "shuffle": True, "seed": 7}
ALL = {"collect_features": True, "with_edge": True}


PROGRAMS = [
    (method, strategy)
    for method in (Hgt([9, 6]), RippleWalk(40), SaintNodes(20))
    for strategy in ("by_dst", "by_src")
]


@pytest.mark.parametrize("some_parts,method,strategy", twins.with_parts(PROGRAMS), ids=repr)
def test_homogeneous(twin_root, some_parts, method, strategy):
    for num_parts in some_parts:
        root = twin_root("homogeneous", num_parts, "plain", strategy)
        with twins.open_dataset(root, num_parts) as dataset:
            ours = DistNeighborLoader(dataset, method, SEEDS, **ALL, **COMMON)
            twin = twins.make_twin(
                NeighborLoader, twins.homogeneous(), method, SEEDS, strategy, **COMMON
            )
            batches = twins.same_epochs(ours, twin, 1, strategy)
        assert all(batch.num_nodes > 15 for batch in batches)


def test_types(twin_root):
    """Of `HGTLoader`, and with other numbers for each type."""
    data = twins.heterogeneous()
    for num_parts, samples in ((1, SAMPLES), (2, SAMPLES), (3, [5, 5])):
        with twins.open_dataset(twin_root("heterogeneous", num_parts), num_parts) as dataset:
            ours = DistNeighborLoader(dataset, Hgt(samples), PAPERS, **ALL, **COMMON)
            twins.same_epochs(ours, HGTLoader(data, samples, PAPERS, **COMMON))
            with pytest.raises(ValueError, match="must name the graph's node types"):
                DistNeighborLoader(dataset, Hgt({"paper": [3]}), PAPERS)


METHODS = [Hgt([9, 6]), RippleWalk(40), SaintNodes(20), SaintWalks(2), SaintEdges()]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_loaders_of_subgraphs(twin_root, method):
    """`DistSubGraphLoader` takes them where it takes fan-outs: the same batches, and `mapping`."""
    with twins.open_dataset(twin_root("homogeneous", 2), 2) as dataset:
        ours = DistSubGraphLoader(dataset, SEEDS, method, **ALL, **COMMON)
        twins.same_epochs(ours, SubGraphLoader(twins.homogeneous(), SEEDS, method, **COMMON))


@pytest.mark.parametrize("method", [Hgt(SAMPLES), RippleWalk(40), SaintNodes(20)], ids=repr)
def test_samplers_and_resume(twin_root, method):
    """Sampler processes draw; they go on where the in-memory loader has stopped."""
    is_typed = isinstance(method, Hgt)
    graph, seeds = ("heterogeneous", PAPERS) if is_typed else ("homogeneous", SEEDS)
    with twins.open_dataset(twin_root(graph, 3), 3) as dataset:
        ours = DistNeighborLoader(
            dataset, method, seeds, worker_options=twins.workers(2), **ALL, **COMMON
        )
        twin = NeighborLoader(getattr(twins, graph)(), method, seeds, **COMMON)
        stopped = iter(twin)
        next(stopped)
        ours.load_state_dict(twin.state_dict())
        for mine, other in zip(ours, stopped, strict=True):
            twins.same_batch(mine, other)
        ours.shutdown()


def test_degrees_are_asked_for_in_pieces(twin_root, monkeypatch):
    monkeypatch.setattr(graph_rows, "_CHUNK", 7)
    with twins.open_dataset(twin_root("homogeneous", 3), 3) as dataset:
        ours = DistNeighborLoader(dataset, SaintNodes(20), SEEDS, **ALL, **COMMON)
        twin = NeighborLoader(twins.homogeneous(), SaintNodes(20), SEEDS, **COMMON)
        twins.same_epochs(ours, twin)
