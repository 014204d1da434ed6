"""Factors of chances, bit for bit as NumPy adds, entry after entry, and what their sums are."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native


def scales_in_numpy(masses, shares, counts, asked):
    """LABOR's c_s of all rows together, until no row has further certain entries."""
    row, degree = np.repeat(np.arange(len(counts)), counts), counts.astype(np.float64)
    fanout = np.where(asked < 0, counts, np.minimum(asked, counts))
    is_open = fanout < counts
    size = np.maximum(counts, 1) if shares is None else 1
    scales, target = np.zeros(len(counts)), np.zeros(len(counts))
    np.divide(asked, size, out=scales, where=asked > 0)
    np.maximum.at(scales, row, 1.0 / masses)
    square = np.ones(len(row)) if shares is None else np.square(shares)
    if shares is None:
        np.divide(degree * degree, fanout, out=target, where=is_open)
    else:
        np.divide(1.0, fanout, out=target, where=is_open)
        target -= np.divide(1.0, degree, out=np.zeros_like(degree), where=is_open)
        target = target + np.bincount(row, square, len(counts))
    sure = np.zeros(len(row), bool)
    while True:
        left = target - np.bincount(row, np.where(sure, square, 0.0), len(counts))
        sums = np.bincount(row, np.where(sure, 0.0, square / masses), len(counts))
        np.divide(sums, left, out=scales, where=is_open)
        more = sure | ((scales[row] * masses >= 1.0) & is_open[row])
        if (more == sure).all():
            return scales, is_open
        sure = more


@st.composite
def mass_rows(draw):
    """Rows of masses of all sizes, often equal ones, with and without weights, or all 1."""
    counts = np.array(draw(st.lists(st.integers(0, 40), min_size=1, max_size=8)), np.int64)
    asked = np.array([draw(st.integers(-1, 45).filter(bool)) for _ in counts], np.int64)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    masses = rng.choice([1.0, 0.5, 3.0], counts.sum())
    if draw(st.booleans()):
        masses = masses * np.exp(draw(st.sampled_from([1, 30])) * rng.normal(size=len(masses)))
    shares = None
    if draw(st.booleans()):
        weights = rng.random(counts.sum()) ** 4 + 1e-12
        row = np.repeat(np.arange(len(counts)), counts)
        shares = weights / np.bincount(row, weights, len(counts))[row]
        masses = shares if draw(st.booleans()) else masses
    return masses, shares, counts, asked


@given(mass_rows())
def test_rows_as_numpy_adds(rows):
    masses, _, counts, _ = rows
    scales, is_open = scales_in_numpy(*rows)
    assert _native.row_scales(*rows).tolist() == scales.tolist()
    chances = np.where(
        np.repeat(is_open, counts), np.minimum(np.repeat(scales, counts) * masses, 1.0), 1.0
    )
    assert _native.row_chances(*rows).tolist() == chances.tolist()


@given(mass_rows())
def test_rows_without_masses(rows):
    """As with masses that are all 1."""
    _, _, counts, asked = rows
    ones = np.ones(counts.sum())
    for of_rows in (_native.row_scales, _native.row_chances):
        expected = of_rows(ones, None, counts, asked)
        assert of_rows(None, None, counts, asked).tolist() == expected.tolist()


def chances_in_numpy(mass, count):
    """The same by a sort of all masses."""
    if len(mass) <= count:
        return np.ones(len(mass))
    largest = np.sort(mass)[::-1]
    left = np.cumsum(largest[::-1])[::-1]  # sums of each and all smaller
    certain = np.arange(count)
    free = largest[:count] < left[:count] / (count - certain)
    first = int(np.argmax(free)) if free.any() else count - 1
    return np.minimum(mass * ((count - first) / left[first]), 1.0)


MASSES = st.lists(
    st.integers(1, 3) | st.integers(1, 10**6) | st.integers(1, 2**57), min_size=1, max_size=40
)


@given(MASSES, st.integers(1, 50))
def test_common_chances_as_numpy_finds_them(masses, count):
    masses = np.array(masses)
    found = _native.common_chances(masses, count)
    assert found.tolist() == chances_in_numpy(masses, count).tolist()


@given(MASSES, st.integers(1, 50))
def test_common_chances_add_up(masses, count):
    """In exact numbers; certain nodes are the heaviest, and others' chances go by mass."""
    found = _native.common_chances(np.array(masses), count)
    assert float(sum(map(Fraction, found.tolist()))) == pytest.approx(min(count, len(masses)))
    ordered = sorted(zip(masses, found.tolist(), strict=True))
    assert [chance for _, chance in ordered] == sorted(found.tolist())
    factors = [chance / mass for mass, chance in ordered if chance < 1]
    assert factors == pytest.approx([factors[0]] * len(factors) if factors else [])


def test_arguments():
    two, one = np.array([1, 1]), np.array([1])
    masses = np.array([1.0, 2.0])
    for of_rows in (_native.row_scales, _native.row_chances):
        with pytest.raises(ValueError, match="masses must hold 1"):
            of_rows(masses, None, one, one)
        with pytest.raises(ValueError, match="asked must hold 2"):
            of_rows(masses, None, two, one)
        with pytest.raises(ValueError, match="shares must hold 2"):
            of_rows(masses, masses[:1], two, two)
        with pytest.raises(ValueError, match="rows with shares have masses"):
            of_rows(None, masses, two, two)
        with pytest.raises(ValueError, match="counts must not be negative"):
            of_rows(masses, None, np.array([3, -1]), two)
        with pytest.raises(TypeError):
            of_rows(masses.astype(np.float32), None, two, two)
    with pytest.raises(ValueError, match="at least 1"):
        _native.common_chances(two, 0)
    for wrong in ([1, 0, 2], [-1, 5, 5], [2**62, 2**62, 1]):
        with pytest.raises(ValueError, match="above 0"):
            _native.common_chances(np.array(wrong), 1)
