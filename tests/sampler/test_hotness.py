"""`sample_prob`: close to the frequencies of real sampling, exact where nothing is drawn."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from khop.data import Graph, Topology
from khop.loader import NeighborLoader
from khop.sampler import Labor, NeighborSampler, PinSage, PoissonLadies, SaintWalks
from khop.sampler.drawing.hotness import Seeds, TypedRows, independent_prob
from support.reference import oracle


def frequencies(sampler, seeds, batch_size, num_batches):
    """How often each node is touched by batches drawn at random from `seeds`."""
    rng = np.random.default_rng(0)
    touched = np.zeros(sampler.num_nodes)
    for _ in range(num_batches):
        batch = torch.from_numpy(rng.choice(seeds, batch_size, replace=False))
        out = sampler.sample_from_nodes(NodeSamplerInput(None, batch))
        touched[out.node.numpy()] += 1
    return touched / num_batches


@pytest.mark.parametrize(
    "fanouts,replace", [([5, 5], False), ([10, 3, 2], True), ([-1, 2], False), ([3], True)]
)
def test_follows_real_sampling(power_law, fanouts, replace):
    """Correlation above 0.98 with the frequencies of 1,500 batches of a skewed graph."""
    edge_index = torch.from_numpy(power_law(2000, 12_000))
    data = Data(edge_index=edge_index, num_nodes=2000)
    sampler = NeighborSampler(data, fanouts, replace=replace, seed=1)
    seeds = np.random.default_rng(1).choice(2000, 600, replace=False)
    expected = sampler.sample_prob(torch.from_numpy(seeds), 2000, batch_size=20)
    seen = frequencies(sampler, seeds, 20, 1500)
    assert expected.dtype == torch.float64
    assert np.corrcoef(expected, seen)[0, 1] > 0.98
    assert abs(expected.sum() / seen.sum() - 1) < 0.05


def test_follows_real_sampling_of_the_bundled_graph():
    """The same on Debian's packages, undirected, fan-outs [10, 10], batches of 256."""
    datasets = pytest.importorskip("khop.datasets")
    data = datasets.DebianPackages()[0]
    edge_index = torch.cat([data.edge_index, data.edge_index.flip(0)], 1)
    data = Data(edge_index=edge_index, num_nodes=data.num_nodes, train_mask=data.train_mask)
    sampler = NeighborSampler(data, [10, 10], seed=1)
    seeds = data.train_mask.nonzero().view(-1)
    expected = sampler.sample_prob(seeds, batch_size=256)
    seen = frequencies(sampler, seeds.numpy(), 256, 500)
    assert np.corrcoef(expected, seen)[0, 1] > 0.98


def test_all_neighbors_of_all_seeds(power_law):
    """At -1 and with one batch of all seeds: 1 in the k-hop neighbourhood, 0 elsewhere."""
    edge_index = power_law(300, 600)
    sampler = NeighborSampler(
        Data(edge_index=torch.from_numpy(edge_index), num_nodes=300), [-1, -1]
    )
    got = sampler.sample_prob(torch.tensor([1, 5, 9]))
    nodes = oracle.full_neighborhood(edge_index, [1, 5, 9], 2)[0]
    assert np.array_equal(got, np.isin(np.arange(300), nodes))


def test_trees_by_hand():
    r"""On a tree nothing is reached twice: the formula is exact, and drawn batches come close.

    0 <- 1, 2, 3 (one of three is drawn); 1 <- 4, 5 (one of two); 2 <- 6.
    """
    edge_index = torch.tensor([[1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 2]])
    topology = Topology(edge_index, num_src=8)
    third, sixth = 1 / 3, 1 / 6
    on_tree = [1, third, third, third, sixth, sixth, third, 0]
    for fanouts, seeds, batch_size, replace, expected in (
        ([1, 1], [0], None, False, on_tree),
        # Half of the seeds 0 and 7 in a batch: everything half as likely.
        ([1, 1], [0, 7], 1, False, [p / 2 for p in [*on_tree[:7], 1]]),
        # Two draws with replacement miss one of three with (2/3)^2.
        ([2], [0], None, True, [1, *[5 / 9] * 3, 0, 0, 0, 0]),
        ([0, 5], [0, 0], None, False, [1, 0, 0, 0, 0, 0, 0, 0]),
    ):
        ids = np.array(seeds)
        rows = TypedRows([8], [(0, 0)], [topology.csr()])
        (formula,) = independent_prob(rows, [fanouts], Seeds(0, ids, batch_size), replace)
        np.testing.assert_allclose(formula, expected)
        sampler = NeighborSampler(Graph(topology), fanouts, replace=replace)
        got = sampler.sample_prob(ids, batch_size=batch_size)
        np.testing.assert_allclose(got, expected, atol=0.08)  # four standard errors
        assert torch.equal(got, sampler.sample_prob(ids, batch_size=batch_size))


def test_probabilities_stay_probabilities(power_law):
    """No seeds, all seeds, more seeds in a batch than there are, many hops."""
    data = Data(edge_index=torch.from_numpy(power_law(200, 4000)), num_nodes=200)
    sampler = NeighborSampler(data, [2, 2, 2, -1, 1])
    for seeds in (torch.empty(0, dtype=torch.long), torch.arange(200), torch.tensor([3, 3, 3])):
        for batch_size in (None, 1, 2, 500):
            got = sampler.sample_prob(seeds, batch_size=batch_size)
            assert ((got >= 0) & (got <= 1)).all()
            if len(seeds) == 0:
                assert (got == 0).all()


def test_bad_input():
    sampler = NeighborSampler(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2), [1])
    with pytest.raises(IndexError, match="id 2"):
        sampler.sample_prob(torch.tensor([2]))
    with pytest.raises(TypeError, match="integers"):
        sampler.sample_prob(torch.tensor([0.5]))
    with pytest.raises(ValueError, match="num_nodes is 3"):
        sampler.sample_prob(torch.tensor([0]), 3)
    for batch_size in (0, -1):
        with pytest.raises(ValueError, match="batch_size must be at least 1, and whole"):
            sampler.sample_prob(torch.tensor([0]), batch_size=batch_size)


def frequencies_of(loader, num_nodes):
    """How often each node is in a batch, and how many batches there are."""
    touched = torch.zeros(num_nodes, dtype=torch.float64)
    for batch in loader:
        touched[batch.n_id.unique()] += 1
    return touched / len(loader)


@pytest.mark.parametrize(
    "method",
    [
        Labor([5, 3]),
        Labor([5, 3], layer_dependency=False),
        Labor([5, 3], importance=1),
        PoissonLadies([60, 100]),
        SaintWalks(4),
        PinSage(4, num_random_walks=6, num_layers=2),
    ],
    ids=["labor", "labor-apart", "labor-1", "poisson-ladies", "saint", "pinsage"],
)
def test_follows_batches_of_a_method(power_law, method):
    """Correlation above 0.97 with batches of the method, and not those of uniform draws."""
    data = Data(edge_index=torch.from_numpy(power_law(1000, 12_000)), num_nodes=1000)
    seeds = torch.arange(0, 1000, 3)
    sampler = NeighborSampler(data, method)
    expected = sampler.sample_prob(seeds, batch_size=33)
    positions = np.random.default_rng(0).permuted(np.tile(seeds.numpy(), (30, 1)), axis=1)
    batches = torch.from_numpy(positions[:, :330].reshape(-1))
    seen = frequencies_of(NeighborLoader(data, method, batches, batch_size=33, seed=1), 1000)
    assert torch.corrcoef(torch.stack([expected, seen]))[0, 1] > 0.97
    assert abs(expected.sum() / seen.sum() - 1) < 0.05


def test_a_method_by_hand():
    """Rows 0 and 1 have the same four neighbours, one of which each draws.

    Uniform draws take a certain one with 1 - (3 / 4)^2 = 7 / 16. LABOR's agree: 1 / 4. Walks of one
    step are uniform draws; nodes that they cannot visit have 0.
    """
    row = torch.tensor([2, 3, 4, 5, 2, 3, 4, 5, 6])
    data = Data(edge_index=torch.stack([row, torch.tensor([0] * 4 + [1] * 4 + [7])]), num_nodes=8)
    seeds = torch.tensor([0, 1])
    for method, share in (([1], 7 / 16), (Labor([1]), 1 / 4), (SaintWalks(1), 7 / 16)):
        got = NeighborSampler(data, method).sample_prob(seeds)
        assert torch.equal(got, NeighborSampler(data, method).sample_prob(seeds))
        expected = torch.tensor([1, 1, *[share] * 4, 0, 0])
        torch.testing.assert_close(got, expected.double(), atol=0.08, rtol=0)  # 3.6 sigma
        assert got[6:].tolist() == [0, 0]


def test_counts_of_a_program_are_shares_of_batches():
    data = Data(edge_index=torch.tensor([[1, 2, 0], [0, 0, 1]]), num_nodes=4)
    sampler = NeighborSampler(data, SaintWalks(2))
    got = sampler.sample_prob(torch.tensor([0, 3]), batch_size=1) * 512
    assert torch.equal(got, got.round())
    assert got[0] + got[3] == 512
    assert sampler.sample_prob(torch.empty(0, dtype=torch.long)).tolist() == [0] * 4


def test_a_batch_has_1024_seeds_unless_one_says_otherwise():
    """2,000 seeds without edges: a batch touches about half of them, or all if it has all."""
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=2000)
    sampler, seeds = NeighborSampler(data, [2]), torch.arange(2000)
    assert sampler.sample_prob(seeds).mean() == pytest.approx(1024 / 2000, abs=0.02)
    assert (sampler.sample_prob(seeds, batch_size=None) == 1).all()
