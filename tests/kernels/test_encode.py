"""float32 in fewer bits: rounded as PyTorch rounds, and values that would be lost are reported."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from khop import _native

DTYPES = {
    "bfloat16": (torch.bfloat16, np.uint16),
    "float16": (torch.float16, np.uint16),
    "float8_e4m3fn": (torch.float8_e4m3fn, np.uint8),
}


def encoded(name, values, dtype, **parameters):
    out = np.empty(values.shape, dtype)
    return out, _native.encode(name, values, out, **parameters)


def by_torch(name, values):
    return torch.from_numpy(values).to(DTYPES[name][0]).float().numpy()


def decoded(name, codes):
    out = np.empty(codes.shape, np.float32)
    _native.decode(name, codes, None, out)
    return out


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(DTYPES)), st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_any_number(name, numbers):
    """As PyTorch: ties to even, small numbers without exponent, infinity and NaN.

    Only beyond float8's largest number, which khop reports, versions of PyTorch differ.
    """
    values = np.array(numbers, np.float32)[:, None]
    codes, bad = encoded(name, values, DTYPES[name][1])
    expected = by_torch(name, values)
    lost = np.isinf(expected) & np.isfinite(values)
    if name == "float8_e4m3fn":
        lost = np.abs(values) > 464
    assert np.array_equal(decoded(name, codes)[~lost], expected[~lost], equal_nan=True)
    assert not np.isfinite(decoded(name, codes)[lost]).any()
    assert bad == (int(np.argmax(lost)) if lost.any() else -1)


@pytest.mark.parametrize("name", DTYPES)
def test_numbers_between_neighbours(name):
    """All codes, the numbers halfway to the next, and the ones beside these."""
    dtype = DTYPES[name][1]
    codes = np.arange(np.iinfo(dtype).max + 1).astype(dtype)
    numbers = np.unique(decoded(name, codes)[np.isfinite(decoded(name, codes))])
    halves = (numbers[1:].astype(np.float64) + numbers[:-1]) / 2
    halves = halves.astype(np.float32)
    values = np.concatenate(
        [numbers, halves, np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, -halves)]
    )
    stored, bad = encoded(name, values, dtype)
    assert bad == -1
    assert np.array_equal(decoded(name, stored), by_torch(name, values))
    again, _ = encoded(name, numbers, dtype)
    assert np.array_equal(decoded(name, again), numbers)


@pytest.mark.parametrize(
    ("name", "largest", "beyond"),
    [
        ("bfloat16", 3.3895e38, 3.4e38),
        ("float16", 65_519, 65_520),
        ("float8_e4m3fn", 464, 464.1),
    ],
)
def test_largest(name, largest, beyond):
    dtype = DTYPES[name][1]
    values = np.array([[1, largest], [-largest, 2]], np.float32)
    assert encoded(name, values, dtype)[1] == -1
    values[1, 0] = -beyond
    assert encoded(name, values, dtype)[1] == 2


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9), st.integers(1, 30), st.integers(0, 2**32))
def test_int8(width, count, seed):
    """The nearest of 256 numbers, by float64."""
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.001, 3, width).astype(np.float32)
    zero = rng.normal(size=width).astype(np.float32)
    values = (rng.uniform(-140, 140, (count, width)) * scale + zero).astype(np.float32)
    stored, bad = encoded("int8", values, np.int8, scale=scale, zero=zero)
    exact = (values.astype(np.float64) - zero) / scale
    assert bad == -1
    assert np.array_equal(stored, np.clip(np.rint(exact), -128, 127))


def test_int8_of_one_number_and_of_none():
    parameters = {"scale": np.zeros(2, np.float32), "zero": np.array([5, 7], np.float32)}
    values = np.array([[5, 7], [5, np.nan], [np.inf, 7]], np.float32)
    stored, bad = encoded("int8", values, np.int8, **parameters)
    assert (stored == 0).all()
    assert bad == 3


def test_refusals():
    values = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"2 rows of 6 bytes \(got 2 of 3\)"):
        _native.encode("bfloat16", values, np.empty((2, 3), np.uint8))
    with pytest.raises(ValueError, match=r"2 rows of 3 bytes \(got 1 of 3\)"):
        _native.encode("float8_e4m3fn", values, np.empty((1, 3), np.uint8))
    with pytest.raises(ValueError, match="scale and zero of int8 must have 3 values"):
        _native.encode("int8", values, np.empty((2, 3), np.int8))
    with pytest.raises(TypeError, match="values must be float32"):
        _native.encode("bfloat16", values.astype(np.float64), np.empty((2, 3), np.uint16))
