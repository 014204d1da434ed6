"""Rows of any dtype and width arrive where they belong; rows that do not exist are named."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from khop import _native
from khop.data.arrays import DTYPES, storage_dtype


def table_of(num_rows, row_shape, dtype):
    """A table whose bytes are random (bools 0 or 1)."""
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (num_rows, *row_shape, dtype.itemsize), dtype=np.uint8)
    if dtype == np.bool_:
        raw &= 1
    return raw.view(dtype)[..., 0]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("row_shape", [(), (1,), (3,), (2, 5)])
def test_dtypes_and_shapes(name, row_shape):
    dtype = storage_dtype(name)
    table = table_of(50, row_shape, dtype)
    rows = np.random.default_rng(1).integers(0, 50, 200)
    for index in (rows, rows.astype(np.int32)):
        out = np.empty((200, *row_shape), dtype)
        _native.gather(table, index, out)
        assert out.tobytes() == table[rows].tobytes()


@settings(max_examples=150)
@given(st.integers(1, 4097), st.integers(0, 300), st.integers(0, 2**32))
def test_widths(width, count, seed):
    """Rows of 1 to 4,097 bytes, to the places given."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 256, (20, width), dtype=np.uint8)
    rows, places = rng.integers(0, 20, count), rng.permutation(count)
    out = np.empty((count, width), np.uint8)
    _native.gather(table, rows, out, places)
    assert np.array_equal(out[places], table[rows])


@pytest.mark.parametrize("width", [0, 1, 2, 4, 8, 16, 24, 400, 4096])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads(width, threads):
    """Enough bytes that threads are used: the same rows."""
    table = np.random.default_rng(0).integers(0, 256, (1000, width), dtype=np.uint8)
    count = 12_000_000 // max(width, 12)
    rows = np.random.default_rng(1).integers(0, 1000, count)
    out = np.empty((count, width), np.uint8)
    _native.gather(table, rows, out, num_threads=threads)
    assert np.array_equal(out, table[rows])


def test_places_leave_other_rows_alone():
    out = np.full((6, 2), -1)
    _native.gather(np.arange(8).reshape(4, 2), np.array([3, 1]), out, np.array([5, 0]))
    assert out.tolist() == [[2, 3], [-1, -1], [-1, -1], [-1, -1], [-1, -1], [6, 7]]


@pytest.mark.parametrize("shape", [(0,), (9,), (9, 3), (9, 40), (9, 0)])
def test_all_rows(shape):
    """Without a choice of rows, the table is spread over the places."""
    table = table_of(shape[0], shape[1:], np.dtype(np.float32))
    places = np.random.default_rng(0).permutation(20)[: len(table)]
    out = np.zeros((20, *shape[1:]), np.float32)
    _native.gather(table, None, out, places)
    assert out[places].tobytes() == table.tobytes()
    assert not np.delete(out, places, axis=0).any()
    with pytest.raises(ValueError, match=f"{len(table)} rows for {len(table) + 1} places"):
        _native.gather(table, None, out, np.arange(len(table) + 1))
    if len(table):
        places[5] = 20
        with pytest.raises(IndexError, match=r"place 20 \(entry 5\) is outside a table of 20 rows"):
            _native.gather(table, None, out, places)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("spread", [False, True])
def test_widened(spread, threads):
    """Integers of 32 bits go to places of 64; nothing else changes its width."""
    rng = np.random.default_rng(0)
    table = rng.integers(-(2**31), 2**31, 1000).astype(np.int32)
    rows = rng.integers(0, 1000, 3_000_000)
    places = rng.permutation(len(rows)) if spread else None
    out = np.empty(len(rows), np.int64)
    _native.gather(table, rows, out, places, num_threads=threads)
    assert np.array_equal(out if places is None else out[places], table[rows])
    rows[2_500_000] = 1000
    with pytest.raises(IndexError, match=r"row 1000 \(entry 2500000\)"):
        _native.gather(table, rows, out, places, num_threads=threads)
    few = rows[:4]
    for source, wanted in (
        (table.view(np.uint32), np.int64),
        (table.view(np.float32), np.int64),
        (table, np.uint64),
        (table, np.float64),
        (table.astype(np.int16), np.int32),
    ):
        with pytest.raises(ValueError, match="bytes but rows of out"):
            _native.gather(source, few, np.empty(4, wanted))


def test_inputs_that_are_read_only_or_strided():
    table = np.arange(20.0).reshape(10, 2)
    rows = np.array([7, 0, 2])
    out = np.empty((3, 2))
    frozen = table.copy()
    frozen.flags.writeable = rows.flags.writeable = False
    for values in (frozen, np.repeat(table, 2, axis=0)[::2], np.asfortranarray(table)):
        out[:] = -1
        _native.gather(values, rows, out)
        assert np.array_equal(out, table[rows])


def test_outputs_that_cannot_be_written_are_refused():
    """Never is the result written to a converted copy."""
    table, rows = np.arange(10.0), np.array([1, 2, 3])
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    for out in (frozen, np.zeros(6)[::2]):
        with pytest.raises(TypeError):
            _native.gather(table, rows, out)


@pytest.mark.parametrize("bad", [-1, 10, 2**31, 2**40])
@pytest.mark.parametrize("threads", [1, 4])
def test_rows_that_do_not_exist(bad, threads):
    """The first of them is named, with its place in the list."""
    table = np.zeros((10, 1000))
    rows = np.zeros(2000, np.int64)
    rows[[1500, 1600]] = bad
    message = rf"row {bad} \(entry 1500\) is outside a table of 10 rows"
    with pytest.raises(IndexError, match=message):
        _native.gather(table, rows, np.empty((2000, 1000)), num_threads=threads)


def test_places_that_do_not_exist():
    for place in (-1, 2):
        message = rf"place {place} \(entry 1\) is outside a table of 2 rows"
        with pytest.raises(IndexError, match=message):
            _native.gather(np.zeros(3), np.array([0, 1]), np.zeros(2), np.array([0, place]))


def test_bad_arguments():
    table = np.zeros((4, 2), np.float32)
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="8 bytes but rows of out 12"):
        _native.gather(table, one, np.zeros((1, 3), np.float32))
    with pytest.raises(ValueError, match="1 rows for 2 places"):
        _native.gather(table, one, np.zeros((2, 2), np.float32))
    with pytest.raises(TypeError, match="rows must be int32 or int64"):
        _native.gather(table, np.zeros(1), np.zeros((1, 2), np.float32))
