"""Rows that are stored in fewer bits arrive as float32, the same bits with all instructions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from khop import _native

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
}
STORED = {"bfloat16": np.uint16, "float16": np.uint16, "float8_e4m3fn": np.uint8, "int8": np.int8}
INSTRUCTIONS = _native.decode_instructions()


def by_torch(name, codes):
    """Numbers of all codes, by PyTorch."""
    signed = torch.from_numpy(codes.view(f"int{8 * codes.itemsize}").copy())
    return signed.view(DTYPES[name]).float().numpy()


def same_bits(a, b):
    """Equal bits, but for NaN, of which hardware and PyTorch keep different ones."""
    nan = np.isnan(b)
    return np.array_equal(np.isnan(a), nan) and np.array_equal(
        a.view(np.uint32)[~nan], b.view(np.uint32)[~nan]
    )


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("name", DTYPES)
def test_every_code(name, instructions):
    codes = np.arange(np.iinfo(STORED[name]).max + 1).astype(STORED[name]).reshape(-1, 32)
    out = np.empty(codes.shape, np.float32)
    _native.decode(name, codes, None, out, instructions=instructions)
    assert same_bits(out, by_torch(name, codes))
    portable = np.empty_like(out)
    _native.decode(name, codes, None, portable, instructions="portable")
    assert out.tobytes() == portable.tobytes()  # also NaN


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_small_numbers_where_float32_has_none(instructions):
    """`torch.set_flush_denormal(True)`, which users set for speed, changes no code's number."""
    codes = np.arange(2**16).astype(np.uint16).reshape(-1, 32)
    tables = {"float16": codes, "float8_e4m3fn": codes[:8].astype(np.uint8)}
    expected = {name: by_torch(name, table) for name, table in tables.items()}
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot")
    try:
        for name, table in tables.items():
            out = np.empty(table.shape, np.float32)
            _native.decode(name, table, None, out, instructions=instructions)
            assert same_bits(out, expected[name])
    finally:
        torch.set_flush_denormal(False)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(STORED)),
    st.integers(0, 70),
    st.integers(0, 40),
    st.booleans(),
    st.sampled_from([np.int32, np.int64]),
    st.integers(0, 2**32),
)
def test_rows_and_places(name, width, count, spread, index, seed):
    """Any rows, of any width, to any places: out[places] = numbers of table[rows]."""
    rng = np.random.default_rng(seed)
    size = np.dtype(STORED[name]).itemsize
    raw = rng.integers(0, 256, (20, width * size), dtype=np.uint8)
    table = raw.view(STORED[name]) if width else np.empty((20, 0), STORED[name])
    rows = rng.integers(0, 20, count).astype(index)
    places = rng.permutation(count + 3)[:count] if spread else None
    at = np.arange(count) if places is None else places
    parameters = {}
    if name == "int8":
        scale, zero = rng.normal(size=(2, width)).astype(np.float32)
        parameters = {"scale": scale, "zero": zero}
        expected = table.astype(np.float32) * scale + zero
    else:
        expected = by_torch(name, table)
    for instructions in INSTRUCTIONS:
        out = np.full((count + 3 * spread, width), 7, np.float32)
        _native.decode(name, table, rows, out, places, instructions=instructions, **parameters)
        assert same_bits(out[at], expected[rows])
        assert (np.delete(out, at, axis=0) == 7).all()


@pytest.mark.parametrize("name", STORED)
def test_threads(name):
    """Enough bytes that threads are used: the same rows."""
    rng = np.random.default_rng(0)
    table = rng.integers(0, 127, (1000, 100)).astype(STORED[name])
    ones = np.ones(100, np.float32)
    parameters = {"scale": ones, "zero": ones} if name == "int8" else {}
    rows = rng.integers(0, 1000, 100_000)
    one, five = np.empty((2, 100_000, 100), np.float32)
    _native.decode(name, table, rows, one, **parameters)
    _native.decode(name, table, rows, five, num_threads=5, **parameters)
    assert one.tobytes() == five.tobytes()


def test_refusals():
    table, out = np.zeros((4, 3), np.int8), np.empty((1, 3), np.float32)
    ones = np.ones(3, np.float32)
    good = {"scale": ones, "zero": ones}
    with pytest.raises(IndexError, match=r"row 4 \(entry 0\) is outside a table of 4 rows"):
        _native.decode("int8", table, np.array([4]), out, **good)
    with pytest.raises(IndexError, match=r"place 1 \(entry 0\) is outside a table of 1 rows"):
        _native.decode("int8", table, np.array([0]), out, np.array([1]), **good)
    with pytest.raises(ValueError, match="1 rows for 2 places"):
        _native.decode("int8", table, np.array([0]), out, np.array([0, 1]), **good)
    with pytest.raises(ValueError, match="scale and zero of int8 must have 3 values"):
        _native.decode("int8", table, np.array([0]), out, scale=ones)
    with pytest.raises(ValueError, match="scale and zero of int8 must have 3 values"):
        _native.decode("int8", table, np.array([0]), out, scale=ones[:2], zero=ones)
    with pytest.raises(ValueError, match="scale and zero of float8_e4m3fn must have 0 values"):
        _native.decode("float8_e4m3fn", table, np.array([0]), out, **good)
    with pytest.raises(ValueError, match="rows of table have 3 bytes, but 3 values of bfloat16"):
        _native.decode("bfloat16", table, np.array([0]), out)
    with pytest.raises(TypeError, match="out must be float32"):
        _native.decode("int8", table, np.array([0]), out.astype(np.float64), **good)
    with pytest.raises(ValueError, match="no encoding 'int4'"):
        _native.decode("int4", table, np.array([0]), out)
    with pytest.raises(ValueError, match="this machine has no instructions sse9"):
        _native.decode("int8", table, np.array([0]), out, instructions="sse9", **good)
