"""Rows written into a table, against NumPy's unbuffered operations and torch's bfloat16."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from khop import _native

pytestmark = pytest.mark.unit

_REDUCE = {"add": np.add, "min": np.minimum, "max": np.maximum}
_DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64"),
]


def values_of(rng, dtype, shape):
    bits = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    values = bits.view(dtype)[..., 0]
    if np.dtype(dtype).kind == "f":
        values = rng.standard_normal(shape).astype(dtype)
        values[rng.random(shape) < 0.05] = np.nan
    return np.ascontiguousarray(values)


@given(st.integers(0, 2**32), st.sampled_from(_DTYPES), st.sampled_from(["set", *_REDUCE]))
@settings(deadline=None, max_examples=200)
def test_scatter_is_numpys_unbuffered_operation(seed, dtype, reduce):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(0, 4, rng.integers(0, 3)))
    table = values_of(rng, dtype, (7, *shape))
    rows = rng.integers(0, 7, rng.integers(0, 40))
    values = values_of(rng, dtype, (len(rows), *shape))
    expected = table.copy()
    with np.errstate(all="ignore"):
        if reduce == "set":
            for row, value in zip(rows, values, strict=True):
                expected[row] = value
        else:
            _REDUCE[reduce].at(expected, rows, values)
    _native.scatter(table, rows, values, reduce)
    np.testing.assert_array_equal(table, expected)


@given(st.integers(0, 2**32), st.sampled_from(["set", *_REDUCE]))
@settings(deadline=None, max_examples=100)
def test_bfloat16_is_torchs(seed, reduce):
    rng = np.random.default_rng(seed)
    table = torch.from_numpy(values_of(rng, "float32", (5, 3))).bfloat16()
    rows = rng.integers(0, 5, 20)
    values = torch.from_numpy(values_of(rng, "float32", (20, 3))).bfloat16()
    mine = table.view(torch.int16).numpy().view(np.uint16).copy()
    of_torch = {"set": lambda a, b: b, "add": torch.add, "min": torch.minimum, "max": torch.maximum}
    for row, value in zip(rows, values, strict=True):
        table[row] = of_torch[reduce](table[row], value)
    _native.scatter(mine, rows, values.view(torch.int16).numpy().view(np.uint16), reduce, True)
    got = torch.from_numpy(mine.view(np.int16)).view(torch.bfloat16)
    torch.testing.assert_close(got, table, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"rows": np.array([0, 3])}, IndexError, r"row 3 \(entry 1\)"),
        ({"rows": np.array([-1, 0])}, IndexError, r"row -1 \(entry 0\)"),
        ({"rows": np.array([0])}, ValueError, "2 rows of values for 1"),
        ({"values": np.zeros((2, 3), np.float32)}, TypeError, "same dtype and row shape"),
        ({"values": np.zeros((2, 2))}, TypeError, "same dtype and row shape"),
        ({"reduce": "mean"}, ValueError, "'set', 'add', 'min' or 'max'"),
        ({"bfloat16": True}, TypeError, "does not know"),
        (
            {"table": np.zeros((3, 2), "c8"), "values": np.zeros((2, 2), "c8")},
            TypeError,
            "does not know",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(change, error, text):
    arguments = {
        "table": np.zeros((3, 2), np.float32),
        "rows": np.array([0, 1]),
        "values": np.ones((2, 2), np.float32),
        "reduce": "add",
    } | change
    with pytest.raises(error, match=text):
        _native.scatter(**arguments)
    assert not arguments["table"].any()
