"""`scripts/gpu_check`, as far as it goes without a GPU: stages, limits, and what findings are."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from support import script_modules

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check"
SUMMARY = "========= ERROR SUMMARY: 2 errors\n"
PASSED = "12 passed, 3 deselected, 1 warning in 4.56s\n"


@pytest.fixture(scope="module")
def script():
    return script_modules.load("gpu_check")


@pytest.fixture
def check(script, tmp_path):
    environment = {"PATH": "/usr/bin:/bin", "OUT": str(tmp_path / "out")}
    return script.Check({**environment, "KHOP_DEVICE": "emulated"})


@pytest.fixture
def asked(script, check, monkeypatch):
    """On what seems to be a GPU: {name: stage} of those asked for, none of them run."""
    found = {}

    def run(name, command, limit, **environment):
        check.outputs[name] = found.pop("output", PASSED)
        code = found.pop("code", 0)
        found[name] = script.Stage(name, " ".join(map(str, command)), code, passed=code == 0)
        return found[name]

    check.is_cuda = True
    monkeypatch.setattr(check, "run", run)
    monkeypatch.setattr(script.shutil, "which", lambda name: f"/usr/bin/{name}")
    return found


def finding(kind, place):
    return (
        f"========= {kind}\n"
        f"=========     at {place}+0x60 in x.cuh:20\n"
        "=========     by thread (0,0,0) in block (0,0,0)\n"
        "=========     Host Frame: run [0x1] in /src/khop/_native.cpython-312.so\n"
        "=========\n"
    )


READ = "Uninitialized __global__ memory read of size 8 bytes"
OURS = "void khop::cuda::run_step<khop::device::GatherWords<unsigned int>>(khop::device::Count, T1)"
CUBS = "void cub::DeviceScanKernel<khop::cuda::SumEntry<khop::device::Degrees>>(T1)"
TORCHS = "void at::native::elementwise_kernel<128>(int)"


@pytest.mark.parametrize(
    ("output", "total", "ours"),
    [
        ("========= COMPUTE-SANITIZER\n" + PASSED, 0, 0),
        (finding(READ, CUBS) + finding(READ, TORCHS) + PASSED + SUMMARY, 2, 0),
        (finding(READ, CUBS) + finding("Invalid __global__ write of size 4 bytes", OURS), 2, 1),
        ("========= Error: Race reported between Write access at void khop::cuda::f<int>\n", 1, 1),
        ("========= Warning: Race reported between Read access at void cub::g<int>\n", 1, 0),
        (finding("Invalid __shared__ read of size 4 bytes", "plain_kernel(int *)"), 1, 1),
    ],
)
def test_findings_are_told_apart_by_whose_kernel_they_are_in(script, output, total, ours):
    found = script.sanitizer_findings(output)
    assert (found["findings"], found["in khop"]) == (total, ours)


def test_copies_are_told_apart_by_who_asks_for_them(script):
    copy = "========= Host API memory access error at host access to 0x7f of size 8 bytes\n"
    copy += "=========     Uninitialized access at 0x7f on access by cudaMemcpy source\n"
    theirs = copy + "=========     Host Frame: at::copy_ in /x/libtorch_cuda.so\n=========\n"
    mine = copy + "=========     Host Frame: download in /x/_native.cpython-312.so\n=========\n"
    found = script.sanitizer_findings(theirs + mine + theirs)
    assert (found["findings"], found["in khop"]) == (3, 1)
    assert "_native." in found["first"][2]


@pytest.mark.parametrize(("errors", "unknown"), [(0, 0), (1, 0), (2, 0), (5, 3)])
def test_findings_that_are_only_counted_are_of_unknown_kind(script, errors, unknown):
    summary = f"========= ERROR SUMMARY: {errors} errors\n"
    found = script.sanitizer_findings(finding(READ, CUBS) + finding(READ, TORCHS) + summary)
    assert (found["in khop"], found["of unknown kind"]) == (0, unknown)


@pytest.mark.parametrize(("errors", "passes"), [(1, True), (2, False)])
def test_unknown_findings_fail_memcheck(script, check, asked, errors, passes):
    output = finding(READ, CUBS) + PASSED + f"========= ERROR SUMMARY: {errors} errors\n"
    asked.update(output=output, code=script.FOUND)
    script.memcheck(check)
    assert asked["memcheck"].passed is passes


@pytest.mark.parametrize(
    ("line", "passed"),
    [
        (PASSED, True),
        ("=========== 5 passed in 0.10s ===========\n", True),
        ("1 failed, 4 passed in 0.10s\n", False),
        ("2 passed, 1 error in 0.10s\n", False),
        ("3 deselected in 0.10s\n", False),
        ("", False),
    ],
)
def test_the_end_of_the_tests_is_read(script, line, passed):
    found = script.sanitizer_findings("========= COMPUTE-SANITIZER\n" + line + SUMMARY)
    assert found["tests passed"] is passed
    assert found["summary"] == "ERROR SUMMARY: 2 errors"


def test_stages_are_recorded_whatever_becomes_of_them(check):
    """One that passes, one that fails, one that cannot be started."""
    check.run("good", ["sh", "-c", "echo fine"], 10)
    check.run("bad", ["sh", "-c", "echo broken; exit 3"], 10)
    check.run("absent", ["no-such-command"], 10)
    assert [(s.name, s.code, s.passed) for s in check.stages] == [
        *(("good", 0, True), ("bad", 3, False), ("absent", None, False))
    ]
    assert check.stages[1].last_lines == ["broken"]
    log = (check.out / "gpu_check.log").read_text()
    assert "== good: sh -c echo fine\nfine\n" in log
    assert "broken\n" in log


def test_a_stage_ends_at_its_limit_with_all_it_started(check):
    begin = time.monotonic()
    stage = check.run("endless", ["sh", "-c", "echo begun; sleep 60 & sleep 60"], 0.5)
    assert time.monotonic() - begin < 20
    assert (stage.code, stage.passed, stage.last_lines) == (None, False, ["begun"])


@pytest.fixture
def begun(script, monkeypatch, tmp_path):
    """Stages that only note that they were begun; in the end, their names."""
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setenv("KHOP_DEVICE", "emulated")
    names = []
    for name in script.STAGES:
        monkeypatch.setitem(script.STAGES, name, lambda check, name=name: names.append(name))
    return names


@pytest.mark.parametrize("fails", [False, True])
def test_the_report(script, begun, monkeypatch, tmp_path, fails):
    """One file with everything; the exit status says whether all passed."""
    monkeypatch.setitem(
        script.STAGES, "build", lambda check: check.run("build", ["false" if fails else "true"], 5)
    )
    monkeypatch.setitem(script.STAGES, "bench", lambda check: {"schema": 1})
    assert script.main([]) == int(fails)
    report = json.loads((tmp_path / "out" / "emulated.json").read_text())
    assert report["passed"] is not fails
    assert report["bench"] == {"schema": 1}
    assert [stage["name"] for stage in report["stages"]] == ["build"]
    assert begun == ["doctor", "boundary", "kernels", "memcheck", "tests", "sanitizers"]


def test_some_stages(script, begun, capsys):
    """In the order in which they always are."""
    assert script.main(["bench", "build"]) == 0
    assert begun == ["build", "bench"]
    assert script.main(["bench", "benhc"]) == 2
    assert begun == ["build", "bench"]
    assert "no stage 'benhc': there are build, doctor, " in capsys.readouterr().err


def test_the_toolkit_is_that_of_the_build(script, tmp_path):
    assert script.toolkit_of(tmp_path) is None
    folder = tmp_path / "CMakeFiles" / "3.31.6"
    folder.mkdir(parents=True)
    (folder / "CMakeCUDACompiler.cmake").write_text(
        'set(CMAKE_CUDA_COMPILER "/opt/cuda/bin/nvcc")\n'
        'set(CMAKE_CUDA_HOST_COMPILER "")\n'
        'set(CMAKE_CUDA_COMPILER_VERSION "12.4.131")\n'
    )
    assert script.toolkit_of(tmp_path) == "12.4.131, /opt/cuda/bin/nvcc"


def test_memcheck_looks_for_races_of_allocations(script, check, asked):
    """Of memory that streams allocate and free; racecheck would see shared memory alone."""
    script.memcheck(check)
    command = asked["memcheck"].command
    assert " --tool memcheck " in command
    assert " --track-stream-ordered-races all " in command
    assert " -m gpu tests/kernels/test_gpu_boundary.py " in command


def test_racecheck_runs_where_shared_memory_is_used(script, check, asked, monkeypatch):
    monkeypatch.setattr(script, "SHARED_MEMORY", ("tests/kernels/test_device.py",))
    script.sanitizers(check)
    assert list(asked) == ["racecheck", "initcheck"]
    assert asked["racecheck"].command.endswith(" -m gpu tests/kernels/test_device.py")
    asked.clear()
    monkeypatch.setattr(script, "SHARED_MEMORY", ("tests/kernels/no_such_test.py",))
    script.sanitizers(check)
    assert list(asked) == ["initcheck"]


def test_all_tests_are_run_once(script, check, asked):
    """Those of the boundary first, then kernels, then the rest."""
    for stage in ("boundary", "kernels", "tests"):
        script.STAGES[stage](check)
    boundary, kernels, rest = (stage.command.split() for stage in asked.values())
    assert "tests/kernels/test_gpu_boundary.py" in boundary
    assert kernels[-1] == "tests/kernels"
    assert "--ignore=tests/kernels/test_gpu_boundary.py" in kernels
    assert rest[-1] == "tests"
    assert "--ignore=tests/kernels" in rest
