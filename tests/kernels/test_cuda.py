"""The CUDA half: on any machine it is importable and says what it finds; kernels need a device."""

import pytest
import torch

from khop import _native

STATUS = _native.cuda_status()
needs_device = pytest.mark.skipif(not STATUS.get("devices"), reason="no usable CUDA device")


def test_status_never_raises():
    """Compiled or not, driver or not."""
    assert isinstance(STATUS["compiled"], bool)
    if STATUS["compiled"]:
        assert STATUS["devices"] > 0 or STATUS["error"]
    else:
        assert not hasattr(_native, "gather_on_device")


@pytest.mark.gpu
@needs_device
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 16, 100, 128])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_gather(dtype, width, index):
    """Rows of any width, also from unaligned tables, are those that indexing gives."""
    generator = torch.Generator().manual_seed(width)
    whole = torch.randint(-100, 100, (1001, width), generator=generator).to(dtype).cuda()
    rows = torch.randint(0, 1000, (5000,), generator=generator).to(index).cuda()
    for table in (whole[:1000], whole[1:]):
        out = torch.empty(5000, width, dtype=dtype, device="cuda")
        _native.gather_on_device(table, rows, out, torch.cuda.current_stream().cuda_stream)
        assert torch.equal(out, table[rows.long()])


@pytest.mark.gpu
@needs_device
def test_gather_of_missing_rows():
    """The first row that does not exist is named."""
    table = torch.zeros(10, 4, device="cuda")
    out = torch.empty(3, 4, device="cuda")
    for bad in (10, -1):
        with pytest.raises(IndexError, match="entry 1"):
            _native.gather_on_device(table, torch.tensor([0, bad, bad], device="cuda"), out)
    _native.gather_on_device(table[:0], torch.empty(0, dtype=torch.int64, device="cuda"), out[:0])
