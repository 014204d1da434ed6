"""`SaintWalks` and `SaintEdges`: plain Python's walks, seeds first, and the edges' law."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats
from torch_geometric.utils import to_undirected

from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.sampler import METHODS, SaintEdges, SaintWalks
from support.cluster import twins
from support.loaders import random_graphs
from support.reference import oracle, saint

GRAPH = random_graphs.homogeneous(40, 120)  # parallel edges, loops, isolated nodes
ROWS = saint.rows_of(*GRAPH.edge_index, 40)  # in-neighbours


def first_visits(nodes):
    """Nodes without repetition, in order."""
    return list(dict.fromkeys(nodes))


@settings(max_examples=40, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 39), min_size=1, max_size=9, unique=True),
    length=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_a_batch_is_what_walks_visit(seeds, length, seed):
    loader = NeighborLoader(GRAPH, SaintWalks(length), torch.tensor(seeds), batch_size=4, seed=seed)
    for number, batch in enumerate(loader):
        roots, place = seeds[4 * number : 4 * number + 4], (oracle.run_key(seed, 0, 0), number)
        assert batch.n_id.tolist() == first_visits(saint.walked(ROWS, roots, length, place))
        induced = GRAPH.subgraph(batch.n_id).edge_attr.view(-1)
        assert sorted(batch.e_id.tolist()) == sorted(induced.tolist())
        assert batch.batch_size == len(roots)


def test_a_seed_that_is_there_twice_stays_so():
    """As in batches of any other method; its walks are two."""
    loader = NeighborLoader(GRAPH, SaintWalks(4), torch.tensor([3, 3, 8]), batch_size=3, seed=1)
    (batch,) = loader
    nodes = saint.walked(ROWS, [3, 3, 8], 4, (oracle.run_key(1, 0, 0), 0))
    assert batch.n_id.tolist() == [3, *first_visits(nodes)]


def test_edges_are_walks_of_one_step():
    walks, edges = (
        list(NeighborLoader(GRAPH, method, batch_size=8, seed=2))
        for method in (SaintWalks(1), SaintEdges())
    )
    for mine, other in zip(edges, walks, strict=True):
        twins.same_batch(mine, other)


def test_edges_have_the_papers_law():
    """Of uniform seeds: P(u, v) is proportional to 1 / d_u + 1 / d_v."""
    star = torch.stack([torch.zeros(6, dtype=torch.long), torch.arange(1, 7)])
    edges = to_undirected(torch.cat([star, torch.tensor([[5, 6, 7], [6, 7, 8]])], 1))
    data = random_graphs.Data(edge_index=edges, num_nodes=9)
    seeds = torch.arange(9).repeat(150)
    pairs = [
        tuple(sorted(batch.n_id.tolist()))
        for batch in NeighborLoader(data, SaintEdges(), seeds, batch_size=1, seed=1)
    ]
    u, v = edges[:, edges[0] < edges[1]]
    degree = edges[0].bincount().double()
    expected = (1 / degree[u] + 1 / degree[v]) / 9 * len(pairs)
    observed = [pairs.count(pair) for pair in zip(u.tolist(), v.tolist(), strict=True)]
    assert sum(observed) == len(pairs)
    assert stats.chisquare(observed, expected.numpy()).pvalue > 1e-4


def test_links_are_roots():
    links = torch.tensor([[1, 2, 30], [3, 4, 5]])
    loader = LinkNeighborLoader(
        GRAPH, SaintWalks(2), edge_label_index=links, neg_sampling="binary", batch_size=3
    )
    (batch,) = loader
    assert batch.n_id[batch.edge_label_index[:, :3]].tolist() == links.tolist()
    induced = GRAPH.subgraph(batch.n_id).edge_attr.view(-1)
    assert sorted(batch.e_id.tolist()) == sorted(induced.tolist())


def test_what_walks_do_not_know():
    assert METHODS["saint-walks"] is SaintWalks
    for length in (0, 1001, 2.0, True):
        with pytest.raises(ValueError, match="walk_length must be an integer from 1 to 1,000"):
            SaintWalks(length)
    with pytest.raises(ValueError, match="walk_length must be an integer from 1 to 1 "):
        SaintEdges(2)
    with pytest.raises(ValueError, match="this one is heterogeneous"):
        NeighborLoader(twins.heterogeneous(), SaintWalks(2), "paper")
    for options in ({"disjoint": True}, {"time_attr": "time"}):
        with pytest.raises(ValueError, match="leave disjoint and time_attr out"):
            NeighborLoader(twins.homogeneous(), SaintWalks(2), **options)
    with pytest.raises(ValueError, match="leave device out"):
        NeighborLoader(GRAPH, SaintWalks(2), device="emulated:1")
