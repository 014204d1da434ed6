"""Stages that run tests under compute-sanitizer, and their findings.

Tests take at least ten times as long under it. Each tool therefore runs only the most useful files.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from typing import Any

from khop_bench.gpu.runner import Stage
from khop_bench.gpu.testing import BOUNDARY, KERNELS, pytest, there

MEMCHECKED = (
    *BOUNDARY,
    f"{KERNELS}/test_device_table.py",
    f"{KERNELS}/test_device_sample.py",
    f"{KERNELS}/test_device_programs.py",
)
INITCHECKED = (
    f"{KERNELS}/test_device_sample.py",
    f"{KERNELS}/test_device_table.py",
    f"{KERNELS}/test_device_programs.py",
    f"{KERNELS}/test_gpu_boundary.py",
)
SHARED_MEMORY = (f"{KERNELS}/test_device_sample.py::test_launches_of_a_batch",)
"""Sums alone use shared memory, of few items and of many. racecheck checks nothing else."""
FOUND = 99  # compute-sanitizer's exit code where it found something

_EXAMPLES = "0.05"  # of random tests
_PRINTED = 200  # findings, at most

_FINDING = re.compile(
    r"=+ (Invalid|Misaligned|Uninitialized|Out-of-range|Error: |Warning: |Race reported|Host API"
    r"|Program hit|Barrier error)"
)
_PLACE = re.compile(r"\bat (?:void )?(?P<scope>\w+)::")


def memcheck(stage: Stage) -> None:
    """Look for accesses out of bounds, and of memory before it is allocated or after its end."""
    # khop checks every call, and tests provoke calls that fail.
    options = ["--report-api-errors", "no", "--track-stream-ordered-races", "all"]
    sanitize(stage, "memcheck", options, MEMCHECKED)


def racecheck(stage: Stage) -> None:
    """Look for races in shared memory."""
    sanitize(stage, "racecheck", [], SHARED_MEMORY)


def initcheck(stage: Stage) -> None:
    """Look for reads of device memory that were never written."""
    sanitize(stage, "initcheck", [], INITCHECKED)


def sanitize(stage: Stage, tool: str, options: Sequence[str], tests: Sequence[str]) -> None:
    """Run tests under a tool of compute-sanitizer. In a dry run, without it.

    Args:
        stage: the stage.
        tool: name of the tool.
        options: options of the tool.
        tests: as pytest names them.
    """
    fixed = ["--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", str(_PRINTED)]
    fixed += ["--target-processes", "application-only"]
    command = ["compute-sanitizer", *fixed, *options]
    if stage.options.is_dry:
        command = []
    elif not shutil.which("compute-sanitizer"):
        raise FileNotFoundError(
            "compute-sanitizer is not on the PATH: it comes with CUDA's toolkit"
        )
    step = stage.run(
        tool,
        [*command, *pytest(stage), *there(tests)],
        KHOP_TEST_EXAMPLES=_EXAMPLES,
        # Each tensor is an allocation of its own: no other one lies beyond it.
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
    )
    step.about = findings_in(stage.output)
    # CUB's scans and sorts read unwritten memory by design, and torch's kernels are not khop's:
    # findings in them are reported, but are no failure.
    if step.code == FOUND:
        in_khop = step.about["in khop"] + step.about["of unknown kind"]
        step.passed = in_khop == 0 and step.about["tests passed"]
    print(step.about)


def findings_in(output: str) -> dict[str, Any]:
    """Return the findings of compute-sanitizer and pytest.

    Args:
        output: output of both.

    Returns:
        - `findings`: number of printed findings
        - `in khop`: number of these in khop's kernels or copies, not in CUB's or torch's
        - `of unknown kind`: number of further findings that the tool counts
        - `first`: first lines of a finding in khop, or else of any
        - `summary`, `tests`: last lines of the tool and of pytest
        - `tests passed`
    """
    findings: list[list[str]] = []
    is_open = False
    for line in output.splitlines():
        if _FINDING.match(line):
            findings.append([])
            is_open = True
        is_open = is_open and line.startswith("=========") and line.strip("= ") != ""
        if is_open:
            findings[-1].append(line)
    in_khop = [finding for finding in findings if _is_ours(finding)]
    summary = re.findall(r"^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)$", output, re.MULTILINE)
    counted = sum(map(int, re.findall(r"^=+ ERROR SUMMARY: (\d+) error", output, re.MULTILINE)))
    ended = re.findall(
        r"^(?:=+ )?((?:\d+ \w+, )*\d+ \w+ in [\d.]+s.*?)(?: =+)?$", output, re.MULTILINE
    )
    tests_end = ended[-1] if ended else ""
    return {
        "findings": len(findings),
        "in khop": len(in_khop),
        "of unknown kind": max(0, counted - len(findings)) if len(findings) < _PRINTED else 0,
        "first": (in_khop or findings or [[]])[0][:6],
        "summary": summary[-1] if summary else None,
        "tests": tests_end or None,
        "tests passed": "passed" in tests_end and not re.search("failed|error", tests_end),
    }


def _is_ours(finding: Sequence[str]) -> bool:
    """Return True for a finding in a function of khop, or in a copy that khop started."""
    if "Host API" in finding[0]:
        return any("_native." in line for line in finding)
    scopes = (match["scope"] for line in finding if (match := _PLACE.search(line)))
    return next(scopes, "khop") == "khop"
