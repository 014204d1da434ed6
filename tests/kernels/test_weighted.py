"""Draws by weight: as likely as successive sampling says, and found in a step or two.

The draws are a function of fixed keys, so these tests always give the same p-values.
"""

import math
from bisect import bisect_right

import numpy as np
import pytest
from scipy import stats

from khop import _native
from support.kernels import hop_calls
from support.kernels.shared_rows import draw, shared_rows
from support.reference import oracle, sampler
from support.reference.statistics import (
    assert_true_hypotheses,
    chances_of_sequences,
    p_of_outcomes,
    ps_of_inclusion,
)

ONE = 2**62
RUN = _native.run_key(7, 0, 0)
ROWS = {
    "even": [1.0] * 6,
    "mixed": [0.5, 3.0, 0.0, 1.0, 0.1, 2.0, 0.0],
    "steep": [1.0, 10.0, 100.0, 1000.0, 0.0],
    "one heavy": [1e-3, 1e-3, 1.0, 1e-3, 1e-3],
    "a pair": [2.0, 1.0],
}


def key_of(*numbers):
    return _native.step_key(RUN, *numbers)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_with_replacement_frequencies_follow_the_weights(name, count):
    """Each draw by itself and each pair of draws: the product of two single chances."""
    weights = ROWS[name]
    chances = {i: w / sum(weights) for i, w in enumerate(weights) if w > 0}
    graph, ids = shared_rows(10_000, len(weights), weights)
    drawn = draw(graph, ids, count, True, key_of(count, 0, 0), weighted=True)
    assert drawn.shape == (10_000, count)
    ps = [p_of_outcomes(column.tolist(), chances) for column in drawn.T]
    pairs = {(i, j): p * q for i, p in chances.items() for j, q in chances.items()}
    ps += [
        p_of_outcomes(list(map(tuple, drawn[:, [0, j]].tolist())), pairs) for j in range(1, count)
    ]
    assert min(ps) > 1e-4


@pytest.mark.parametrize("name", ROWS)
def test_without_replacement_inclusion_is_that_of_successive_sampling(name):
    """Whole sequences, single and pairwise inclusion: zero weights never, the rest exactly."""
    weights = ROWS[name]
    ps = []
    for count in range(1, len(weights)):
        chances = chances_of_sequences(weights, count)
        graph, ids = shared_rows(8000, len(weights), weights)
        drawn = draw(graph, ids, count, False, key_of(count, 1, 0), weighted=True)
        ps.append(p_of_outcomes(list(map(tuple, drawn.tolist())), chances))
        ps += ps_of_inclusion(drawn, chances, 1)
        if count > 1:
            ps += ps_of_inclusion(drawn, chances, 2)
    assert min(ps) > 1e-4 / len(ps)


def test_draws_over_batches():
    """The same row in batch after batch, with and without replacement."""
    weights, node = ROWS["mixed"], np.zeros(1, np.int64)
    graph, _ = shared_rows(1, len(weights), weights)
    for replace in (False, True):
        drawn = np.concatenate(
            [draw(graph, node, 2, replace, key_of(b, 0, 0), weighted=True) for b in range(3000)]
        )
        chances = chances_of_sequences(weights, 2)
        if replace:
            single = {i: w / sum(weights) for i, w in enumerate(weights) if w > 0}
            chances = {(i, j): p * q for i, p in single.items() for j, q in single.items()}
        assert p_of_outcomes(list(map(tuple, drawn.tolist())), chances) > 1e-4


@pytest.mark.parametrize("replace", [False, True])
def test_weights_and_times(replace):
    """What is visible is drawn by its weight, whatever the weights of what is not."""
    weights, times = [1.0, 2.0, 0.0, 4.0, 1e6, 1e-6, 3.0], [0, 1, 1, 2, 3, 3, 4]
    graph, ids = shared_rows(10_000, 7, weights, times)
    ps = []
    for time, seen in ((1, 3), (2, 4), (9, 7)):
        chances = chances_of_sequences(weights[:seen], 1 if replace else 2)
        drawn = draw(graph, ids, 2, replace, key_of(time, 2, 0), weighted=True, times=time)
        outcomes = list(map(tuple, drawn[:, :1].tolist() if replace else drawn.tolist()))
        ps.append(p_of_outcomes(outcomes, chances))
        assert drawn.max() < seen
    assert draw(graph, ids, 2, replace, 1, weighted=True, times=-1).shape == (10_000, 0)
    assert min(ps) > 1e-4


@pytest.mark.parametrize("replace", [False, True])
def test_weights_and_exclusions(replace):
    """What is left is drawn by its weight: gaps at the start, in the middle, at the end."""
    weights = [5.0, 1.0, 2.0, 3.0, 0.0, 4.0, 50.0]
    graph, ids = shared_rows(10_000, 7, weights)
    ps = []
    for i, hidden in enumerate(([0], [6], [0, 1, 6], [2, 3, 4], [0, 2, 3, 4, 6])):
        left = [0.0 if j in hidden else w for j, w in enumerate(weights)]
        drawn = draw(graph, ids, 2, replace, key_of(i, 3, 0), hidden, weighted=True)
        if not replace and len(hidden) == 5:  # both of the two that are left, in their order
            assert drawn.tolist() == [[1, 5]] * len(ids)
            continue
        outcomes = list(map(tuple, drawn[:, :1].tolist() if replace else drawn.tolist()))
        ps.append(p_of_outcomes(outcomes, chances_of_sequences(left, 1 if replace else 2)))
    assert draw(graph, ids, 2, replace, 1, range(7), weighted=True).shape == (10_000, 0)
    assert min(ps) > 1e-4


def test_zero_weights():
    """A row of zeros contributes nothing; of others what has a weight, also where all is taken."""
    for weights, drawable in (([0.0] * 4, []), ([0.0, 1.0, 0.0, 5e-324], [1, 3])):
        graph, ids = shared_rows(3, 4, weights)
        for count in (-1, 3, 4, 9):
            drawn = draw(graph, ids, count, False, 1, weighted=True)
            assert [sorted(row) for row in drawn.tolist()] == [drawable] * 3
        for count in (1, 5):
            drawn = draw(graph, ids, count, True, 1, weighted=True)
            assert drawn.shape == (3, count if drawable else 0)
            assert set(drawn.ravel().tolist()) <= set(drawable)
        # Where no draw is made, row order holds.
        for count in (-1, 4, 9):
            drawn = draw(graph, ids, count, False, 1, weighted=True)
            assert drawn.tolist() == [drawable] * 3


def test_the_latest_by_weight():
    """The last two that have a weight, whatever zeros lie between them; then they are drawn."""
    weights, times = [1.0, 1.0, 0.0, 5.0, 0.0], [0, 1, 2, 3, 4]
    graph, ids = shared_rows(8000, 5, weights, times)
    drawn = draw(graph, ids, 2, False, 1, weighted=True, last=True, times=9)
    assert set(map(tuple, np.sort(drawn, axis=1).tolist())) == {(1, 3)}
    drawn = draw(graph, ids, 2, True, 1, weighted=True, last=True, times=9)
    assert p_of_outcomes(drawn[:, 0].tolist(), {1: 1 / 6, 3: 5 / 6}) > 1e-4
    drawn = draw(graph, ids, 3, False, 1, weighted=True, last=True, times=2)
    assert set(map(tuple, drawn.tolist())) == {(0, 1)}


def test_extreme_ratios():
    """One in 10^600: the light ones come when nothing else is left, and then they do."""
    weights = [5e-324, 1e300, 0.0, 1e-300]
    graph, ids = shared_rows(2000, 4, weights)
    first = draw(graph, ids, 1, False, 3, weighted=True)
    assert (first == 1).all()
    two = draw(graph, ids, 2, False, 3, weighted=True)
    assert (two[:, 0] == 1).all()
    # Both became the smallest integer weight, so that neither is lost.
    assert p_of_outcomes(two[:, 1].tolist(), {0: 0.5, 3: 0.5}) > 1e-4


@pytest.mark.parametrize("replace", [False, True])
def test_a_hub_of_a_million(replace):
    """Whole, before a time, and with every third neighbour excluded: by bisection of exact sums."""
    degree, rng = 10**6, np.random.default_rng(5)
    weights = rng.pareto(1.2, degree) * (rng.random(degree) < 0.9)
    graph, ids = shared_rows(1, degree, weights, np.arange(degree))
    sums = np.cumsum(sampler.integer_weights(weights.tolist()), dtype=np.uint64)
    own = np.diff(sums, prepend=np.uint64(0))
    for i, (time, hidden) in enumerate(((degree, ()), (700, ()), (5000, range(0, 5000, 3)))):
        key = key_of(i, 4, 0)
        drawn = draw(graph, ids, 12, replace, key, hidden, weighted=True, times=time)[0].tolist()
        end = min(time + 1, degree)
        left = own[:end].copy()
        left[list(hidden)] = 0
        words = oracle.words(key, 0)
        for position in drawn:
            edges = np.cumsum(left, dtype=np.uint64)
            u = (next(words) | next(words) << 32) * int(edges[-1]) >> 64
            assert position == np.searchsorted(edges, np.uint64(u), side="right")
            if not replace:
                left[position] = 0
        assert len(drawn) == 12


def steps_of_search(weights, seen=None):
    """Halvings of the guide's interval that a draw from the first `seen` positions needs.

    Mean over all numbers that such a draw can come to, counted exactly, and the most of any.
    """
    sums, guide = (
        a.tolist() for a in _native.weight_table(np.array([0, len(weights)]), np.array(weights))
    )
    n = len(sums)
    total = sums[(n if seen is None else seen) - 1]
    mean, most = 0, 0
    for b in range(n):
        begin = -(-b * ONE // n)
        end = total if b == n - 1 else min(total, -(-(b + 1) * ONE // n))
        if begin >= end:
            break
        after = guide[b + 1] if b + 1 < n else n - 1
        steps = math.ceil(math.log2(after - guide[b] + 1))
        assert guide[b] <= bisect_right(sums, begin)
        assert bisect_right(sums, end - 1) <= after
        mean += (end - begin) * steps
        most = max(most, steps)
    return mean / max(total, 1), most


def adversaries():
    """Rows that a guide of equal buckets finds hard, and random ones."""
    rng = np.random.default_rng(0)
    yield "even", np.ones(1000)
    yield "geometric", 0.5 ** np.arange(200)
    yield "heavy at the end", 2.0 ** np.arange(1000)
    yield "all but one tiny", np.where(np.arange(4096) == 2048, 1.0, 1e-9)
    yield "half the mass on half a bucket", np.r_[np.full(1000, 1e-3), np.full(3, 1.0)]
    yield "alternating", np.tile([1e-12, 1.0], 2000)
    yield "zeros and ones", np.tile([0.0] * 31 + [1.0], 64)
    yield "buckets' edges", np.tile([1.0, 1e-7, 1e-7, 1e-7], 500)
    for n in (1, 2, 3, 10, 1000, 10_000):
        yield f"uniform {n}", rng.random(n)
        yield f"pareto {n}", rng.pareto(0.3, n)
        yield f"log-normal {n}", np.exp(rng.normal(0, 12, n))


@pytest.mark.parametrize(("name", "weights"), [pytest.param(*a, id=a[0]) for a in adversaries()])
def test_a_draw_from_a_whole_row_costs_less_than_one_halving(name, weights):
    """On average over the row, whatever its weights: guide intervals add up to the row's length.

    Never more than the logarithm of the degree; a part of a row may come to that (see below).
    """
    mean, most = steps_of_search(weights)
    assert mean <= 1 + 1e-9, name
    assert most <= math.ceil(math.log2(len(weights)))


def test_a_draw_from_the_light_part_of_a_row_costs_a_logarithm():
    """The visible past may weigh next to nothing: then all of it falls into one bucket."""
    weights = 2.0 ** np.arange(1000)
    mean, most = steps_of_search(weights, seen=500)
    assert 9 <= mean <= most <= 10
    mean, _ = steps_of_search(np.ones(1000), seen=500)
    assert mean <= 1 + 1e-9


@pytest.mark.parametrize("count", [2, 8])
def test_one_tenth_is_drawn_a_tenth_of_the_time(count):
    """Many rows of random weights and degrees in one graph: each by its own sums."""
    rng = np.random.default_rng(count)
    degrees = rng.integers(9, 40, 3000)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    weights = rng.pareto(1.0, indptr[-1])
    sums, guide = _native.weight_table(indptr, weights)
    graph = _native.Csr(indptr, np.arange(indptr[-1]), weight_sums=sums, weight_guide=guide)
    # The chance of a row's first draw to fall below the median of its own weight distribution.
    ps = []
    for batch in range(10):
        key = key_of(batch, 5, count)
        _, drawn, _ = hop_calls.sample_rows(
            graph, np.arange(3000), count, False, key, False, weighted=True
        )
        first = drawn.reshape(3000, count)[:, 0]
        cumulative = np.cumsum(weights)
        before = np.concatenate([[0.0], cumulative])[indptr[:-1]]
        rank = (cumulative[first] - rng.random(3000) * weights[first] - before) / (
            np.concatenate([[0.0], cumulative])[indptr[1:]] - before
        )
        ps.append(stats.kstest(rank, "uniform").pvalue)
    assert_true_hypotheses(ps)
