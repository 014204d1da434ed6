"""Rows of neighbours reduced to one row, against SciPy's sparse product and NumPy."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings, strategies as st

from khop import _native

pytestmark = pytest.mark.unit


@given(st.integers(0, 2**32), st.sampled_from(["sum", "min", "max"]), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=100)
def test_rows_are_reduced(seed, reduce, is_weighted, is_wide):
    rng = np.random.default_rng(seed)
    counts, width = rng.integers(0, 6, rng.integers(0, 9)), int(rng.integers(0, 20))
    first = np.concatenate([[0], np.cumsum(counts)])
    neighbors = rng.integers(0, 7, first[-1]).astype(np.int64 if is_wide else np.int32)
    weights = rng.standard_normal(first[-1]).astype(np.float32) if is_weighted else None
    values = rng.standard_normal((7, width)).astype(np.float32)
    out = np.full((len(counts), width), np.nan, np.float32)
    parts = np.split(values, np.sort(rng.integers(0, 8, rng.integers(0, 4))))
    _native.aggregate(first, neighbors, weights, parts, reduce, out)
    ones = np.ones(first[-1], np.float32) if weights is None else weights
    if reduce == "sum":
        matrix = scipy.sparse.csr_array((ones, neighbors, first), shape=(len(counts), 7))
        np.testing.assert_allclose(out, matrix @ values, rtol=1e-5, atol=1e-5)
        return
    for row, (low, high) in enumerate(itertools.pairwise(first)):
        products = ones[low:high, None] * values[neighbors[low:high]]
        expected = getattr(products, reduce)(0) if high > low else np.zeros(width)
        np.testing.assert_array_equal(out[row], expected)


def test_nan_stays():
    values = np.array([[1.0], [np.nan], [2.0]], np.float32)
    out = np.zeros((1, 1), np.float32)
    for reduce in ("sum", "min", "max"):
        _native.aggregate(np.array([0, 3]), np.array([0, 1, 2]), None, [values], reduce, out)
        assert np.isnan(out).all()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"neighbors": np.array([0, 3])}, IndexError, "neighbour 3 is outside of 3"),
        ({"neighbors": np.array([-1, 0])}, IndexError, "neighbour -1"),
        ({"first": np.array([0, 1])}, ValueError, "must ascend"),
        ({"first": np.array([0, 3, 2])}, ValueError, "must ascend"),
        ({"first": np.array([1, 2])}, ValueError, "must ascend"),
        ({"first": np.empty(0, np.int64)}, ValueError, "must ascend"),
        ({"weights": np.ones(1, np.float32)}, ValueError, "weights"),
        ({"out": np.zeros((2, 2), np.float32)}, ValueError, "out"),
        ({"out": np.zeros((1, 3), np.float32)}, ValueError, "rows of values"),
        ({"values": []}, ValueError, "a part"),
        (
            {"values": [np.ones((3, 2), np.float32), np.ones((3, 1), np.float32)]},
            ValueError,
            "rows",
        ),
        ({"reduce": "mean"}, ValueError, "'sum', 'min' or 'max'"),
    ],
)
def test_arguments_that_do_not_fit_write_nothing(change, error, text):
    arguments = {
        "first": np.array([0, 2]),
        "neighbors": np.array([0, 1]),
        "weights": None,
        "values": [np.ones((1, 2), np.float32), np.ones((2, 2), np.float32)],
        "reduce": "sum",
        "out": np.zeros((1, 2), np.float32),
    } | change
    with pytest.raises(error, match=text):
        _native.aggregate(**arguments)
    assert not arguments["out"].any()
