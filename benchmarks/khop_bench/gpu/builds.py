"""Stages `build` and `doctor`: the extension for the GPU of this machine, and `khop doctor`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from khop_bench.gpu.runner import ROOT, Stage

RESOURCES = ROOT / "scripts" / "kernel_resources"
PACKAGE = ROOT / "src" / "khop"


def build(stage: Stage) -> None:
    """Build the extension, warnings being errors, and put a copy beside the results."""
    options = stage.options
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    launcher = f"{sys.executable};{RESOURCES};record"
    folder = (
        options.build.with_name(f"{options.build.name}-dry") if options.is_dry else options.build
    )
    stage.run(
        "configure",
        [
            *("cmake", "-S", str(ROOT / "kernels"), "-B", str(folder), *generator),
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DKHOP_CUDA={'off' if options.is_dry else 'on'}",
            "-DKHOP_CUDA_ARCHITECTURES=native",
            "-DKHOP_CUDA_LINEINFO=ON",
            f"-DCMAKE_CUDA_COMPILER_LAUNCHER={launcher}",
            "-DKHOP_WERROR=ON",
        ],
        90,
    )
    if options.is_dry:
        return
    step = stage.run("build", ["cmake", "--build", folder, "--parallel"])
    if step.code:  # warnings of another compiler must not prevent measurements
        stage.run("configure leniently", ["cmake", "-B", folder, "-DKHOP_WERROR=OFF"], 60)
        stage.run("build leniently", ["cmake", "--build", folder, "--parallel"])
    for made in sorted(folder.glob("_native*.so")):
        install(made)
        shutil.copy2(made, options.out)
        stage.results = {"extension": made.name, "bytes": made.stat().st_size}
        stage.results["toolkit"] = toolkit_of(folder)
        stage.results["code"] = machine_code(made)
        stage.write()
    stage.run("kernel resources", [sys.executable, RESOURCES, "check", folder], 30)


def install(extension: Path) -> None:
    """Install an extension in this checkout.

    Args:
        extension: the file `_native...so`.
    """
    for old in PACKAGE.glob("_native*.so"):
        old.unlink()
    shutil.copy2(extension, PACKAGE)


def machine_code(extension: Path) -> dict[str, int]:
    """Return the architectures that an extension has code for, and how many files of each.

    Args:
        extension: the file. Without cuobjdump, empty.
    """
    if not shutil.which("cuobjdump"):
        return {}
    listed = subprocess.run(
        ["cuobjdump", "-lelf", "-lptx", str(extension)], capture_output=True, text=True, check=False
    )
    names = re.findall(r"sm_\w+", listed.stdout)
    return {name: names.count(name) for name in sorted(set(names))}


def toolkit_of(folder: Path) -> str | None:
    """Return the CUDA compiler of a build with its version: '13.0.48, /usr/local/cuda/bin/nvcc'.

    Args:
        folder: folder of the build.
    """
    for file in sorted(folder.glob("CMakeFiles/*/CMakeCUDACompiler.cmake")):
        text = file.read_text()
        matches = [
            re.search(rf'set\(CMAKE_CUDA_COMPILER{name} "([^"]+)"\)', text)
            for name in ("_VERSION", "")
        ]
        return ", ".join(match[1] for match in matches if match)
    return None


def doctor(stage: Stage) -> None:
    """Run `khop doctor`, and fail if no GPU can be used."""
    step = stage.run("doctor", [sys.executable, "-m", "khop.cli.main", "doctor", "--json"])
    try:
        stage.results["doctor"] = json.loads(stage.output[stage.output.index("{") :])
    except ValueError:
        step.passed = False
        return
    matches = stage.results["doctor"].get("CUDA", {})
    if not stage.options.is_dry and not matches.get("usable"):
        step.passed = False
        print(f"no GPU can be used: {matches}")
