"""Distributed batches are those of the in-memory loader, bit for bit."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
)
from khop.loader import NeighborLoader
from khop.partition import RandomPartitioner
from support.cluster import jobs


def options_for(num_workers):
    """None: collocated; else that many sampler processes."""
    if num_workers is None:
        return CollocatedDistSamplingWorkerOptions()
    return MpDistSamplingWorkerOptions(num_workers=num_workers)


def loaders(graph, root, num_parts, num_workers, **options):
    """A distributed loader whose trainer serves all parts, and its in-memory twin."""
    dataset = DistDataset().load(root, 0, also_serve=range(1, num_parts))
    fanouts = options.pop("fanouts", jobs.FANOUTS)
    seeds = options.pop("seeds", jobs.seeds_of_rank(0))
    common = {"batch_size": jobs.BATCH_SIZE, "shuffle": True, "seed": 11, **options}
    ours = DistNeighborLoader(
        dataset,
        fanouts,
        seeds,
        with_edge=True,
        collect_features=True,
        worker_options=options_for(num_workers),
        **common,
    )
    return ours, NeighborLoader(graph, fanouts, seeds, **common)


@pytest.mark.parametrize("method,num_parts,num_workers", [
    ("frequency", 1, None), ("frequency", 1, 2), ("frequency", 2, 0), ("frequency", 2, None),
    ("frequency", 3, 3), ("frequency", 3, 1), ("frequency", 5, None), ("frequency", 5, 2),
    ("random", 2, 2), ("random", 3, None),
])  # fmt: skip
def test_one_trainer(graph, folder_of, method, num_parts, num_workers):
    """One trainer and any number of parts and samplers: two epochs of equal batches."""
    ours, reference = loaders(graph, folder_of(method, num_parts), num_parts, num_workers)
    for _ in range(2):
        assert jobs.same_batches(ours, reference) == len(reference) == len(ours)
    rows = ours.stats().rows
    assert (rows["remote"] > 0) == (num_parts > 1)
    assert (rows["cached"] > 0) == (num_parts > 1 and method == "frequency")


@pytest.mark.parametrize("num_parts", [1, 3])
def test_neighbours_along_edges(graph, folder_of, num_parts):
    """A folder partitioned by source serves out-neighbours: in-neighbours of the reversed graph."""
    reversed_graph = graph.clone()
    reversed_graph.edge_index = graph.edge_index.flip(0)
    root = folder_of("random", num_parts, "by_src")
    ours, reference = loaders(reversed_graph, root, num_parts, 1)
    assert jobs.same_batches(ours, reference) == len(reference)


@pytest.mark.parametrize("options", [
    {"replace": True},
    {"fanouts": [0, 3]},
    {"fanouts": [3, 0, 2]},
    {"fanouts": [-1]},
    {"fanouts": []},
    {"shuffle": False, "drop_last": True},
    {"seeds": torch.tensor([0])},  # isolated
    {"seeds": torch.tensor([7, 7, 7, 0])},
    {"seeds": None, "batch_size": 200},
    {"batch_size": 10_000},
])  # fmt: skip
def test_options(graph, folder_of, options):
    """Fan-outs of 0 and -1 anywhere, replacement, odd seeds, one large batch."""
    ours, reference = loaders(graph, folder_of("frequency", 3), 3, 1, **options)
    assert jobs.same_batches(ours, reference) == len(reference)


def test_boolean_mask_and_streams(graph, folder_of):
    """A mask's input_id are node ids; another stream draws other neighbours, of the same seeds."""
    ours, reference = loaders(graph, folder_of("random", 2), 2, 1, seeds=graph.train_mask)
    assert jobs.same_batches(ours, reference) == len(reference)
    other, _ = loaders(graph, folder_of("random", 2), 2, 1, seeds=graph.train_mask, stream=1)
    first, second = next(iter(ours)), next(iter(other))
    assert not torch.equal(first.n_id, second.n_id)


@pytest.mark.parametrize("num_workers", [None, 1])
def test_empty_parts_and_no_attributes(tmp_path, num_workers):
    """Three nodes in five parts, without features or labels; then without any edge."""
    for edges in ([[0, 1, 1], [1, 2, 2]], [[], []]):
        tiny = Data(edge_index=torch.tensor(edges, dtype=torch.int64), num_nodes=3)
        root = tmp_path / f"tiny-{len(edges[0])}"
        RandomPartitioner.from_data(tiny, root, 5).partition()
        ours, reference = loaders(
            tiny, root, 5, num_workers, seeds=None, batch_size=2, fanouts=[-1, 1]
        )
        count = jobs.same_batches(ours, reference, ("n_id", "e_id", "edge_index", "input_id"))
        assert count == 2
        batch = next(iter(ours))
        assert batch.x is None and batch.y is None
        assert batch.num_nodes == len(batch.n_id)


def test_labels_from_a_file(graph, folder_of, tmp_path):
    """`whole_node_label_file` supplies labels by original id, from a tensor or an array."""
    labels = graph.y.flip(0).view(-1, 1)
    torch.save(labels, tmp_path / "label.pt")
    np.save(tmp_path / "label.npy", labels.numpy())
    for name in ("label.pt", "label.npy"):
        dataset = DistDataset().load(
            graph_dir=folder_of("random", 1), whole_node_label_file=tmp_path / name
        )
        options = {"collect_features": False}
        batch = next(
            iter(DistNeighborLoader(dataset, [3], graph.train_mask, batch_size=16, **options))
        )
        assert torch.equal(batch.y, labels[batch.n_id])
        assert batch.x is None


def test_two_trainers(folder_of):
    """Two trainers on one machine, each with its seeds and stream."""
    cases = [
        {
            "root": str(folder_of("frequency", num_parts)),
            "homes": homes,
            "also_serve": also_serve,
            "num_workers": num_workers,
        }
        for num_parts, homes, also_serve, num_workers in (
            (1, [0, 0], {}, 2),
            (2, [1, 0], {}, None),
            (3, [0, 2], {"1": [1]}, 2),
            (5, [1, 4], {"0": [0, 2], "1": [3]}, None),
        )
    ]
    results = jobs.finish_trainers(
        jobs.start_trainers("compare_all", {"cases": cases}, 2), 150, silent=True
    )
    for case, *of_each in zip(cases, *results, strict=True):
        assert [r["batches"] for r in of_each] == [[5, 5], [5, 5]], case
        assert all((r["rows"]["remote"] > 0) == (case is not cases[0]) for r in of_each), case


@pytest.mark.network
@pytest.mark.parametrize("num_workers", [1, None])
def test_two_hosts(folder_of, two_hosts, num_workers):
    """Two machines that share nothing but the network, over TCP with CURVE."""
    prefixes, master = two_hosts
    root = str(folder_of("frequency", 2))
    case = {"root": root, "homes": [0, 1], "num_workers": num_workers}
    results = jobs.finish_trainers(jobs.start_trainers("compare", case, 2, prefixes, master, 29511))
    assert [r["batches"] for r in results] == [[5, 5], [5, 5]]
    assert all(r["rows"]["remote"] > 0 for r in results)
