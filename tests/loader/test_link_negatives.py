"""Strict negatives, weighted negatives, links that are left out of their neighbourhood."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from khop.loader import LinkNeighborLoader
from support.loaders.links import BOUGHT, BUYS, ITEM, NEGATIVES, USER, edge_set, ends_of


@pytest.mark.parametrize("neg", NEGATIVES[1:], ids=str)
def test_strict_negatives(data, shop, neg):
    """None is an edge, in dense graphs, too; those of PyG's kind are."""
    rng = np.random.default_rng(0)
    # Of 20 * 20 pairs, one a source is no edge, and a few more; some edges are there twice.
    free = np.concatenate([np.arange(0, 400, 21), rng.integers(0, 400, 20)])
    pairs = np.setdiff1d(np.arange(400), free)
    pairs = rng.permutation(np.concatenate([pairs, pairs[:50]]))
    dense = Data(edge_index=torch.from_numpy(np.stack([pairs // 20, pairs % 20])), num_nodes=20)
    for graph, link_type in ((dense, None), (data, None), (shop, BUYS)):
        edges = edge_set(graph.edge_index if link_type is None else graph[link_type].edge_index)
        found = set()
        for strict in (True, False):
            loader = LinkNeighborLoader(
                graph, [1], link_type, neg_sampling=neg, strict_negatives=strict, batch_size=100
            )
            negative = torch.cat([ends_of(batch, link_type)[1] for batch in loader], dim=1)
            found = edge_set(negative) & edges
            assert strict != bool(found)


def test_sources_without_negatives():
    """The loader says whose links cannot be told from non-links."""
    full = torch.stack([torch.full((4,), 2), torch.arange(4)])
    data = Data(edge_index=full, num_nodes=4)
    loader = LinkNeighborLoader(data, [1], neg_sampling="triplet", strict_negatives=True)
    with pytest.raises(ValueError, match="no strict negative can be drawn for source 2"):
        next(iter(loader))
    loader = LinkNeighborLoader(
        data, [1], neg_sampling="binary", strict_negatives=True, batch_size=4
    )
    (batch,) = loader
    assert 2 not in ends_of(batch)[1][0]


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_weighted_negatives(data, shop, mode):
    """Drawn by weight, strict or not; nodes of weight 0 never."""
    weight = torch.zeros(200, dtype=torch.float64)
    weight[[3, 8, 150]] = torch.tensor([1.0, 5.0, 0.5], dtype=torch.float64)
    for kind in (torch.float32, torch.bfloat16, torch.float64):
        neg = NegativeSampling(mode, 2, weight.flip(0).to(kind), weight.to(kind))
        for strict in (False, True):
            loader = LinkNeighborLoader(
                data, [0], neg_sampling=neg, batch_size=400, strict_negatives=strict
            )
            negative = torch.cat([ends_of(b)[1] for b in loader], dim=1)
            assert set(negative[1].tolist()) == {3, 8, 150}
            counts = torch.bincount(negative[1])
            assert counts[8] > 2 * counts[3] > 2 * counts[150]
            if mode == "binary":
                assert set(negative[0].tolist()) == {196, 191, 49}
    likes = NegativeSampling(mode, 1, torch.eye(USER)[4], torch.eye(ITEM)[9])
    for batch in LinkNeighborLoader(shop, [1], BUYS, neg_sampling=likes, batch_size=60):
        negative = ends_of(batch, BUYS)[1]
        assert set(negative[1].tolist()) == {9}
        assert mode == "triplet" or set(negative[0].tolist()) == {4}


@pytest.mark.parametrize("exclude", [True, "self", "reverse", BOUGHT])
def test_links_are_left_out(data, shop, exclude):
    """A batch's own links are not among its edges, those of other batches are; on request neither
    are their reverses."""
    exclude_here = "reverse" if isinstance(exclude, tuple) else exclude
    loader = LinkNeighborLoader(data, [-1], batch_size=40, exclude_seed_edges=exclude_here)
    for batch in loader:
        hidden = edge_set(ends_of(batch)[0])
        if exclude_here == "reverse":
            hidden |= {(v, u) for u, v in hidden}
        seeds = batch.n_id[: batch.num_sampled_nodes[0]]
        expected = edge_set(data.edge_index[:, torch.isin(data.edge_index[1], seeds)]) - hidden
        assert edge_set(batch.n_id[batch.edge_index]) == expected
    for batch in LinkNeighborLoader(
        shop, [-1, -1], BUYS, batch_size=20, neg_sampling="triplet", exclude_seed_edges=exclude
    ):
        hidden = edge_set(ends_of(batch, BUYS)[0])
        user, item = batch["user"].n_id, batch["item"].n_id
        row, col = batch[BUYS].edge_index
        assert not hidden & edge_set(torch.stack([user[row], item[col]]))
        row, col = batch[BOUGHT].edge_index
        back = hidden & edge_set(torch.stack([user[col], item[row]]))
        assert bool(back) == (exclude in (True, "self"))
