"""Keys of times are ordered as the times are."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from khop.data.times import is_floating, seed_time_keys, time_keys

FLOATS = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 5e-324, -5e-324])
INTEGERS = st.integers(-(2**63), 2**63 - 1)


def ordered_alike(times, keys):
    return all(
        (a < b) == (ka < kb) and (a == b) == (ka == kb)
        for a, ka in zip(times, keys, strict=True)
        for b, kb in zip(times, keys, strict=True)
    )


@given(st.lists(FLOATS, min_size=1, max_size=8))
def test_floats(times):
    """Infinities, subnormal numbers and both zeros included."""
    keys = time_keys(np.array(times))
    assert keys.dtype == np.int64
    assert ordered_alike(times, keys.tolist())


@given(st.lists(INTEGERS, max_size=8))
def test_integers_are_their_own_keys(times):
    assert time_keys(np.array(times, np.int64)).tolist() == times


@given(st.lists(st.integers(-(2**53), 2**53) | FLOATS, min_size=1, max_size=8))
def test_integers_among_floats(times):
    """Mapped as floats, the two kinds compare with one another."""
    keys = [int(time_keys([t], floating=True)[0]) for t in times]
    assert ordered_alike(times, keys)


@given(st.integers(-(2**63) + 1, 2**63 - 1), FLOATS)
def test_seeds_with_floats_among_integer_times(time, seed):
    """`time <= seed` holds for the keys if and only if it holds for the numbers."""
    key = int(seed_time_keys(np.array([seed]), floating=False)[0])
    assert (time <= key) == (time <= seed)


def test_seeds_of_the_graphs_own_kind():
    assert seed_time_keys(torch.tensor([3, -4]), floating=False).tolist() == [3, -4]
    whole = seed_time_keys(torch.tensor([3]), floating=True)
    assert whole.tolist() == time_keys(np.array([3.0])).tolist()


@pytest.mark.parametrize(
    "dtype",
    [
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.float16,
        torch.bfloat16,
        torch.float32,
    ],
)
def test_narrow_dtypes(dtype):
    times = torch.tensor([3, 1, 2], dtype=dtype)
    keys = time_keys(times)
    assert keys.argsort().tolist() == [1, 2, 0]
    assert is_floating(times) == dtype.is_floating_point
    assert keys.tolist() == time_keys(times.double() if is_floating(times) else times).tolist()


def test_no_copy_of_int64():
    times = np.arange(5)
    assert np.shares_memory(time_keys(times), times)
    assert time_keys(times[::2]).tolist() == [0, 2, 4]
    assert time_keys([]).tolist() == []


@pytest.mark.parametrize(
    ("times", "options", "error", "message"),
    [
        ([0.5, math.nan], {}, ValueError, "time holds nan at position 1, which is not a time"),
        (np.array([1, 2**63], np.uint64), {}, ValueError, "position 1, which does not fit int64"),
        ([0, 2**53 + 1], {"floating": True}, ValueError, "position 1, which is too large to be"),
        ([True], {}, TypeError, "integers or floats .got dtype 'bool'"),
        ([0.5], {"floating": False}, TypeError, "is floating-point, but the other times are"),
        ([[1]], {}, ValueError, "one dimension"),
        ([1.5], {"floating": False, "label": "paper 'year'"}, TypeError, "paper 'year' is"),
    ],
)
def test_bad_times(times, options, error, message):
    with pytest.raises(error, match=message):
        time_keys(np.array(times), **options)
