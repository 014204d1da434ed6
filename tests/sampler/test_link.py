"""Link batches: their invariants, whatever ids the engine takes; which edges they lack."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from khop import _native
from khop.data import Graph, Topology
from khop.data.steps import run
from khop.sampler import NeighborSampler
from khop.sampler.drawing.engine import Engine
from khop.sampler.drawing.link import Links, LinkSampler
from khop.sampler.drawing.negative import Candidates, NegativeSampler
from khop.sampler.drawing.view import GraphView
from khop.sampler.link_spec import LinkSpec
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.spec import SamplingSpec
from khop.typing import EDGE, NODE
from support.reference import oracle

TYPES = [("u", "buys", "i"), ("i", "rev_buys", "u"), ("u", "knows", "u")]


def edges_of(out):
    """(source id, destination id) of each edge of a sampled batch, in order."""
    return list(zip(out.node[out.row].tolist(), out.node[out.col].tolist(), strict=True))


def sample(sampler, links, neg=None, **options):
    src, dst = (torch.tensor(ends) for ends in links)
    index = EdgeSamplerInput(None, src, dst)
    return sampler.sample_from_edges(index, neg, BatchKey(8, 3), **options)


@pytest.mark.parametrize("exclude", ["self", "reverse"])
def test_batches_without_their_links(exclude):
    """They are those of a graph that lacks these edges, parallel ones and reverses included."""
    rng = np.random.default_rng(1)
    edge_index = torch.from_numpy(rng.integers(0, 12, (2, 90)))
    links = edge_index[:, [3, 17, 17, 50]].tolist()
    pairs = set(zip(*links, strict=True))
    if exclude == "reverse":
        pairs |= {(v, u) for u, v in pairs}
    keep = [e not in pairs for e in zip(*edge_index.tolist(), strict=True)]
    assert 4 <= keep.count(False) < 40
    ours = sample(
        NeighborSampler(Data(edge_index=edge_index, num_nodes=12), [-1, -1]),
        links,
        exclude_seed_edges=exclude,
    )
    want = sample(
        NeighborSampler(Data(edge_index=edge_index[:, keep], num_nodes=12), [-1, -1]), links
    )
    assert torch.equal(ours.node, want.node)
    assert edges_of(ours) == edges_of(want)
    assert torch.equal(ours.metadata[1], want.metadata[1])
    assert ours.edge.tolist() == torch.tensor(keep).nonzero().view(-1)[want.edge].tolist()


def test_batches_without_their_links_in_heterogeneous_graphs():
    """Links of one type and their reverses of another; the ends turned round."""
    rng = np.random.default_rng(2)
    data = HeteroData()
    data["u"].num_nodes, data["i"].num_nodes = 8, 6
    ends = torch.from_numpy(np.stack([rng.integers(0, 8, 40), rng.integers(0, 6, 40)]))
    data["u", "buys", "i"].edge_index = ends
    data["i", "rev_buys", "u"].edge_index = ends.flip(0)
    data["u", "knows", "u"].edge_index = torch.from_numpy(rng.integers(0, 8, (2, 30)))
    links = ends[:, :5]
    pairs = set(zip(*links.tolist(), strict=True))
    index = EdgeSamplerInput(None, *links, input_type=("u", "buys", "i"))
    for exclude, hidden in ((True, (TYPES[0],)), ("reverse", TYPES[:2])):
        out = NeighborSampler(data, [-1, -1, -1]).sample_from_edges(
            index, exclude_seed_edges=exclude
        )
        for edge_type in data.edge_types:
            row = out.node[edge_type[0]][out.row[edge_type]].tolist()
            col = out.node[edge_type[2]][out.col[edge_type]].tolist()
            found = set(zip(row, col, strict=True))
            here = pairs if edge_type[0] == "u" else {(v, u) for u, v in pairs}
            assert (found & here == set()) == (edge_type in hidden)


@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_ids_of_the_engine_decide_nothing(mode, edge_dir):
    """A graph whose nodes are renumbered gives the same batch: seeds in order of original ids, the
    same negatives (none an edge), the same neighbours, the same edges left out."""
    rng = np.random.default_rng(5)
    n = 40
    src, dst = rng.integers(0, n, (2, 500))
    new = rng.permutation(n)
    links = Links(src[:30].copy(), dst[:30].copy())
    spec = LinkSpec.create(
        [NODE],
        [EDGE],
        EDGE,
        edge_dir=edge_dir,
        mode=mode,
        amount=2,
        strict=True,
        exclude="self",
    )
    keys, others = (dst, src) if edge_dir == "in" else (src, dst)
    results = []
    for ids, to_engine in ((np.arange(n), None), (new, lambda node_type, ids: new[ids])):
        indptr, indices, _ = oracle.csr(ids[keys], ids[others], n)
        csr = _native.Csr(indptr, indices, row_ids=np.argsort(ids))
        view = GraphView([n], [(0, 0)], [csr], [[0, n]], [[0, csr.num_edges]], 0)
        engine = Engine(view, SamplingSpec(((4, 3),), with_edge=False))
        sampler = LinkSampler(spec, NegativeSampler(Candidates(n), Candidates(n)), to_engine)
        subgraph, seeds = run(sampler.sample(engine, links, 77, 5))
        nodes = np.empty(subgraph.num_nodes(0), np.int64)
        subgraph.write_nodes(0, nodes)
        row, col = np.empty((2, subgraph.num_edges(0)), np.int64)
        subgraph.write_edge_index(0, row, col)
        results.append([np.argsort(ids)[nodes], row, col, *seeds.index.values()])
    for a, b in zip(*results, strict=True):
        assert np.array_equal(a, b)
    nodes, row, col = results[0][:3]
    edges = set(zip(src.tolist(), dst.tolist(), strict=True))
    drawn = zip(nodes[row].tolist(), nodes[col].tolist(), strict=True)
    drawn = {pair if edge_dir == "in" else pair[::-1] for pair in drawn}
    assert drawn <= edges - set(zip(links.src.tolist(), links.dst.tolist(), strict=True))
    assert np.all(np.diff(nodes[: len(np.unique(results[0][3]))]) > 0)
    if mode == "binary":
        ends = nodes[results[0][3]]
        assert np.array_equal(ends[:, :30], [links.src, links.dst])
        negative = set(zip(*ends[:, 30:].tolist(), strict=True))
    else:
        places = results[0][3:]
        assert np.array_equal(nodes[places[0]], links.src)
        assert np.array_equal(nodes[places[1]], links.dst)
        negative = set(zip(links.src.repeat(2), nodes[places[2]].reshape(-1), strict=True))
    assert not negative & edges


graphs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=40)


@given(
    graphs,
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8),
    st.sampled_from([None, "binary", "triplet"]),
    st.lists(st.integers(-1, 3), max_size=2),
    st.booleans(),
    st.sampled_from([False, "self", "reverse"]),
    st.integers(0, 2**32),
)
@settings(max_examples=150)
def test_invariants(edges, links, mode, fanouts, strict, exclude, seed):
    """Places name the ends; strict negatives are no edges; edges are the graph's, none hidden."""
    data = Data(edge_index=torch.tensor(edges).t().contiguous(), num_nodes=7)
    sampler = NeighborSampler(data, fanouts, seed=seed)
    index = EdgeSamplerInput(torch.arange(len(links)), *torch.tensor(links).t())
    neg = None if mode is None else NegativeSampling(mode, 2)
    strict = strict and mode is not None
    if strict and any(all((u, v) in edges for v in range(7)) for u, _ in links):
        return
    out = sampler.sample_from_edges(index, neg, strict_negatives=strict, exclude_seed_edges=exclude)
    n = len(links)
    assert torch.equal(out.metadata[0], index.input_id)
    if mode == "triplet":
        _, src, pos, negative, time = out.metadata
        assert negative.shape == (n, 2)
        ends = [(u, v) for u, vs in zip(src, negative, strict=True) for v in vs]
        positive = zip(src, pos, strict=True)
        seeds = torch.cat([src, pos, negative.view(-1)])
    else:
        _, places, label, time = out.metadata
        assert places.shape == (2, n * (1 if mode is None else 3))
        assert (label is None) == (mode is None)
        if mode is not None:
            assert label.tolist() == [1.0] * n + [0.0] * 2 * n
        pairs = list(zip(*places, strict=True))
        positive, ends, seeds = pairs[:n], pairs[n:], places.view(-1)
    assert time is None
    assert [(int(out.node[u]), int(out.node[v])) for u, v in positive] == links
    seeds = out.node[seeds].unique()
    assert torch.equal(out.node[: out.num_sampled_nodes[0]], seeds)
    if strict:
        assert not {(int(out.node[u]), int(out.node[v])) for u, v in ends} & set(edges)
    hidden = set(links) if exclude else set()
    hidden |= {(v, u) for u, v in links} if exclude == "reverse" else set()
    assert set(edges_of(out)) <= set(edges) - hidden
    assert edges_of(out) == [edges[e] for e in out.edge.tolist()]
    assert sum(out.num_sampled_nodes) == len(out.node) == len(out.node.unique())


def test_same_draws_whatever_was_drawn_before():
    """A batch depends on its key alone; weights and modes do not get mixed up between calls."""
    rng = np.random.default_rng(3)
    data = Data(edge_index=torch.from_numpy(rng.integers(0, 30, (2, 100))), num_nodes=30)
    sampler, links = NeighborSampler(data, [2]), data.edge_index[:, :5].tolist()
    weight = torch.zeros(30)
    weight[4] = 1
    options = [
        (None, {}),
        (NegativeSampling("binary"), {}),
        (NegativeSampling("triplet", dst_weight=weight), {}),
        (NegativeSampling("triplet", dst_weight=1 - weight), {"strict_negatives": True}),
    ]
    first = [sample(sampler, links, neg, **more) for neg, more in options]
    again = [sample(sampler, links, neg, **more) for neg, more in options[::-1]][::-1]
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.node, b.node)
        assert all(
            torch.equal(x, y) for x, y in zip(a.metadata, b.metadata, strict=True) if x is not None
        )
    assert set(first[2].node[first[2].metadata[3]].tolist()) == {4}
    assert 4 not in first[3].node[first[3].metadata[3]].tolist()


def test_errors(data):
    sampler = NeighborSampler(data, [2])
    with pytest.raises(IndexError, match="sources of links holds id 200"):
        sample(sampler, [[200], [0]])
    with pytest.raises(IndexError, match="destinations of links holds id -1"):
        sample(sampler, [[0], [-1]])
    with pytest.raises(TypeError, match="integers"):
        sample(sampler, [[0.5], [1.5]])
    with pytest.raises(ValueError, match="2 sources, but 1 destinations"):
        sample(sampler, [[0, 1], [1]])
    with pytest.raises(ValueError, match="dst_weight must hold a weight for each of the 200 nodes"):
        sample(sampler, [[0], [1]], NegativeSampling("triplet", dst_weight=torch.ones(3)))
    full = Data(edge_index=torch.tensor([[1, 1, 1], [0, 1, 2]]), num_nodes=3)
    with pytest.raises(ValueError, match="no strict negative can be drawn for source 1"):
        sample(NeighborSampler(full, [2]), [[1], [1]], "triplet", strict_negatives=True)
    hetero = HeteroData()
    hetero["a"].num_nodes = 3
    hetero["a", "r", "a"].edge_index = torch.tensor([[0], [1]])
    with pytest.raises(ValueError, match="links of a heterogeneous graph need an edge type"):
        sample(NeighborSampler(hetero, [2]), [[0], [1]])


def test_graphs_of_khops_own():
    """The sampler takes a `Graph` that holds out-neighbours, too: exclusion and checks turn."""
    graph = Graph(Topology(torch.tensor([[0, 0, 1], [1, 2, 2]]), edge_dir="out"))
    sampler = NeighborSampler(graph, [-1])
    out = sample(sampler, [[0], [2]], exclude_seed_edges=True)
    assert out.node.tolist() == [0, 2, 1]
    assert edges_of(out) == [(1, 0)]
    for _ in range(20):
        src, dst = torch.tensor([0]), torch.tensor([1])
        out = sampler.sample_from_edges(
            EdgeSamplerInput(None, src, dst), "triplet", strict_negatives=True
        )
        assert out.node[out.metadata[3]].tolist() == [0]
