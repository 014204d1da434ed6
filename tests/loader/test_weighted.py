"""Batches whose neighbours are drawn by weight."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from torch_geometric.data import Data

from khop.loader import NeighborLoader
from support.loaders import random_graphs
from support.reference import walks

REPLACE = pytest.mark.parametrize("replace", [False, True])


def paths(weights):
    """Two ways from node 0, hop by hop; edges in the order of the list, each with its weight:

    0 <- 1, 2    1 <- 3, 4    2 <- 5    4 <- 5, 1
    """
    edge_index = torch.tensor([[1, 2, 3, 4, 5, 5, 1], [0, 0, 1, 1, 2, 4, 4]])
    return Data(edge_index=edge_index, num_nodes=6, edge_weight=weights)


def draw(data, num_neighbors, seeds=(0,), **options):
    seeds = torch.tensor(seeds)
    (batch,) = NeighborLoader(
        data, num_neighbors, seeds, weight_attr="edge_weight", batch_size=len(seeds), **options
    )
    return batch


@REPLACE
@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"],
)
def test_only_one_way(replace, dtype):
    """With one neighbour of weight 1 a node, whatever is drawn is on its way."""
    weights = torch.tensor([0, 1, 0, 1, 1, 1, 0]).to(getattr(torch, dtype))
    data = paths(weights)
    for seed in range(5):
        batch = draw(data, [1, 1, 1], replace=replace, seed=seed)
        assert batch.n_id.tolist() == [0, 2, 5]
        assert batch.e_id.tolist() == [1, 4]
        assert torch.equal(batch.edge_weight, weights[[1, 4]])
        batch = draw(data, [1, 1, 1], (4, 1), replace=replace, seed=seed)
        assert batch.n_id.tolist() == [4, 1, 5]
        assert batch.edge_index.tolist() == [[2, 0], [0, 1]]
        assert batch.e_id.tolist() == [5, 3]


@pytest.mark.parametrize("fanout", [-1, 2, 3, 100])
def test_zero_is_never_drawn(fanout):
    """Not even where all neighbours are taken; in the order of the row if there are enough."""
    data = paths(torch.tensor([0.0, 2.0, 0.0, 0.0, 1.0, 1.0, 3.0]))
    batch = draw(data, [fanout] * 3, (0, 1, 4))
    assert batch.n_id.tolist() == [0, 1, 4, 2, 5]
    assert batch.e_id.tolist() == [1, 5, 6, 4]
    assert batch.num_sampled_edges == [3, 1, 0]
    assert batch.num_sampled_nodes == [3, 2, 0, 0]
    batch = draw(data, [3], (0, 1, 4), replace=True)
    assert batch.num_sampled_edges == [6]  # node 1 has nothing to draw, the others draw three each
    assert set(batch.e_id.tolist()) <= {1, 5, 6}


def test_fewer_that_weigh_than_asked_for():
    """Of four neighbours, two of weight 0, three are wanted: the other two come."""
    data = Data(edge_index=torch.tensor([[1, 2, 3, 4], [0] * 4]), num_nodes=5)
    data.edge_weight = torch.tensor([0.0, 1.0, 0.0, 1e-30])
    for seed in range(10):
        assert sorted(draw(data, [3], seed=seed).e_id.tolist()) == [1, 3]


@REPLACE
@pytest.mark.parametrize("fanouts", [[-1, -1], [3, 2], [1, 4]], ids=str)
@pytest.mark.parametrize("disjoint", [False, True])
def test_random_graphs(replace, fanouts, disjoint):
    """Every attribute of every batch follows from the graph and from what was drawn."""
    data = random_graphs.homogeneous(weights=True)
    options = {"replace": replace, "disjoint": disjoint, "weight_attr": "edge_weight"}
    view = walks.View(data, weight_attr="edge_weight")
    for batch in NeighborLoader(data, fanouts, batch_size=9, **options):
        walks.check(view, batch, fanouts, batch.input_id.tolist(), **options)
        assert (batch.edge_weight > 0).all()


@REPLACE
def test_types_without_weights_are_uniform(replace):
    """Zeros count where they stand; of a type without weights every edge is drawn some time."""
    weighted = [("a", "to", "b"), ("b", "rev_to", "a")]
    data = random_graphs.heterogeneous(weights=weighted)
    options = {"replace": replace, "weight_attr": "edge_weight"}
    view = walks.View(data, weight_attr="edge_weight")
    assert list(view.weights) == weighted
    seen = {t: set() for t in data.edge_types}
    for seed in range(12):
        loader = NeighborLoader(data, [3, 2], "a", batch_size=30, seed=seed, **options)
        (batch,) = loader
        walks.check(view, batch, [3, 2], ("a", list(range(30))), **options)
        for t in data.edge_types:
            seen[t] |= set(batch[t].e_id.tolist())
    assert len(seen["a", "self", "a"]) == 90
    assert len(seen["c", "to", "a"]) == 25
    for t in weighted:
        assert seen[t].isdisjoint((data[t].edge_weight == 0).nonzero().view(-1).tolist())


def test_frequencies():
    """Of 4,000 trees of the same seed, as many draw each neighbour as its weight says."""
    data = Data(edge_index=torch.tensor([[1, 2, 3, 4], [0] * 4]), num_nodes=5)
    weights = torch.tensor([1.0, 0.5, 0.0, 2.5])
    data.edge_weight = weights
    expected = 1000 * weights[weights > 0].numpy()
    for options in ({}, {"replace": True}):
        batch = draw(data, [1], (0,) * 4000, disjoint=True, seed=7, **options)
        counts = np.bincount(batch.e_id, minlength=4)
        assert counts[2] == 0 and counts.sum() == 4000
        assert stats.chisquare(counts[[0, 1, 3]], expected).pvalue > 1e-4


def test_frequencies_of_pairs():
    """Two draws, one after the other, each in proportion to what is left, in this order."""
    data = Data(edge_index=torch.tensor([[1, 2, 3, 4], [0] * 4]), num_nodes=5)
    weights = np.array([1.0, 2.0, 3.0, 6.0])
    data.edge_weight = torch.from_numpy(weights)
    batch = draw(data, [2], (0,) * 6000, disjoint=True, seed=3)
    pairs = batch.e_id.view(6000, 2).tolist()
    ordered = list(itertools.permutations(range(4), 2))
    counts = [pairs.count(list(pair)) for pair in ordered]
    share = [weights[i] / 12 * weights[j] / (12 - weights[i]) for i, j in ordered]
    assert stats.chisquare(counts, 6000 * np.array(share)).pvalue > 1e-4


@pytest.mark.parametrize("kind", ["numpy", "requires_grad", "strided"])
def test_weights_in_other_arrays(kind):
    weights = torch.tensor([0, 1, 0, 1, 1, 1, 0.0])
    if kind == "numpy":
        weights = weights.numpy()
    elif kind == "requires_grad":
        weights.requires_grad_()
    else:
        weights = weights.repeat_interleave(3)[::3]
    batch = draw(paths(weights), [1, 1, 1])
    assert batch.n_id.tolist() == [0, 2, 5]
    assert batch.edge_weight.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.tensor([1, 1, -1, 1, 1, 1, 1.0]), "-1.0 at position 2"),
        (torch.tensor([1, 1, 1, 1, float("nan"), 1, 1]), "nan at position 4"),
        (torch.tensor([float("inf"), 1, 1, 1, 1, 1, 1]), "inf at position 0"),
        (torch.full((7,), 1.5e308, dtype=torch.float64), "add up to more"),
        (torch.ones(7, 1), "one dimension"),
    ],
    ids=["negative", "nan", "infinite", "sum", "2-d"],
)
def test_bad_weights(weights, message):
    with pytest.raises(ValueError, match=message):
        draw(paths(weights), [1])


def test_as_many_nodes_as_edges():
    """PyG takes what could be of either to be of nodes; a weight is of edges all the same.

    0 <- 1, 2    1 <- 0
    """
    data = Data(edge_index=torch.tensor([[1, 2, 0], [0, 0, 1]]), num_nodes=3)
    data.importance = torch.tensor([0.0, 1.0, 0.0])
    (batch,) = NeighborLoader(data, [-1, -1], torch.tensor([0]), weight_attr="importance")
    assert batch.e_id.tolist() == [1]
    data.importance = torch.tensor([1.0, -2.0, 0.0])
    with pytest.raises(ValueError, match=r"weight_attr='importance' holds -2\.0 at position 1"):
        NeighborLoader(data, [-1], weight_attr="importance")


def test_weights_of_another_number_than_edges():
    """Refused: the type would be drawn from uniformly."""
    data = random_graphs.heterogeneous(weights=True)
    data["a", "self", "a"].edge_weight = torch.ones(89)
    message = r"'edge_weight' of \('a', 'self', 'a'\) has shape \[89\] for 90 edges"
    with pytest.raises(ValueError, match=message):
        NeighborLoader(data, [1], "a", weight_attr="edge_weight")
    data["a", "self", "a"].edge_weight = torch.full((90,), -1.0)
    with pytest.raises(ValueError, match=r"\('a', 'self', 'a'\) holds -1.0 at position 0"):
        NeighborLoader(data, [1], "a", weight_attr="edge_weight")


def test_no_weights():
    """An attribute that is not there, or one of nodes."""
    data = random_graphs.homogeneous(times="node")
    for name in ("weight", "time"):
        with pytest.raises(ValueError, match=f"weight_attr='{name}' is not an attribute of edges"):
            NeighborLoader(data, [1], weight_attr=name)
