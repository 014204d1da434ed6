"""Layers by importance: what is drawn, against plain Python, and what sums become."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from khop.loader import NeighborLoader
from khop.sampler import FastGcn, Ladies, PoissonLadies
from support.cluster import twins
from support.programs import PROGRAM_HOP, word_of
from support.reference import oracle

SEEDS = torch.tensor([3, 77, 12, 149])


def one_layer(data, nodes, count, layer, run_key, batch, skip):
    """A layer in plain Python: [(neighbour, node, edge, chance)], in order."""
    rows = [
        [(u, e) for e, (u, v) in enumerate(data.edge_index.T.tolist()) if v == n] for n in nodes
    ]
    mass = {}
    scale = 1 << min(40, 62 - sum(map(len, rows)).bit_length())
    for row in rows:
        for u, _ in row:
            mass[u] = mass.get(u, 0) + max(scale // len(row) ** 2, 1)
    free = {u: m for u, m in mass.items() if not (skip and u in nodes)}
    pi = dict.fromkeys(mass, Fraction(1))
    certain = sorted(free, key=lambda u: -free[u])
    for k in range(min(count, len(certain))):
        rest = sum(free[u] for u in certain[k:])
        if len(certain) > count and free[certain[k]] * (count - k) < rest:
            pi.update({u: Fraction(free[u] * (count - k), rest) for u in certain[k:]})
            break
    place = oracle.step_key(run_key, batch, PROGRAM_HOP, 2)
    key = oracle.step_key(place, 0, layer, 0)
    return [
        (u, n, e, pi[u])
        for n, row in zip(nodes, rows, strict=True)
        for u, e in row
        if pi[u] == 1 or word_of(key, u) < pi[u] * 2**64
    ]


@pytest.mark.parametrize("skip", [False, True])
def test_poisson_layers_are_those_of_plain_python(skip):
    data = twins.homogeneous()
    method = PoissonLadies([12, 20], skip=skip, edge_norm="ht")
    loader = NeighborLoader(data, method, SEEDS, batch_size=2, seed=5)
    for number, batch in enumerate(loader):
        nodes = SEEDS[2 * number : 2 * number + 2].tolist()
        drawn = []
        for layer, count in enumerate(method.nodes_per_layer):
            edges = one_layer(data, nodes, count, layer, oracle.run_key(5, 0, 0), number, skip)
            assert batch.num_sampled_edges[layer] == len(edges)
            for u, *_ in edges:
                nodes = nodes if u in nodes else [*nodes, u]
            drawn += edges
        assert batch.n_id.tolist() == nodes
        assert batch.e_id.tolist() == [e for _, _, e, _ in drawn]
        assert batch.n_id[batch.edge_index].T.tolist() == [[u, v] for u, v, *_ in drawn]
        assert batch.edge_norm.tolist() == pytest.approx([float(1 / pi) for *_, pi in drawn])


def sums_of(method, x, data, num_batches):
    """Mean over the whole neighbourhood of each seed, as estimated by many batches."""
    seeds = torch.arange(40)
    found = []
    for seed in range(num_batches):
        (batch,) = NeighborLoader(data, method, seeds, batch_size=40, seed=seed)
        src, dst = batch.edge_index
        values = torch.zeros(batch.num_nodes).double()
        values.index_add_(0, dst, batch.edge_norm.double() * x[batch.n_id[src]])
        found.append(values[:40].numpy())
    return np.stack(found)


@pytest.fixture(scope="module")
def graph():
    """Rows of up to 60 neighbours, which share many of them."""
    rng = np.random.default_rng(0)
    ends = np.stack([rng.integers(0, 200, 1600) ** 2 // 200, rng.integers(0, 40, 1600)])
    return Data(edge_index=torch.from_numpy(ends), num_nodes=200)


def whole(x, graph):
    """Sums over whole neighbourhoods."""
    src, dst = graph.edge_index.numpy()
    return np.bincount(dst, x.numpy()[src], 40)[:40]


def test_sums_have_no_bias(graph):
    """'ht': within 4 sigma of the whole sum, row by row."""
    x = torch.from_numpy(np.random.default_rng(1).normal(1, 1, 200))
    found = sums_of(PoissonLadies([40], edge_norm="ht"), x, graph, 250)
    error = np.abs(found.mean(axis=0) - whole(x, graph))
    assert (error <= 4 * found.std(axis=0) / np.sqrt(len(found)) + 1e-9).all()


def test_poisson_layers_vary_less_than_ladies_and_these_less_than_fastgcn(graph):
    """Means over rows; the weights of a row add up to its number of edges.

    FastGCN's draws are those of rows that are no seeds, too, of which the graph has more.
    """
    rng = np.random.default_rng(2)
    others = np.stack([rng.integers(0, 200, 3000), rng.integers(40, 200, 3000)])
    edges = torch.cat([graph.edge_index, torch.from_numpy(others)], 1)
    graph = Data(edge_index=edges, num_nodes=200)
    x = torch.from_numpy(np.random.default_rng(1).normal(1, 1, 200))
    degrees = whole(torch.ones(200), graph)
    errors = {}
    for method in (PoissonLadies([40]), Ladies([40]), FastGcn([40])):
        found = sums_of(method, x, graph, 30)
        counts = sums_of(method, torch.ones(200).double(), graph, 30)
        estimate = found / np.maximum(counts, 1)
        errors[method.name] = np.mean((estimate - whole(x, graph) / degrees)[counts > 0] ** 2)
        assert np.allclose(counts, np.round(counts), atol=1e-3)
    assert errors["poisson-ladies"] < errors["ladies"] < errors["fastgcn"]


def test_a_layer_has_about_as_many_nodes_as_asked_for(graph):
    sizes = []
    for seed in range(200):
        loader = NeighborLoader(
            graph, PoissonLadies([30]), torch.arange(40), batch_size=40, seed=seed
        )
        (batch,) = loader
        sizes.append(len(batch.edge_index[0].unique()))
    assert abs(np.mean(sizes) - 30) <= 4 * np.std(sizes) / np.sqrt(len(sizes))


@pytest.mark.parametrize(
    "arguments,options,message",
    [
        (([],), {}, "nodes_per_layer must be 1 to 16 integers"),
        ((64,), {}, "nodes_per_layer must be 1 to 16 integers"),
        (([0],), {}, "nodes_per_layer must be 1 to 16 integers"),
        (([True],), {}, "nodes_per_layer must be 1 to 16 integers"),
        (([5],), {"edge_norm": "mean"}, "edge_norm must be 'ht' or 'hajek'"),
    ],
)
def test_options_out_of_range(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        PoissonLadies(*arguments, **options)


def test_what_it_does_not_go_with(graph):
    with pytest.raises(ValueError, match="Ladies normalises rows always"):
        Ladies([5], edge_norm="ht")
    with pytest.raises(ValueError, match="makes no disjoint batches"):
        NeighborLoader(graph, PoissonLadies([5]), disjoint=True)
    with pytest.raises(ValueError, match="one node and edge type"):
        NeighborLoader(twins.heterogeneous(), PoissonLadies([5]), "paper")
