"""Edge lists split by blocks of rows, and nodes numbered by owner: against NumPy."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native

INTS = st.sampled_from([np.int32, np.int64])


@given(st.data(), INTS, INTS, INTS)
def test_equals_a_stable_sort_by_block(data, id_dtype, map_dtype, out_dtype):
    """Nine rows in any blocks, empty ones too; six neighbours; each piece by itself."""
    edges = data.draw(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), max_size=60))
    inner = sorted(data.draw(st.lists(st.integers(0, 9), max_size=5)))
    bounds = np.array([0, *inner, 9], np.int64)
    keys, neighbors = np.array(edges, id_dtype).reshape(-1, 2).T.copy()
    key_map = np.array(data.draw(st.permutations(range(9))), map_dtype)
    neighbor_map = np.array(data.draw(st.permutations(range(6))), out_dtype)
    split = _native.RowSplit(key_map, neighbor_map, 9)
    new = key_map[keys]
    counts = np.zeros(9, out_dtype)
    split.count(keys, neighbors, 0, counts)
    assert counts.tolist() == np.bincount(new, minlength=9).tolist()

    rows, columns = np.empty(len(keys), out_dtype), np.empty(len(keys), out_dtype)
    ids = np.empty(len(keys), map_dtype)
    found = split.split(keys, neighbors, 1000, bounds, rows, columns, ids)
    block = np.searchsorted(bounds, new, "right") - 1
    order = np.argsort(block, kind="stable")
    assert found.tolist() == np.bincount(block, minlength=len(bounds) - 1).tolist()
    assert ids.tolist() == (1000 + order).tolist()
    assert columns.tolist() == neighbor_map[neighbors][order].tolist()
    assert rows.tolist() == (new - bounds[block])[order].tolist()


def test_many_rows_in_few_blocks():
    """More rows than the table that finds blocks has entries."""
    rng = np.random.default_rng(0)
    keys, bounds = rng.integers(100_000, size=5000), np.array([0, 3, 40_000, 40_001, 100_000])
    ids = np.arange(100_000)
    out = [np.empty(5000, np.int64) for _ in range(3)]
    split = _native.RowSplit(ids, ids, 100_000)
    counts = split.split(keys, keys, 0, bounds, *out)
    assert counts.tolist() == np.histogram(keys, bounds)[0].tolist()
    assert np.array_equal(out[1], keys[out[2]])


@pytest.mark.parametrize(("key", "neighbor"), [(3, 0), (-1, 0), (0, 2), (0, -5)])
def test_ids_out_of_range_are_named(key, neighbor):
    keys, neighbors = np.array([0, 1, key]), np.array([0, 1, neighbor])
    split = _native.RowSplit(np.arange(3), np.arange(2), 3)
    out = [np.empty(3, np.int64) for _ in range(3)]
    named = rf"edge 102 joins node {neighbor} \(of 2\) and node {key} \(of 3\)"
    with pytest.raises(IndexError, match=named):
        split.count(keys, neighbors, 100, np.zeros(3, np.int64))
    with pytest.raises(IndexError, match=named):
        split.split(keys, neighbors, 100, np.array([0, 3]), *out)


def test_what_does_not_fit_is_refused():
    with pytest.raises(IndexError, match="key_map maps id 1 to 3, but there are 3"):
        _native.RowSplit(np.array([0, 3]), np.arange(2), 3)
    split = _native.RowSplit(np.arange(3), np.arange(2), 3)
    keys, good = np.array([0, 1]), [np.empty(2, np.int64) for _ in range(3)]
    for bounds in ([0], [0, 2], [1, 3], [0, 2, 1, 3]):
        with pytest.raises(ValueError, match="bounds"):
            split.split(keys, keys, 0, np.array(bounds), *good)
    with pytest.raises(ValueError, match="what is written to must hold 2"):
        split.split(keys, keys, 0, np.array([0, 3]), good[0], good[1], good[2][:1])
    with pytest.raises(TypeError, match="rows and columns differ"):
        split.split(keys, keys, 0, np.array([0, 3]), good[0], good[1].astype(np.int32), good[2])
    with pytest.raises(ValueError, match="the same length"):
        split.count(keys, keys[:1], 0, np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="counts must hold 3"):
        split.count(keys, keys, 0, np.zeros(2, np.int64))
    with pytest.raises(TypeError, match="the same dtype"):
        split.count(keys, keys.astype(np.int32), 0, np.zeros(3, np.int64))


@given(st.lists(st.integers(0, 3), max_size=50))
def test_numbers_are_in_the_order_of_owners_and_nodes(owners):
    owners = np.array(owners, np.int32)
    bounds, old_of_new, new_of_old = _native.number_by_owner(owners, 4)
    order = np.argsort(owners, kind="stable")
    assert old_of_new.tolist() == order.tolist()
    assert new_of_old[order].tolist() == list(range(len(owners)))
    assert bounds.tolist() == [0, *np.cumsum(np.bincount(owners, minlength=4))]
    assert old_of_new.dtype == new_of_old.dtype == np.int32


def test_owners_that_are_no_parts_are_refused():
    for owner in (-1, 2):
        with pytest.raises(IndexError, match="an owner is no part"):
            _native.number_by_owner(np.array([0, owner], np.int32), 2)
