"""Runs the examples as a user does, in processes of their own."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import khop
from support import zygote

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def known():
    """Examples that have run in a process that imports all itself; later runs are forked."""
    return set()


@pytest.fixture
def run_example(tmp_path, known):
    """Returns run_example(script, *arguments, trainers=0, max_restarts=0): what it printed.

    With `trainers`, torchrun starts that many processes, and all of them again when one dies, as
    often as `max_restarts` says. The test fails if the script does.
    """
    path = [str(Path(khop.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": "1",
    }

    def run_example(script, *arguments, trainers=0, max_restarts=0):
        launcher = [
            *("-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={trainers}", f"--max-restarts={max_restarts}"),
        ]
        command = [
            sys.executable,
            *(launcher if trainers else []),
            str(EXAMPLES / script),
            *map(str, arguments),
        ]
        with contextlib.nullcontext() if script in known else zygote.real_exec():
            done = subprocess.run(
                command,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=150 + 100 * max_restarts,
                stdin=subprocess.DEVNULL,
            )
        known.add(script)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run_example
