"""`RippleWalk` and `SaintNodes`: plain Python's draws, seeds first, and the laws of both."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from khop.loader import GraphSAINTNodeSampler, LinkNeighborLoader, NeighborLoader, SubGraphLoader
from khop.sampler import Hgt, NeighborSampler, RippleWalk, SaintEdges, SaintNodes, SaintWalks
from support.cluster import twins
from support.loaders import random_graphs
from support.reference import oracle, saint, subgraphs

GRAPH = random_graphs.homogeneous(40, 120)  # parallel edges, loops, isolated nodes
ROWS = saint.rows_of(*GRAPH.edge_index, 40)  # in-neighbours

METHODS = [
    (RippleWalk(12, 0.3), lambda roots, place: subgraphs.ripple(ROWS, roots, 12, 0.3, place)),
    (RippleWalk(40, 1.0), lambda roots, place: subgraphs.ripple(ROWS, roots, 40, 1.0, place)),
    (RippleWalk(99, 0.01), lambda roots, place: subgraphs.ripple(ROWS, roots, 99, 0.01, place)),
    (RippleWalk(1), lambda roots, place: roots),
    (SaintNodes(15), lambda roots, place: subgraphs.sources(ROWS, roots, 15, place)),
]


@pytest.mark.parametrize("method,draw", METHODS, ids=lambda m: repr(m) if not callable(m) else "")
@settings(max_examples=12, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 39), min_size=1, max_size=9),
    seed=st.integers(0, 2**32),
)
def test_batches_are_those_of_plain_python(method, draw, seeds, seed):
    """Seeds may repeat."""
    loader = NeighborLoader(GRAPH, method, torch.tensor(seeds), batch_size=4, seed=seed)
    for number, batch in enumerate(loader):
        roots, place = seeds[4 * number : 4 * number + 4], (oracle.run_key(seed, 0, 0), number)
        assert batch.n_id.tolist() == draw(roots, place)
        assert batch.batch_size == len(roots)
        if len(set(roots)) == len(roots):
            induced = GRAPH.subgraph(batch.n_id).edge_attr.view(-1)
            assert sorted(batch.e_id.tolist()) == sorted(induced.tolist())
        assert torch.equal(batch.n_id[batch.edge_index], GRAPH.edge_index[:, batch.e_id])


def test_a_ripple_goes_over_all_of_the_border():
    """From the middle of a star: any leaves, each as often; a whole border, if it is small."""
    star = torch.stack([torch.arange(1, 9), torch.zeros(8, dtype=torch.long)])
    data = Data(edge_index=to_undirected(star), num_nodes=9)
    seen = np.zeros(9)
    for seed in range(250):
        (batch,) = NeighborLoader(data, RippleWalk(3, 0.9), torch.tensor([0]), seed=seed)
        assert batch.num_nodes == 3
        seen[batch.n_id] += 1
    assert seen[0] == 250
    assert stats.chisquare(seen[1:]).pvalue > 1e-4
    (batch,) = NeighborLoader(data, RippleWalk(9, 0.5), torch.tensor([5]), seed=0)
    assert batch.n_id[:2].tolist() == [5, 0]
    assert batch.n_id.unique().numel() == 9


def test_a_ripple_goes_on_elsewhere_where_there_is_no_border():
    """Two pairs and a lonely node: all of them in the end, the pair first."""
    data = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]), num_nodes=5)
    for seed in range(20):
        (batch,) = NeighborLoader(data, RippleWalk(5), torch.tensor([2]), seed=seed)
        assert batch.n_id[:2].tolist() == [2, 3]
        assert sorted(batch.n_id.tolist()) == list(range(5))


def test_nodes_are_drawn_by_degree():
    loader = NeighborLoader(GRAPH, SaintNodes(1), torch.full((2500,), 39), seed=1)
    drawn = torch.cat([batch.n_id[1:] for batch in loader]).bincount(minlength=40)
    degrees = GRAPH.edge_index[1].bincount(minlength=40)
    assert degrees[39] == drawn[39] == 0  # the seed is isolated
    some = degrees > 0
    assert (drawn[~some] == 0).all()
    expected = degrees[some] * 2500 / degrees.sum()
    assert stats.chisquare(drawn[some].numpy(), expected.numpy()).pvalue > 1e-4


def test_nodes_are_those_of_graphsaints_loader():
    """Along the edges, with one key: its nodes, ascending there, and the seed."""
    sampler = NeighborSampler(GRAPH, SaintNodes(9), sample_direction="backward")
    seeds = torch.full((4,), 39)
    ours = NeighborLoader(GRAPH, [], seeds, neighbor_sampler=sampler, batch_size=1, seed=3)
    theirs = GraphSAINTNodeSampler(GRAPH, 9, num_steps=4, seed=3)
    for mine, other in zip(ours, theirs, strict=True):
        assert sorted(mine.n_id[1:].tolist()) == other.n_id.tolist()


def test_a_graph_without_edges():
    data = Data(edge_index=torch.empty((2, 0), dtype=torch.long), num_nodes=4)
    (batch,) = NeighborLoader(data, SaintNodes(3), torch.tensor([1]), seed=0)
    assert batch.n_id.tolist() == [1]
    (batch,) = NeighborLoader(data, Hgt([3]), torch.tensor([1]), seed=0)
    assert batch.n_id.tolist() == [1]


INDUCED = [RippleWalk(20), SaintNodes(9), SaintWalks(2), SaintEdges(), Hgt([6, 6])]


@pytest.mark.parametrize("method", INDUCED, ids=repr)
def test_loaders_of_subgraphs_and_links(method):
    """`SubGraphLoader` adds `mapping`; the ends of links are seeds."""
    seeds = torch.tensor([3, 12, 9])
    (plain,) = NeighborLoader(GRAPH, method, seeds, batch_size=3, seed=1)
    (batch,) = SubGraphLoader(GRAPH, seeds, method, batch_size=3, seed=1)
    assert batch.mapping.tolist() == [0, 1, 2]
    del batch.mapping
    twins.same_batch(batch, plain)
    links = torch.tensor([[1, 2, 30], [3, 4, 5]])
    (batch,) = LinkNeighborLoader(GRAPH, method, edge_label_index=links, batch_size=3, seed=1)
    assert batch.n_id[batch.edge_label_index].tolist() == links.tolist()
    induced = GRAPH.subgraph(batch.n_id).edge_attr.view(-1)
    assert sorted(batch.e_id.tolist()) == sorted(induced.tolist())


@pytest.mark.parametrize("make", [RippleWalk, SaintNodes])
def test_what_they_do_not_know(make):
    for number in (0, 2**24 + 1, 2.0, True, None):
        with pytest.raises(ValueError, match="num_nodes must be an integer from 1 to 16,777,216"):
            make(number)
    with pytest.raises(ValueError, match="this one is heterogeneous"):
        NeighborLoader(twins.heterogeneous(), make(2), "paper")
    with pytest.raises(ValueError, match="leave disjoint and time_attr out"):
        NeighborLoader(GRAPH, make(2), disjoint=True)
    with pytest.raises(ValueError, match="makes 'induced' subgraphs"):
        NeighborLoader(GRAPH, make(2), subgraph_type="bidirectional")
    with pytest.raises(ValueError, match="leave device out"):
        NeighborLoader(GRAPH, make(2), device="emulated:1")


def test_shares_of_the_border():
    for ratio in (0, 0.0001, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"ratio must be a number from 0.001 to 1"):
            RippleWalk(3, ratio)
