"""What links need of the native core: numbers under a key, and whether edges exist."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native
from support.reference import oracle

keys = st.integers(0, 2**64 - 1)


def words(key, count):
    """The first 64-bit words of node 0's sequence."""
    found = []
    for block in range((count + 1) // 2):
        a, b, c, d = oracle.philox(key, 0, 0, block, 0)
        found += [b << 32 | a, d << 32 | c]
    return found[:count]


@given(keys, st.integers(1, 2**63 - 1), st.integers(0, 9))
def test_draws_follow_the_contract(key, bound, count):
    drawn = _native.draw_ids(key, bound, count)
    assert drawn.dtype == np.int64
    assert drawn.tolist() == [word * bound >> 64 for word in words(key, count)]


@given(keys, st.lists(st.integers(0, 2**63 - 1), max_size=9))
def test_draws_below_bounds_of_their_own(key, bounds):
    drawn = _native.draw_below(key, np.array(bounds, np.int64))
    assert drawn.tolist() == [
        word * bound >> 64 for word, bound in zip(words(key, len(bounds)), bounds, strict=True)
    ]


def test_bad_draws():
    with pytest.raises(ValueError, match="count must not be negative"):
        _native.draw_ids(1, 5, -1)
    for bound in (0, -3):
        with pytest.raises(ValueError, match="bound must be positive"):
            _native.draw_ids(1, bound, 1)
    with pytest.raises(ValueError, match="must not be negative"):
        _native.draw_below(1, np.array([3, -1]))
    assert len(_native.draw_ids(1, 0, 0)) == 0


def make_csr(edges, num_rows, pointer=np.int32, column=np.int32, first_row=0):
    rows, neighbors = np.array(edges, np.int64).reshape(-1, 2).T
    indptr, indices, _ = oracle.csr(rows - first_row, neighbors, num_rows)
    return _native.Csr(indptr.astype(pointer), indices.astype(column), first_row=first_row)


pairs = st.tuples(st.integers(0, 5), st.integers(0, 9))


@given(
    st.lists(pairs, max_size=30),
    st.lists(pairs, max_size=30),
    st.sampled_from([np.int32, np.int64]),
    st.sampled_from([np.int32, np.int64]),
    st.integers(0, 100),
)
def test_edges_exist_where_the_edge_list_has_them(edges, asked, pointer, column, first_row):
    """Parallel edges, empty rows, repeated questions; rows of a part begin at its first node."""
    edges = [(row + first_row, neighbor) for row, neighbor in edges]
    asked = [(row + first_row, neighbor) for row, neighbor in asked]
    csr = make_csr(edges, 6, pointer, column, first_row)
    rows, neighbors = np.array(asked, np.int64).reshape(-1, 2).T.copy()
    found = _native.has_edges(csr, rows, neighbors)
    assert found.dtype == np.bool_
    assert found.tolist() == [pair in edges for pair in asked]


@pytest.mark.parametrize("degree", [63, 64, 65, 511, 512, 1000])
@pytest.mark.parametrize("column", [np.int32, np.int64])
def test_long_rows(degree, column):
    """Each entry of a row is found, and nothing else, however much is asked of it at a time."""
    edges = [(0, 2 * i) for i in range(degree)] * 2 + [(1, 7)]
    csr = make_csr(edges, 2, column=column)
    asked = np.random.default_rng(degree).permutation(2 * degree + 3)
    exists = (asked % 2 == 0) & (asked < 2 * degree)
    for at_once in (1, 11, 12, len(asked)):
        for first in range(0, min(len(asked), 40 * at_once), at_once):
            some = np.repeat(asked[first : first + at_once], 2)
            rows = np.zeros_like(some)
            rows[::2] = 1  # asked of the short row between
            found = _native.has_edges(csr, rows, some)
            assert np.array_equal(found[1::2], exists[first : first + at_once])
            assert np.array_equal(found[::2], some[::2] == 7)


def test_neighbours_that_no_column_holds():
    """Ids beyond the columns' type, and negative ones, are nobody's neighbours."""
    csr = make_csr([(0, 1), (0, 3)], 1)
    asked = np.array([2**32 + 1, -1, 2**63 - 1, -(2**63) + 1, 3])
    found = _native.has_edges(csr, np.zeros(5, np.int64), asked)
    assert found.tolist() == [False, False, False, False, True]


def test_bad_questions():
    csr = make_csr([(5, 1)], 2, first_row=4)
    for row in (3, 6, -1):
        with pytest.raises(IndexError, match=f"node {row} is not one of the graph's rows 4 to 5"):
            _native.has_edges(csr, np.array([row]), np.array([1]))
    with pytest.raises(ValueError, match="1 rows, but 2 neighbors"):
        _native.has_edges(csr, np.array([4]), np.array([1, 2]))
    corrupt = _native.Csr(np.array([0, 9, 1], np.int32), np.array([3], np.int32))
    with pytest.raises(RuntimeError, match="corrupt"):
        _native.has_edges(corrupt, np.array([0]), np.array([3]))
