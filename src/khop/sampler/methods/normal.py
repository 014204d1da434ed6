"""Normal variates and their distribution function, the same on all machines. Imports no torch.

Logarithms, exponentials and cosines of C's and NumPy's libraries differ in their last digits. The
functions here are series of additions, products, divisions and square roots. NumPy rounds each of
these by IEEE 754, in one order. Absolute errors are below 1e-14. Sampler processes and
trainers draw with them (`labor`, `labor_draws` and `hgt` of `khop.sampler.methods`).
"""

from __future__ import annotations

import numpy as np

from khop.typing import Float64Array, UInt64Array

_LN2 = 0.6931471805599453
_TAU = 6.283185307179586
_SQRT_TAU = 2.5066282746310002
_FAR = 8.3
"""Standard deviations from which on the distribution function is 1, within 1e-16."""


def normal_variates(words: UInt64Array) -> Float64Array:
    """Return normal variates by Box and Muller's method, one for each 64-bit word.

    The upper half of a word gives the radius, the lower the angle, so that no variate lies beyond
    6.7 standard deviations.
    """
    radius = ((words >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32
    angle = (words & np.uint64(2**32 - 1)).astype(np.float64) * 2.0**-32
    return np.sqrt(-2.0 * log_of(radius)) * cos_of_turns(angle)


def normal_cdf(z: Float64Array) -> Float64Array:
    """Return the chance that a normal variate is below each value, within [0, 1]."""
    z = np.clip(z, -_FAR, _FAR)
    square = z * z
    term = z
    total = z
    odd = 1.0
    while True:  # until terms are too small to change a sum
        odd += 2.0
        term = term * square / odd
        longer = total + term
        if (longer == total).all():
            break
        total = longer
    return np.clip(0.5 + total * exp_of_minus(square * 0.5) / _SQRT_TAU, 0.0, 1.0)


def cos_of_turns(turns: Float64Array) -> Float64Array:
    """Return cos(2 pi x) of values within [0, 1]."""
    x = (np.abs(turns - 0.5) - 0.25) * _TAU  # cos(2 pi turns) = sin(x), |x| <= pi / 2
    square = x * x
    series = np.ones_like(x)
    for n in range(24, 0, -2):
        series = 1.0 - series * square / float(n * (n + 1))
    return x * series


def log_of(y: Float64Array) -> Float64Array:
    """Return the logarithms of positive numbers: y = 2^k m, log y = k log 2 + 2 artanh(s)."""
    m, exponent = np.frexp(y)
    is_low = m < 0.7071067811865476
    m = np.where(is_low, m * 2.0, m)
    s = (m - 1.0) / (m + 1.0)  # below 0.172
    square = s * s
    series = np.full_like(s, 1.0 / 25.0)
    for odd in range(23, 0, -2):
        series = 1.0 / float(odd) + series * square
    return (exponent - is_low).astype(np.float64) * _LN2 + 2.0 * s * series


def exp_of_minus(y: Float64Array) -> Float64Array:
    """Return exp(-y) of numbers from 0 to 40, as the 64th power of a series."""
    x = y * 2.0**-6
    series = np.ones_like(x)
    for n in range(18, 0, -1):
        series = 1.0 + series * x / float(n)
    for _ in range(6):
        series = series * series
    return 1.0 / series
