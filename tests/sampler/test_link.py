"""Link batches: laid out as PyG lays them out, without the edges that shall not be there."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import (
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample

import oracle
from khop import _native
from khop.data import Graph, Topology
from khop.sampler import NeighborSampler
from khop.sampler.engine import Engine, GraphView, finish
from khop.sampler.link import (
    Links,
    LinkSampler,
    lay_out,
    link_of_tree,
    negative_sources,
    repeated,
)
from khop.sampler.link_spec import LinkSpec
from khop.sampler.negative import Candidates, NegativeSampler
from khop.sampler.neighbor import BatchKey
from khop.sampler.spec import SamplingSpec
from khop.typing import EDGE, NODE

NUM_NODES = 9


class GivenNegatives(NegativeSampling):
    """PyG's, which hands out negatives that were drawn before."""

    def __init__(self, mode, amount, src, dst):
        super().__init__(mode, amount)
        self.given = {"src": src, "dst": dst}

    def sample(self, num_samples, endpoint, num_nodes=None):
        assert num_samples == len(self.given[endpoint])
        return torch.from_numpy(self.given[endpoint])


@st.composite
def batches(draw):
    """Links (repetitions likely), their times, negatives, and what batches shall be."""
    n = draw(st.integers(1, 6))
    ids = st.integers(0, NUM_NODES - 1)

    def vector(length, values=ids):
        return np.array(draw(st.lists(values, min_size=length, max_size=length)), np.int64)

    mode = draw(st.sampled_from([None, "binary", "triplet"]))
    amount = draw(st.sampled_from([1, 2, 3] + [0.5, 1.5, 0.1] * (mode != "triplet")))
    disjoint = draw(st.booleans())
    types = draw(st.sampled_from([None, ("a", "r", "b"), ("a", "r", "a")]))
    link_type = types or EDGE
    node_types = ["b", "a"] if types else [NODE]
    spec = LinkSpec.create(
        node_types, [link_type], link_type, disjoint=disjoint, mode=mode, amount=amount
    )
    links = Links(
        vector(n), vector(n), vector(n, st.integers(0, 99)) if disjoint and draw(ids) else None
    )
    count = spec.num_negatives(n)
    return spec, links, types, node_types, (vector(count), vector(count))


@given(batches())
@settings(max_examples=300)
def test_layout_is_pygs(batch):
    """Seeds, their times, index arrays and numbers of trees, with the same negatives drawn."""
    spec, links, types, node_types, negatives = batch
    seen = []

    def sample_fn(seed, time):
        seen.append((seed, time))
        if types is None:
            trees = torch.arange(len(seed)) if spec.disjoint else None
            return SamplerOutput(seed, *[torch.empty(0, dtype=torch.long)] * 3, trees)
        places = iter(torch.arange(sum(map(len, seed.values()))).split([*map(len, seed.values())]))
        trees = {t: next(places) for t in seed} if spec.disjoint else None
        return HeteroSamplerOutput(seed, {}, {}, {}, trees)

    time = None if links.time is None else torch.from_numpy(links.time)
    index = EdgeSamplerInput(
        None, torch.from_numpy(links.src), torch.from_numpy(links.dst), None, time, types
    )
    neg = spec.mode and GivenNegatives(spec.mode, spec.amount, *negatives)
    num_nodes = NUM_NODES if types is None else {"a": NUM_NODES, "b": NUM_NODES}
    want = edge_sample(index, sample_fn, num_nodes, spec.disjoint, None, neg)

    got = lay_out(spec, links, negatives if spec.mode else None)
    assert (got.num_links, got.num_negatives) == (len(links), len(negatives[0]) if spec.mode else 0)
    ((seeds, times),) = seen
    if types is None:
        seeds, times = {NODE: seeds}, None if times is None else {NODE: times}
    assert [node_types[s.node_type] for s in got.sets] == list(seeds)
    for seed_set, ids in zip(got.sets, seeds.values(), strict=True):
        assert seed_set.ids.tolist() == ids.tolist()
        if times is None:
            assert seed_set.times is None
        else:
            assert seed_set.times.tolist() == times[node_types[seed_set.node_type]].tolist()
    names = ["edge_label_index"]
    if spec.mode == "triplet":
        names = ["src_index", "dst_pos_index", "dst_neg_index"]
    assert list(got.index) == names
    for name, expected in zip(names, want.metadata[1:], strict=False):
        assert got.index[name].dtype == np.int64
        assert got.index[name].flags.c_contiguous
        assert got.index[name].shape == tuple(expected.shape)
        assert got.index[name].tolist() == expected.tolist()
    if spec.disjoint:
        count = sum(len(s.ids) for s in got.sets)
        trees = torch.cat(list(want.batch.values())) if types else want.batch
        assert link_of_tree(np.arange(count), len(links)).tolist() == trees.tolist()
    if spec.mode == "triplet":  # the negatives of a source are where its index says
        sources = links.src.repeat(int(spec.amount))
        drawn = got.sets[-1].ids[got.index["dst_neg_index"].reshape(-1)]
        by_source = negative_sources(spec, links)
        pairs = sorted(zip(by_source.tolist(), negatives[1].tolist(), strict=True))
        assert sorted(zip(sources.tolist(), drawn.tolist(), strict=True)) == pairs


def test_times_of_links_need_trees():
    links = Links(*np.zeros((3, 2), np.int64))
    with pytest.raises(ValueError, match="disjoint"):
        lay_out(LinkSpec(), links, None)


def test_no_links():
    """Nothing fails for lack of links, though no loader makes such a batch."""
    none = np.empty(0, np.int64)
    for mode in (None, "binary", "triplet"):
        for disjoint in (False, True):
            spec = LinkSpec(mode=mode, disjoint=disjoint, amount=2)
            seeds = lay_out(spec, Links(none, none), (none, none))
            assert [len(s.ids) for s in seeds.sets] == [0]
            assert all(a.size == 0 for a in seeds.index.values())
    assert link_of_tree(none, 0).tolist() == []
    assert repeated(none, LinkSpec(mode="binary", amount=2)).tolist() == []


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
        view = GraphView([n], [(0, 0)], [csr], [[0, n]], 0)
        engine = Engine(view, SamplingSpec(((4, 3),), with_edge=False))
        sampler = LinkSampler(spec, NegativeSampler(Candidates(n), Candidates(n)), to_engine)
        subgraph, seeds = finish(sampler.sample(engine, links, 77, 5))
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
@settings(max_examples=150, deadline=None)
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


@pytest.mark.parametrize("neg", [None, ("binary", 1.5), ("triplet", 1), ("triplet", 2)], ids=str)
@pytest.mark.parametrize("level", [None, "node", "edge"])
def test_trees_are_pygs(neg, level):
    """All neighbours of each end, at its link's time, numbered by link: PyG's `edge_sample` over
    khop's sampling from nodes, with the same negatives."""
    rng = np.random.default_rng(6)
    data = Data(edge_index=torch.from_numpy(rng.integers(0, 30, (2, 150))), num_nodes=30)
    time = None
    if level is not None:
        data.time = torch.from_numpy(rng.integers(0, 9, 30 if level == "node" else 150))
        time = torch.from_numpy(rng.integers(-1, 9, 7))
    options = {"time_attr": "time"} if level else {"disjoint": True}
    sampler = NeighborSampler(data, [-1, -1], **options)
    ends = torch.from_numpy(rng.integers(0, 30, (2, 7)))
    index = EdgeSamplerInput(torch.arange(7), *ends, None, time)
    ours = sampler.sample_from_edges(index, neg and NegativeSampling(*neg))
    given = None
    if neg is not None and neg[0] == "binary":
        given = GivenNegatives(*neg, *ours.node[ours.metadata[1][:, 7:]].numpy())
    elif neg is not None:  # PyG draws round by round
        drawn = ours.node[ours.metadata[3].reshape(7, -1).t()].reshape(-1)
        given = GivenNegatives(*neg, None, drawn.numpy())
    theirs = edge_sample(
        index,
        lambda seed, time: sampler.sample_from_nodes(NodeSamplerInput(None, seed, time)),
        30,
        True,
        None,
        given,
    )
    for name in ("node", "row", "col", "edge", "batch"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
    assert ours.num_sampled_nodes == theirs.num_sampled_nodes
    assert ours.num_sampled_edges == theirs.num_sampled_edges
    assert len(ours.metadata) == len(theirs.metadata)
    for a, b in zip(ours.metadata, theirs.metadata, strict=True):
        assert (a is None and b is None) or (a.dtype == b.dtype and torch.equal(a, b))


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
