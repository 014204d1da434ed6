"""Stages that measure: parts of the benchmark, kernel times, random loaders, and Nsight Compute."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from khop_bench.gpu.runner import ROOT, Stage

_TINY = ("--repeat", "1", "--batches", "1", "--configurations", "5")
_DRY_SCALE = 0.001
_SMALL_SCALE = 0.05
_COUNTED = "AppendEdges|SumBefore|EndHop|SplitGatherWords"
"""The kernels that Nsight Compute examines."""


def bench_small(stage: Stage) -> None:
    """Compare 1,000 random batches with the CPU's, then measure all parts on a small graph."""
    _bench(stage, _SMALL_SCALE, [])


def graph(stage: Stage) -> None:
    """Make the graph on which later stages measure, or find it in the cache."""
    code = (
        "import sys; from pathlib import Path; from khop_bench.graphs import Graphs; "
        "print(Graphs(Path(sys.argv[1]), float(sys.argv[2])).products())"
    )
    cache, scale = stage.options.cache, _scale(stage)
    stage.run("graph", [sys.executable, "-c", code, cache, scale])


def _scale(stage: Stage) -> str:
    return f"{_DRY_SCALE if stage.options.is_dry else stage.options.scale:g}"


def training(stage: Stage) -> None:
    """Measure a training step with the loader beside it, and on one batch again and again."""
    _bench(stage, stage.options.scale, ["training"])


def sampling(stage: Stage) -> None:
    """Measure sampling, with and without a CUDA graph, from device memory and from host memory."""
    _bench(stage, stage.options.scale, ["sampling"])


def gathers(stage: Stage) -> None:
    """Measure gathers from device memory and from the host's, sorted and not."""
    _bench(stage, _SMALL_SCALE, ["gathering"])  # its table is of one size at any scale


def _bench(stage: Stage, scale: float, parts: list[str]) -> None:
    """Run parts of the suite `device`. Their report becomes a part of the stage's file."""
    options = stage.options
    folder = options.out / f"{stage.name}-report"
    shutil.rmtree(folder, ignore_errors=True)
    stage.run(
        "benchmark",
        [
            *(sys.executable, ROOT / "benchmarks" / "run.py", "device"),
            *("--device", options.device, "--output", folder, "--cache", options.cache),
            *("--scale", f"{_DRY_SCALE if options.is_dry else scale:g}"),
            *(word for part in parts for word in ("--part", part)),
            *(_TINY if options.is_dry else ()),
        ],
    )
    for file in sorted(folder.glob("*.json")):
        stage.results["report"] = json.loads(file.read_text())
    for file in sorted(folder.glob("*.md")):
        file.replace(options.out / f"{stage.name}.md")
    shutil.rmtree(folder, ignore_errors=True)


def kernel_times(stage: Stage) -> None:
    """Measure each kernel of a batch beside the model's prediction, by torch's profiler."""
    stage.run("kernel times", _kernel_times(stage, stage.options.out / "kernel-times-found.json"))
    _take(stage, stage.options.out / "kernel-times-found.json")


def _kernel_times(stage: Stage, output: Path | None, *more: str) -> list[str]:
    options = stage.options
    return [
        *(sys.executable, "-m", "khop_bench.gpu.kernel_times", "--device", options.device),
        *("--scale", _scale(stage)),
        *("--cache", str(options.cache), "--batches", "2" if options.is_dry else "20"),
        *(("--output", str(output)) if output is not None else ()),
        *more,
    ]


def steps(stage: Stage) -> None:
    """Compare and measure padded batches and captured steps, with and without dependent launch."""
    for ahead in "1" if stage.options.is_dry else "10":
        program(stage, "steps", f"dependent launch {ahead}", KHOP_DEPENDENT_LAUNCH=ahead)


def program(stage: Stage, module: str, name: str = "found", **environment: str) -> None:
    """Run the program `khop_bench.gpu.<module>`, and add what it has found to the stage's file.

    Args:
        stage: the stage.
        module: name of the module. Its program takes `--device`, `--scale`, `--cache` and
            `--output`, the file to which it writes its results as JSON whenever it has some.
        name: key of the results.
        environment: variables for the program.
    """
    options = stage.options
    output = options.out / f"{module}-found.json"
    words = [sys.executable, "-m", f"khop_bench.gpu.{module}", "--device", options.device]
    words += ["--scale", _scale(stage), "--cache", str(options.cache), "--output", str(output)]
    stage.run(name, words, limit=stage.left, **environment)
    _take(stage, output, name)


def random_loaders(stage: Stage) -> None:
    """Compare random loaders with the CPU's, on several streams and with little free memory."""
    output = stage.options.out / "random-loaders-found.json"
    seconds = 2.0 if stage.options.is_dry else stage.left - 20  # for imports, and the end
    stage.run(
        "random loaders",
        [
            *(sys.executable, "-m", "khop_bench.gpu.random_loaders"),
            *("--device", stage.options.device, "--seconds", f"{max(seconds, 1):.0f}"),
            *("--output", output),
        ],
    )
    _take(stage, output)


def methods(stage: Stage) -> None:
    """Compare and measure methods that draw for all rows of a hop together."""
    program(stage, "methods")


def node_group(stage: Stage) -> None:
    """Gather from a table that the GPUs of two trainers hold together, which may be one GPU."""
    output = stage.options.out / "node-group-found.json"
    stage.run(
        "node group",
        [
            *(sys.executable, "-m", "khop_bench.gpu.node_group", "--output", output),
            *("--device", stage.options.device),
            *("--rows", "2000" if stage.options.is_dry else "2000000"),
        ],
    )
    _take(stage, output)


def partitions(stage: Stage) -> None:
    """Draw partitions by the devices of two trainers, and compare with the CPU's draws."""
    program(stage, "partitions")


def ncu(stage: Stage) -> None:
    """Examine the kernels of batches with Nsight Compute. A dry run only draws the batches."""
    command = [
        *("ncu", "--clock-control", "none", "--kernel-name-base", "demangled"),
        *("--kernel-name", f"regex:{_COUNTED}", "--launch-skip", "20", "--launch-count", "24"),
        *("--section", "SpeedOfLight", "--section", "MemoryWorkloadAnalysis"),
        *("--section", "LaunchStats", "--section", "Occupancy", "--section", "WarpStateStats"),
    ]
    if stage.options.is_dry:
        command = []
    elif not shutil.which("ncu"):
        raise FileNotFoundError("ncu is not on the PATH: it comes with CUDA's toolkit")
    stage.run("ncu", [*command, *_kernel_times(stage, None, "--plain")])
    stage.results["output"] = stage.output.splitlines()


def _take(stage: Stage, file: Path, name: str = "found") -> None:
    """Add the results that a program has written to the stage's file."""
    if file.exists():
        stage.results[name] = json.loads(file.read_text())
        file.unlink()
