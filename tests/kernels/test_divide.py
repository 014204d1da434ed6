"""Division by a number known beforehand, as kernels divide, against Python's."""

import numpy as np
import pytest

from khop import _native

LARGEST = 2**63 - 1


def check(numbers, divisor):
    """Quotients and remainders of int64 numbers are Python's."""
    numbers = np.asarray(numbers, np.int64)
    quotients, remainders = _native.divide(numbers, divisor)
    assert np.array_equal(quotients, numbers // divisor), divisor
    assert np.array_equal(remainders, numbers % divisor), divisor


def test_small_numbers():
    """All below 2^10, by all of them."""
    numbers = np.arange(1 << 10)
    for divisor in range(1, 1 << 10):
        check(numbers, divisor)


def near_powers():
    """Powers of two below 2^63 and their neighbours."""
    near = {(1 << k) + d for k in range(64) for d in (-1, 0, 1)}
    return sorted(n for n in near if 0 <= n <= LARGEST)


def test_edges():
    """Where rounding errs first: multiples of the divisor and what is just below them."""
    powers = near_powers()
    for divisor in [*powers[1:], 10**9, 10**18, 3**39, LARGEST // 3, LARGEST // 2]:
        largest = LARGEST // divisor
        multiples = {
            q * divisor + d
            for q in {1, 2, 3, largest // 2, largest - 1, largest}
            for d in (-1, 0, 1)
        }
        check([*powers, *(n for n in multiples if 0 <= n <= LARGEST)], divisor)


@pytest.mark.parametrize("seed", range(20))
def test_random_numbers(seed):
    """Of any number of bits."""
    rng = np.random.default_rng(seed)
    for divisor in rng.integers(1, LARGEST, 200, endpoint=True) >> rng.integers(0, 62, 200):
        numbers = rng.integers(0, LARGEST, 200, endpoint=True) >> rng.integers(0, 63, 200)
        below = np.maximum(numbers // max(divisor, 1) * max(divisor, 1) - 1, 0)
        check(np.concatenate([numbers, below]), int(max(divisor, 1)))


def test_bad_arguments():
    with pytest.raises(ValueError, match="divisor must be at least 1"):
        _native.divide(np.arange(3), 0)
    with pytest.raises(ValueError, match="must not be negative"):
        _native.divide(np.array([-1]), 2)
