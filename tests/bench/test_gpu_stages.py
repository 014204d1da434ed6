"""What stages of `scripts/gpu_check` would run on a GPU, and how they read what it prints."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from khop_bench import command as benchmark
from khop_bench.gpu import builds, measuring, sanitizing, testing
from khop_bench.gpu.runner import ROOT, Options, Stage, Step

SUMMARY = "========= ERROR SUMMARY: 2 errors\n"
PASSED = "12 passed, 3 deselected, 1 warning in 4.56s\n"


@pytest.fixture
def asked(monkeypatch):
    """On what seems to be a GPU: {name: step} of those asked for, none of them run."""
    found = {}

    def run(stage, name, command, limit=None, **environment):
        stage.output = found.pop("output", PASSED)
        code = found.pop("code", 0)
        found[name] = Step(name, " ".join(map(str, command)), code, passed=code == 0)
        return found[name]

    monkeypatch.setattr(Stage, "run", run)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    return found


@pytest.fixture
def stage(tmp_path):
    return Stage("some", Options(tmp_path, tmp_path / "build", tmp_path / "cache"), 100, {})


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
def test_findings_are_told_apart_by_whose_kernel_they_are_in(output, total, ours):
    found = sanitizing.findings_in(output)
    assert (found["findings"], found["in khop"]) == (total, ours)


def test_copies_are_told_apart_by_who_asks_for_them():
    copy = "========= Host API memory access error at host access to 0x7f of size 8 bytes\n"
    copy += "=========     Uninitialized access at 0x7f on access by cudaMemcpy source\n"
    theirs = copy + "=========     Host Frame: at::copy_ in /x/libtorch_cuda.so\n=========\n"
    mine = copy + "=========     Host Frame: download in /x/_native.cpython-312.so\n=========\n"
    found = sanitizing.findings_in(theirs + mine + theirs)
    assert (found["findings"], found["in khop"]) == (3, 1)
    assert "_native." in found["first"][2]


@pytest.mark.parametrize(("errors", "unknown"), [(0, 0), (1, 0), (2, 0), (5, 3)])
def test_findings_that_are_only_counted_are_of_unknown_kind(errors, unknown):
    summary = f"========= ERROR SUMMARY: {errors} errors\n"
    found = sanitizing.findings_in(finding(READ, CUBS) + finding(READ, TORCHS) + summary)
    assert (found["in khop"], found["of unknown kind"]) == (0, unknown)


@pytest.mark.parametrize(("errors", "passes"), [(1, True), (2, False)])
def test_unknown_findings_fail_memcheck(stage, asked, errors, passes):
    output = finding(READ, CUBS) + PASSED + f"========= ERROR SUMMARY: {errors} errors\n"
    asked.update(output=output, code=sanitizing.FOUND)
    sanitizing.memcheck(stage)
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
def test_the_end_of_the_tests_is_read(line, passed):
    found = sanitizing.findings_in("========= COMPUTE-SANITIZER\n" + line + SUMMARY)
    assert found["tests passed"] is passed
    assert found["summary"] == "ERROR SUMMARY: 2 errors"


def test_memcheck_looks_for_races_of_allocations(stage, asked):
    """Of memory that streams allocate and free; racecheck would see shared memory alone."""
    sanitizing.memcheck(stage)
    command = asked["memcheck"].command
    assert " --tool memcheck " in command
    assert " --track-stream-ordered-races all " in command
    assert " -m gpu tests/kernels/test_gpu_boundary.py " in command


NAMED = {
    *(*testing.BOUNDARY, *testing.SHARING, *testing.MEMORY),
    *(*sanitizing.MEMCHECKED, *sanitizing.INITCHECKED, *sanitizing.SHARED_MEMORY),
}


@pytest.mark.parametrize("test", sorted(NAMED))
def test_tests_that_stages_name_exist(test):
    """And need a GPU: `-m gpu` would leave out others."""
    file, _, name = test.partition("::")
    text = (Path(__file__).parents[2] / file).read_text()
    assert re.search(rf"^def {name}\(", text, re.MULTILINE) or not name
    assert re.search("gpu|KINDS|device", text)


def test_all_tests_are_run_once(stage, asked):
    """Those of the boundary first, then kernels, then the rest."""
    for run in (testing.boundary, testing.kernels, testing.sharing, testing.tests):
        run(stage)
    boundary, kernels, sharing, rest = (step.command.split() for step in asked.values())
    assert "tests/kernels/test_gpu_boundary.py" in boundary
    assert kernels[-1] == "tests/kernels"
    assert "--ignore=tests/kernels/test_gpu_boundary.py" in kernels
    assert rest[-1] == "tests"
    assert "--ignore=tests/kernels" in rest
    assert {f"--ignore={file}" for file in testing.SHARING} <= {*rest}
    assert {*testing.SHARING} <= {*sharing}


@pytest.mark.parametrize(
    ("run", "parts"),
    [
        (measuring.bench_small, None),
        (measuring.training, ["training"]),
        (measuring.gathers, ["gathering"]),
    ],
)
def test_the_benchmark_knows_its_arguments(stage, monkeypatch, run, parts):
    words = []
    monkeypatch.setattr(Stage, "run", lambda stage, name, command: words.extend(command))
    run(stage)
    parser = argparse.ArgumentParser()
    benchmark.add_arguments(parser)
    given = parser.parse_args([str(word) for word in words[2:]])
    assert (given.suites, given.device, given.part) == (["device"], "cuda", parts)


def test_a_build_is_installed_and_brought_back(stage, asked, monkeypatch, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr(builds, "PACKAGE", package)
    monkeypatch.setattr(builds, "machine_code", lambda file: {"sm_90": 3})
    (package / "_native.old.so").write_text("old")
    stage.options.build.mkdir()
    (stage.options.build / "_native.abi3.so").write_text("new")
    builds.build(stage)
    assert [file.name for file in package.iterdir()] == ["_native.abi3.so"]
    assert (stage.options.out / "_native.abi3.so").read_text() == "new"
    assert stage.results["code"] == {"sm_90": 3}
    assert "-DKHOP_CUDA=on" in asked["configure"].command
    assert str(ROOT / "scripts" / "kernel_resources") in asked["kernel resources"].command


def test_the_toolkit_is_that_of_the_build(tmp_path):
    assert builds.toolkit_of(tmp_path) is None
    folder = tmp_path / "CMakeFiles" / "3.31.6"
    folder.mkdir(parents=True)
    (folder / "CMakeCUDACompiler.cmake").write_text(
        'set(CMAKE_CUDA_COMPILER "/opt/cuda/bin/nvcc")\n'
        'set(CMAKE_CUDA_HOST_COMPILER "")\n'
        'set(CMAKE_CUDA_COMPILER_VERSION "12.4.131")\n'
    )
    assert builds.toolkit_of(tmp_path) == "12.4.131, /opt/cuda/bin/nvcc"
