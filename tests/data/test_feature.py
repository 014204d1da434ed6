"""Feature tables of every dtype, shape and layout."""

import numpy as np
import pytest
import torch

from khop.data import Feature
from khop.data.arrays import DTYPES
from khop.loader.batches.collate import to_tensor


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("row_shape", [(), (3,), (2, 2)])
def test_dtypes(name, row_shape):
    """What torch would have selected."""
    values = (torch.arange(10 * max(1, np.prod(row_shape, dtype=int))) % 2).view(10, *row_shape)
    values = values.to(getattr(torch, name))
    feature = Feature(values)
    assert (feature.num_rows, feature.row_shape, feature.dtype) == (10, row_shape, name)
    got = to_tensor(feature.gather(np.array([7, 0, 7])), feature.dtype)
    assert got.dtype == values.dtype
    assert torch.equal(got.double(), values.double()[[7, 0, 7]])


def test_layouts(tmp_path):
    """Strided, transposed, read-only and mapped tables."""
    base = np.arange(60.0).reshape(10, 6)
    np.save(tmp_path / "x.npy", base)
    frozen = base.copy()
    frozen.flags.writeable = False
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for table in (base[::2], base[:, ::3], base.T, frozen, mapped, np.asfortranarray(base)):
        rows = np.array([3, 0, 1])
        assert np.array_equal(Feature(table).gather(rows), table[rows])
    assert np.shares_memory(Feature(mapped).array, mapped)


def test_places_and_out():
    out = np.zeros((4, 2))
    feature = Feature(np.arange(6.0).reshape(3, 2))
    assert feature.gather(np.array([2, 0]), out, np.array([3, 1])) is out
    assert out.tolist() == [[0, 0], [0, 1], [0, 0], [4, 5]]


def test_bfloat16_stored_as_uint16():
    stored = np.arange(4, dtype=np.uint16)
    assert Feature(stored, "bfloat16").dtype == "bfloat16"
    with pytest.raises(TypeError, match="not stored as 'uint16'"):
        Feature(stored, "float32")
    with pytest.raises(TypeError, match="dtype 'float8' is not supported"):
        Feature(stored, "float8")


def test_bad_input():
    with pytest.raises(ValueError, match="row axis"):
        Feature(np.float32(1))
    with pytest.raises(IndexError, match=r"row 3 .* 3 rows"):
        Feature(np.zeros(3)).gather(np.array([0, 3]))
