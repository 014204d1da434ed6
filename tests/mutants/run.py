"""Runs tests with one fault at a time, each in a process forked from one that has all imports."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

from mutants.build import ROOT
from mutants.fault import Fault

_SECONDS = 120
"""Of a processor, after which tests with a fault that hang count as failed."""


class Outcome(NamedTuple):
    """How tests ended with a fault: 'killed', 'survived' or 'broken', and what they printed."""

    verdict: str
    seconds: float
    output: str


def arguments_of(fault: Fault) -> list[str]:
    """Pytest's arguments for the tests of a fault."""
    files = [str(ROOT / "tests" / "kernels" / f"test_{name}.py") for name in fault.tests.split()]
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--no-header"]
    return [*options, "--hypothesis-profile=faults", "-k", fault.only, *files]


class _Running(NamedTuple):
    """A child that runs the tests of a fault."""

    number: int
    began: float
    output: IO[bytes]


def _start(number: int, fault: Fault) -> tuple[int, _Running]:
    """Starts the tests of a fault, without it if the number is 0. Returns the child's pid, too."""
    output = tempfile.TemporaryFile()  # noqa: SIM115
    child = os.fork()
    if child == 0:
        _run_tests(number, fault, output.fileno())
    return child, _Running(number, time.monotonic(), output)


def _run_tests(number: int, fault: Fault, output: int) -> NoReturn:
    """Runs the tests of a fault in a child, which ends with pytest's status."""
    import pytest

    from khop import _native

    status = 70
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        library = ctypes.CDLL(_native.__file__)
        ctypes.c_int.in_dll(library, "khop_active_fault").value = number
        os.environ["KHOP_FAULT"] = str(number)
        status = int(pytest.main(arguments_of(fault)))
        sys.stdout.flush()
    finally:
        os._exit(status)


def _outcome(running: _Running, status: int) -> Outcome:
    # Pytest's 1: tests failed. 2 and more: they could not run. A signal ends what a GPU would.
    code = os.waitstatus_to_exitcode(status)
    verdict = "survived" if code == 0 else "killed" if code == 1 or code < 0 else "broken"
    running.output.seek(0)
    text = running.output.read().decode(errors="replace")
    running.output.close()
    return Outcome(verdict, time.monotonic() - running.began, text)


def run_all(
    faults: Sequence[Fault], package: Path, wanted: Sequence[int], jobs: int, is_active: bool
) -> dict[int, Outcome]:
    """Runs the tests of faults by number, a line each, and returns their outcomes.

    Args:
        faults: all of them.
        package: the folder that has the package `khop` with the faults.
        wanted: numbers of those to run.
        jobs: how many at a time.
        is_active: the faults are switched on. If False, all tests should pass.
    """
    sys.path[:0] = [str(package), str(ROOT / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    import hypothesis
    import pytest  # noqa: F401
    import torch_geometric.data  # noqa: F401

    import support.kernels.device_batches  # noqa: F401

    # One example that fails is enough.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    sound = hypothesis.settings(deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    hypothesis.settings.register_profile("faults", sound, phases=phases)
    waiting, children, outcomes = list(wanted), {}, {}
    while waiting or children:
        while waiting and len(children) < jobs:
            number = waiting.pop(0)
            child, running = _start(number if is_active else 0, faults[number - 1])
            children[child] = running._replace(number=number)
        child, status = os.wait()
        running = children.pop(child)
        outcome = outcomes[running.number] = _outcome(running, status)
        about = f"{outcome.verdict:9} {outcome.seconds:5.1f} s  {faults[running.number - 1].name}"
        print(f"{running.number:3} {about}", flush=True)
    return outcomes
