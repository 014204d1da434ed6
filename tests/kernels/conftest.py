"""Devices for the tests of thread-parallel kernels."""

import pytest

from fake_cuda import control
from support.devices import HAS_FAKE, KINDS, open_device


@pytest.fixture(params=KINDS)
def device(request):
    """A device: emulated, or a GPU where there is one."""
    return open_device(request.param)


@pytest.fixture(autouse=HAS_FAKE)
def rules_of_cuda():
    """The tests' own runtime begins anew; no rule may be broken where no call could say so.

    Two multiprocessors have small grids, which are soon run through.
    """
    control.reset()
    control.set_options(multiprocessors=2)
    yield
    control.finish()
    assert control.violations() == []
    control.reset()
