"""Link batches are laid out as PyG lays them out."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch_geometric.data import Data
from torch_geometric.sampler import (
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample

from khop.sampler import NeighborSampler
from khop.sampler.drawing.link import Links, lay_out, link_of_tree, negative_sources, repeated
from khop.sampler.link_spec import LinkSpec
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
