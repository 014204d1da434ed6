"""Neighbours by rank: personalised PageRank and PinSAGE's visits, in memory."""

from collections import Counter

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from khop import codec
from khop.errors import ProtocolError
from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.sampler import PinSage, Ppr
from khop.sampler.methods.ppr import _share
from khop.sampler.spec import SamplingSpec
from support.cluster import twins
from support.reference import oracle
from support.reference.random_walks import rows_of, walk

EDGE = ("node", "to", "node")
SEEDS = torch.tensor([3, 77, 12, 149])


def joined(batch):
    """[(root, [(neighbour, weight), ...]), ...] in the order of edges."""
    found = {}
    ends = batch.n_id[batch.edge_index].T.tolist()
    for (src, dst), weight in zip(ends, batch.edge_weight.tolist(), strict=True):
        found.setdefault(dst, []).append((src, weight))
    return found


def random_graph(num_nodes, num_edges):
    """A graph in which every node has in-neighbours, with parallel edges and loops."""
    generator = torch.Generator().manual_seed(3)
    nodes = torch.arange(num_nodes)
    ends = torch.randint(num_nodes, (2, num_edges), generator=generator)
    edges = torch.cat([torch.stack([nodes, nodes.roll(1)]), ends, ends[:, :9]], dim=1)
    return Data(edge_index=edges, num_nodes=num_nodes)


@pytest.mark.parametrize("alpha", [0.15, 0.5, 1])
def test_scores_are_personalised_pagerank(alpha):
    data = random_graph(60, 200)
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(60))
    graph.add_edges_from((dst, src) for src, dst in data.edge_index.T.tolist())
    seeds = torch.tensor([0, 17, 59])
    batch = next(iter(NeighborLoader(data, Ppr(60, alpha, 1e-8), seeds, batch_size=3)))
    found = joined(batch)
    for seed in seeds.tolist():
        exact = nx.pagerank(graph, 1 - alpha, {seed: 1}, tol=1e-12, max_iter=1000)
        scores = dict(found[seed])
        for node in range(60):
            assert scores.get(node, 0) == pytest.approx(exact[node], abs=1e-6)
        weights = [weight for _, weight in found[seed]]
        assert weights == sorted(weights, reverse=True)


def exact_scores(edge_index, num_nodes, alpha):
    """[seed, node] scores of personalised PageRank, and degrees, by linear algebra."""
    counts = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    counts.index_put_(tuple(edge_index.flip(0)), torch.ones(()).double(), accumulate=True)
    degrees = counts.sum(1)
    steps = counts / degrees.clamp(min=1).view(-1, 1)
    return alpha * torch.linalg.inv(torch.eye(num_nodes) - (1 - alpha) * steps), degrees.clamp(
        min=1
    )


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize(("alpha", "eps"), [(0.25, 1e-2), (0.05, 1e-4), (0.01, 1e-7)])
def test_eps_bounds_the_error(undirected, alpha, eps):
    """By the degree in undirected graphs; in directed ones, by residuals of all nodes."""
    edge_index = twins.homogeneous().edge_index[:, :300] % 60
    if undirected:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    exact, degrees = exact_scores(edge_index, 60, alpha)
    bound = eps * degrees if undirected else eps * (degrees @ exact)
    data = Data(edge_index=edge_index, num_nodes=60)
    batch = next(iter(NeighborLoader(data, Ppr(60, alpha, eps), SEEDS[::2], batch_size=2)))
    for seed, pairs in joined(batch).items():
        scores = torch.zeros(60, dtype=torch.float64)
        for node, score in pairs:
            scores[node] = score
        error, rounding = exact[seed] - scores, 6e-8 * exact[seed]
        assert (error >= -rounding).all()
        assert (error <= bound + rounding).all()


def test_shares_are_exact():
    amounts = np.array([0, 1, 2**31 - 1, 2**31, 2**61 + 12345678901, 2**62 - 1, 2**62])
    for part in (0, 1, 2**31 - 1, 2**31, round(0.01 * 2**62), 2**62 - 1, 2**62):
        assert _share(amounts, part).tolist() == [int(a) * part >> 62 for a in amounts]


def pushed(rows, seed, alpha, eps):
    """{node: score}, by pushes in rounds, in integers of 2^-62."""
    unit = 2**62
    residuals, scores = {seed: unit}, {}
    limit, ending = round(eps * unit), round(alpha * unit)

    def is_due(node, residual):
        return residual >= limit * max(1, len(rows.get(node, [])))

    due = dict(residuals)
    while due:
        for node, residual in due.items():
            residuals[node] -= residual
        for node, residual in due.items():
            ended = residual * ending >> 62
            scores[node] = scores.get(node, 0) + ended
            row = rows.get(node, [])
            for neighbor, _ in row:
                share = (residual - ended) // len(row)
                residuals[neighbor] = residuals.get(neighbor, 0) + share
            if row:
                residuals[node] += (residual - ended) % len(row)
        due = {node: r for node, r in residuals.items() if is_due(node, r)}
    return {node: score / unit for node, score in scores.items()}


@pytest.mark.parametrize(("most", "alpha", "eps"), [(5, 0.25, 1e-4), (200, 0.1, 1e-3), (9, 0.5, 1)])
def test_pushes_are_those_of_the_oracle(most, alpha, eps):
    data = twins.homogeneous()
    rows = rows_of(data.edge_index.flip(0))
    batch = next(iter(NeighborLoader(data, Ppr(most, alpha, eps), SEEDS, batch_size=4)))
    assert batch.n_id[:4].tolist() == SEEDS.tolist()
    expected = {}
    for seed in SEEDS.tolist():
        scores = pushed(rows, seed, alpha, eps)
        expected[seed] = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:most]
    exact = {seed: [(n, torch.tensor(s).item()) for n, s in r] for seed, r in expected.items()}
    assert joined(batch) == exact


def test_visits_are_those_of_the_oracle():
    data, method = twins.homogeneous(), PinSage(3, 6, 4, 0.3, 2)
    rows = rows_of(data.edge_index.flip(0))
    loader = NeighborLoader(data, method, SEEDS, batch_size=2, seed=5)
    stops = [0] + [round(0.3 * 2**32)] * 3
    for number, batch in enumerate(loader):
        nodes, first = SEEDS[2 * number : 2 * number + 2].tolist(), 0
        expected = {}
        for hop in range(2):
            frontier = nodes[first:]
            first = len(nodes)
            for place, root in enumerate(frontier):
                visits = Counter()
                for i in range(6 * place, 6 * place + 6):
                    key = oracle.run_key(5, 0, 0)
                    walked, _ = walk([rows] * 4, root, i, key, 1, 1, stops, number, 4 * hop)
                    visits.update(node for node in walked[1:] if node >= 0)
                most = sorted(visits.items(), key=lambda pair: (-pair[1], -pair[0]))[:3]
                expected.update({root: most} if most else {})
                nodes += [node for node, _ in most if node not in nodes]
        assert joined(batch) == expected
        assert batch.n_id.tolist() == nodes
        assert "e_id" not in batch
        assert "edge_attr" not in batch


def test_seeds_without_neighbours():
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=3)
    batch = next(iter(NeighborLoader(data, PinSage(3), batch_size=3)))
    assert (batch.num_nodes, batch.num_edges, batch.edge_weight.numel()) == (3, 0, 0)
    batch = next(iter(NeighborLoader(data, Ppr(3), batch_size=3)))
    assert joined(batch) == {node: [(node, 0.25)] for node in range(3)}


def test_links():
    loader = LinkNeighborLoader(
        twins.homogeneous(),
        Ppr(4),
        edge_label_index=torch.tensor([[1, 2], [2, 4]]),
        neg_sampling="binary",
        batch_size=2,
    )
    batch = next(iter(loader))
    assert len(batch.edge_weight) == batch.edge_index.size(1)


def test_they_travel_by_checked_fields():
    sent = codec.to_json(SamplingSpec.create(Ppr(5), [EDGE]))
    assert codec.from_json(SamplingSpec, sent, "a spec").method.program == Ppr(5)
    for field, value in (("alpha", 0), ("eps", 1e-12), ("max_nodes", 10**9)):
        program = {**sent["method"]["program"], field: value}
        changed = {**sent, "method": {**sent["method"], "program": program}}
        with pytest.raises(ProtocolError, match=field):
            codec.from_json(SamplingSpec, changed, "a spec")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ppr(0), "max_nodes must be an integer from 1"),
        (lambda: Ppr(5, alpha=0), "alpha must be a number from 0.01"),
        (lambda: Ppr(5, eps=float("nan")), "eps must be a number"),
        (lambda: Ppr(5, alpha="much"), "alpha must be a number from 0.01 to 1"),
        (lambda: PinSage(2.5), "num_neighbors_per_node must be an integer"),
        (lambda: PinSage(2, 0), "num_random_walks must be an integer"),
        (lambda: PinSage(2, termination_prob=2), "termination_prob must be a number from 0 to 1"),
    ],
)
def test_bad_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_graphs_that_they_do_not_know():
    with pytest.raises(ValueError, match="this one is heterogeneous"):
        NeighborLoader(twins.heterogeneous(), Ppr(5), ("paper", SEEDS[:2]))
    for option in ({"disjoint": True}, {"time_attr": "time"}):
        with pytest.raises(ValueError, match="leave disjoint and time_attr out"):
            NeighborLoader(twins.homogeneous(), PinSage(5), SEEDS, **option)
    with pytest.raises(ValueError, match="makes 'directional' subgraphs"):
        NeighborLoader(twins.homogeneous(), Ppr(5), SEEDS, subgraph_type="induced")
