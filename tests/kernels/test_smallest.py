"""The smallest entries of each row: against NumPy's stable sort of all."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native

FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 2.0, np.inf, -np.inf, np.nan]), st.floats(width=64)
)
VALUES = {
    np.float64: FLOATS,
    np.int64: st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3),
    np.uint64: st.integers(0, 2**64 - 1) | st.integers(0, 3),
}


def in_order(values, counts, most, ascending):
    """The same by sorts."""
    row = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((values, row))  # stable: of equal values the first entry is first
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    taken = order[np.arange(len(order)) - begins < np.maximum(most, 0)[row]]
    return np.sort(taken) if ascending else taken


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("ascending", [False, True])
@given(data=st.data())
def test_smallest_entries(dtype, ascending, data):
    """Also of NaN, of values that are equal, of rows without entries, and of negative counts."""
    rows = data.draw(st.lists(st.lists(VALUES[dtype], max_size=20), max_size=8))
    most = np.array([data.draw(st.integers(-2, 22)) for _ in rows], np.int64)
    values = np.array([value for row in rows for value in row], dtype)
    counts = np.array([len(row) for row in rows], np.int64)
    found = _native.smallest_entries(values, counts, most, ascending)
    assert found.tolist() == in_order(values, counts, most, ascending).tolist()


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("distinct", [7, 10**6])
def test_long_rows(ascending, distinct):
    rng = np.random.default_rng(0)
    counts = np.array([5000, 0, 3, 20_000, 700], np.int64)
    values = rng.integers(0, distinct, counts.sum()) / 8
    for numbers in ([10, 1, 2, 6000, 699], [4000, 9, 9, 1, 0]):
        most = np.array(numbers)
        found = _native.smallest_entries(values, counts, most, ascending)
        assert np.array_equal(found, in_order(values, counts, most, ascending))


def test_arguments():
    two, one = np.array([1, 1]), np.array([2])
    values = np.array([1.0, 2.0])
    for counts in (np.array([1]), np.array([1, 2]), np.array([-1, 3]), np.array([2**62, 2**62])):
        with pytest.raises(ValueError, match=r"counts must|values must hold"):
            _native.smallest_entries(values, counts, np.ones_like(counts))
    with pytest.raises(ValueError, match="most must hold 2"):
        _native.smallest_entries(values, two, one)
    with pytest.raises(ValueError, match="one dimension"):
        _native.smallest_entries(np.ones((2, 1)), two, two)
    for wrong in (values.astype(np.float32), np.array([1, 2], np.int32), np.array([True, False])):
        with pytest.raises(TypeError):
            _native.smallest_entries(wrong, two, two)
    with pytest.raises(TypeError):
        _native.smallest_entries(values, two.astype(np.int32), two)
