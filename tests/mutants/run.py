"""Runs tests with one fault at a time, each in a process forked from one that has all imports."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mutants.build import ROOT
from mutants.faults import Fault

_SECONDS = 240
"""After which tests with a fault that hang count as failed."""


class Outcome(NamedTuple):
    """How tests ended with a fault: 'killed', 'survived' or 'broken', and what they printed."""

    verdict: str
    seconds: float
    output: str


def arguments_of(fault: Fault) -> list[str]:
    """Pytest's arguments for the tests of a fault."""
    files = [str(ROOT / "tests" / "kernels" / f"test_{name}.py") for name in fault.tests.split()]
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--no-header"]
    return [*options, "-k", fault.only, *files]


def run(number: int, fault: Fault) -> Outcome:
    """Runs the tests of a fault; number 0 runs them without one."""
    import pytest

    from khop import _native

    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            signal.alarm(_SECONDS)
            library = ctypes.CDLL(_native.__file__)
            ctypes.c_int.in_dll(library, "khop_active_fault").value = number
            status = 70
            try:
                status = int(pytest.main(arguments_of(fault)))
            finally:
                sys.stdout.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        text = output.read().decode(errors="replace")
    # Pytest's 1: tests failed. 2 and more: they could not run. A signal ends what a GPU would.
    code = os.waitstatus_to_exitcode(status)
    verdict = "survived" if code == 0 else "killed" if code == 1 or code < 0 else "broken"
    return Outcome(verdict, time.monotonic() - began, text)


def run_all(faults: Sequence[Fault], package: Path, wanted: Sequence[int]) -> dict[int, Outcome]:
    """Runs faults by number, prints a line for each, and returns their outcomes."""
    sys.path[:0] = [str(package), str(ROOT / "tests")]
    import pytest  # noqa: F401
    import torch_geometric.data  # noqa: F401

    import khop.loader  # noqa: F401

    outcomes = {}
    for number in wanted:
        outcome = outcomes[number] = run(number, faults[number - 1])
        name = faults[number - 1].name
        print(f"{number:3} {outcome.verdict:9} {outcome.seconds:5.1f} s  {name}", flush=True)
    return outcomes
