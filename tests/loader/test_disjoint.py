"""Batches in which each seed has a subgraph of its own."""

import pytest
import torch
from torch_geometric.data import Data

from khop.loader import LinkNeighborLoader, NeighborLoader
from support.loaders import random_graphs
from support.reference import walks

HETERO = pytest.mark.parametrize("hetero", [False, True], ids=["homogeneous", "heterogeneous"])


def make(hetero, **options):
    """A graph, the type of its seeds, and a view."""
    data = (
        random_graphs.heterogeneous(**options) if hetero else random_graphs.homogeneous(**options)
    )
    return data, "a" if hetero else None, walks.View(data)


def test_by_hand():
    """Both seeds reach node 2, which is there twice; node 1 is a seed, and a node of seed 0's tree.

    0 <- 1    0 <- 2    1 <- 2
    """
    data = Data(edge_index=torch.tensor([[1, 2, 2], [0, 0, 1]]), num_nodes=3)
    (batch,) = NeighborLoader(data, [-1, -1], torch.tensor([0, 1]), batch_size=2, disjoint=True)
    assert batch.n_id.tolist() == [0, 1, 1, 2, 2]
    assert batch.batch.tolist() == [0, 1, 0, 0, 1]
    assert batch.edge_index.tolist() == [[2, 3, 4, 3], [0, 0, 1, 2]]
    assert batch.e_id.tolist() == [0, 1, 2, 2]
    assert batch.num_sampled_nodes == [2, 3, 0]
    assert batch.num_sampled_edges == [3, 1]
    (batch,) = NeighborLoader(data, [-1, -1], torch.tensor([0, 1]), batch_size=2)
    assert batch.n_id.tolist() == [0, 1, 2] and "batch" not in batch


@HETERO
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [[-1, -1], [3, 2], [0, 2], []], ids=str)
def test_random_graphs(hetero, replace, fanouts):
    """Every attribute of every batch follows from the graph and from what was drawn."""
    data, seed_type, view = make(hetero)
    ids = [5, 5, 0, 29, 11, 5, 38 % 30]
    seeds = (seed_type, ids) if hetero else ids
    options = {"replace": replace, "disjoint": True}
    for batch in NeighborLoader(data, fanouts, seeds, batch_size=4, **options):
        places = batch[seed_type].input_id if hetero else batch.input_id
        mine = [ids[i] for i in places]
        walks.check(view, batch, fanouts, (seed_type, mine) if hetero else mine, **options)


def tree_of(batch, view, tree):
    """(ids, edges between places in them) of a tree, by type, in the batch's order."""
    of = walks.Stores(batch)
    places = {t: (of(t).batch == tree).nonzero().view(-1) for t in view.node_types}
    nodes = {t: of(t).n_id[p].tolist() for t, p in places.items()}
    edges = {}
    for t in view.edge_types:
        row, col = of(t).edge_index
        src, dst = t and t[0], t and t[2]
        mine = of(dst).batch[col] == tree
        assert torch.equal(mine, of(src).batch[row] == tree)
        edges[t] = list(
            zip(
                torch.searchsorted(places[src], row[mine]).tolist(),
                torch.searchsorted(places[dst], col[mine]).tolist(),
                of(t).e_id[mine].tolist(),
                strict=True,
            )
        )
    return nodes, edges


@HETERO
@pytest.mark.parametrize("kind", ["directional", "induced"])
def test_a_tree_is_the_batch_of_its_seed_alone(hetero, kind):
    """With all neighbours: nodes and edges, and their order; also where seeds repeat."""
    data, seed_type, view = make(hetero)
    ids = [7, 2, 2, 29, 7, 13]
    common = {"subgraph_type": kind, "seed": 1}

    def load(mine, **options):
        seeds = (seed_type, mine) if hetero else mine
        (batch,) = NeighborLoader(data, [-1, -1], seeds, batch_size=len(mine), **common, **options)
        return batch

    together = load(ids, disjoint=True)
    for tree, node in enumerate(ids):
        nodes, edges = tree_of(together, view, tree)
        alone = walks.Stores(load([node]))
        assert nodes == {t: alone(t).n_id.tolist() for t in view.node_types}
        for t in view.edge_types:
            lists = (*alone(t).edge_index.tolist(), alone(t).e_id.tolist())
            assert edges[t] == list(zip(*lists, strict=True))


@HETERO
def test_trees_draw_for_themselves(hetero):
    """The same seed again and again: its trees differ, each is one that the seed may have."""
    data, seed_type, view = make(hetero)
    ids = [2] * 30
    seeds = (seed_type, ids) if hetero else ids
    (batch,) = NeighborLoader(data, [2, 1], seeds, batch_size=30, disjoint=True, seed=1)
    walks.check(view, batch, [2, 1], seeds, disjoint=True)
    trees = {repr(tree_of(batch, view, i)) for i in range(30)}
    assert len(trees) > 10
    # Without trees of their own seeds draw alike: each takes the same edges.
    (batch,) = NeighborLoader(data, [2], seeds, batch_size=30, seed=1)
    for t in view.edge_types:
        drawn = walks.Stores(batch)(t).e_id.view(30, -1)
        assert torch.equal(drawn, drawn[:1].expand_as(drawn))


@HETERO
def test_batches_are_numbered_from_zero(hetero):
    """`batch` counts the seeds of its batch, in order, in every epoch; none is left out."""
    data, seed_type, view = make(hetero)
    loader = NeighborLoader(
        data, [2, 2], seed_type, batch_size=7, disjoint=True, shuffle=True, drop_last=False
    )
    for _ in range(2):
        for batch in loader:
            of = walks.Stores(batch)
            size = of(seed_type).batch_size
            assert torch.equal(of(seed_type).batch[:size], torch.arange(size))
            for t in view.node_types:
                assert of(t).batch.dtype == torch.int64
                assert len(of(t).batch) == 0 or 0 <= of(t).batch.min() <= of(t).batch.max() < size


@pytest.mark.parametrize("link_type", [("a", "to", "b"), ("a", "self", "a")], ids=lambda t: t[1])
def test_links(link_type):
    """Both ends of a link are roots, of trees that count for the link; no edge joins two links."""
    data = random_graphs.heterogeneous()
    loader = LinkNeighborLoader(
        data, [-1, -1], link_type, batch_size=6, disjoint=True, neg_sampling="binary"
    )
    batch = next(iter(loader))
    row, col = batch[link_type].edge_label_index
    src, dst = batch[link_type[0]], batch[link_type[2]]
    assert torch.equal(src.batch[row], torch.arange(12) % 6)
    assert torch.equal(dst.batch[col], torch.arange(12) % 6)
    ends = torch.stack([src.n_id[row], dst.n_id[col]])
    assert torch.equal(ends[:, :6], data[link_type].edge_index[:, :6])
    for t in data.edge_types:
        row, col = batch[t].edge_index
        assert torch.equal(batch[t[0]].batch[row], batch[t[2]].batch[col])
