"""Builds an extension with all faults, on the tests' CUDA runtime. One is active at a time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mutants.fault import Fault

ROOT = Path(__file__).resolve().parents[2]

_SWITCH = """#pragma once
extern "C" {
// Number of the fault that is switched on; 0: none.
__attribute__((visibility("default"))) inline int khop_active_fault = 0;
}
"""

# For programs that tests start.
_AT_START = """import ctypes
import os

if "KHOP_FAULT" in os.environ:
    from khop import _native

    library = ctypes.CDLL(_native.__file__)
    ctypes.c_int.in_dll(library, "khop_active_fault").value = int(os.environ["KHOP_FAULT"])
"""


def apply(faults: Sequence[Fault], kernels: Path) -> None:
    """Puts all faults into a copy of the kernels.

    Raises:
        ValueError: the text that a fault replaces does not stand there once.
    """
    for number, fault in enumerate(faults, 1):
        path = kernels / "khop" / fault.file
        text = path.read_text()
        if text.count(fault.old) != 1:
            raise ValueError(
                f"'{fault.name}' replaces a text that {fault.file} has {text.count(fault.old)} "
                f"times: {fault.old!r}"
            )
        new = re.sub(r"\bM\b", f"(khop_active_fault == {number})", fault.new)
        path.write_text(text.replace(fault.old, new))


def build(faults: Sequence[Fault], folder: Path, jobs: int) -> Path:
    """Builds the extension, and returns the folder of a package `khop` with it."""
    tree = folder / "tree"
    fresh = folder / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(ROOT / "kernels", fresh / "kernels")
    shutil.copytree(ROOT / "tests" / "fake_cuda", fresh / "tests" / "fake_cuda")
    apply(faults, fresh / "kernels")
    lists = fresh / "kernels" / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace("-O3", "-O1"))  # half the time
    _update(fresh, tree)
    switch = folder / "switch.hpp"
    if not switch.exists():
        switch.write_text(_SWITCH)
    binaries = folder / "build"
    environment = {**os.environ, "CXXFLAGS": f"-include {switch}"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    configure = ["cmake", "-S", tree / "kernels", "-B", binaries, "-G", "Ninja"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", "-DKHOP_CUDA=fake"]
    for command in (configure, ["cmake", "--build", binaries, f"-j{jobs}"]):
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    package = folder / "python" / "khop"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for path in (ROOT / "src" / "khop").iterdir():
        if not path.name.startswith("_native.") or path.suffix == ".pyi":
            (package / path.name).symlink_to(path)
    (extension,) = binaries.glob("_native*.so")
    (package / extension.name).symlink_to(extension)
    (package.parent / "sitecustomize.py").write_text(_AT_START)
    return package.parent


def _update(fresh: Path, tree: Path) -> None:
    """Moves files that have changed: what depends on no other is not built again."""
    for path in sorted(p for p in fresh.rglob("*") if p.is_file()):
        old = tree / path.relative_to(fresh)
        if not old.exists() or old.read_bytes() != path.read_bytes():
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, old)
    shutil.rmtree(fresh)
