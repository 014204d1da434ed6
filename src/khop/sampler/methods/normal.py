"""Normal variates and their distribution function, the same on all machines. Imports no torch.

Logarithms, exponentials and cosines of C's and NumPy's libraries differ in their last digits. The
functions here are series of additions, products, divisions and square roots. IEEE 754 rounds each
of these, in one order. Absolute errors are below 1e-14. Functions that programs call for all nodes
of a hop are kernels (`khop/cpu/normal_lanes.hpp`). Sampler processes and trainers draw with them
(`labor`, `labor_draws` and `hgt` of `khop.sampler.methods`).
"""

from __future__ import annotations

import numpy as np

from khop import _native
from khop.typing import Float64Array, UInt64Array

_TAU = 6.283185307179586


def normal_variates(words: UInt64Array) -> Float64Array:
    """Return normal variates by Box and Muller's method, one for each 64-bit word.

    The upper half of a word gives the radius, the lower the angle, so that no variate lies beyond
    6.7 standard deviations.
    """
    return _native.normal_variates(words)


def normal_cdf(z: Float64Array) -> Float64Array:
    """Return the chance that a normal variate is below each value, within [0, 1]."""
    return _native.normal_cdf(z)


def log_of(y: Float64Array) -> Float64Array:
    """Return the logarithms of positive numbers that are not subnormal."""
    return _native.logs(y)


def cos_of_turns(turns: Float64Array) -> Float64Array:
    """Return cos(2 pi x) of values within [0, 1]."""
    x = (np.abs(turns - 0.5) - 0.25) * _TAU  # cos(2 pi turns) = sin(x), |x| <= pi / 2
    square = x * x
    series = np.ones_like(x)
    for n in range(24, 0, -2):
        series = 1.0 - series * square / float(n * (n + 1))
    return x * series


def exp_of_minus(y: Float64Array) -> Float64Array:
    """Return exp(-y) of numbers from 0 to 40, as the 64th power of a series."""
    x = y * 2.0**-6
    series = np.ones_like(x)
    for n in range(18, 0, -1):
        series = 1.0 + series * x / float(n)
    for _ in range(6):
        series = series * series
    return 1.0 / series
