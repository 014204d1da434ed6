"""The command, in this process and in one of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

import khop
from khop.cli.main import main


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """Runs `khop ARGUMENTS...` in an empty directory, in this process; as `program` returns."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capfd.readouterr()
        try:
            code = main([*map(str, arguments)])
        except SystemExit as ended:
            code = ended.code
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run


@pytest.fixture
def program(tmp_path):
    """Runs `khop ARGUMENTS...` in an empty directory, in a process of its own."""
    # Where khop is imported from a source tree, the child needs the way to it.
    path = [str(Path(khop.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}

    def run(*arguments, module="khop.cli.main", **options):
        child_environment = {**environment, **options.pop("env", {})}
        return subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=tmp_path,
            env=child_environment,
            **{"capture_output": True, **options},
            text=True,
            check=False,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.fixture
def terminal(program, tmp_path):
    """Runs a command whose standard error is a terminal; exit code, output and what that shows."""

    def run(*arguments):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
        out = tmp_path / "stdout"
        shown = []
        reader = threading.Thread(target=_read_all, args=(ours, shown))
        reader.start()  # meanwhile: a terminal that nobody reads blocks who writes
        try:
            with out.open("w") as opened:
                done = program(*arguments, capture_output=False, stdout=opened, stderr=theirs)
        finally:
            os.close(theirs)
            reader.join()
            os.close(ours)
        return done.returncode, out.read_text(), b"".join(shown).decode()

    return run


def _read_all(descriptor, chunks):
    """Reads a terminal until its other end is closed."""
    with contextlib.suppress(OSError):  # EIO: it is closed
        while chunk := os.read(descriptor, 1 << 16):
            chunks.append(chunk)


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
