"""Rows in fewer bits that a device widens while it gathers: PyTorch's numbers, the CPU's bits."""

import numpy as np
import pytest
import torch

from khop import _native
from support.devices import address_of, empty, get, put
from support.kernels.device_tables import MODES, open_table

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
}
STORED = {"bfloat16": np.uint16, "float16": np.uint16, "float8_e4m3fn": np.uint8, "int8": np.int8}


@pytest.fixture(params=STORED)
def encoding(request):
    """Name of an encoding."""
    return request.param


def scales(encoding, width):
    """Return scale and zero of each value of a row, of int8."""
    if encoding != "int8":
        return {}
    rng = np.random.default_rng(width)
    numbers = rng.uniform(1e-3, 3, (2, width)).astype(np.float32)
    return {"scale": numbers[0].copy(), "zero": -numbers[1] * 77}


def codes(encoding, shape, seed=0):
    """Return random codes, also those of NaN, infinity and denormal numbers."""
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, 2), np.uint8)
    return bits.view(np.uint16)[..., 0].astype(STORED[encoding])


def numbers_of(encoding, rows, scale=None, zero=None):
    """Return the numbers of codes by PyTorch, and of int8 by NumPy."""
    if encoding == "int8":
        return rows.astype(np.float32) * scale + zero
    signed = torch.from_numpy(rows.view(f"int{8 * rows.itemsize}").copy())
    return signed.view(DTYPES[encoding]).float().numpy()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", [1, 3, 4, 6, 16, 100])
def test_widened(device, mode, encoding, width):
    """Rows of any width, also of tables that begin at any row, are PyTorch's numbers.

    NaN has the bits of the CPU's kernel: hardware and PyTorch keep different ones.
    """
    whole = codes(encoding, (61, width))
    parameters = scales(encoding, width)
    for array, index in ((whole[:60], np.int32), (whole[1:], np.int64)):
        rows = np.random.default_rng(width).integers(0, 60, 90).astype(index)
        table = open_table(device, array, mode, encoding=encoding, **parameters)
        out = empty(device, (90, width), np.float32)
        table.gather(put(device, rows), out)
        got, expected = get(out), numbers_of(encoding, array[rows], **parameters)
        finite = ~np.isnan(expected)
        assert np.array_equal(np.isnan(got), ~finite)
        assert np.array_equal(got.view(np.uint32)[finite], expected.view(np.uint32)[finite])
        by_cpu = np.empty((90, width), np.float32)
        _native.decode(encoding, array, rows, by_cpu, **parameters)
        assert got.tobytes() == by_cpu.tobytes()
        assert sum(table.served) == 90


@pytest.mark.parametrize("mode", ["CUDA", "ZERO_COPY", "CPU"])
def test_every_code(device, mode, encoding):
    """Each code of an encoding has its number."""
    most = 1 << 8 * np.dtype(STORED[encoding]).itemsize
    array = np.arange(most).astype(STORED[encoding]).reshape(-1, 32)
    parameters = scales(encoding, 32)
    table = open_table(device, array, mode, encoding=encoding, **parameters)
    out = empty(device, array.shape, np.float32)
    table.gather(put(device, np.arange(len(array))), out)
    expected = np.empty(array.shape, np.float32)
    _native.decode(encoding, array, None, expected, **parameters)
    assert get(out).tobytes() == expected.tobytes()


@pytest.mark.parametrize("mode", ["CUDA", "ZERO_COPY", "CPU"])
def test_values_of_two_bytes_at_odd_addresses(device, mode):
    """A file's array may begin at any byte: a device reads values of two bytes whole."""
    raw = np.random.default_rng(0).integers(0, 120, 2 * 40 * 8 + 1, np.uint8)
    array = raw[1:].reshape(40, 16)
    rows = np.array([39, 0, 7])
    table = _native.DeviceTable(device, array, mode, encoding="float16")
    out = empty(device, (3, 8), np.float32)
    table.gather(put(device, rows), out)
    assert np.array_equal(get(out), array[rows].copy().view(np.float16).astype(np.float32))


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_outputs_at_every_address_of_float32(device, encoding, offset):
    """Four values are written at once where the output allows that, else one at a time."""
    array, parameters = codes(encoding, (20, 8)), scales(encoding, 8)
    rows = np.array([19, 3, 0])
    table = open_table(device, array, "CUDA", encoding=encoding, **parameters)
    out, asked = empty(device, (offset + 24,), np.float32), put(device, rows)
    table.gather_at(address_of(asked), 8, 3, address_of(out) + 4 * offset)
    expected = np.empty((3, 8), np.float32)
    _native.decode(encoding, array, rows, expected, **parameters)
    assert get(out)[offset:].tobytes() == expected.tobytes()
    assert (get(out)[:offset] == 77).all()


def test_shapes_and_missing_rows(device, encoding):
    """Rows without values, rows that do not exist, and outputs that are not float32's size."""
    nothing = open_table(
        device, codes(encoding, (5, 0)), "CUDA", encoding=encoding, **scales(encoding, 0)
    )
    nothing.gather(put(device, np.array([4])), empty(device, (1, 0), np.float32))
    table = open_table(
        device, codes(encoding, (5, 4)), "CUDA", encoding=encoding, **scales(encoding, 4)
    )
    with pytest.raises(IndexError, match=r"row 5 \(entry 1 of rows\)"):
        table.gather(put(device, np.array([0, 5])), empty(device, (2, 4), np.float32))
    with pytest.raises(ValueError, match="out must have a row of 16 bytes"):
        table.gather(put(device, np.array([0])), empty(device, (1, 4), STORED[encoding]))
    with pytest.raises(ValueError, match="multiple of 4"):
        table.gather_at(64, 8, 1, 65)


def test_bad_arguments(device):
    """Encodings that do not exist, rows of half a value, and scales that do not belong."""
    table = np.zeros((5, 3), np.uint8)
    with pytest.raises(ValueError, match="no encoding 'float7'"):
        _native.DeviceTable(device, table, encoding="float7")
    with pytest.raises(ValueError, match="rows of 3 bytes are not values of float16"):
        _native.DeviceTable(device, table, encoding="float16")
    with pytest.raises(ValueError, match=r"int8 must have 3 values \(got 0\)"):
        _native.DeviceTable(device, table, encoding="int8")
    two = np.ones(2, np.float32)
    with pytest.raises(ValueError, match=r"int8 must have 3 values \(got 2\)"):
        _native.DeviceTable(device, table, encoding="int8", scale=two, zero=two)
