"""Devices for the tests of thread-parallel kernels."""

import pytest

from devices import KINDS, open_device


@pytest.fixture(params=KINDS)
def device(request):
    """A device: emulated, or a GPU where there is one."""
    return open_device(request.param)
