"""Heterogeneous graphs: distributed batches are those of the in-memory loader, bit for bit."""

import functools

import pytest
import torch
from torch_geometric.data import HeteroData

from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    node_split,
)
from khop.loader import NeighborLoader
from khop.partition import RandomPartitioner


@pytest.fixture(scope="module")
def graph():
    """Three node types, one without features; a self-relation, an edge type without edges."""
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x = torch.arange(300).float().view(-1, 1).repeat(1, 3)
    data["paper"].y = torch.arange(300)
    data["paper"].train_mask = torch.rand(300, generator=generator) < 0.5
    data["author"].x = torch.arange(200).to(torch.float16)
    data["venue"].num_nodes = 7
    sizes = {"paper": 300, "author": 200, "venue": 7}
    for src, relation, dst, count in (
        ("author", "writes", "paper", 900),
        ("paper", "rev_writes", "author", 900),
        ("paper", "cites", "paper", 700),
        ("venue", "prints", "paper", 300),
        ("paper", "never", "venue", 0),
    ):
        store = data[src, relation, dst]
        ends = [torch.randint(sizes[t] - 3, (count,), generator=generator) for t in (src, dst)]
        store.edge_index = torch.stack(ends)
        if relation != "cites":
            store.edge_attr = torch.arange(count).view(-1, 1)
    return data


@pytest.fixture(scope="module")
def folder_of(graph, tmp_path_factory):
    """Returns folder_of(num_parts): the root of a partitioning of the graph."""
    base = tmp_path_factory.mktemp("heterogeneous")

    @functools.cache
    def folder_of(num_parts):
        RandomPartitioner.from_data(graph, base / str(num_parts), num_parts).partition()
        return base / str(num_parts)

    return folder_of


def fanouts_of(graph, fanouts):
    """The same fan-outs for each edge type, but none along citations in the first hop."""
    by_type = {edge_type: list(fanouts) for edge_type in graph.edge_types}
    by_type["paper", "cites", "paper"][0] = 0
    return by_type


def same_store(ours, theirs):
    """Equal attributes, but for num_nodes, which PyG infers where it can."""
    names = set(theirs.keys()) - {"num_nodes"}
    assert set(ours.keys()) - {"num_nodes"} == names
    for name in names:
        if isinstance(theirs[name], torch.Tensor):
            assert ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name])
        else:
            assert ours[name] == theirs[name]
    return True


@pytest.mark.parametrize("num_parts,num_workers,seed_type,by_type", [
    (1, None, "paper", True),
    (1, 2, "venue", False),
    (2, 2, "paper", True),
    (2, None, "venue", False),
    (3, 2, "venue", True),
    (3, None, "paper", False),
    (5, None, "venue", True),
])  # fmt: skip
def test_equal_to_in_memory(graph, folder_of, num_parts, num_workers, seed_type, by_type):
    """Every attribute of every type, empty ones included."""
    dataset = DistDataset().load(folder_of(num_parts), 0, also_serve=range(1, num_parts))
    options = CollocatedDistSamplingWorkerOptions()
    if num_workers is not None:
        options = MpDistSamplingWorkerOptions(num_workers=num_workers)
    fanouts = fanouts_of(graph, [3, -1, 2]) if by_type else [3, 2]
    seeds = (seed_type, torch.tensor([1, 0, 1, 6, 4, 2]))
    common = {"batch_size": 4, "shuffle": True, "seed": 9}
    ours = DistNeighborLoader(
        dataset,
        fanouts,
        seeds,
        with_edge=True,
        collect_features=True,
        worker_options=options,
        **common,
    )
    reference = NeighborLoader(graph, fanouts, seeds, **common)
    assert len(ours) == len(reference) == 2
    for a, b in zip(ours, reference, strict=True):
        assert a.node_types == b.node_types and a.edge_types == b.edge_types
        assert all(same_store(a[t], b[t]) for t in (*b.node_types, *b.edge_types))
        assert all(a[t].num_nodes == b[t].n_id.numel() for t in b.node_types)


def test_split_by_type(graph, folder_of):
    """node_split takes the node type; seeds of a type may be a mask, ids or all."""
    dataset = DistDataset().load(folder_of(2), 0, also_serve=[1])
    share = node_split("train_mask", dataset, node_type="paper")
    wanted = graph["paper"].train_mask.nonzero().view(-1)
    assert torch.equal(torch.sort(share).values, wanted)
    with pytest.raises(ValueError, match="node_type of a heterogeneous graph"):
        node_split("train_mask", dataset)
    loader = DistNeighborLoader(dataset, [2], "venue", batch_size=7)
    assert next(iter(loader))["venue"].n_id[:7].tolist() == list(range(7))
    masked = DistNeighborLoader(dataset, [2], ("paper", graph["paper"].train_mask), batch_size=300)
    assert torch.equal(next(iter(masked))["paper"].input_id, wanted)


def test_labels_by_type(folder_of, tmp_path):
    """Label files of a heterogeneous graph go by node type."""
    root = folder_of(1)
    torch.save(torch.arange(7) * 10, tmp_path / "venue.pt")
    dataset = DistDataset().load(root, whole_node_label_file={"venue": tmp_path / "venue.pt"})
    batch = next(iter(DistNeighborLoader(dataset, [2], "venue", batch_size=7)))
    assert batch["venue"].y[:7].tolist() == list(range(0, 70, 10))
    with pytest.raises(ValueError, match="must name node types"):
        DistDataset().load(root, whole_node_label_file=tmp_path / "venue.pt")
