"""Tables of draws by weight: against plain Python and exact fractions, and as a distribution."""

import math
from bisect import bisect_right
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given, strategies as st

from khop import _native

ONE = 2**62
TINY = 5e-324  # the smallest positive double


def rows_of(rows, dtype=np.float64, pointer=np.int64):
    """indptr and weights of a list of rows."""
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(pointer)
    return indptr, np.array([w for row in rows for w in row], dtype)


def plain_sums(row):
    """Cumulative integer weights of a row, as the header says, in Python's own floats."""
    total = 0.0
    for weight in row:
        total += weight
    sums, cumulative = [], 0
    for weight in row:
        if weight > 0:
            cumulative += max(1, math.floor(weight * (2.0**62 / total)))
        sums.append(cumulative)
    return sums


def plain_guide(sums):
    """For each bucket: the first position that its first number, or any later one, falls on."""
    n = len(sums)
    firsts = [-(-b * ONE // n) for b in range(n)]
    return [min(bisect_right(sums, first), n - 1) for first in firsts]


def bucket(u, n):
    return min(n - 1, u * n >> 62)


WEIGHTS = st.one_of(
    st.just(0.0),
    st.floats(0, 10),
    st.sampled_from([TINY, 1e-300, 1e-20, 1.0, 2.0**52, 1e20, 1e300]),
    st.floats(min_value=0, max_value=1e300),
)
ROWS = st.lists(st.lists(WEIGHTS, max_size=12), max_size=5)


@given(ROWS, st.sampled_from([np.int32, np.int64]))
@example([[], [0.0, 0.0], [], [1e300, TINY, 0.0]], np.int64)
def test_equals_plain_python(rows, pointer):
    """Empty rows, rows of zeros, ratios up to 10^600."""
    sums, guide = _native.weight_table(*rows_of(rows, pointer=pointer))
    assert (sums.dtype, guide.dtype) == (np.uint64, np.uint32)
    place = 0
    for row in rows:
        here = slice(place, place + len(row))
        place += len(row)
        if 0 < sum(row) < 1e-280:  # 2^62 / sum may be beyond floats: see the test below
            continue
        assert sums[here].tolist() == plain_sums(row)
        assert guide[here].tolist() == plain_guide(plain_sums(row))
    assert place == len(sums) == len(guide)


@given(st.lists(st.one_of(st.just(0.0), st.floats(0, TINY * 1000), WEIGHTS), min_size=1))
@example([TINY])
@example([TINY, TINY, 3 * TINY, 0.0])
@example([1e300, 1e300, TINY])
def test_shares_are_those_of_exact_fractions(row):
    """Down to subnormal weights: within rounding of floats, and never 0 where the weight is not."""
    total = sum(map(Fraction, row))
    sums = _native.weight_table(*rows_of([row]))[0].tolist()
    for weight, share in zip(row, np.diff([0, *sums]).tolist(), strict=True):
        if weight == 0:
            assert share == 0
            continue
        exact = Fraction(weight) * ONE / total
        assert share >= 1
        assert abs(share - exact) <= 1 + exact * Fraction(len(row) + 4, 2**52)
    assert sums[-1] == 0 if total == 0 else abs(sums[-1] - ONE) <= len(row) * 2**12


@given(
    st.lists(st.sampled_from([0.0, 1e-9, 0.1, 1.0, 3.0, 1e6]), min_size=1, max_size=40), st.data()
)
def test_any_number_falls_where_the_guide_says(row, data):
    """Its position lies between its bucket's entry and the next one's, and has a weight."""
    sums, guide = (a.tolist() for a in _native.weight_table(*rows_of([row])))
    if sums[-1] == 0:
        assert guide == [len(row) - 1] * len(row)
        return
    edges = [b for s in {0, *sums} for b in (s - 1, s) if 0 <= b < sums[-1]]
    for u in [data.draw(st.integers(0, sums[-1] - 1)), *edges]:
        position, b = bisect_right(sums, u), bucket(u, len(row))
        after = guide[b + 1] if b + 1 < len(row) else len(row) - 1
        assert guide[b] <= position <= after
        assert row[position] > 0


@pytest.mark.parametrize("shape", ["even", "one heavy", "power law", "steps", "half zero"])
def test_a_search_looks_at_two_positions_on_average(shape):
    """Whatever the weights: the number of positions from the guide's entry on, counted exactly."""
    n = 1000
    rank = np.arange(1, n + 1)
    row = {
        "even": np.ones(n),
        "one heavy": np.where(rank == 500, 1e9, 1e-3),
        "power law": rank**-1.5,
        "steps": 10.0 ** (rank % 9),
        "half zero": (rank % 2) * 1.0,
    }[shape]
    sums, guide = (a.tolist() for a in _native.weight_table(*rows_of([row])))
    looked = 0  # positions looked at, each number u counted once
    u = 0
    for position, high in enumerate(sums):
        while u < high:
            b = bucket(u, n)
            end = high if b == n - 1 else min(high, -(-(b + 1) * ONE // n))
            looked += (end - u) * (position - guide[b] + 1)
            u = end
    assert looked / sums[-1] <= 2.001


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_positions_follow_the_weights(dtype):
    """Chi-square of 200,000 positions, found by the guide and a walk; zero weights never come."""
    rng = np.random.default_rng(0)
    row = rng.random(50) ** 4
    row[::7] = 0
    sums, guide = (a.tolist() for a in _native.weight_table(*rows_of([row], dtype)))
    counts = np.zeros(50)
    for u in rng.integers(sums[-1], size=200_000, dtype=np.uint64).tolist():
        position = guide[bucket(u, 50)]
        while sums[position] <= u:
            position += 1
        counts[position] += 1
    assert not counts[row == 0].any()
    drawn, expected = counts[row > 0], row[row > 0] / row.sum() * counts.sum()
    keep = expected > 5
    statistic = ((drawn - expected) ** 2 / expected)[keep].sum()
    assert scipy.stats.chi2.sf(statistic, keep.sum() - 1) > 1e-4
    assert np.abs(drawn - expected)[~keep].max(initial=0) < 25


def test_single_precision_weights_are_the_doubles_that_they_are():
    row = np.random.default_rng(0).random(100).astype(np.float32)
    indptr = np.array([0, 40, 100])
    for one, other in zip(
        _native.weight_table(indptr, row),
        _native.weight_table(indptr, row.astype(np.float64)),
        strict=True,
    ):
        assert np.array_equal(one, other)


def test_a_long_row():
    """A hub of two million positions: the shares add up, and the guide finds the ends."""
    n = 2_000_000
    sums, guide = _native.weight_table(np.array([0, n]), np.full(n, 0.1))
    assert abs(int(sums[-1]) - ONE) < 2**42
    assert np.abs(guide - np.arange(n)).max() <= 1
    assert np.all(sums[1:] > sums[:-1])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1.0, -0.5], r"row 1 holds weight -0.5 \(entry 3\)"),
        ([math.nan], r"row 1 holds weight -?nan \(entry 2\)"),
        ([1.0, 2.0, math.inf], r"row 1 holds weight inf \(entry 4\)"),
        ([1.7e308, 1.7e308], "row 1: its weights add up to more than a double holds"),
    ],
)
def test_bad_weights(row, message):
    with pytest.raises(ValueError, match=message):
        _native.weight_table(*rows_of([[1.0, 0.0], row, [1.0]]))


def test_bad_arguments():
    two = np.ones(2)
    with pytest.raises(ValueError, match="indptr ends with 3 but there are 2 weights"):
        _native.weight_table(np.array([0, 3]), two)
    with pytest.raises(ValueError, match="must not decrease"):
        _native.weight_table(np.array([0, 5, 2]), two)
    with pytest.raises(ValueError, match="must not decrease"):
        _native.weight_table(np.array([0, -1, 2]), two)
    with pytest.raises(ValueError, match="begin with 0"):
        _native.weight_table(np.array([1, 2]), two)
    with pytest.raises(ValueError, match="at least one entry"):
        _native.weight_table(np.array([], np.int64), two)
    with pytest.raises(TypeError, match="float32 or float64"):
        _native.weight_table(np.array([0, 2]), np.ones(2, np.int64))
    with pytest.raises(ValueError, match="one dimension"):
        _native.weight_table(np.array([0, 2]), np.ones((2, 1)))
    empty = _native.weight_table(np.array([0]), np.empty(0))
    assert [len(a) for a in empty] == [0, 0]


def test_graphs_check_what_they_are_given():
    """Three edges: each optional array has three entries of its dtype; both tables or neither."""
    indptr, indices = np.array([0, 2, 3]), np.array([0, 1, 1])
    sums, guide = _native.weight_table(indptr, np.ones(3))
    times = np.array([1, 2, 0])
    graph = _native.Csr(indptr, indices, times=times, weight_sums=sums, weight_guide=guide)
    assert graph.has_times
    assert graph.has_weights
    plain = _native.Csr(indptr, indices)
    assert not plain.has_times
    assert not plain.has_weights
    for options, error, message in (
        ({"times": times[:2]}, ValueError, "times must hold an entry for each of the 3 edges"),
        ({"times": times.astype(np.int32)}, TypeError, "times must be int64"),
        ({"weight_sums": sums}, ValueError, "weight_sums and weight_guide belong together"),
        ({"weight_guide": guide}, ValueError, "weight_sums and weight_guide belong together"),
        (
            {"weight_sums": sums, "weight_guide": guide[:1]},
            ValueError,
            "weight_guide must hold an entry for each of the 3 edges",
        ),
        (
            {"weight_sums": sums.astype(np.int64), "weight_guide": guide},
            TypeError,
            "weight_sums must be uint64",
        ),
    ):
        with pytest.raises(error, match=message):
            _native.Csr(indptr, indices, **options)
