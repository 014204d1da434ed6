"""Cooperative batches: the trainers' shares together are the batch of one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import khop
from khop.distributed import CooperativeLoader, DistDataset
from khop.partition import RandomPartitioner
from support import cooperative_job

JOB = Path(cooperative_job.__file__)


@pytest.mark.parametrize("num_parts", [2, 3])
def test_shares_are_the_batch_of_one_process(tmp_path, num_parts):
    """Nodes, edges, loss and gradients, of two epochs."""
    root = tmp_path / "parts"
    RandomPartitioner.from_data(cooperative_job.graph(), root, num_parts).partition()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = str(bound.getsockname()[1])
    path = [str(Path(khop.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    jobs = [
        subprocess.Popen(
            [sys.executable, str(JOB), str(rank), port, str(root)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(num_parts)
    ]
    for job in jobs:
        printed, _ = job.communicate(timeout=120)
        assert job.returncode == 0, printed


def test_a_group_is_needed(tmp_path):
    RandomPartitioner.from_data(cooperative_job.graph(), tmp_path / "parts", 1).partition()
    dataset = DistDataset().load(tmp_path / "parts", 0)
    with pytest.raises(RuntimeError, match="init_process_group"):
        CooperativeLoader(dataset, [2], torch.arange(3))
