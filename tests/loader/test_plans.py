"""Samplers of positions: classes drawn alike, batches cut by size, resumed epochs."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader

from khop.loader import (
    DynamicBatchSampler,
    ImbalancedSampler,
    NeighborLoader,
    neighborhood_sizes,
)
from support.cluster import twins


def test_classes_are_drawn_alike():
    labels = torch.tensor([0] * 90 + [1] * 10)[torch.randperm(100)]
    sampler = ImbalancedSampler(labels, num_samples=20_000, seed=0)
    drawn = torch.tensor(list(sampler))
    share = labels[drawn].float().mean()
    assert abs(float(share) - 0.5) < 4 * (0.25 / 20_000) ** 0.5
    counts = torch.bincount(drawn, minlength=100).double()
    for label, expected in ((0, 10_000 / 90), (1, 1000.0)):
        of_class = counts[labels == label]
        chi = ((of_class - expected) ** 2 / expected).sum()
        assert float(chi) < len(of_class) + 5 * (2 * len(of_class)) ** 0.5


def test_epochs_differ_and_repeat():
    labels = torch.arange(50) % 3
    first, again = ImbalancedSampler(labels, seed=1), ImbalancedSampler(labels, seed=1)
    epochs = [list(first), list(first)]
    assert epochs[0] != epochs[1]
    again.set_epoch(1)
    assert list(again) == epochs[1]
    torch.manual_seed(0)
    drawn = ImbalancedSampler(labels)
    torch.manual_seed(0)
    assert list(drawn) == list(ImbalancedSampler(labels))


def test_forms_of_labels():
    hetero = HeteroData()
    hetero["paper"].y = torch.tensor([0, 0, 1])
    data = Data(y=torch.tensor([[0], [0], [1]]), num_nodes=3)
    graphs = [Data(y=torch.tensor([c]), num_nodes=1) for c in (0, 0, 1)]
    samplers = [
        ImbalancedSampler(hetero, ("paper", None), seed=0),
        ImbalancedSampler(data, seed=0),
        ImbalancedSampler(graphs, seed=0),
        ImbalancedSampler(torch.tensor([0, 0, 1]), seed=0),
    ]
    epochs = [list(sampler) for sampler in samplers]
    assert all(epoch == epochs[0] for epoch in epochs)
    mask = torch.tensor([False, True, True])
    assert set(ImbalancedSampler(data, mask, 100, seed=0)) == {0, 1}
    with pytest.raises(TypeError, match="classes"):
        ImbalancedSampler(torch.rand(3))
    with pytest.raises(ValueError, match="empty"):
        ImbalancedSampler(torch.empty(0, dtype=torch.long))


def cut(order, sizes, most, skip):
    """The cut of an epoch, item after item."""
    batches, batch, total = [], [], 0
    for item in order:
        if skip and sizes[item] > most:
            continue
        if batch and total + sizes[item] > most:
            batches.append(batch)
            batch, total = [], 0
        batch.append(item)
        total += sizes[item]
    return [*batches, batch] if batch else batches


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_batches_are_cuts_of_the_order(shuffle, skip):
    sizes = torch.randint(0, 40, (200,), generator=torch.Generator().manual_seed(0))
    options = {"shuffle": shuffle, "skip_too_big": skip, "seed": 5}
    sampler = DynamicBatchSampler(sizes, 30, **options)
    for _ in range(2):
        count = len(sampler)
        batches = list(sampler)
        assert len(batches) == count
        order = [item for batch in batches for item in batch]
        wanted = [i for i in range(200) if not skip or sizes[i] <= 30]
        assert sorted(order) == wanted
        assert (order == wanted) is not shuffle
        assert batches == cut(order, sizes.tolist(), 30, skip)
    capped = DynamicBatchSampler(sizes, 30, num_steps=4, **options)
    assert len(capped) == len(list(capped)) == 4


def test_data_sets_of_graphs():
    graphs = [
        Data(edge_index=torch.zeros(2, n, dtype=torch.long), num_nodes=n + 1) for n in range(1, 9)
    ]
    loader = DataLoader(graphs, batch_sampler=DynamicBatchSampler(graphs, 12))
    assert [batch.num_nodes for batch in loader] == [9, 11, 7, 8, 9]
    by_edges = DynamicBatchSampler(graphs, 12, "edge")
    assert list(by_edges) == [[0, 1, 2, 3], [4, 5], [6], [7]]


def test_sizes_of_neighborhoods():
    data = twins.homogeneous()
    rows = [[] for _ in range(data.num_nodes)]
    for u, v in data.edge_index.T.tolist():
        rows[v].append(u)

    def size(node, fanouts):
        if not fanouts or not rows[node]:
            return 1.0
        inner = sum(size(u, fanouts[1:]) for u in rows[node]) / len(rows[node])
        taken = len(rows[node]) if fanouts[0] < 0 else min(fanouts[0], len(rows[node]))
        return 1 + taken * inner

    seeds = torch.arange(0, 150, 10)
    found = neighborhood_sizes(data, [3, -1, 2], seeds)
    assert torch.allclose(
        found, torch.tensor([size(v, [3, -1, 2]) for v in seeds.tolist()]).double()
    )
    drawn = [
        batch.num_edges + 1
        for _ in range(200)
        for batch in NeighborLoader(data, [3], seeds[:1], disjoint=True)
    ]
    assert sum(drawn) / 200 == pytest.approx(float(neighborhood_sizes(data, [3], seeds[:1])))


@pytest.mark.parametrize("kind", ["imbalanced", "dynamic"])
def test_loaders_are_resumed_within_an_epoch(kind):
    data = twins.homogeneous()
    seeds = torch.arange(100)

    def make():
        if kind == "imbalanced":
            chosen = {"sampler": ImbalancedSampler(seeds % 7, seed=3), "batch_size": 8}
        else:
            sizes = neighborhood_sizes(data, [3, 3], seeds)
            chosen = {"batch_sampler": DynamicBatchSampler(sizes, 100, shuffle=True, seed=3)}
        return NeighborLoader(data, [3, 3], seeds, seed=1, **chosen)

    loader = make()
    list(loader)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    rest = [batch.n_id for batch in iterator]
    other = make()
    other.load_state_dict(state)
    again = [batch.n_id for batch in other]
    assert len(rest) == len(again) > 0
    assert all(torch.equal(a, b) for a, b in zip(rest, again, strict=True))
