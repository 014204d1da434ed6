"""The real command, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import khop


@pytest.fixture
def command(tmp_path):
    """Runs `khop ARGUMENTS...` in an empty directory."""
    # Where khop is imported from a source tree, the child needs the way to it.
    path = [str(Path(khop.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}

    def run(*arguments, module="khop.cli.main", **options):
        return subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=tmp_path,
            env={**environment, **options.pop("env", {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            stdin=subprocess.DEVNULL,
            **options,
        )

    return run


@pytest.fixture
def fails(command):
    """Runs a command that must fail with exit code 2 and one line, which is returned."""

    def run(*arguments):
        done = command(*arguments)
        assert done.returncode == 2, done
        assert done.stdout == ""
        lines = [line for line in done.stderr.splitlines() if line.startswith("khop")]
        assert len(lines) == 1, done.stderr
        assert "Traceback" not in done.stderr
        return lines[0]

    return run
