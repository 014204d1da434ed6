"""Link batches at a time, in trees of their own, as subgraphs, by weight."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from khop.loader import LinkNeighborLoader
from khop.sampler import NeighborSampler
from support.loaders.links import BUYS, KNOWS, NEGATIVES, edge_set, ends_of

ids = {"ids": str}


def timed(level, seed=0):
    """60 nodes, 600 edges; times of nodes or of edges, with ties."""
    rng = np.random.default_rng(seed)
    data = Data(edge_index=torch.from_numpy(rng.integers(0, 60, (2, 600))), num_nodes=60)
    data.time = torch.from_numpy(rng.integers(0, 20, 60 if level == "node" else 600))
    if seed:
        data.time = data.time.double() / 3
    return data


@pytest.mark.parametrize("neg", NEGATIVES, **ids)
@pytest.mark.parametrize("level", ["node", "edge"])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_nothing_comes_from_after_its_link(neg, level, seed, strategy):
    """Neighbours, edges and negatives exist at the link's time; each end is a tree of its link."""
    data = timed(level, seed)
    link_time = torch.arange(600) % 21
    options = {"neg_sampling": neg, "time_attr": "time", "temporal_strategy": strategy}
    loader = LinkNeighborLoader(
        data, [3, 3], edge_label_time=link_time, batch_size=32, **options, shuffle=True
    )
    triplets = isinstance(neg, dict) and neg["mode"] == "triplet"
    for batch in loader:
        count = len(batch.input_id)
        assert int(batch.batch.max()) + 1 == count
        positive, negative = ends_of(batch)
        assert torch.equal(positive, data.edge_index[:, batch.input_id])
        times = link_time[batch.input_id]
        stated = batch.seed_time if triplets else batch.edge_label_time
        assert torch.equal(stated[:count], times)
        assert len(stated) == count + (0 if triplets else negative.size(1))
        trees, seeds = batch.batch, batch.num_sampled_nodes[0]
        row, col = batch.edge_index
        assert torch.equal(trees[row], trees[col])
        if negative.size(1) % count:
            continue  # PyG's `batch` does not tell the link of a destination then
        if level == "edge":
            assert (batch.time <= times[trees[col]]).all()
            continue
        assert (batch.time[seeds:] <= times[trees[seeds:]]).all()
        # Negative i counts for link i modulo their number, or stands beside it.
        owner = torch.arange(negative.size(1))
        owner = owner // (neg["amount"] if triplets else 1) if triplets else owner % count
        earliest = data.time.min()
        for side in negative if not triplets else negative[1:]:
            late = data.time[side] > times[owner]
            assert (times[owner][late] < earliest).all()
            assert (data.time[side][late] == earliest).all()


@pytest.mark.parametrize("amount", [1, 2])
@pytest.mark.parametrize("temporal", [False, True])
@pytest.mark.parametrize("link_type", [BUYS, KNOWS], **ids)
def test_disjoint_triplets(shop, amount, temporal, link_type):
    """Seeds stand in blocks: sources, destinations, then round after round of negatives."""
    src_type, _, dst_type = link_type
    options = {"disjoint": True}
    links = shop[link_type].edge_index
    if temporal:
        for t in ("user", "item"):
            shop[t].time = torch.arange(shop[t].num_nodes) % 13
        options = {"time_attr": "time", "edge_label_time": torch.arange(links.size(1)) % 15}
    neg = {"mode": "triplet", "amount": amount}
    loader = LinkNeighborLoader(shop, [2, 2], link_type, neg_sampling=neg, batch_size=20, **options)
    for batch in loader:
        n = len(batch[link_type].input_id)
        own = torch.arange(n)
        src, dst = batch[src_type], batch[dst_type]
        offset = n if src_type == dst_type else 0
        assert torch.equal(src.src_index, own)
        assert torch.equal(dst.dst_pos_index, own + offset)
        want = (own.view(-1, 1) + offset + n * torch.arange(1, amount + 1)).squeeze(-1)
        assert torch.equal(dst.dst_neg_index, want if amount > 1 else want.view(-1))
        for places, store in (
            (src.src_index, src),
            (dst.dst_pos_index, dst),
            (dst.dst_neg_index.t(), dst),
        ):
            assert torch.equal(store.batch[places], own.expand_as(places))
        positive, _ = ends_of(batch, link_type)
        assert torch.equal(positive, links[:, batch[link_type].input_id])
        if temporal:
            times = options["edge_label_time"][batch[link_type].input_id]
            assert torch.equal(src.seed_time, times)
            for t in ("user", "item"):
                first = batch[t].num_sampled_nodes[0]
                assert (batch[t].time[first:] <= times[batch[t].batch[first:]]).all()
        for edge_type in shop.edge_types:
            row, col = batch[edge_type].edge_index
            trees = batch[edge_type[0]].batch[row], batch[edge_type[2]].batch[col]
            assert torch.equal(*trees)


def test_strict_negatives_at_a_time():
    """Both hold, or the loader says for which source they cannot."""
    data = timed("node")
    edges = edge_set(data.edge_index)
    options = {"neg_sampling": "triplet", "strict_negatives": True, "time_attr": "time"}
    late = torch.full((600,), 12)
    for batch in LinkNeighborLoader(data, [2], edge_label_time=late, batch_size=50, **options):
        negative = ends_of(batch)[1]
        assert not edge_set(negative) & edges
        assert (data.time[negative[1]] <= 12).all()
    data = Data(
        edge_index=torch.tensor([[0, 0, 2], [0, 1, 2]]), time=torch.tensor([1, 2, 3]), num_nodes=3
    )
    for time, sound in ((3, True), (2, False)):
        loader = LinkNeighborLoader(
            data, [2], torch.tensor([[0], [1]]), edge_label_time=torch.tensor([time]), **options
        )
        if sound:
            assert ends_of(next(iter(loader)))[1].tolist() == [[0], [2]]
        else:
            with pytest.raises(ValueError, match="source 0: it is linked to all 2 nodes"):
                next(iter(loader))


@pytest.mark.parametrize("subgraph_type", ["induced", "bidirectional"])
@pytest.mark.parametrize("exclude", [False, "reverse"])
def test_subgraphs(data, subgraph_type, exclude):
    """Edges among the nodes of a batch, but for those that are left out."""
    loader = LinkNeighborLoader(
        data,
        [4],
        subgraph_type=subgraph_type,
        batch_size=30,
        neg_sampling="binary",
        exclude_seed_edges=exclude,
    )
    both = edge_set(data.edge_index) | edge_set(data.edge_index.flip(0))
    for batch in loader:
        positive, _ = ends_of(batch)
        hidden = edge_set(positive) | edge_set(positive.flip(0)) if exclude else set()
        found = edge_set(batch.n_id[batch.edge_index])
        assert not found & hidden
        if subgraph_type == "induced":
            inside = torch.isin(data.edge_index, batch.n_id).all(dim=0)
            assert found == edge_set(data.edge_index[:, inside]) - hidden
        else:
            assert found <= both
            assert {(v, u) for u, v in found} == found


def test_weighted_neighbours(data):
    """Edges of weight 0 are never drawn, in batches of links as in those of nodes."""
    data.weight = torch.arange(1600) % 3 % 2
    for batch in LinkNeighborLoader(data, [5, 5], weight_attr="weight", batch_size=100):
        assert len(batch.e_id) > 0
        assert (batch.weight == 1).all()


def test_backward(data):
    """A sampler that draws out-neighbours: links are left out and looked up as before."""
    sampler = NeighborSampler(data, [-1], sample_direction="backward")
    edges = edge_set(data.edge_index)
    loader = LinkNeighborLoader(
        data,
        [-1],
        neighbor_sampler=sampler,
        neg_sampling="binary",
        strict_negatives=True,
        exclude_seed_edges="self",
        batch_size=40,
    )
    for batch in loader:
        positive, negative = ends_of(batch)
        assert not edge_set(negative) & edges
        seeds = batch.n_id[: batch.num_sampled_nodes[0]]
        out = edge_set(data.edge_index[:, torch.isin(data.edge_index[0], seeds)])
        assert edge_set(batch.n_id[batch.edge_index]) == out - edge_set(positive)


def test_times_of_other_kinds():
    """Per-type times: a type whose nodes all come later has none in the batch."""
    data = HeteroData()
    data["u"].num_nodes = data["i"].num_nodes = 2
    data["u"].time, data["i"].time = torch.tensor([0, 1]), torch.tensor([5, 6])
    data["u", "r", "i"].edge_index = torch.tensor([[0, 1], [0, 1]])
    data["i", "rev_r", "u"].edge_index = torch.tensor([[0, 1], [0, 1]])
    data["u", "k", "u"].edge_index = torch.tensor([[1], [0]])
    for time, users in ((1, [1, 0, 1]), (0, [1, 0])):
        (batch,) = LinkNeighborLoader(
            data,
            [-1],
            ("u", "k", "u"),
            edge_label_time=torch.tensor([time]),
            time_attr="time",
            edge_label=torch.tensor([3]),
        )
        assert batch["i"].n_id.tolist() == []
        assert batch["u"].n_id.tolist() == users
        assert batch["u"].batch.tolist() == [0] * len(users)
        assert batch["u", "k", "u"].edge_label.tolist() == [3]
