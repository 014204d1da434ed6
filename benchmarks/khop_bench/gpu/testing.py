"""Stages that run tests: those marked `gpu`, some files each.

In a dry run tests are collected, and not run.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from khop_bench.gpu.runner import ROOT, Stage

KERNELS = "tests/kernels"
BOUNDARY = (f"{KERNELS}/test_gpu_boundary.py", f"{KERNELS}/test_cuda_boundary.py")
SHARING = (
    "tests/distributed/test_devices.py",
    "tests/distributed/remote/test_batch_checks.py",
    "tests/data/test_device_feature.py",
)
"""Device arenas, samplers on GPUs, and memory that processes share."""
MEMORY = (
    f"{KERNELS}/test_gpu_boundary.py::test_after_memory_ran_out",
    f"{KERNELS}/test_gpu_boundary.py::test_tables_go_before_their_gathers_end",
    f"{KERNELS}/test_sizes.py",
)
"""Memory that runs out, or is given back early."""

_WITHOUT_PYZMQ = ("tests/distributed", "tests/test_trace.py", "tests/examples")


def boundary(stage: Stage) -> None:
    """Test the boundary of khop and CUDA."""
    stage.run("boundary", [*pytest(stage), *BOUNDARY])


def kernels(stage: Stage) -> None:
    """Test the kernels, all but the boundary."""
    others = [f"--ignore={file}" for file in BOUNDARY]
    stage.run("kernels", [*pytest(stage, 50, stage.options.processes), *others, KERNELS])


def sharing(stage: Stage) -> None:
    """Test device arenas, samplers on GPUs and shared memory."""
    stage.run("sharing", [*pytest(stage, processes=stage.options.processes), *SHARING])


def memory(stage: Stage) -> None:
    """Test failed allocations, and memory that is freed early."""
    stage.run("memory", [*pytest(stage), *MEMORY])


def tests(stage: Stage) -> None:
    """Run all other tests that need a GPU."""
    others = [f"--ignore={file}" for file in (KERNELS, *SHARING)]
    if importlib.util.find_spec("zmq") is None:
        others += [f"--ignore={file}" for file in _WITHOUT_PYZMQ]
    stage.run("tests", [*pytest(stage, processes=stage.options.processes), *others, "tests"])


def pytest(stage: Stage, maxfail: int = 20, processes: int = 1) -> list[str]:
    """Return pytest's command, also for where plugins that the settings name are missing.

    Args:
        stage: its options say whether tests run or are only collected.
        maxfail: failures after which it ends.
        processes: processes at a time, where pytest-xdist is there.
    """
    options = ["-o", "addopts=--import-mode=importlib", "-q", "--tb=short", f"--maxfail={maxfail}"]
    options += ["-p", "no:cacheprovider", "-m", "gpu"]
    if processes > 1 and not stage.options.is_dry and importlib.util.find_spec("xdist") is not None:
        options += ["-n", str(processes)]
    return [sys.executable, "-m", "pytest", *options, *["--collect-only"] * stage.options.is_dry]


def there(tests: Sequence[str]) -> list[str]:
    """Return the tests, by pytest's names, whose files exist in this checkout."""
    return [test for test in tests if (ROOT / test.partition("::")[0]).exists()]
