"""`gather_parts` copies rows of several arrays, one after the other. The oracle is NumPy."""

import numpy as np
import pytest

from khop import _native
from khop.data import Feature
from khop.data.joined import JoinedFeature


@pytest.mark.parametrize("shape,dtype", [
    ((), "int8"), ((), "float32"), ((), "int64"), ((3,), "int16"), ((16,), "float32"),
    ((17,), "float32"), ((100,), "float32"), ((2, 5), "float64"), ((0,), "float32"),
])  # fmt: skip
@pytest.mark.parametrize("lengths", [[7], [3, 4], [0, 5, 0, 2, 0], [1] * 17, [0, 3] * 20])
def test_rows_of_parts(shape, dtype, lengths):
    """One array, two, empty ones, and more than are counted without a search."""
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 100, (n, *shape)).astype(dtype) for n in lengths]
    rows = rng.integers(0, sum(lengths), 60)
    out = np.empty((60, *shape), dtype)
    _native.gather_parts(parts, rows, out)
    np.testing.assert_array_equal(out, np.concatenate(parts)[rows])


def test_ids_are_widened():
    parts = [np.array([5, -6], np.int32), np.array([7], np.int32)]
    out = np.empty(3, np.int64)
    _native.gather_parts(parts, np.array([2, 1, 0]), out)
    assert out.tolist() == [7, -6, 5]


@pytest.mark.parametrize("row", [-1, 3, 2**62])
def test_rows_that_do_not_exist(row):
    parts = [np.zeros(2), np.zeros(1)]
    with pytest.raises(IndexError, match=rf"row {row} \(entry 1\) is outside a table of 3 rows"):
        _native.gather_parts(parts, np.array([0, row]), np.empty(2))


@pytest.mark.parametrize("parts,out", [
    ([], np.empty(1)),
    ([np.zeros(2), np.zeros((2, 2))], np.empty(1)),
    ([np.zeros(2, np.int32), np.zeros(2, np.int64)], np.empty(1, np.int64)),
    ([np.zeros(2)], np.empty(2)),
])  # fmt: skip
def test_arrays_that_do_not_fit(parts, out):
    with pytest.raises(ValueError, match=r"part|row"):
        _native.gather_parts(parts, np.zeros(1, np.int64), out)


def test_joined_features_use_it():
    """With positions, or of other stores, they read piece by piece: the rows are the same."""
    pieces = [np.arange(6.0).reshape(3, 2), np.arange(6.0, 10.0).reshape(2, 2)]
    rows, whole = np.array([4, 0, 3]), np.concatenate(pieces)
    nested = JoinedFeature([JoinedFeature([Feature(pieces[0])]), Feature(pieces[1])])
    for joined in (JoinedFeature([Feature(piece) for piece in pieces]), nested):
        out = np.zeros((3, 2))
        assert joined.gather(rows, out) is out
        np.testing.assert_array_equal(out, whole[rows])
        joined.gather(rows, out, np.array([2, 1, 0]))
        np.testing.assert_array_equal(out, whole[rows][::-1])
        np.testing.assert_array_equal(joined.gather(rows.astype(np.int32)), whole[rows])
