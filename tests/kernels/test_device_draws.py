"""Draws of negatives on devices: numbers under a key, nodes by weight and time, strict rounds."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from khop import _native
from khop.sampler.drawing.negative import Candidates, NegativeSampler
from support.devices import KINDS, empty, get, open_device, put

keys = st.integers(0, 2**64 - 1)
counts = st.integers(0, 150)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**32), key=keys, bound=st.integers(1, 2**63 - 1), count=counts)
def test_draws_below_one_bound(kind, seed, key, bound, count):
    device = open_device(kind, seed)
    out = empty(device, count, np.int64)
    device.draw_ids(key, bound, out)
    assert np.array_equal(get(out), _native.draw_ids(key, bound, count))


@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 2**32), key=keys, bounds=st.lists(st.integers(0, 2**63 - 1), max_size=99)
)
def test_draws_below_bounds_of_their_own(kind, seed, key, bounds):
    device, bounds = open_device(kind, seed), np.array(bounds, np.int64)
    out = empty(device, len(bounds), np.int64)
    device.draw_below(key, put(device, bounds), out)
    assert np.array_equal(get(out), _native.draw_below(key, bounds))


def test_bad_draws(device):
    out = empty(device, 2, np.int64)
    for bound in (0, -3):
        with pytest.raises(ValueError, match="bound must be positive"):
            device.draw_ids(1, bound, out)
    with pytest.raises(ValueError, match="must not be negative"):
        device.draw_below(1, put(device, np.array([3, -1])), out)
    with pytest.raises(ValueError, match="bounds must hold 2 entries"):
        device.draw_below(1, put(device, np.array([3])), out)
    device.draw_ids(1, 0, out[:0])


class Case:
    """Candidates as `khop.sampler.drawing.negative` has them, and as a device takes them."""

    def __init__(self, weight, time):
        self.num_nodes = len(weight)
        self.candidates = Candidates(self.num_nodes, weight, time)
        self.limits = self.candidates.limits
        self.order = None if time is None else np.argsort(time, kind="stable")
        mass = None if weight is None else Candidates(self.num_nodes, weight).masses(len(weight))
        self.sums = np.cumsum(mass if time is None else mass[self.order])

    def on(self, device):
        order = None if self.order is None else put(device, self.order)
        return self.num_nodes, put(device, self.sums), order


@st.composite
def cases(draw):
    """Weights, some of them 0, and times, or none."""
    weight = draw(st.lists(st.sampled_from([0.0, 1.0, 0.1, 100.0]), min_size=1, max_size=20))
    weight[draw(st.integers(0, len(weight) - 1))] = 3.0
    times = st.lists(st.integers(0, 5), min_size=len(weight), max_size=len(weight))
    time = draw(st.none() | times.map(np.array))
    return Case(np.array(weight), time)


@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 2**32),
    key=keys,
    case=cases(),
    times=st.lists(st.integers(-1, 6), max_size=80),
)
def test_nodes_by_weight_and_time(kind, seed, key, case, times):
    """The nodes that the sampler of the CPU draws, also where all that exist weigh nothing."""
    device = open_device(kind, seed)
    limits = case.limits(np.array(times), len(times))
    out = empty(device, len(times), np.int64)
    device.draw_nodes(key, case.on(device), put(device, limits), out)
    assert np.array_equal(get(out), case.candidates.draw(key, limits))


def test_nodes_that_weigh_alike(device):
    """No sums, no order, no limits."""
    out = empty(device, 1001, np.int64)
    device.draw_nodes(5, (37, None, None), None, out)
    assert np.array_equal(get(out), _native.draw_ids(5, 37, 1001))


@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 2**32),
    key=keys,
    masses=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    count=counts,
)
def test_nodes_of_few_masses(kind, seed, key, masses, count):
    """A draw that equals a sum belongs to the next candidate that weighs something."""
    device, sums = open_device(kind, seed), np.cumsum(masses)
    limits = np.random.default_rng(seed).integers(1, len(masses) + 1, count)
    out = empty(device, count, np.int64)
    device.draw_nodes(key, (len(masses), put(device, sums), None), put(device, limits), out)
    mass = sums[limits - 1]
    places = np.searchsorted(sums, _native.draw_below(key, mass), side="right")
    assert np.array_equal(get(out), np.where(mass > 0, places, 0))


def test_limits_out_of_range(device):
    """The first is named; the others are drawn."""
    limits = np.full(200, 4)
    limits[[70, 90]] = 6, 0
    out = empty(device, 200, np.int64)
    with pytest.raises(IndexError, match=r"limit of negative 70 is not between 1 .* candidates, 5"):
        device.draw_nodes(3, (5, None, None), put(device, limits), out)
    limits[[70, 90]] = 1
    expected = _native.draw_below(3, limits)
    expected[[70, 90]] = 77
    assert np.array_equal(get(out), expected)
    for sums, order in (([1, 2], None), (None, [0, 1])):
        arrays = [
            None if array is None else put(device, np.array(array)) for array in (sums, order)
        ]
        with pytest.raises(ValueError, match="of candidates must hold 5 entries"):
            device.draw_nodes(3, (5, *arrays), None, out)


def strict(device, edges, num_nodes, rounds, src_from, dst_from, src, limits, by_source=False):
    """(src, dst, those left) of negatives drawn under run key 11 for batch 4."""
    rows, others = (edges[0], edges[1]) if by_source else (edges[1], edges[0])
    indptr, indices, _ = _native.coo_to_csr(rows, others, num_nodes, num_nodes)
    count = len(limits[1])
    src, dst, left = (
        put(device, src),
        empty(device, count, np.int64),
        empty(device, count, np.int64),
    )
    num_left = device.draw_strict_negatives(
        put(device, indptr),
        put(device, indices),
        11,
        4,
        rounds,
        dst_from.on(device),
        None if src_from is None else src_from.on(device),
        src,
        dst,
        left,
        src_limits=None if src_from is None else put(device, limits[0]),
        dst_limits=put(device, limits[1]),
        rows_are_sources=by_source,
    )
    device.synchronize()
    return get(src), get(dst), get(left)[:num_left]


def reference(edges, rounds, src_from, dst_from, src, limits):
    """The same, by the functions of the CPU."""
    pairs = set(zip(*edges.tolist(), strict=True))
    src, dst, wrong = src.copy(), np.zeros(len(src), np.int64), np.arange(len(src))
    for number in range(rounds):
        for end, source, nodes, most in (
            (0, src_from, src, limits[0]),
            (1, dst_from, dst, limits[1]),
        ):
            if source is not None:
                key = _native.step_key(11, 4, _native.NEGATIVE_HOP, 2 * number + end)
                nodes[wrong] = source.candidates.draw(key, most[wrong])
        wrong = np.array([i for i in wrong if (src[i], dst[i]) in pairs], np.int64)
    return src, dst, wrong


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    share=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    rounds=st.integers(1, 6),
    count=st.integers(0, 150),
    draws_sources=st.booleans(),
    by_source=st.booleans(),
)
def test_strict_rounds(kind, seed, share, rounds, count, draws_sources, by_source):
    """Round by round what the CPU draws, and in the end the same negatives are left."""
    rng = np.random.default_rng(seed)
    edges = np.argwhere(rng.random((12, 12)) < share).T.copy()
    dst_from = Case(rng.random(12) + 0.01, rng.integers(0, 4, 12))
    src_from = Case(np.ones(12), None) if draws_sources else None
    src = rng.integers(0, 12, count)
    limits = np.full(count, 12), dst_from.limits(rng.integers(0, 5, count), count)
    args = (rounds, src_from, dst_from, src, limits)
    got = strict(open_device(kind, seed), edges, 12, *args, by_source)
    for array, expected in zip(got, reference(edges, *args), strict=True):
        assert np.array_equal(array, expected)


def test_strict_negatives_of_a_batch(device, power_law):
    """What `NegativeSampler` draws for a batch on a skewed graph, if its rounds suffice."""
    edges = power_law(400, 8000)
    rng = np.random.default_rng(0)
    dst_from, src = Case(rng.random(400), None), edges[0][:500].copy()
    limits = None, np.full(500, 400)
    got_src, got_dst, left = strict(device, edges, 400, 32, None, dst_from, src, limits)
    linked = {u * 400 + v for u, v in edges.T.tolist()}

    def check(src, dst):
        return np.isin(src * 400 + dst, list(linked))
        yield

    sampler = NegativeSampler(dst_from.candidates)
    with pytest.raises(StopIteration) as stop:
        next(sampler.sample(500, src, None, 11, 4, check))
    assert len(left) == 0
    assert np.array_equal(got_src, stop.value.value[0])
    assert np.array_equal(got_dst, stop.value.value[1])
    once = strict(device, edges, 400, 1, None, dst_from, src, limits)
    assert len(once[2]) > 10  # a round alone would not have done


def test_bad_strict_draws(device):
    edges, nodes = np.zeros((2, 1), np.int64), Case(np.ones(3), None)
    one = np.array([0])
    with pytest.raises(IndexError, match="a destination has no row in the graph"):
        strict(device, edges, 1, 1, None, nodes, np.zeros(50, np.int64), (None, np.full(50, 3)))
    with pytest.raises(IndexError, match="a source has no row in the graph"):
        strict(device, edges, 1, 1, None, nodes, one + 5, (None, one + 1), by_source=True)
    with pytest.raises(ValueError, match="num_rounds"):
        strict(device, edges, 3, 0, None, nodes, one, (None, one + 1))
    for limits in ((one + 4, one + 1), (one + 1, one)):
        with pytest.raises(IndexError, match="limit of negative 0 "):
            strict(device, edges, 3, 1, nodes, nodes, one, limits)
