"""Link batches of which a device makes all: negatives, their check, seeds, positions of ends.

They equal the CPU's, bit for bit. On machines without a GPU the device is emulated.
"""

import gc
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from fake_cuda import control
from khop.loader import DeviceOptions, LinkNeighborLoader
from khop.sampler import NeighborSampler
from khop.sampler.drawing.link import Links, LinkSampler
from khop.sampler.pyg.base import BatchKey
from khop.sampler.pyg.links import LinkOptions
from khop.sampler.pyg.padded import PadSizes
from support.devices import fake, gpu
from support.loaders import cases
from support.loaders.batches import assert_same
from support.loaders.links import BUYS, KNOWS, NEGATIVES, edge_set, ends_of, make_shop

DEVICES = pytest.mark.parametrize("device", ["emulated:5", pytest.param("cuda", marks=gpu)])
ids = {"ids": str}


@pytest.fixture
def calls(monkeypatch):
    """Counts of calls that a batch of links makes on the host."""
    counter = Counter()
    original = LinkSampler.sample

    def sample(self, *args):
        counter["sample"] += 1
        return original(self, *args)

    monkeypatch.setattr(LinkSampler, "sample", sample)
    return counter


def assert_same_batches(data, fanouts, device, how=None, **options):
    """Batches on a device and on the CPU are the same. `how`: options of the device."""
    on_cpu = LinkNeighborLoader(data, fanouts, **options)
    on_device = LinkNeighborLoader(data, fanouts, device=device, device_options=how, **options)
    try:
        expected = [list(on_cpu) for _ in range(2)]
    except (ValueError, IndexError) as error:
        with pytest.raises(type(error)) as found:
            list(on_device)
        assert str(found.value) == str(error)
        return []
    for epoch in expected:
        for one, other in zip(epoch, on_device, strict=True):
            assert_same(one, other)
    return expected[0]


@st.composite
def link_cases(draw):
    """Draw (data, fan-outs, options of a loader of links)."""
    data, time_attr, weight_attr = draw(cases.graphs())
    is_hetero = isinstance(data, HeteroData)
    link_type = draw(st.sampled_from(data.edge_types)) if is_hetero else None
    ends = (link_type[0], link_type[2]) if is_hetero else (None, None)
    sizes = [(data if t is None else data[t]).num_nodes for t in ends]
    if not all(sizes):
        return None
    pairs = st.tuples(*(st.integers(0, n - 1) for n in sizes))
    links = torch.tensor(draw(st.lists(pairs, min_size=1, max_size=7))).t().contiguous()
    fanouts = draw(st.lists(cases.FANOUTS, max_size=2))
    mode = draw(st.sampled_from([None, "binary", "triplet"]))
    options = {"edge_label_index": (link_type, links) if is_hetero else links}
    if mode is not None:
        amounts = [1, 2, 3] if mode == "triplet" else [1, 0.4, 2.5]
        weights = [
            draw(st.none() | st.lists(st.sampled_from([0.0, 1.0, 7.5]), min_size=n, max_size=n))
            for n in sizes
        ]
        src, dst = (None if w is None or not sum(w) else torch.tensor(w) for w in weights)
        if mode == "triplet":
            src = None
        amount = draw(st.sampled_from(amounts))
        options["neg_sampling"] = NegativeSampling(mode, amount, src, dst)
        options["strict_negatives"] = draw(st.booleans())
    if time_attr:
        times = st.lists(st.integers(-2, 7), min_size=links.size(1), max_size=links.size(1))
        options |= {"time_attr": time_attr, "edge_label_time": torch.tensor(draw(times))}
    if weight_attr:
        options["weight_attr"] = weight_attr
    options["disjoint"] = time_attr is not None or draw(st.booleans())
    kinds = [False, True, *["reverse"] * (not is_hetero or link_type[0] == link_type[2])]
    options["exclude_seed_edges"] = draw(st.sampled_from(kinds))
    return data, fanouts, options


@DEVICES
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(link_cases(), st.integers(0, 2**32), st.booleans())
def test_any_options(device, case, seed, recorded):
    """Random graphs, homogeneous and not, times, weights and kinds of negatives."""
    if case is None:
        return
    data, fanouts, options = case
    how = DeviceOptions(cuda_graph=recorded)
    assert_same_batches(data, fanouts, device, how, batch_size=3, seed=seed, **options)


@DEVICES
@pytest.mark.parametrize("link_type", [BUYS, KNOWS], **ids)
@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"pad": "auto"}], **ids)
def test_without_links_and_their_reverses(device, link_type, options, calls):
    """Reverses of another edge type, or of the links' own, of which the host makes seeds."""
    shop = make_shop()
    ends = shop[link_type].edge_index
    shop[link_type].edge_index = torch.cat([ends, ends.flip(0)], 1) if link_type == KNOWS else ends
    shop[link_type].pop("edge_attr", None)
    expected = assert_same_batches(
        shop, [-1, 3], device, edge_label_index=link_type, neg_sampling="binary", batch_size=40,
        seed=3, exclude_seed_edges="reverse", **options,
    )  # fmt: skip
    assert (calls["sample"] > 2 * len(expected)) == (link_type == KNOWS or "pad" in options)


@DEVICES
@pytest.mark.parametrize("neg", NEGATIVES, **ids)
@pytest.mark.parametrize("link_type", [BUYS, KNOWS], **ids)
@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"num_workers": 1}], **ids)
def test_the_host_draws_nothing(device, neg, link_type, options, calls):
    """Not the negatives, nor the seeds. Larger batches take steps of several blocks."""
    expected = assert_same_batches(
        make_shop(), [4, 3], device, edge_label_index=link_type, neg_sampling=neg, batch_size=90,
        seed=3, shuffle=True, **options,
    )  # fmt: skip
    assert calls["sample"] == 2 * len(expected)  # of the loader without a device


def dense(num_nodes, missing):
    """Return a graph of all edges but `missing` of each node's, and the links of an epoch."""
    ends = torch.cartesian_prod(torch.arange(num_nodes), torch.arange(num_nodes)).t()
    keep = (ends[0] - ends[1]) % num_nodes >= missing
    keep |= ends[0] == 0  # node 0 has all
    return Data(edge_index=ends[:, keep], num_nodes=num_nodes), ends[:, 3::7]


@DEVICES
@pytest.mark.parametrize("neg", NEGATIVES[1:4], **ids)
@pytest.mark.parametrize("how", ["plain", "disjoint", "recorded", "pad", "PyG"])
def test_strict_negatives_of_dense_graphs(device, neg, how, calls):
    """Some batches take more rounds than are launched at first, others all, and then the host."""
    data, links = dense(12, 4)
    if neg != "binary" and not isinstance(neg, str) and neg["mode"] == "triplet":
        links = links[:, links[0] != 0]
    options = {"edge_label_index": links, "batch_size": 9, "seed": 1, "strict_negatives": True}
    options |= {"neg_sampling": neg, "disjoint": how == "disjoint"}
    if how == "pad":
        options["pad"] = "auto"
    if how == "PyG":
        options["transform_sampler_output"] = lambda out: out
    where = DeviceOptions(cuda_graph=how == "recorded")
    batches = assert_same_batches(data, [2], device, where, **options)
    edges = edge_set(data.edge_index)
    for batch in batches if how != "pad" else ():
        assert not edges & edge_set(ends_of(batch)[1])
    if how in ("plain", "disjoint"):
        assert calls["sample"] < 3 * len(batches)


@DEVICES
def test_the_host_chooses_the_last_negatives(device, calls):
    """A source with one node that it does not lead to: rounds of draws may miss it."""
    num_nodes = 200
    ends = torch.stack([torch.zeros(num_nodes - 1, dtype=torch.long), torch.arange(1, num_nodes)])
    data = Data(edge_index=ends, num_nodes=num_nodes)
    options = {"neg_sampling": {"mode": "triplet", "amount": 2}, "strict_negatives": True}
    batches = assert_same_batches(
        data, [2], device, edge_label_index=ends[:, :20], batch_size=4, seed=0, **options
    )
    assert all((ends_of(batch)[1] == 0).all() for batch in batches)
    assert calls["sample"] > 2 * len(batches)


@DEVICES
def test_a_source_with_all_edges(device):
    """The CPU's error, and later batches are unaffected."""
    data, links = dense(6, 2)
    options = {"neg_sampling": "binary", "strict_negatives": True, "edge_label_index": links}
    options["neg_sampling"] = {"mode": "triplet", "amount": 1}
    loader = LinkNeighborLoader(data, [2], device=device, batch_size=1, seed=0, **options)
    with pytest.raises(ValueError, match="no strict negative can be drawn for source 0"):
        list(loader)


@DEVICES
@pytest.mark.parametrize("neg", NEGATIVES, **ids)
@pytest.mark.parametrize("pad", ["auto", "sizes"])
@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"exclude_seed_edges": True}], **ids)
def test_padding(device, neg, pad, options, calls):
    """A device pads batches of links while it draws them, and numbers trees by link."""
    shop = make_shop()
    common = {"edge_label_index": BUYS, "batch_size": 8, "seed": 2, "neg_sampling": neg}
    if pad == "sizes":
        known = LinkNeighborLoader(shop, [3, 2], pad="auto", **common, **options)
        list(known)
        pad = known.pad_sizes
    calls.clear()
    assert assert_same_batches(shop, [3, 2], device, pad=pad, **common, **options)


def drawer_of(device, neg, disjoint, exclude):
    """Return a sampler, and a function that draws a padded batch of 16 links by its index."""
    generator = torch.Generator().manual_seed(3)
    ends = torch.randint(400, (2, 3000), generator=generator)
    data = Data(edge_index=ends, num_nodes=400)
    sampler = NeighborSampler(data, [4, 3], disjoint=disjoint, device=device)
    of_links = sampler.link_sampler(None, LinkOptions(neg, exclude=exclude))
    links = Links(*(end[:16].numpy().copy() for end in ends))
    pad = PadSizes([[80, 320, 960]], [[320, 960]], True)

    def draw(index):
        return sampler.begin_links(of_links, links, BatchKey(1, index), pad).finish()

    return sampler, draw


@fake
@pytest.mark.parametrize("neg", [None, NegativeSampling("binary"), NegativeSampling("triplet", 2)])
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("exclude", [False, True])
def test_a_sampler_never_waits(monkeypatch, neg, disjoint, exclude):
    """From links to tensors: launches and two copies per batch, and no wait."""
    monkeypatch.setenv("KHOP_EMULATED", "cuda")
    sampler, draw = drawer_of("emulated", neg, disjoint, exclude)
    draw(0)  # makes room, and uploads nodes that negatives are drawn from
    gc.collect()  # an earlier sampler waits when it goes
    names = "waits", "launches", "uploads_pinned", "downloads_pinned", "uploads_pageable"
    before = {name: control.count(name) for name in names}
    for index in range(1, 4):
        assert draw(index).nodes[0].shape == (1360,)
    counts = {name: control.count(name) - before[name] for name in names}
    # Seeds from ends: one step in a disjoint batch, else keys, a sort, a sum and positions.
    seeds = 1 if disjoint else 4
    excluded = 11 if exclude else 0
    assert counts["launches"] == 3 * (2 + 2 * 4 + seeds + excluded)
    assert counts["uploads_pinned"] == counts["downloads_pinned"] == 3
    assert counts["uploads_pageable"] == 0
    # Trees are numbered by link, and marked as written: that waits where torch has no stream.
    assert counts["waits"] == (3 if disjoint else 0)
    sampler.check_all()  # all of them fit


def test_pyg_inputs(data):
    """`sample_from_edges` returns tensors of the device, and the CPU's positions."""
    inputs = EdgeSamplerInput(None, *data.edge_index[:, :9])
    outs = [
        NeighborSampler(data, [3], seed=4, device=device).sample_from_edges(
            inputs, NegativeSampling("triplet", 2)
        )
        for device in (None, "emulated")
    ]
    for one, other in zip(*(out.metadata for out in outs), strict=True):
        assert (one is None and other is None) or torch.equal(one, other)
