"""`scripts/cuda12_build`, as far as it goes without a compiler: what it makes, and what it says."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from support import script_modules

SCRIPT = Path(__file__).parents[2] / "scripts" / "cuda12_build"


@pytest.fixture(scope="module")
def script():
    return script_modules.load("cuda12_build")


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """An nvcc that says where it is, and fails to compile where a file says so."""
    top = tmp_path / "cuda-13.0"
    for folder in ("bin", "nvvm", "include/crt"):
        (top / folder).mkdir(parents=True)
    (top / "include" / "crt" / "host_config.h").write_text("13")
    (top / "include" / "fatbinary_section.h").write_text("13")
    (top / "include" / "cuda_runtime.h").write_text("13")
    nvcc = top / "bin" / "nvcc"
    nvcc.write_text(f'#!/bin/sh\necho "#$ TOP={top}/bin/.." >&2\ntest ! -e {tmp_path}/broken\n')
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDACXX", str(nvcc))
    monkeypatch.setenv("KHOP_BUILD", str(tmp_path / "build"))
    return top


@pytest.fixture
def wheels(script, monkeypatch):
    """The registry: a wheel with headers of CUDA 12."""

    def download(version, folder):
        folder.mkdir()
        with zipfile.ZipFile(folder / "runtime.whl", "w") as wheel:
            wheel.writestr("nvidia/cuda_runtime/include/cuda_runtime.h", version)
            wheel.writestr("nvidia/cuda_runtime/lib/libcudart.so.12", "")

    monkeypatch.setattr(script, "download", download)


def test_the_toolkit(script, compiler, wheels, tmp_path, capsys):
    """The compiler's own headers are its own, all others the version's."""
    for _ in range(2):
        assert script.main(["12.3", "90"]) == 0
    made = tmp_path / "build" / "cuda-12.3"
    read = {p.name: p.read_text() for p in made.rglob("*.h")}
    assert read == {"host_config.h": "13", "fatbinary_section.h": "13", "cuda_runtime.h": "12.3"}
    assert (made / "bin" / "nvcc").exists()
    out = capsys.readouterr().out
    assert "kernels/khop/cuda/gpu.cu for sm_90\n" in out
    assert out.endswith("khop compiles against CUDA 12.3\n")


def test_compile_error_fails_the_build(script, compiler, wheels, tmp_path, capsys):
    (tmp_path / "broken").touch()
    assert script.main([]) == 1
    assert "does not compile against CUDA 12.9" in capsys.readouterr().err


def test_without_a_compiler(script, monkeypatch, capsys):
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    monkeypatch.setenv("KHOP_BUILD", "/nonexistent")
    assert script.main([]) == 0
    assert "CUDA 12.9 was not tried: there is no nvcc" in capsys.readouterr().out


def test_without_the_wheels(script, compiler, monkeypatch, tmp_path, capsys):
    """A registry that has none: that is said, and is no failure."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert script.main([]) == 0
    assert "the wheels of CUDA 12.9 cannot be had: " in capsys.readouterr().out
    assert not (tmp_path / "build" / "cuda-12.9").exists()
