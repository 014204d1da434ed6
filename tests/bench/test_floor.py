"""How the floor's module is found and built."""

from __future__ import annotations

import sys
import types

import pytest

from khop_bench import floor

load = floor.load_floor.__wrapped__  # what this process has loaded is not looked at


def test_floor_module_is_imported_from_the_path(monkeypatch):
    module = types.ModuleType("_khop_floor")
    monkeypatch.setitem(sys.modules, "_khop_floor", module)
    monkeypatch.setattr(floor, "build_floor", lambda: pytest.fail("it was built"))
    assert load() is module


def test_tools_that_are_missing_are_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "_khop_floor", None)  # there is none on the path
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        floor.MissingToolsError, match=r"cmake and ninja and .*a C\+\+ compiler not"
    ):
        load()


@pytest.fixture
def tools(monkeypatch, tmp_path):
    """Programs of the names of the tools; returns the folder that they lie in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cmake", "ninja", "c++"):
        (folder / name).write_text("#!/bin/sh\necho about to fail\nexit 3\n")
        (folder / name).chmod(0o755)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setattr(floor.importlib.util, "find_spec", lambda name: object())
    return folder


def test_a_build_that_fails_says_how(tools, tmp_path):
    with pytest.raises(floor.FloorError, match=r"failed with status 3: about to fail$") as caught:
        floor.build_floor(tmp_path / "build")
    assert not isinstance(caught.value, floor.MissingToolsError)


def test_only_the_floor_is_built(tools, tmp_path):
    """Not khop's extension: that would take minutes."""
    log = tmp_path / "log"
    (tools / "cmake").write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    file = floor.build_floor(tmp_path / "build")
    assert file.parent == tmp_path / "build"
    assert file.name.startswith("_khop_floor.")
    configure, build = log.read_text().splitlines()
    assert "-DKHOP_BENCHMARKS=ON" in configure
    assert build == f"--build {tmp_path / 'build'} --target _khop_floor"
