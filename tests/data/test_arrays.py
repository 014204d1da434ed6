"""Arrays from whatever users hand over."""

import numpy as np
import pytest
import torch

from khop.data.arrays import DTYPES, check_count, check_range, to_array, to_ids, to_int64


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_of_every_dtype_are_shared(name):
    """The same bytes under the dtype's name; bfloat16, which NumPy lacks, as uint16."""
    tensor = torch.zeros(6, dtype=torch.uint8).view(3, 2).to(getattr(torch, name))
    array, got = to_array(tensor)
    assert got == name
    array.view(np.uint8)[:] = 1
    assert (tensor != 0).all()


def test_other_layouts_keep_their_values():
    tensor = torch.arange(24.0).view(4, 6)
    for t in (tensor.t(), tensor[:, ::2], tensor[1:], tensor.clone().requires_grad_()):
        assert np.array_equal(to_array(t)[0], t.detach().numpy())
    half = torch.arange(24.0).view(4, 6).to(torch.bfloat16)
    assert np.array_equal(to_array(half.t())[0], half.t().contiguous().view(torch.uint16).numpy())
    assert np.array_equal(to_array(np.arange(3, dtype=">i4"))[0], [0, 1, 2])


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (torch.zeros(2, dtype=torch.complex64), "dtype 'complex64' is not supported"),
        (torch.empty(2, device="meta"), "x is on device 'meta': move it to the CPU"),
        (np.array(["a"]), "is not supported"),
        (np.array([object()]), "dtype 'object' is not supported"),
        (torch.eye(2).to_sparse(), "[Ss]parse"),
    ],
)
def test_dtypes_without_storage_are_refused(value, error):
    with pytest.raises(TypeError, match=error):
        to_array(value, "x")


def test_ids():
    """Integers of any width and a list of them; nothing else."""
    for dtype in (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64):
        got = to_int64(np.array([1, 2, 3, 4], dtype)[::2], "ids")
        assert got.dtype == np.int64
        assert got.flags.c_contiguous
        assert got.tolist() == [1, 3]
    assert to_ids([], "ids").tolist() == []
    assert to_ids([2, 1], "ids").tolist() == [2, 1]
    for wrong in (np.zeros(2), torch.zeros(0), np.zeros(2, bool), torch.zeros(2).bfloat16(), [0.5]):
        with pytest.raises(TypeError, match="seeds must hold integers"):
            to_ids(wrong, "seeds")
    for shape in ((), (2, 1)):
        with pytest.raises(ValueError, match="one dimension"):
            to_ids(np.zeros(shape, np.int64), "seeds")


def test_ids_that_int64_does_not_hold():
    assert to_int64(np.array([2**63 - 1], np.uint64), "ids").tolist() == [2**63 - 1]
    for convert in (to_ids, to_int64):
        with pytest.raises(
            ValueError, match=r"seeds holds 9223372036854775808 at position 1: .* 2\^63"
        ):
            convert(np.array([1, 2**63], np.uint64), "seeds")


def test_numbers_of_nodes():
    for given in (7, np.int32(7), np.uint64(7), torch.tensor(7)):
        assert type(check_count(given, "num_nodes")) is int
    assert check_count(0, "num_nodes") == 0
    assert check_count(2**56 - 1, "num_nodes") == 2**56 - 1
    for wrong in (7.0, "7", None, np.float64(7)):
        with pytest.raises(TypeError, match="num_nodes must be an integer"):
            check_count(wrong, "num_nodes")
    for wrong in (-1, 2**56, 2**64):
        with pytest.raises(
            ValueError, match=rf"num_nodes must be from 0 to 2\^56 - 1 \(got {wrong}\)"
        ):
            check_count(wrong, "num_nodes")


def test_ranges():
    check_range(np.array([0, 4]), 5, "seeds")
    check_range(np.array([], np.int64), 0, "seeds")
    for bad in (-1, 5):
        message = rf"seeds holds id {bad} at position 1, but ids run from 0 to 4"
        with pytest.raises(IndexError, match=message):
            check_range(np.array([0, bad, 9]), 5, "seeds")
