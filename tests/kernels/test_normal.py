"""Logarithms, normal variates and their distribution function, bit for bit as NumPy computes."""

import numpy as np
import pytest

from khop import _native

LN2, TAU, SQRT_TAU = 0.6931471805599453, 6.283185307179586, 2.5066282746310002
INSTRUCTIONS = [None, *_native.simd_instructions()]


def log_in_numpy(y):
    m, exponent = np.frexp(y)
    is_low = m < 0.7071067811865476
    m = np.where(is_low, m * 2.0, m)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    series = np.full_like(s, 1.0 / 25.0)
    for odd in range(23, 0, -2):
        series = 1.0 / float(odd) + series * square
    return (exponent - is_low).astype(np.float64) * LN2 + 2.0 * s * series


def variates_in_numpy(words):
    radius = ((words >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32
    angle = (words & np.uint64(2**32 - 1)).astype(np.float64) * 2.0**-32
    x = (np.abs(angle - 0.5) - 0.25) * TAU
    square = x * x
    series = np.ones_like(x)
    for n in range(24, 0, -2):
        series = 1.0 - series * square / float(n * (n + 1))
    return np.sqrt(-2.0 * log_in_numpy(radius)) * (x * series)


def cdf_in_numpy(z):
    """Sums stop together, once no term changes any of them."""
    z = np.clip(z, -8.3, 8.3)
    square, term, total, odd = z * z, z, z, 1.0
    while True:
        odd += 2.0
        term = term * square / odd
        longer = total + term
        if (longer == total).all():
            break
        total = longer
    x = square * 0.5 * 2.0**-6
    series = np.ones_like(x)
    for n in range(18, 0, -1):
        series = 1.0 + series * x / float(n)
    for _ in range(6):
        series = series * series
    return np.clip(0.5 + total * (1.0 / series) / SQRT_TAU, 0.0, 1.0)


def same_bits(found, expected):
    return np.array_equal(found.view(np.uint64), expected.view(np.uint64))


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_bits_are_numpys(instructions):
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**64, 20_000, dtype=np.uint64)
    words[:6] = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
    z = variates_in_numpy(words)
    assert same_bits(_native.normal_variates(words, instructions), z)
    tiny = 2.0 ** -np.arange(1, 1000)
    far = [0.0, -0.0, 8.3, -8.3, 40.0, -40.0, np.inf, -np.inf]
    z = np.concatenate([z, rng.normal(0, 4, 5000), tiny, -tiny, far])
    assert same_bits(_native.normal_cdf(z, instructions), cdf_in_numpy(z))
    y = np.concatenate([rng.random(5000) + 2.0**-60, tiny, 1 / tiny, 1 + tiny, [1e308]])
    assert same_bits(_native.logs(y, instructions), log_in_numpy(y))


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 33])
def test_values_do_not_depend_on_their_neighbours(instructions, count):
    words = np.arange(100, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = _native.normal_variates(words)
    chance = _native.normal_cdf(z)
    assert same_bits(_native.normal_variates(words[:count], instructions), z[:count])
    assert same_bits(_native.normal_cdf(z[:count], instructions), chance[:count])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_no_number_ends(instructions):
    """Sums of NaN would never stop to change."""
    found = _native.normal_cdf(np.array([np.nan, 0.0, 1.0]), instructions)
    assert np.isnan(found[0])
    assert found[1] == 0.5
    assert found[2] == _native.normal_cdf(np.array([1.0]))[0]


def test_arguments():
    with pytest.raises(TypeError):
        _native.normal_variates(np.array([1]))
    for of_floats in (_native.logs, _native.normal_cdf):
        with pytest.raises(TypeError):
            of_floats(np.array([1.0], np.float32))
        with pytest.raises(ValueError, match="no instructions abacus"):
            of_floats(np.array([1.0]), "abacus")
