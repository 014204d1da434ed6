"""ShaDow: each root's subgraph is PyG's `k_hop_subgraph` where all neighbours are drawn."""

import pytest
import torch
from torch_geometric.data import Batch, HeteroData
from torch_geometric.nn import GraphConv, global_add_pool
from torch_geometric.utils import k_hop_subgraph, sort_edge_index

from khop.loader import NeighborLoader, ShaDowKHopSampler
from support.cluster import twins
from support.loaders import random_graphs

GRAPH = random_graphs.homogeneous(40, 120)  # parallel edges, loops, isolated nodes
GRAPH.y = torch.arange(40) % 5
GRAPH.train_mask = torch.arange(40) % 3 == 0
MOST = int(GRAPH.edge_index[1].bincount().max())


def parts_of(batch):
    """(n_id, edges as original ids, e_id, root) of each subgraph."""
    for i, (first, last) in enumerate(zip(batch.ptr[:-1], batch.ptr[1:], strict=True)):
        inside = batch.batch[batch.edge_index[0]] == i
        edges = batch.n_id[batch.edge_index[:, inside]]
        yield batch.n_id[first:last], edges, batch.e_id[inside], batch.n_id[batch.root_n_id[i]]


@pytest.mark.parametrize("fanout", [-1, MOST])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_all_neighbours_are_pygs_subgraph(fanout, depth):
    roots = torch.tensor([3, 39, 12, 12, 0])  # one is isolated, one there twice
    (batch,) = ShaDowKHopSampler(GRAPH, depth, fanout, roots, batch_size=5)
    assert isinstance(batch, Batch)
    assert batch.num_graphs == 5
    for root, (nodes, edges, e_id, found) in zip(roots, parts_of(batch), strict=True):
        subset, want, _, mask = k_hop_subgraph(int(root), depth, GRAPH.edge_index, num_nodes=40)
        assert found == root
        assert torch.equal(nodes, subset)  # ascending
        assert sorted(e_id.tolist()) == mask.nonzero().view(-1).tolist()
        assert sorted(edges.T.tolist()) == sorted(want.T.tolist())


def test_attributes():
    loader = ShaDowKHopSampler(GRAPH, 2, 2, GRAPH.train_mask, batch_size=4, shuffle=True, seed=1)
    seen = []
    for batch in loader:
        roots = batch.n_id[batch.root_n_id]
        seen += roots.tolist()
        assert torch.equal(batch.y, GRAPH.y[roots])
        assert torch.equal(batch.x, GRAPH.x[batch.n_id])
        assert torch.equal(batch.train_mask, GRAPH.train_mask[batch.n_id])
        assert torch.equal(batch.edge_attr, GRAPH.edge_attr[batch.e_id])
        assert torch.equal(batch.n_id[batch.edge_index], GRAPH.edge_index[:, batch.e_id])
        assert torch.equal(
            batch.batch, torch.arange(len(roots)).repeat_interleave(batch.ptr.diff())
        )
        assert torch.equal(batch.edge_index, sort_edge_index(batch.edge_index))  # PyG's order
        assert batch.num_nodes == len(batch.n_id) == int(batch.ptr[-1])
        pooled = global_add_pool(
            GraphConv(1, 2)(batch.x, batch.edge_index), batch.batch, size=len(roots)
        )
        assert pooled.shape == (len(roots), 2)
    assert sorted(seen) == GRAPH.train_mask.nonzero().view(-1).tolist()


@pytest.mark.parametrize("replace", [False, True])
def test_neighbours_are_those_of_disjoint_induced_batches(replace):
    options = {"batch_size": 8, "seed": 4, "replace": replace}
    loader = ShaDowKHopSampler(GRAPH, 2, 2, **options)
    twin = NeighborLoader(GRAPH, [2, 2], subgraph_type="induced", disjoint=True, **options)
    for batch, other in zip(loader, twin, strict=True):
        for i, (nodes, _, e_id, _) in enumerate(parts_of(batch)):
            assert nodes.tolist() == sorted(other.n_id[other.batch == i].tolist())
            inside = other.batch[other.edge_index[0]] == i
            assert sorted(e_id.tolist()) == sorted(other.e_id[inside].tolist())


def test_devices_draw_the_same():
    on_cpu, on_device = (
        ShaDowKHopSampler(GRAPH, 2, 3, batch_size=8, seed=1, device=device)
        for device in (None, "emulated:3")
    )
    for mine, other in zip(on_device, on_cpu, strict=True):
        twins.same_batch(mine.cpu(), other)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"data": HeteroData()}, TypeError, "takes a homogeneous graph"),
        ({"depth": 0}, ValueError, "depth must be at least 1"),
        ({"num_neighbors": -2}, ValueError, "a fan-out is -1"),
        ({"node_idx": torch.tensor([40])}, IndexError, "input_nodes"),
        ({"disjoint": True}, TypeError, "has no argument disjoint"),
        ({"subgraph_type": "induced"}, TypeError, "has no argument subgraph_type"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        ShaDowKHopSampler(**{"data": GRAPH, "depth": 2, "num_neighbors": 3, **arguments})
