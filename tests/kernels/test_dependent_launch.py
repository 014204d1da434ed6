"""Kernels that are launched before the one before them has ended: on which GPUs, by what rules."""

import pytest

from fake_cuda import control
from support.devices import fake, open_device
from support.kernels.device_blocks import small

pytestmark = fake


def launches_of_a_batch(cuda_graph=False):
    """Numbers of launches of a batch, and of those that may begin early."""
    names = "launches", "launches_ahead"
    drawing, seeds = small(open_device("fake"), cuda_graph)
    before = [control.count(name) for name in names]
    subgraph = drawing.subgraph()
    block = drawing.begin(subgraph, seeds, 0, 1000)
    assert subgraph.settle()
    assert drawing.read(subgraph, block) == drawing.expected(seeds, 0)
    return [control.count(name) - n for name, n in zip(names, before, strict=True)]


def test_every_kernel_of_a_batch_begins_early():
    assert launches_of_a_batch() == [10, 10]
    assert launches_of_a_batch(cuda_graph=True) == [10, 10]


@pytest.mark.parametrize("options", [{"major": 8}, {"ptx": 80}, {"ptx": 86}])
def test_older_gpus_and_kernels_compiled_for_them(options):
    """Code for older GPUs, which the driver compiles for a new one, does not wait."""
    control.set_options(**options)
    assert launches_of_a_batch() == [10, 0]


@pytest.mark.parametrize(("value", "ahead"), [("0", 0), ("1", 10), ("", 10)])
def test_switch(monkeypatch, value, ahead):
    monkeypatch.setenv("KHOP_DEPENDENT_LAUNCH", value)
    assert launches_of_a_batch() == [10, ahead]


def test_rules():
    """The runtime finds a kernel that does not wait, and refuses the launch on older devices."""
    drawing, seeds = small(open_device("fake"))
    control.set_options(ptx=80)
    subgraph = drawing.subgraph()
    drawing.begin(subgraph, seeds, 0, 1000)
    control.finish()
    assert "may begin before the one before it ends did not wait" in control.violations()[0]
    control.reset()
    control.set_options(major=8)
    with pytest.raises(RuntimeError, match=r"cudaLaunchKernelEx.* failed"):
        drawing.begin(subgraph, seeds, 0, 1000)
    control.reset()
