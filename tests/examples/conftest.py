"""Runs the examples in processes of their own.

Two tests, of an example under torchrun and of one without, are marked `real_exec`: their programs
start as a user starts them. The other programs are forked.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import khop
from khop.datasets import DebianPackages, DebianPackagesHetero
from khop.partition import RandomPartitioner

EXAMPLES = Path(__file__).parents[2] / "examples"


def thin(packages):
    """Keeps a fourteenth of the training packages, a few for validation and some for test."""
    number = torch.arange(packages.num_nodes)
    packages.train_mask &= number % 14 == 0
    packages.val_mask &= number % 100 == 0
    packages.test_mask &= number % 40 == 0


@pytest.fixture(scope="session")
def debian_parts(tmp_path_factory):
    """Two random parts of the package graph, with few seeds: enough to learn."""
    data = DebianPackages(undirected=True)[0]
    thin(data)
    root = tmp_path_factory.mktemp("debian") / "parts"
    RandomPartitioner.from_data(data, root, 2).partition()
    return root


@pytest.fixture(scope="session")
def clustered_parts(tmp_path_factory):
    """Two random parts of the package graph, with 100 clusters."""
    data = DebianPackages(undirected=True)[0]
    root = tmp_path_factory.mktemp("debian") / "clusters"
    RandomPartitioner.from_data(data, root, 2, cluster_ids=100).partition()
    return root


@pytest.fixture(scope="session")
def hetero_parts(tmp_path_factory):
    """The same with sources, maintainers and tags."""
    data = DebianPackagesHetero(undirected=True)[0]
    thin(data["package"])
    root = tmp_path_factory.mktemp("hetero") / "parts"
    RandomPartitioner.from_data(data, root, 2).partition()
    return root


@pytest.fixture
def run_example(tmp_path):
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
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run_example
