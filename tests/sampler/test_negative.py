"""Negatives: which nodes are drawn, how likely, never too late, and on request never an edge."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from khop.data import steps
from khop.sampler.drawing import negative
from khop.sampler.drawing.negative import ROUNDS, Candidates, NegativeSampler
from support.reference import oracle

RUN, BATCH = 12345, 6
HOP = 0xFFFFFFFE


def words(number, count, run=RUN, batch=BATCH):
    """The first 64-bit words under one of a batch's keys."""
    key = oracle.step_key(run, batch, HOP, number)
    blocks = [oracle.philox(key, 0, 0, block, 0) for block in range((count + 1) // 2)]
    return [w for a, b, c, d in blocks for w in (b << 32 | a, d << 32 | c)][:count]


def draw(sampler, count, sources=None, times=None, edges=None, run=RUN, batch=BATCH):
    """(sources, destinations) as lists; `edges` is the set of pairs that are not to be drawn."""

    def check(src, dst):
        yield from ()
        return np.array([p in edges for p in zip(src.tolist(), dst.tolist(), strict=True)], bool)

    given = None if sources is None else np.array(sources, np.int64)
    times = None if times is None else np.array(times, np.int64)
    asked = None if edges is None else check
    src, dst = steps.run(sampler.sample(count, given, times, run, batch, asked))
    return src.tolist(), dst.tolist()


def is_as_likely(drawn, weights, threshold=1e-4):
    """Whether numbers were drawn in proportion to weights; those of weight 0 never."""
    weights = np.asarray(weights, float)
    counts = np.bincount(drawn, minlength=len(weights))
    possible = weights > 0
    if counts[~possible].any():
        return False
    expected = weights[possible] / weights.sum() * len(drawn)
    return possible.sum() < 2 or stats.chisquare(counts[possible], expected).pvalue > threshold


@given(st.integers(1, 2**40), st.integers(1, 2**40), st.integers(0, 7), st.integers(0, 2**64 - 1))
def test_draws_follow_the_contract(num_src, num_dst, count, run):
    """Negative i is word i of the batch's key for its side, mapped to the number of nodes."""
    sampler = NegativeSampler(Candidates(num_dst), Candidates(num_src))
    src, dst = draw(sampler, count, run=run)
    assert src == [w * num_src >> 64 for w in words(0, count, run)]
    assert dst == [w * num_dst >> 64 for w in words(1, count, run)]
    sources = [5] * count
    assert draw(sampler, count, sources, run=run) == (sources, dst)


def test_batches_and_runs_differ():
    sampler = NegativeSampler(Candidates(10**6))
    drawn = {
        tuple(draw(sampler, 4, [0] * 4, run=run, batch=batch)[1])
        for run in range(20)
        for batch in range(20)
    }
    assert len(drawn) == 400


def test_all_nodes_are_as_likely_in_both_ends():
    sampler = NegativeSampler(Candidates(40), Candidates(30))
    src, dst = draw(sampler, 40_000)
    assert is_as_likely(src, np.ones(30))
    assert is_as_likely(dst, np.ones(40))
    pairs = np.array(src) * 40 + dst
    assert is_as_likely(pairs, np.ones(1200))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_weights(dtype):
    """In proportion to the weights, whatever their scale; nodes of weight 0 are never drawn."""
    weight = np.array([0, 3, 1, 0, 0, 10, 2, 0], dtype)
    for scale in (1, 1000, 1e-30 if dtype == np.float64 else 7):
        sampler = NegativeSampler(Candidates(8, weight * dtype(scale)))
        assert is_as_likely(draw(sampler, 20_000, [0] * 20_000)[1], weight)


def test_tiny_weights_can_be_drawn():
    """A positive weight is never rounded to 0: where only it is left, it is drawn."""
    weight, time = np.array([1e300, 1e-300, 0]), np.array([5, 2, 1])
    sampler = NegativeSampler(Candidates(3, weight, time))
    assert draw(sampler, 3, [0] * 3, times=[2, 3, 4])[1] == [1, 1, 1]
    assert draw(sampler, 3, [0] * 3, times=[5, 5, 5])[1] == [0, 0, 0]


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([1.0, 2.0], r"weight for each of the 3 nodes \(got shape \(2,\)\)"),
        ([[1.0, 2.0, 3.0]], "got shape"),
        ([1.0, -0.5, 2.0], "finite and not negative .*got -0.5 for node 1"),
        ([1.0, np.nan, 2.0], "got nan for node 1"),
        ([np.inf, 1.0, 2.0], "got inf for node 0"),
        ([0.0, 0.0, 0.0], "positive, finite sum"),
        ([1e308, 1e308, 1e308], "positive, finite sum"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_bad_weights(weight, message):
    with pytest.raises(ValueError, match=message):
        Candidates(3, np.array(weight), weight_name="dst_weight")


def test_bad_times():
    with pytest.raises(ValueError, match="times of shape"):
        Candidates(3, time=np.arange(4))


weights_of_six = st.one_of(
    st.none(), st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=6, max_size=6).filter(any)
)


@given(
    st.lists(st.integers(-3, 3), min_size=6, max_size=6),
    weights_of_six,
    st.lists(st.integers(-4, 4), min_size=1, max_size=12),
    st.integers(0, 2**32),
)
def test_no_node_is_drawn_before_it_exists(time, weight, seed_times, run):
    """Where none exists yet (or all that do weigh 0), the one of minimum time, as in PyG."""
    sampler = NegativeSampler(Candidates(6, weight and np.array(weight), np.array(time)))
    _, dst = draw(sampler, len(seed_times), [0] * len(seed_times), seed_times, run=run)
    for node, seed_time in zip(dst, seed_times, strict=True):
        valid = [v for v in range(6) if time[v] <= seed_time and (weight is None or weight[v])]
        assert node in (valid or [int(np.argmin(time))])


@pytest.mark.parametrize("weight", [None, [2.0, 0.0, 1.0, 4.0, 1.0, 3.0]])
def test_nodes_that_exist_are_as_likely(weight):
    r"""Times 3 1 2 1 5 2: at time 2 the nodes 1, 2, 3, 5 exist, at 5 all."""
    time = np.array([3, 1, 2, 1, 5, 2])
    sampler = NegativeSampler(Candidates(6, weight and np.array(weight), time))
    times = [2, 5] * 20_000
    _, dst = draw(sampler, len(times), [0] * len(times), times)
    weight = np.ones(6) if weight is None else np.array(weight)
    assert is_as_likely(dst[::2], weight * (time <= 2))
    assert is_as_likely(dst[1::2], weight)


def test_sources_exist_too():
    """Both ends of a pair have times of their own."""
    sampler = NegativeSampler(Candidates(5, time=np.arange(5)), Candidates(4, time=np.arange(4)))
    times = np.random.default_rng(0).integers(0, 5, 500)
    src, dst = draw(sampler, 500, times=times)
    assert (np.array(src) <= times).all()
    assert (np.array(dst) <= times).all()
    assert set(src) == set(range(4))
    assert set(dst) == set(range(5))


edge_sets = st.frozensets(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=20)


@given(
    edge_sets,
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=5, max_size=5)),
    st.integers(0, 2**32),
)
@settings(max_examples=200)
def test_strict_destinations(edges, sources, time, run):
    """Never an edge; an error names a source if and only if one has no other destination."""
    sampler = NegativeSampler(Candidates(5, time=None if time is None else np.array(time)))
    times = None if time is None else [2] * len(sources)
    exist = [v for v in range(5) if time is None or time[v] <= 2]
    exist = exist or [int(np.argmin(time))]
    full = {s for s in sources if all((s, v) in edges for v in exist)}
    if full:
        with pytest.raises(
            ValueError, match=r"no strict negative can be drawn for source (\d)"
        ) as e:
            draw(sampler, len(sources), sources, times, edges, run)
        assert any(
            f"source {s}: it is linked to all {len(exist)} nodes" in str(e.value) for s in full
        )
    else:
        src, dst = draw(sampler, len(sources), sources, times, edges, run)
        assert src == sources
        assert all(v in exist for v in dst)
        assert not edges & set(zip(src, dst, strict=True))


@given(edge_sets, st.integers(1, 6), st.integers(0, 2**32))
@settings(max_examples=200)
def test_strict_pairs(edges, count, run):
    """Never an edge, as long as there is any pair that is none."""
    sampler = NegativeSampler(Candidates(5), Candidates(4))
    if len(edges) == 20:
        with pytest.raises(ValueError, match="each source that may be drawn is linked to all"):
            draw(sampler, count, edges=edges, run=run)
    else:
        src, dst = draw(sampler, count, edges=edges, run=run)
        assert not edges & set(zip(src, dst, strict=True))
        assert all(0 <= u < 4 and 0 <= v < 5 for u, v in zip(src, dst, strict=True))


ALL_PAIRS = frozenset((u, v) for u in range(4) for v in range(5))


@pytest.mark.parametrize("free", [(0, 0), (3, 4), (1, 2)])
def test_the_only_pair_that_is_no_edge(free):
    """It is found, though most of the sources that are drawn are linked to all destinations."""
    sampler = NegativeSampler(Candidates(5), Candidates(4))
    src, dst = draw(sampler, 6, edges=ALL_PAIRS - {free})
    assert list(zip(src, dst, strict=True)) == [free] * 6
    # Weights and times hold in the search, too.
    weight = np.array([1.0, 1.0, 1.0, 1.0])
    weight[free[0]] = 0
    sampler = NegativeSampler(Candidates(5), Candidates(4, weight))
    with pytest.raises(ValueError, match="each source that may be drawn"):
        draw(sampler, 1, edges=ALL_PAIRS - {free})
    late = np.zeros(5, int)
    late[free[1]] = 9
    sampler = NegativeSampler(Candidates(5, time=late), Candidates(4))
    with pytest.raises(ValueError, match="each source that may be drawn"):
        draw(sampler, 1, times=[3], edges=ALL_PAIRS - {free})


@pytest.mark.parametrize("num_free", [2, 300])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("chunk", [1 << 20, 64])
def test_strict_destinations_are_as_likely(monkeypatch, num_free, weighted, chunk):
    """Redrawn (300 of 1,000 are free), or drawn from the list (2 are, which rounds rarely find)."""
    monkeypatch.setattr(negative, "_CHUNK", chunk)
    free = np.random.default_rng(3).choice(1000, num_free, replace=False)
    weight = np.random.default_rng(4).integers(0, 4, 1000).astype(float) if weighted else None
    if weighted:
        weight[free[:2]] = 1, 3
    sampler = NegativeSampler(Candidates(1000, weight))
    edges = {(7, v) for v in range(1000)} - {(7, int(v)) for v in free}
    _, dst = draw(sampler, 20_000, [7] * 20_000, edges=edges)
    places = {int(v): i for i, v in enumerate(free)}
    expected = np.ones(num_free) if weight is None else weight[free]
    assert is_as_likely([places[v] for v in dst], expected)


def test_strict_destinations_of_different_times():
    """Links of one source at several times: what is drawn from the list exists at each."""
    time = np.arange(1000) // 10
    sampler = NegativeSampler(Candidates(1000, time=time))
    edges = {(7, v) for v in range(1000)} - {(7, 3), (7, 502), (7, 980)}
    times = [4, 50, 98] * 2000
    _, dst = draw(sampler, 6000, [7] * 6000, times, edges)
    assert set(dst[::3]) == {3}
    assert is_as_likely(np.searchsorted([3, 502], dst[1::3]), [1, 1])
    assert is_as_likely(np.searchsorted([3, 502, 980], dst[2::3]), [1, 1, 1])


def test_strict_pairs_are_as_likely():
    edges = {(u, v) for u in range(6) for v in range(8) if (u + v) % 3 == 0}
    sampler = NegativeSampler(Candidates(8), Candidates(6))
    src, dst = draw(sampler, 40_000, edges=edges)
    expected = np.array([(u, v) not in edges for u in range(6) for v in range(8)], float)
    assert is_as_likely(np.array(src) * 8 + dst, expected)


def test_strict_negatives_keep_what_was_no_edge():
    """What is valid at once is what would be drawn without the check; no two rounds are alike."""
    sampler = NegativeSampler(Candidates(50), Candidates(50))
    plain = list(zip(*draw(sampler, 100), strict=True))
    edges = set(plain[::3])
    strict = list(zip(*draw(sampler, 100, edges=edges), strict=True))
    kept = [a == b for a, b in zip(plain, strict, strict=True)]
    assert kept == [pair not in edges for pair in plain]
    assert len({a for a, same in zip(strict, kept, strict=True) if not same}) > 20


def test_waiting_for_answers():
    """The check may wait for other partitions: what it yields is handed through, round by round."""

    class Ticket:
        done = True

    asked = []

    def check(src, dst):
        asked.append(len(src))
        yield [Ticket()]
        return np.ones(len(src), bool) if len(asked) < 4 else np.zeros(len(src), bool)

    steps = NegativeSampler(Candidates(9)).sample(5, np.arange(5), None, RUN, BATCH, check)
    tickets = []
    with pytest.raises(StopIteration) as stop:
        while True:
            tickets += next(steps)
    assert asked == [5] * 4
    assert len(tickets) == 4 < ROUNDS
    src, dst = stop.value.value
    assert src.tolist() == list(range(5))
    assert all(0 <= v < 9 for v in dst)


def test_nothing_to_draw():
    sampler = NegativeSampler(Candidates(0), Candidates(0))
    assert draw(sampler, 0) == ([], [])
    assert draw(sampler, 0, edges=set()) == ([], [])
