"""Devices: what they say of themselves, and gathering on them."""

import numpy as np
import pytest

from khop import _native
from support.devices import empty, get, put


def test_status_never_raises():
    """Compiled or not, driver or not."""
    status = _native.cuda_status()
    assert isinstance(status["compiled"], bool)
    if status["compiled"]:
        assert status["devices"] > 0 or status["error"]
        assert len(status["gpus"]) == status["devices"]
        for gpu in status["gpus"]:
            assert gpu["name"]
            assert gpu["memory"] > 1 << 30
            assert gpu["capability"] >= (7, 5)  # what CUDA 13 runs on
            assert gpu["multiprocessors"] > 0
    else:
        assert not hasattr(_native, "cuda_device")


def test_name(device):
    assert device.name == ("cuda:0" if device.is_cuda else "emulated")


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 16, 100, 128])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_gather(device, dtype, width, index):
    """Rows of any width, also from unaligned tables, are those that indexing gives."""
    rng = np.random.default_rng(width)
    whole = rng.integers(-100, 100, (301, width)).astype(dtype)
    rows = rng.integers(0, 300, 700).astype(index)
    on_device = put(device, whole)
    for table, expected in ((on_device[:300], whole[:300]), (on_device[1:], whole[1:])):
        out = empty(device, (700, width), dtype)
        device.gather(table, put(device, rows), out)
        assert np.array_equal(get(out), expected[rows])


def test_gather_of_missing_rows(device):
    """The first row that does not exist is named; the others are written."""
    table = put(device, np.arange(40, dtype=np.float32).reshape(10, 4))
    for bad in (10, -1):
        out = empty(device, (4, 4), np.float32)
        with pytest.raises(IndexError, match="entry 1"):
            device.gather(table, put(device, np.array([0, bad, bad, 9])), out)
        assert get(out)[:, 0].tolist() == [0, 77, 77, 36]
    device.gather(table[:0], put(device, np.empty(0, np.int64)), out[:0])


def test_rows_without_a_byte(device):
    """Whether they exist is asked all the same."""
    table = put(device, np.zeros((10, 0)))
    device.gather(table, put(device, np.array([0, 9])), put(device, np.zeros((2, 0))))
    with pytest.raises(IndexError, match="entry 1"):
        device.gather(table, put(device, np.array([0, 10])), put(device, np.zeros((2, 0))))


def test_gathers_that_nobody_waits_for(device):
    """What they found wrong is an error of the next that waits, and of no other."""
    values = np.random.default_rng(0).random((50, 3))
    table, rows = put(device, values), np.arange(0, 50, 7)
    outs = [empty(device, (8, 3), float) for _ in range(3)]
    here, missing = put(device, rows), put(device, np.full(8, 50))
    for out in outs:
        device.gather(table, here, out, wait=False)
    device.gather(table, here, outs[0])
    for out in outs:
        assert np.array_equal(get(out), values[rows])
    device.gather(table, missing, outs[0], wait=False)
    with pytest.raises(IndexError, match="entry 0 of rows that were gathered without waiting"):
        device.gather(table, here, outs[0])
    device.gather(table, put(device, rows[::-1]), outs[0])
    assert np.array_equal(get(outs[0]), values[rows[::-1]])


def test_arrays_that_do_not_fit(device):
    """Widths and lengths must agree."""
    table, rows = put(device, np.zeros((3, 4), np.float32)), put(device, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="width"):
        device.gather(table, rows, empty(device, (2, 3), np.float32))
    with pytest.raises(ValueError, match="width"):
        device.gather(table, rows, empty(device, (3, 4), np.float32))


def test_outputs_that_are_not_contiguous(device):
    """A converted copy would be lost."""
    table, rows = put(device, np.ones(3)), put(device, np.array([0, 1]))
    with pytest.raises(TypeError):
        device.gather(table, rows, put(device, np.zeros(4))[::2])


def test_a_device_needs_a_thread():
    with pytest.raises(ValueError, match="num_threads"):
        _native.emulated_device(0, 0)
