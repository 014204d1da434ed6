"""The floor's native module, `_khop_floor`: found, or built from the checkout on first use.

Its sources are in `kernels/floor`. khop's own extension does not contain them. `load_floor` takes
the module from Python's path, where `scripts/sanitize` puts one, and else builds it in
`build/floor`: some seconds the first time, and a check of time stamps later. Processes that build
at the same time take turns. Imports no torch.
"""

from __future__ import annotations

import fcntl
import functools
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from khop.typing import Array, Int32Array, Int64Array, IntArray

_ROOT = Path(__file__).resolve().parents[2]
_MODULE = "_khop_floor"
_LAST_LINES = 5
# Most of the code is nanobind's, in a dozen files. The floor itself asks for -O3 in any build.
_QUICKLY = (
    *("-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0"),
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
)


class GraphFloor(Protocol):
    """Reader of a graph's memory, which takes the least time that sampling the graph can take."""

    def touch(self, rows: Int64Array, counts: Int32Array, edges: Int64Array, num_nodes: int) -> int:
        """Touch the memory that the drawing of a batch touched, in the same order.

        Args:
            rows: [num_rows] the rows that were expanded.
            counts: [num_rows] edges drawn of each.
            edges: [num_edges] positions of the drawn edges, row by row.
            num_nodes: nodes of the batch.

        Returns:
            A sum of what was read.

        Raises:
            IndexError: the graph has no such row or edge.
            MemoryError: no memory holds so many nodes.
        """
        ...


class Floor(Protocol):
    """Type of the module `_khop_floor`, which only reads and writes memory."""

    def SampleFloor(self, indptr: IntArray, indices: IntArray) -> GraphFloor:
        """Return the floor of a graph of compressed rows."""
        ...

    def gather_floor(self, table: Array, rows: IntArray, out: Array) -> int:
        """Touch each line that gathering rows of a table reads or writes.

        Args:
            table: the table.
            rows: [num_rows] positions of rows of the table.
            out: [num_rows, ...] as wide as the table.

        Returns:
            A sum of what was read.

        Raises:
            IndexError: the table has no such row.
        """
        ...


class FloorError(RuntimeError):
    """The floor's module cannot be built."""


class MissingToolsError(FloorError):
    """The tools that build it are not installed."""


@functools.cache
def load_floor() -> Floor:
    """Return the floor's module, and build it if need be.

    Raises:
        MissingToolsError: CMake, Ninja, nanobind or a C++ compiler is missing.
        FloorError: the build failed.
    """
    try:
        return cast(Floor, importlib.import_module(_MODULE))
    except ModuleNotFoundError:
        return _import_from(build_floor())


def build_floor(folder: Path | None = None) -> Path:
    """Build the module.

    Args:
        folder: of the build. If None, one below the checkout's `build/floor`, for this Python.

    Returns:
        The module's file.

    Raises:
        MissingToolsError: CMake, Ninja, nanobind or a C++ compiler is missing.
        FloorError: the build failed.
    """
    environment = _environment()
    missing = _missing_tools(environment)
    if missing:
        raise MissingToolsError(
            f"{' and '.join(missing)} not found (pip install '.[dev]' has all but the compiler)"
        )
    if folder is None:
        folder = _ROOT / "build" / "floor" / str(sysconfig.get_config_var("SOABI"))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{_MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"
    with _locked(folder):
        _run(
            *("cmake", "-S", str(_ROOT / "kernels"), "-B", str(folder), "-G", "Ninja"),
            *(f"-DPython_EXECUTABLE={sys.executable}", "-DKHOP_CUDA=off", "-DKHOP_BENCHMARKS=ON"),
            *_QUICKLY,
            environment=environment,
        )
        _run("cmake", "--build", str(folder), "--target", _MODULE, environment=environment)
    return file


def _environment() -> dict[str, str]:
    """Return this process's environment, with the folder of its Python first in the path."""
    path = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {**os.environ, "PATH": os.pathsep.join(path)}


def _missing_tools(environment: Mapping[str, str]) -> list[str]:
    def is_missing(*programs: str) -> bool:
        return not any(shutil.which(program, path=environment["PATH"]) for program in programs)

    missing = [name for name in ("cmake", "ninja") if is_missing(name)]
    if importlib.util.find_spec("nanobind") is None:
        missing.append("nanobind")
    compiler = environment.get("CXX", "").partition(" ")[0]
    if is_missing(*([compiler] if compiler else ["c++", "g++", "clang++"])):
        missing.append("a C++ compiler")
    return missing


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*command: str, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        end = " | ".join(lines[-_LAST_LINES:])
        raise FloorError(f"'{' '.join(command)}' failed with status {done.returncode}: {end}")


def _import_from(file: Path) -> Floor:
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Floor, module)
