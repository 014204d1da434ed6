"""`sample_prob` over several types: exact on trees, close to real sampling elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NodeSamplerInput

from khop.data import Graph, Topology
from khop.loader import NeighborLoader
from khop.sampler import Hgt, NeighborSampler
from khop.sampler.drawing.hotness import Seeds, TypedRows, independent_prob
from khop.sampler.drawing.view import GraphView
from support.cluster import twins

WRITES, CITES, TAGS = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    (
        "tag",
        "of",
        "author",
    ),
)


def seeds_of(node, node_type="paper"):
    return NodeSamplerInput(None, torch.as_tensor(node), input_type=node_type)


def test_by_hand():
    r"""Paper 0 is the seed; one of two authors, one of three papers, then one tag of three.

    paper 0 <- authors 0, 1; paper 0 <- papers 1, 2, 3; author 0 <- tags 0, 1, 2; author 1 <- tag 3;
    paper 1 <- author 2 (reached in the second hop).
    """
    graph = Graph(
        {
            WRITES: Topology(([0, 1, 2], [0, 0, 1]), num_src=4, num_dst=5),
            CITES: Topology(([1, 2, 3], [0, 0, 0]), num_src=5),
            TAGS: Topology(([0, 1, 2, 3], [0, 0, 0, 1]), num_src=4, num_dst=4),
        }
    )
    fanouts = {WRITES: [1, 1], CITES: [1, 0], TAGS: [5, 1]}
    sampler = NeighborSampler(graph, fanouts)
    half, third, sixth = 1 / 2, 1 / 3, 1 / 6
    expected = {
        "paper": [1, third, third, third, 0],
        "author": [half, half, third, 0],
        "tag": [sixth, sixth, sixth, half],
    }
    got = sampler.sample_prob(seeds_of([0]), {"paper": 5, "tag": 4})
    view = GraphView.of_graph(graph)
    formula = independent_prob(
        TypedRows(view.num_nodes, view.relations, view.csrs),
        list(fanouts.values()),
        Seeds(graph.node_types.index("paper"), np.array([0])),
    )
    assert set(got) == set(expected) == set(graph.node_types)
    for name, of_type in zip(graph.node_types, formula, strict=True):
        np.testing.assert_allclose(of_type, expected[name], atol=1e-12)
        np.testing.assert_allclose(got[name], expected[name], atol=0.08)  # four standard errors
        assert got[name].dtype == torch.float64
    again = sampler.sample_prob(seeds_of([0]))
    assert all(torch.equal(again[name], got[name]) for name in got)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1), st.integers(0, 1)), max_size=25),
    st.lists(st.lists(st.integers(-1, 3), min_size=3, max_size=3), min_size=8, max_size=8),
    st.booleans(),
)
def test_the_formula_is_exact_on_trees(parents, fanouts, replace):
    """Node i + 1 of a tree hangs below an earlier node: the product of the chances on its path.

    Nodes are of type a or b; between any two types there are two edge types.
    """
    kinds, parent_of, relation_of = [0], [None], [None]
    for parent, kind, double in parents:
        parent_of.append(parent % len(kinds))
        relation_of.append((kind, double, kinds[parent_of[-1]]))
        kinds.append(kind)
    number = [sum(k == kind for k in kinds[:i]) for i, kind in enumerate(kinds)]
    counts = [max(1, kinds.count(0)), max(1, kinds.count(1))]
    relations = [(src, double, dst) for src in (0, 1) for double in (0, 1) for dst in (0, 1)]
    csrs = []
    for relation in relations:
        members = [i for i in range(1, len(kinds)) if relation_of[i] == relation]
        ends = [number[i] for i in members], [number[parent_of[i]] for i in members]
        topology = Topology(ends, num_src=counts[relation[0]], num_dst=counts[relation[2]])
        csrs.append(topology.csr())

    chance, depth = [1.0], [0]
    for i in range(1, len(kinds)):
        parent = parent_of[i]
        depth.append(depth[parent] + 1)
        siblings = sum(
            parent_of[j] == parent and relation_of[j] == relation_of[i]
            for j in range(1, len(kinds))
        )
        fanout = fanouts[relations.index(relation_of[i])][depth[parent]] if depth[parent] < 3 else 0
        drawn = min(1.0, fanout / siblings)
        if fanout < 0:
            drawn = 1.0
        elif replace:
            drawn = 1 - (1 - 1 / siblings) ** fanout
        chance.append(chance[parent] * drawn)

    rows = TypedRows(counts, [(src, dst) for src, _, dst in relations], csrs)
    got = independent_prob(rows, fanouts, Seeds(0, np.array([0])), replace)
    for i, kind in enumerate(kinds):
        assert got[kind][number[i]] == pytest.approx(chance[i], abs=1e-12)


def random_graph(power_law):
    """Papers, authors and tags, skewed; a part of every type is isolated."""
    data = HeteroData()
    counts = {"paper": 900, "author": 600, "tag": 150}
    for name, count in counts.items():
        data[name].num_nodes = count
    ends = power_law(900, 15_000, 3)
    data[CITES].edge_index = torch.from_numpy(ends[:, :5000].copy())
    data[WRITES].edge_index = torch.from_numpy(ends[:, 5000:10_000] % np.array([[600], [900]]))
    data["paper", "has", "tag"].edge_index = torch.from_numpy(
        ends[:, 10_000:] % np.array([[900], [150]])
    )
    data["tag", "of", "paper"].edge_index = data["paper", "has", "tag"].edge_index.flip(0)
    data["author", "knows", "author"].edge_index = torch.empty(2, 0, dtype=torch.long)
    return data


@pytest.mark.parametrize("replace", [False, True])
def test_follows_real_sampling(power_law, replace):
    """Correlation above 0.98, type by type, with the frequencies of 1,200 batches."""
    data = random_graph(power_law)
    fanouts = {t: [4, 2] for t in data.edge_types}
    fanouts[CITES], fanouts["tag", "of", "paper"] = [3, -1], [2, 0]
    sampler = NeighborSampler(data, fanouts, replace=replace, seed=1)
    rng = np.random.default_rng(1)
    seeds = rng.choice(900, 300, replace=False)
    expected = sampler.sample_prob(seeds_of(seeds), batch_size=16)
    seen = {name: np.zeros(data[name].num_nodes) for name in data.node_types}
    for _ in range(1200):
        out = sampler.sample_from_nodes(seeds_of(rng.choice(seeds, 16, replace=False)))
        for name, node in out.node.items():
            seen[name][node.numpy()] += 1 / 1200
    for name, found in seen.items():
        assert np.corrcoef(expected[name], found)[0, 1] > 0.98, name
        assert abs(expected[name].sum() / found.sum() - 1) < 0.05, name
        assert (np.abs(expected[name].numpy() - found) < 0.13).all(), name


def test_all_neighbors_of_all_seeds(power_law):
    """At -1 and with one batch of all seeds: 1 where a walk along the edges leads, 0 elsewhere."""
    data = random_graph(power_law)
    got = NeighborSampler(data, [-1, -1]).sample_prob(seeds_of([1, 5], "author"))
    reached = {"author": {1, 5}, "paper": set(), "tag": set()}
    for _ in range(2):
        before = {name: set(nodes) for name, nodes in reached.items()}
        for (src, _, dst), store in data.edge_items():
            for u, v in store.edge_index.t().tolist():
                if v in before[dst]:
                    reached[src].add(u)
    for name, nodes in reached.items():
        assert set(got[name].nonzero().view(-1).tolist()) == nodes
        assert ((got[name] == 0) | (got[name] == 1)).all()


def test_one_type_is_as_without_types(power_law):
    """The same draws, hence the same numbers to the last bit."""
    ends = torch.from_numpy(power_law(300, 2000))
    data = HeteroData()
    data["n"].num_nodes = 300
    data["n", "to", "n"].edge_index = ends
    plain = NeighborSampler(Graph(Topology(ends, num_src=300)), [3, 2])
    seeds = torch.arange(0, 300, 7)
    one = NeighborSampler(data, [3, 2]).sample_prob(seeds_of(seeds, "n"), batch_size=8)
    assert torch.equal(one["n"], plain.sample_prob(seeds, batch_size=8))
    assert torch.equal(one["n"], plain.sample_prob(NodeSamplerInput(None, seeds), batch_size=8))


def test_numbers_of_nodes_are_compared(power_law):
    sampler = NeighborSampler(random_graph(power_law), [1])
    by_size = {"paper": torch.empty(900), "author": torch.tensor(600)}
    assert set(sampler.sample_prob(seeds_of([0]), by_size)) == {"paper", "author", "tag"}
    for wrong in ({"paper": 901}, {"paper": torch.empty(3)}, {"venue": 1}, 900):
        with pytest.raises(ValueError, match=r"num_nodes is .* but the graph has"):
            sampler.sample_prob(seeds_of([0]), wrong)


def test_bad_seeds(power_law):
    sampler = NeighborSampler(random_graph(power_law), [1])
    with pytest.raises(ValueError, match="need a node type of"):
        sampler.sample_prob(torch.tensor([0]))
    with pytest.raises(ValueError, match=r"need a node type of .*got 'venue'"):
        sampler.sample_prob(seeds_of([0], "venue"))
    with pytest.raises(IndexError, match="seeds holds id 150"):
        sampler.sample_prob(seeds_of([150], "tag"))
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        sampler.sample_prob(seeds_of([0]), batch_size=0)


def test_follows_batches_of_a_program():
    """Of `Hgt`, whose numbers of nodes are by type."""
    data = twins.heterogeneous()
    method = Hgt({node_type: [6] for node_type in data.node_types})
    seeds = torch.arange(0, data["paper"].num_nodes, 2)
    expected = NeighborSampler(data, method).sample_prob(seeds_of(seeds), batch_size=5)
    touched = {node_type: torch.zeros(len(probs)) for node_type, probs in expected.items()}
    generator = torch.Generator().manual_seed(0)
    batches = [seeds[torch.randperm(len(seeds), generator=generator)[:5]] for _ in range(500)]
    loader = NeighborLoader(data, method, ("paper", torch.cat(batches)), batch_size=5, seed=1)
    for batch in loader:
        for node_type, counts in touched.items():
            counts[batch[node_type].n_id] += 1
    for node_type, counts in touched.items():
        assert (expected[node_type] - counts / len(loader)).abs().max() < 0.126  # 4 sigma
        mean = float(counts.sum()) / len(loader)
        assert float(expected[node_type].sum()) == pytest.approx(mean, rel=0.05)
    assert all(expected[node_type].sum() > 0 for node_type in ("paper", "author"))
