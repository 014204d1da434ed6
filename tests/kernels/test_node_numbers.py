"""Ids numbered in the order of first appearance: against a dictionary."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native


@given(
    st.sampled_from([1, 40, 2**32 - 2, 2**32, 2**62]).flatmap(
        lambda bound: st.tuples(
            st.just(bound), st.lists(st.lists(st.integers(0, bound - 1), max_size=30), max_size=5)
        )
    )
)
def test_ids_get_the_next_numbers(case):
    """Also of ids that need the wide table, call after call."""
    bound, calls = case
    table, numbers = _native.NodeNumbers(bound), {}
    for ids in calls:
        known = len(numbers)
        expected = [numbers.setdefault(i, len(numbers)) for i in ids]
        assert table.number(np.array(ids, np.int64)).tolist() == expected
        assert len(table) == len(numbers)
        assert table.ids(known).tolist() == list(numbers)[known:]
    assert table.ids().tolist() == list(numbers)
    others = [i for i in (0, bound - 1, bound, 2**63 - 1, -1, -(2**63)) if i not in numbers]
    assert table.find(np.array([*numbers, *others], np.int64)).tolist() == [
        *range(len(numbers)),
        *[-1] * len(others),
    ]


def test_the_table_grows_with_distinct_ids():
    rng = np.random.default_rng(0)
    ids = np.concatenate([rng.integers(0, 50, 20_000), rng.integers(0, 10**9, 30_000)])
    distinct, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    table = _native.NodeNumbers(10**9)
    assert np.array_equal(table.number(ids), np.argsort(order)[inverse])
    assert np.array_equal(table.ids(), distinct[order])


def test_ids_beyond_the_bound_change_nothing():
    table = _native.NodeNumbers(10)
    table.number(np.array([4, 9]))
    for ids in ([1, 10], [1, -1], [2**62]):
        with pytest.raises(IndexError, match="does not exist"):
            table.number(np.array(ids))
    assert table.ids().tolist() == [4, 9]
    for first in (-1, 3):
        with pytest.raises(IndexError, match="no such number"):
            table.ids(first)
    with pytest.raises(TypeError):
        table.number(np.array([1], np.int32))
    with pytest.raises(ValueError, match="-1 nodes"):
        _native.NodeNumbers(-1)


def test_threads_take_turns():
    """Every id has one number, whichever thread brings it first."""
    table = _native.NodeNumbers(10**6)
    calls = [np.random.default_rng(i).integers(0, 10**6, 50_000) for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(table.number, calls))
    ids = table.ids()
    assert len(np.unique(ids)) == len(ids)
    for call, of_call in zip(calls, numbers, strict=True):
        assert np.array_equal(ids[of_call], call)
