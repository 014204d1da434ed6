"""Who owns which id, and where a cached id stands: against NumPy."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(0, 2**34), st.data())
def test_split_by_owner(sizes, base, data):
    """Groups by range, each in order of the list; empty ranges own nothing."""
    bounds = base + np.concatenate([[0], np.cumsum(sizes)])
    some = st.integers(base, max(base, int(bounds[-1]) - 1))
    ids = np.array(data.draw(st.lists(some, max_size=30) if sum(sizes) else st.just([])), np.int64)
    owners, grouped, places, offsets = _native.split_by_owner(ids, bounds.tolist())
    expected = np.searchsorted(bounds, ids, side="right") - 1
    assert np.array_equal(owners, expected)
    assert np.array_equal(places, np.argsort(expected, kind="stable"))
    assert np.array_equal(grouped, ids[places])
    assert np.array_equal(np.diff(offsets), np.bincount(expected, minlength=len(sizes)))


def test_ids_that_nobody_owns():
    for stray in (9, 20, -1):
        with pytest.raises(IndexError, match=f"node {stray} belongs to no partition: .* 10 to 19"):
            _native.split_by_owner(np.array([10, stray]), [10, 15, 20])
    with pytest.raises(ValueError, match="two entries"):
        _native.split_by_owner(np.array([0]), [0])


@given(st.lists(st.integers(0, 2**63 - 1), unique=True), st.lists(st.integers(-5, 2**63 - 1)))
def test_id_index_is_a_dictionary(ids, strangers):
    """Places of the ids in it, -1 for all others (ids that share low bits among them)."""
    index = _native.IdIndex(np.array(ids, np.int64))
    strangers += [i ^ (1 << 40) for i in ids]
    place = {v: i for i, v in enumerate(ids)}
    asked = np.array(ids + strangers, np.int64)
    assert index.find(asked).tolist() == [place.get(v, -1) for v in asked.tolist()]
    assert len(index) == len(ids)


def test_id_index_refuses_what_it_cannot_tell_apart():
    with pytest.raises(ValueError, match="twice"):
        _native.IdIndex(np.array([3, 4, 3]))
    with pytest.raises(ValueError, match="negative"):
        _native.IdIndex(np.array([-1]))
