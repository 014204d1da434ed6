"""Whether edges exist, asked of devices: many threads read a long row."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop import _native
from support.devices import KINDS, empty, get, open_device, put
from support.reference import oracle

ints = st.sampled_from([np.int32, np.int64])


def ask(device, indptr, indices, rows, neighbors, first_row=0):
    """The device's answers."""
    out = empty(device, len(rows), np.bool_)
    arrays = [put(device, array) for array in (indptr, indices, rows, neighbors)]
    device.has_edges(*arrays, out, first_row)
    return get(out)


pairs = st.tuples(st.integers(0, 5), st.integers(0, 9))


@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 2**32),
    edges=st.lists(pairs, max_size=300),
    asked=st.lists(pairs, max_size=100),
    pointer=ints,
    column=ints,
    first_row=st.sampled_from([0, 3, 2**40]),
)
def test_edges_exist_where_the_edge_list_has_them(
    kind, seed, edges, asked, pointer, column, first_row
):
    """Parallel edges, empty rows, repeated questions, no questions; rows of a part."""
    keys, others = np.array(edges, np.int64).reshape(-1, 2).T
    indptr, indices, _ = oracle.csr(keys, others, 6)
    indptr, indices = indptr.astype(pointer), indices.astype(column)
    rows, neighbors = np.array(asked, np.int64).reshape(-1, 2).T.copy()
    got = ask(open_device(kind, seed), indptr, indices, rows + first_row, neighbors, first_row)
    assert got.dtype == np.bool_
    assert got.tolist() == [pair in edges for pair in asked]
    csr = _native.Csr(indptr, indices, first_row=first_row)
    assert np.array_equal(got, _native.has_edges(csr, rows + first_row, neighbors))


@pytest.mark.parametrize("degree", [15, 16, 17, 33, 1000, 100_000])
@pytest.mark.parametrize("column", [np.int32, np.int64])
def test_long_rows(device, degree, column):
    """Each entry of a row is found, and nothing else, beside questions of a short row."""
    indptr = np.array([0, degree, degree + 1, degree + 1])
    indices = np.append(np.arange(0, 2 * degree, 2), 7).astype(column)
    rng = np.random.default_rng(degree)
    asked = rng.integers(0, 2 * degree + 3, 60)
    asked[:4] = 0, 1, 2 * degree - 2, 2 * degree
    for rows in (np.zeros(60, np.int64), rng.integers(0, 3, 60)):
        expected = np.where(rows == 0, (asked % 2 == 0) & (asked < 2 * degree), asked == 7)
        assert np.array_equal(ask(device, indptr, indices, rows, asked), expected & (rows < 2))


def test_neighbours_that_no_column_holds(device):
    """Ids beyond the columns' type, and negative ones, are nobody's neighbours."""
    asked = np.array([2**32 + 1, -1, 2**63 - 1, -(2**63) + 1, 3])
    for indices in (np.array([1, 3, -1], np.int32), np.array([1, 3, -1])):
        got = ask(device, np.array([0, 3]), indices, np.zeros(5, np.int64), asked)
        assert got.tolist() == [False, False, False, False, True]


@pytest.mark.parametrize("bad", [3, 6, -1, -(2**63), 2**63 - 1])
def test_nodes_without_a_row(device, bad):
    """The first one is named, in the CPU's words; other questions are answered."""
    indptr, indices = np.array([0, 0, 1]), np.array([1])
    rows = np.array([5, 4] * 50)
    rows[70], rows[71] = bad, 99
    neighbors = np.ones(100, np.int64)
    with pytest.raises(
        IndexError, match=f"node {bad} is not one of the graph's rows 4 to 5"
    ) as cpu:
        _native.has_edges(_native.Csr(indptr, indices, first_row=4), rows, neighbors)
    with pytest.raises(IndexError) as on_device:
        ask(device, indptr, indices, rows, neighbors, 4)
    assert str(on_device.value) == str(cpu.value)


def test_bad_questions(device):
    indptr, indices, zero = np.array([0, 9, 1]), np.array([3]), np.zeros(1, np.int64)
    with pytest.raises(RuntimeError, match="corrupt: row 0 spans edges 0 to 9 of 1"):
        ask(device, indptr, indices, zero, zero)
    arrays = [put(device, array) for array in (indptr, indices, zero, np.zeros(2, np.int64))]
    with pytest.raises(ValueError, match="1 rows, but 2 neighbors"):
        device.has_edges(*arrays, empty(device, 1, np.bool_))
    with pytest.raises(ValueError, match="room for 2 answers"):
        device.has_edges(*arrays[:3], arrays[2], empty(device, 2, np.bool_))
    with pytest.raises(ValueError, match="at least one entry"):
        ask(device, zero[:0], indices, zero, zero)
    with pytest.raises(ValueError, match="first_row"):
        ask(device, indptr, indices, zero, zero, -1)
    empty_graph = (np.zeros(1, np.int64), zero[:0])
    assert len(ask(device, *empty_graph, zero[:0], zero[:0])) == 0
    with pytest.raises(IndexError, match="node 0"):
        ask(device, *empty_graph, zero, zero)
