"""FastGCN's layers: what is drawn, against plain Python; the running sums that it draws from."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from torch_geometric.data import Data

from khop.data import Graph, Topology
from khop.loader import NeighborLoader
from khop.sampler import FastGcn
from khop.sampler.drawing.graph_rows import GraphRows
from khop.sampler.drawing.view import GraphView
from support.cluster import twins
from support.programs import PROGRAM_HOP, word_of
from support.reference import oracle

SEEDS = torch.tensor([3, 77, 12, 149])


def masses_of(data):
    """Scaled sums of 1 / degree^2 over the rows that a node is in, by node."""
    degrees = torch.bincount(data.edge_index[1], minlength=data.num_nodes).tolist()
    scale = 1 << min(40, 62 - data.num_edges.bit_length())
    masses = [0] * data.num_nodes
    for u, v in data.edge_index.T.tolist():
        masses[u] += max(scale // degrees[v] ** 2, 1)
    return masses


def drawn_in(masses, count, layer, run_key, batch):
    """{node: weight m / (t q)} of a layer."""
    key = oracle.step_key(oracle.step_key(run_key, batch, PROGRAM_HOP, 4), 0, layer, 0)
    sums, weights = list(itertools.accumulate(masses)), {}
    for draw in range(count):
        point = word_of(key, draw) * sums[-1] >> 64
        node = next(u for u, total in enumerate(sums) if point < total)
        weights[node] = weights.get(node, 0) + Fraction(sums[-1], count * masses[node])
    return weights


@pytest.mark.parametrize("edge_norm", ["ht", "hajek"])
def test_layers_are_those_of_plain_python(edge_norm):
    """Parallel edges, loops, nodes without neighbours."""
    data = twins.homogeneous()
    method = FastGcn([30, 50], edge_norm=edge_norm)
    masses = masses_of(data)
    for number, batch in enumerate(NeighborLoader(data, method, SEEDS, batch_size=2, seed=5)):
        nodes = SEEDS[2 * number : 2 * number + 2].tolist()
        edges, norms = [], []
        for layer, count in enumerate(method.nodes_per_layer):
            weights = drawn_in(masses, count, layer, oracle.run_key(5, 0, 0), number)
            of_layer = 0
            for v in list(nodes):
                row = [(e, u) for e, (u, w) in enumerate(data.edge_index.T.tolist()) if w == v]
                row = [(e, u) for e, u in row if u in weights]
                total = sum(weights[u] for _, u in row)
                scale = 1 if edge_norm == "ht" else len(row) / total if row else 0
                edges += [e for e, _ in row]
                norms += [float(weights[u] * scale) for _, u in row]
                nodes += dict.fromkeys(u for _, u in row if u not in nodes)
                of_layer += len(row)
            assert batch.num_sampled_edges[layer] == of_layer
        assert batch.n_id.tolist() == nodes
        assert batch.e_id.tolist() == edges
        assert batch.edge_norm.tolist() == pytest.approx(norms)


def test_nodes_are_drawn_by_their_columns():
    """Chi-square of the draws of 1,000 batches, and 'ht' sums within 4 standard errors."""
    edges = torch.tensor([[1, 2, 3, 3, 4, 0, 2], [0, 0, 0, 1, 1, 2, 2]])
    data = Data(edge_index=edges, num_nodes=6)
    masses = np.array(masses_of(data))
    method, count = FastGcn([3], edge_norm="ht"), 1000
    counts, sums = np.zeros(6), np.zeros((count, 3))
    loader = NeighborLoader(data, method, torch.arange(3).repeat(count), batch_size=3, seed=1)
    for b, batch in enumerate(loader):
        source, weight = batch.n_id[batch.edge_index[0]].numpy(), batch.edge_norm.numpy()
        np.add.at(sums[b], batch.edge_index[1].numpy(), weight)
        seen, first = np.unique(source, return_index=True)
        counts[seen] += np.round(weight[first] * 3 * masses[seen] / masses.sum())
    expected = 3 * count * masses / masses.sum()
    drawable = masses > 0
    assert (counts[~drawable] == 0).all()
    chi2 = ((counts - expected)[drawable] ** 2 / expected[drawable]).sum()
    assert stats.chi2.sf(chi2, drawable.sum() - 1) > 1e-4
    degrees = np.array([3, 2, 2])
    assert (np.abs(sums.mean(0) - degrees) <= 4 * sums.std(0) / count**0.5).all()


class _Slow(GraphRows):
    """Rows that wait for a ticket before each answer."""

    def __init__(self, graph):
        super().__init__(GraphView.of_graph(graph), None)
        self.asked = 0

    def draw(self, relation, rows, request):
        self.asked += 1
        yield ["a ticket"]
        return (yield from super().draw(relation, rows, request))


def test_batches_share_the_sums():
    """One batch reads the rows, others wait for it; an abandoned one leaves it to them."""
    data = twins.homogeneous()
    rows = _Slow(Graph(Topology(data.edge_index, num_src=150)))
    abandoned, other, third = (rows.column_sums(0) for _ in range(3))
    assert next(abandoned) == next(other) == next(third) == ["a ticket"]
    assert rows.asked == 1
    abandoned.close()
    assert next(other) == ["a ticket"]
    assert rows.asked == 2
    assert next(third) == ["a ticket"]
    for steps in (other, third):
        with pytest.raises(StopIteration) as stop:
            next(steps)
        assert stop.value.value.tolist() == list(itertools.accumulate(masses_of(data)))
    assert rows.asked == 2


def test_bad_options_and_empty_graphs():
    with pytest.raises(ValueError, match=r"nodes_per_layer must be 1 to 16 integers .*got \[0\]"):
        FastGcn([0])
    with pytest.raises(ValueError, match="edge_norm must be 'ht' or 'hajek'"):
        FastGcn([3], edge_norm="mean")
    with pytest.raises(ValueError, match="one node and edge type"):
        NeighborLoader(twins.heterogeneous(), FastGcn([5]), "paper")
    empty = Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=4)
    (batch,) = NeighborLoader(empty, FastGcn([5, 2]), torch.tensor([3, 1]), batch_size=2)
    assert batch.n_id.tolist() == [3, 1]
    assert batch.edge_norm.shape == (0,)
