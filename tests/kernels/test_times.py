"""Rows in the order of time: against Python's stable sort."""

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from khop import _native

TIMES = st.integers(0, 3) | st.sampled_from([-(2**63), -1, 2**63 - 1])


def sort(rows, pointer=np.int64):
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(pointer)
    times = np.array([t for row in rows for t in row], np.int64)
    return indptr, times, _native.sort_rows_by_time(indptr, times)


@given(st.lists(st.lists(TIMES, max_size=60), max_size=5), st.sampled_from([np.int32, np.int64]))
@example([[]], np.int64)
def test_equals_a_stable_sort(rows, pointer):
    """Also in rows too long for insertion (above 24); equal times keep their order."""
    indptr, times, order = sort(rows, pointer)
    if order is None:
        assert rows == [sorted(row) for row in rows]
        assert _native.first_row_out_of_order(indptr, times) == -1
        return
    assert order.dtype == np.int32
    expected, place = [], 0
    for row in rows:
        expected += [place + i for i in sorted(range(len(row)), key=row.__getitem__)]
        place += len(row)
    assert order.tolist() == expected
    wrong = [i for i, row in enumerate(rows) if row != sorted(row)]
    assert _native.first_row_out_of_order(indptr, times) == wrong[0]


def test_one_row_of_many_is_sorted():
    """The others stay as they are, long or short."""
    _, _, order = sort([[1, 2], list(range(100)), [5, 4], [7]])
    assert order.tolist() == [*range(102), 103, 102, 104]


def test_equals_lexsort_on_a_skewed_graph(power_law):
    src, dst = power_law(300, 20_000)
    times = np.random.default_rng(0).integers(-50, 50, 20_000)
    indptr, _, places = _native.coo_to_csr(dst, src, 300, 300)
    order = _native.sort_rows_by_time(indptr, times[places])
    assert np.array_equal(places[order], np.lexsort((times, dst)))


def test_bad_arguments():
    times = np.array([3, 1])
    for call in (_native.sort_rows_by_time, _native.first_row_out_of_order):
        with pytest.raises(ValueError, match="indptr ends with 1 but there are 2 times"):
            call(np.array([0, 1]), times)
        with pytest.raises(ValueError, match="must not decrease"):
            call(np.array([0, 3, 2]), times)
        with pytest.raises(TypeError):
            call(np.array([0, 2]), times.astype(np.int32))
