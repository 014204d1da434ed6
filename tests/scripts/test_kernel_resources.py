"""`scripts/kernel_resources`: what ptxas said of khop's kernels, and what is allowed of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import script_modules

SCRIPT = Path(__file__).parents[2] / "scripts" / "kernel_resources"

# Of nvcc 13.0 for sm_80, shortened: an ordinary step, one with an array in local memory, one that
# spills, and a kernel of CUB.
REPORT = """\
ptxas info    : 30 bytes gmem
ptxas info    : Compiling entry function '{seeds}' for 'sm_80'
ptxas info    : Function properties for {seeds}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 26 registers, used 0 barriers, 544 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 12.933 ms
ptxas info    : Compiling entry function '{pick}' for 'sm_80'
ptxas info    : Function properties for {pick}
    192 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 64 registers, 192 bytes cumulative stack size, 608 bytes cmem[0]
ptxas info    : Compiling entry function '{split}' for 'sm_80'
ptxas info    : Function properties for {split}
    8 bytes stack frame, 12 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 480 bytes cmem[0]
ptxas info    : Compiling entry function '{sort}' for 'sm_80'
ptxas info    : Function properties for {sort}
    16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 2336 bytes smem, 360 bytes cmem[0]
"""
NAMES = {
    "seeds": "_ZN4khop4cuda8run_stepINS_6device10PlaceSeedsEEEvNS_5CountET_",
    "pick": "_ZN4khop4cuda8run_stepINS_6device8PickRowsIliEEEEvNS_5CountET_",
    "split": "_ZN4khop4cuda8run_stepINS_6device16SplitGatherWordsINS2_6Word16ElEEEEvNS_5CountET_",
    "sort": "_ZN3cub18CUB_300001_SM_10006detail10radix_sort33DeviceRadixSortExclusiveSumKernelINS1"
    "_5radix10policy_hubImlyE10Policy1000EyEEvPT0_",
}

needs_demangler = pytest.mark.skipif(shutil.which("c++filt") is None, reason="no c++filt")


@pytest.fixture(scope="module")
def script():
    return script_modules.load("kernel_resources")


@pytest.fixture
def build(tmp_path):
    """A build folder with the report in it."""
    folder = tmp_path / "build"
    folder.mkdir()
    (folder / "device.cu.o.ptxas").write_text(REPORT.format(**NAMES))
    return folder


def test_figures_are_read(script):
    found = script.parse(REPORT.format(**NAMES))
    figures = [(k.registers, k.stack, k.spills, k.shared, k.constant) for k in found]
    assert figures == [
        (26, 0, 0, 0, 552),
        (64, 192, 0, 0, 608),
        (32, 8, 24, 0, 480),
        (32, 16, 8, 2336, 360),
    ]
    assert {k.architecture for k in found} == {"sm_80"}


def test_functions_that_kernels_call_are_read(script):
    """What is not inlined has a stack frame of its own."""
    report = REPORT.format(**NAMES) + (
        "ptxas info    : Function properties for _ZN4khop4slowEv\n"
        "    24 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
    )
    (kernel,) = (k for k in script.parse(report) if k.name == "_ZN4khop4slowEv")
    assert (kernel.stack, kernel.spills, kernel.registers) == (24, 8, 0)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void khop::cuda::run_step<khop::device::PickRows<long, int> >(khop::device::Count, "
            "khop::device::PickRows<long, int>)",
            "PickRows<int64, int32>",
        ),
        (
            "void khop::cuda::run_step<khop::device::MarkKept<khop::device::KeepEdges<int, "
            "unsigned long> > >(khop::device::Count, khop::device::MarkKept<int>)",
            "MarkKept<KeepEdges<int32, uint64>>",
        ),
        (
            "void khop::cuda::(anonymous namespace)::run_blocks<khop::device::ScanTiles, 256>"
            "(khop::device::ScanTiles)",
            "ScanTiles (run_blocks)",
        ),
        ("khop::cuda::(anonymous namespace)::clear(unsigned long*)", "clear"),
        (
            "void cub::CUB_300001_SM_900::detail::EmptyKernel<void>()",
            "cub EmptyKernel",
        ),
    ],
)
def test_names_say_what_a_kernel_does(script, name, short):
    assert script.short_name(name) == short


@pytest.mark.parametrize(
    ("architecture", "registers", "share"),
    [
        ("sm_90", 32, 1.0),
        ("sm_90", 33, 0.75),  # registers come by the eight: 40 x 256 of 65,536 six times
        ("sm_90", 64, 0.5),
        ("sm_90", 72, 0.375),
        ("sm_100", 255, 0.125),
        ("sm_86", 40, 1.0),  # of 48 warps
        ("sm_86", 64, 2 / 3),
    ],
)
def test_occupancy(script, architecture, registers, share):
    kernel = script.Kernel("x", architecture, registers)
    assert kernel.occupancy == pytest.approx(share)


@needs_demangler
def test_spills_and_unlisted_local_memory_are_named(script, build, capsys):
    """A spill; local memory of what is not in the list; not what CUB does."""
    assert script.main(["check", str(build)]) == 1
    told = capsys.readouterr()
    assert "SplitGatherWords<Word16, int64> (sm_80) spills registers: 24 bytes" in told.err
    assert "cub" not in told.err
    assert "| PickRows<int64, int32> " in told.out
    assert len({len(line) for line in told.out.splitlines()}) == 1


@needs_demangler
def test_the_list_of_local_memory(script, build, capsys, monkeypatch):
    """What is in it passes; what is in it for nothing does not."""
    report = REPORT.format(**NAMES).replace("12 bytes spill", "0 bytes spill")
    report = report.replace("    8 bytes stack", "    0 bytes stack")
    (build / "device.cu.o.ptxas").write_text(report)
    monkeypatch.setattr(script, "LOCAL_MEMORY", {"PickRows": "a reason"})
    assert script.main(["check", str(build)]) == 0
    monkeypatch.setattr(script, "LOCAL_MEMORY", {})
    assert script.main(["check", str(build)]) == 1
    assert "PickRows<int64, int32> (sm_80) uses 192 bytes of local" in capsys.readouterr().err
    monkeypatch.setattr(script, "LOCAL_MEMORY", {"PickRows": "a reason", "EndHop": "another"})
    assert script.main(["check", str(build)]) == 1
    assert "EndHop uses no local memory: take it from" in capsys.readouterr().err


@needs_demangler
def test_the_page(script, build, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "LOCAL_MEMORY", {"PickRows": "a reason"})
    file = tmp_path / "page.md"
    script.main(["check", str(build), "--write", str(file)])
    text = file.read_text()
    assert "nvcc of unknown version for sm_80;" in text
    assert text.endswith("- `PickRows`: a reason.\n")


def test_a_folder_without_a_record(script, tmp_path, capsys):
    assert script.main(["check", str(tmp_path)]) == 2
    assert "no compilation was recorded in" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 3])
def test_a_compilation_is_recorded(tmp_path, code):
    """Its warnings are shown, ptxas's report is not; nothing is kept of one that fails."""
    if not SCRIPT.exists():
        pytest.skip("khop is tested without its repository")
    compiler = tmp_path / "nvcc"
    (tmp_path / "said").write_text("warning: careful\n" + REPORT.format(**NAMES))
    compiler.write_text(f'#!/bin/sh\ncat {tmp_path}/said >&2\necho "$@"\nexit {code}\n')
    compiler.chmod(0o755)
    made = tmp_path / "x.o"
    command = [sys.executable, SCRIPT, "record", compiler, "-c", "x.cu", "-o", made]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr == f"warning: careful\n-c x.cu -o {made} -Xptxas=-v\n"
    report = tmp_path / "x.o.ptxas"
    assert report.exists() == (code == 0)
    assert code or report.read_text() == REPORT.format(**NAMES)
