"""Random walks over graphs in memory."""

import gc
import itertools
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric.data import Data

from khop.data import Graph, Topology
from khop.loader import Node2VecLoader
from khop.sampler import random_walk
from khop.sampler.methods.walk import below
from khop.sampler.pyg import random_walks
from support.cluster import twins
from support.devices import gpu
from support.reference import oracle
from support.reference.random_walks import rows_of, walk

# 0 <-> 1 <-> 2 <-> 0, 2 <-> 3, 3 <-> 4: from 2, coming from 0, the next node is 0 (weight 1/p), 1
# (which 0 is joined to: 1) or 3 (1/q).
UNDIRECTED = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4)]
KITE = torch.tensor([*UNDIRECTED, *((b, a) for a, b in UNDIRECTED)]).T


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_walks_are_those_of_the_oracle(data):
    draw = data.draw
    n, num_edges = draw(st.integers(1, 8)), draw(st.integers(0, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    edge_index = torch.from_numpy(rng.integers(0, n, (2, num_edges)))
    p, q = draw(st.sampled_from([(1, 1), (0.25, 4), (3, 0.5), (2, 1), (1e6, 1e-6), (1e-6, 1e6)]))
    length, seed = draw(st.integers(0, 6)), draw(st.integers(0, 2**64 - 1))
    restart = draw(st.sampled_from([0.0, 0.3, [i % 2 / 2 for i in range(length)]]))
    start = torch.from_numpy(rng.integers(0, n, draw(st.integers(0, 6))))
    nodes, edges = random_walk(
        edge_index,
        start,
        length,
        p=p,
        q=q,
        restart=restart,
        num_nodes=n,
        seed=seed,
        return_edge_ids=True,
    )
    rows, run_key = rows_of(edge_index), oracle.run_key(seed, 0, 0)
    chances = restart if isinstance(restart, list) else [restart] * length
    stops = [round(chance * 2**32) for chance in chances]
    expected = [
        walk([rows] * length, s, i, run_key, p, q, stops) for i, s in enumerate(start.tolist())
    ]
    assert nodes.shape == (len(start), length + 1)
    assert edges.shape == (len(start), length)
    assert nodes.tolist() == [walked for walked, _ in expected]
    assert edges.tolist() == [passed for _, passed in expected]


def test_metapaths():
    """They are repeated; ids are those of each step's type."""
    data = twins.heterogeneous()
    path = [twins.WRITES, twins.CITES, twins.WRITTEN]
    start = torch.arange(80)
    nodes, edges = random_walk(data, start, 7, metapath=path, seed=9, return_edge_ids=True)
    steps = [rows_of(data[path[i % 3]].edge_index) for i in range(7)]
    expected = [walk(steps, i, i, oracle.run_key(9, 0, 0)) for i in range(80)]
    assert nodes.tolist() == [walked for walked, _ in expected]
    assert edges.tolist() == [passed for _, passed in expected]
    assert (nodes[:, 3] >= 0).any()
    assert (nodes == -1).any()


def test_every_step_is_an_edge_and_ends_are_final():
    data = twins.homogeneous()
    nodes, edges = random_walk(
        data, torch.arange(150), 12, q=0.5, restart=0.05, seed=3, return_edge_ids=True
    )
    taken = edges >= 0
    ends = torch.stack([nodes[:, :-1][taken], nodes[:, 1:][taken]])
    assert torch.equal(data.edge_index[:, edges[taken]], ends)
    assert torch.equal(taken, nodes[:, 1:] >= 0)
    assert not (taken[:, 1:] & ~taken[:, :-1]).any()
    assert (nodes[148:, 1:] == -1).all()  # nodes without edges


@pytest.mark.parametrize(("p", "q"), [(1, 1), (0.25, 4), (4, 0.5), (20, 0.01)])
def test_chances_of_a_biased_step(p, q):
    """Of walks 0, 2, x, the shares of x are proportional to 1/p, 1, 1/q."""
    walks = random_walk(KITE, torch.zeros(60_000, dtype=torch.long), 2, p=p, q=q, seed=1)
    third = walks[walks[:, 1] == 2, 2]
    weights = np.array([1 / p, 1, 1 / q])
    expected = weights / weights.sum() * len(third)
    seen = np.bincount(third.numpy(), minlength=4)
    assert seen[2] == 0
    chi_square = ((seen[[0, 1, 3]] - expected) ** 2 / expected).sum()
    assert chi_square < 13.8  # 0.1 % of chi-square with two degrees of freedom


def test_restart_ends_walks_geometrically():
    walks = random_walk(KITE, torch.zeros(40_000, dtype=torch.long), 3, restart=0.25, seed=1)
    shares = (walks >= 0).double().mean(0)
    for step in range(4):
        assert abs(float(shares[step]) - 0.75**step) < 0.01


def test_walks_are_functions_of_seed_and_index():
    start = torch.tensor([0, 1, 2, 0])
    walks = random_walk(KITE, start, 9, seed=5)
    assert torch.equal(random_walk(KITE, start[:2], 9, seed=5), walks[:2])
    assert not torch.equal(walks[0], walks[3])
    torch.manual_seed(1)
    first = random_walk(KITE, start, 9)
    assert not torch.equal(random_walk(KITE, start, 9), first)
    torch.manual_seed(1)
    assert torch.equal(random_walk(KITE, start, 9), first)


def test_all_forms_of_a_graph_walk_the_same():
    start, walks = torch.arange(5), random_walk(KITE, torch.arange(5), 6, q=2, seed=2)
    graph = Graph(Topology(KITE, edge_dir="out"))
    for form in (Data(edge_index=KITE, num_nodes=5), graph, KITE.int(), KITE.numpy()):
        assert torch.equal(random_walk(form, start, 6, q=2, seed=2), walks)


@pytest.mark.parametrize("device", ["emulated:5", pytest.param("cuda", marks=gpu)])
def test_devices_walk_the_same(device):
    """Of both kinds of graphs, with and without bias; loaders' windows, too."""
    data, start = twins.homogeneous(), torch.arange(150)
    common = {"seed": 4, "return_edge_ids": True}
    for options in ({"restart": 0.1}, {"p": 0.5, "q": 2}, {"p": 0.01, "q": 30}):
        expected = random_walk(data, start, 6, **options, **common)
        walked = random_walk(data, start, 6, device=device, **options, **common)
        assert all(map(torch.equal, walked, expected))
    data, path = twins.heterogeneous(), [twins.WRITES, twins.CITES, twins.WRITTEN]
    expected = random_walk(data, torch.arange(80), 7, metapath=path, **common)
    walked = random_walk(data, torch.arange(80), 7, metapath=path, device=device, **common)
    assert all(map(torch.equal, walked, expected))
    windows = {"batch_size": 2, "walks_per_node": 3, "seed": 1}
    loaders = [Node2VecLoader(KITE, 5, 3, device=where, **windows) for where in (None, device)]
    for one, other in zip(*loaders, strict=True):
        assert all(map(torch.equal, one, other))


def test_a_graph_stays_on_the_device(monkeypatch):
    """Copied once for all calls and loaders, to each device, and freed with the graph."""
    copies, copy = [], random_walks.graphs_on

    def counted(device, *args):
        copies.append(device)
        return copy(device, *args)

    monkeypatch.setattr(random_walks, "graphs_on", counted)
    graph = Graph(Topology(KITE, edge_dir="out"))
    expected = random_walk(KITE, torch.arange(5), 6, seed=2)
    for _ in range(2):
        walked = random_walk(graph, torch.arange(5), 6, seed=2, device="emulated:3")
        assert torch.equal(walked, expected)
    Node2VecLoader(graph, 5, 3, device="emulated:3")
    assert len(copies) == 1
    random_walk(graph, torch.arange(5), 6, seed=2, device="emulated:4")
    assert len(set(copies)) == 2
    copies.clear()
    before, exists = len(random_walks._on_devices), weakref.ref(graph)
    del graph
    gc.collect()
    assert exists() is None
    assert len(random_walks._on_devices) == before - 1


def test_products_in_128_bits():
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**64, 1000, np.uint64)
    bounds = rng.integers(0, 2**64, 1000, np.uint64) >> rng.integers(0, 63, 1000).astype(np.uint64)
    words[:2], bounds[:2] = 2**64 - 1, 2**64 - 1
    exact = [int(w) * int(b) >> 64 for w, b in zip(words, bounds, strict=True)]
    assert below(words, bounds).tolist() == exact


CITED = ("paper", "cites", "author")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"walk_length": -1}, "walk_length must be an integer"),
        ({"walk_length": True}, "walk_length must be an integer"),
        ({"p": 0}, "p must be a number from 1e-6"),
        ({"q": float("nan")}, "q must be a number from 1e-6"),
        ({"restart": 1.5}, "restart must be a chance from 0 to 1"),
        ({"restart": [0.5]}, "1 chances for 2 steps"),
        ({"start": torch.tensor([5])}, "start"),
        ({"start": torch.tensor([-1])}, "start"),
        ({"start": torch.tensor([0.5])}, "start"),
        ({"seed": -1}, "seed must lie"),
        ({"graph": [1]}, r"must be an edge_index .* \(got list\)"),
        ({"graph": torch.zeros(3, 2)}, r"must be an edge_index .* \(got \[3, 2\]\)"),
        ({"graph": Graph(Topology(KITE))}, "compress it with edge_dir='out'"),
        ({"graph": Data(edge_index=KITE, num_nodes=5), "num_nodes": 5}, "edge_index alone"),
        ({"metapath": [CITED]}, "there are"),
        ({"graph": twins.heterogeneous()}, "need a metapath"),
        ({"graph": twins.heterogeneous(), "metapath": [twins.CITES], "p": 2}, "leave them out"),
        ({"graph": twins.heterogeneous(), "metapath": [CITED]}, "metapath has edge type"),
        (
            {"graph": twins.heterogeneous(), "metapath": [twins.CITES, twins.WRITES]},
            "leads to 'paper', but .* begins at 'author'",
        ),
        (
            {"graph": twins.heterogeneous(), "metapath": [twins.WRITES]},
            "must end where it begins",
        ),
    ],
)
def test_bad_arguments(options, message):
    given = {"graph": KITE, "start": torch.tensor([0]), "walk_length": 2, **options}
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        random_walk(given.pop("graph"), given.pop("start"), given.pop("walk_length"), **given)


def test_one_pass_of_a_metapath_may_end_elsewhere():
    walks = random_walk(twins.heterogeneous(), torch.arange(9), 1, metapath=[twins.WRITES], seed=1)
    assert walks.shape == (9, 2)
    assert list(itertools.chain(*walks[:, :1].tolist())) == list(range(9))
