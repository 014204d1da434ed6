"""torchrun starts all trainers again; each machine counts its own restarts only."""

import contextlib
import json
import subprocess
import sys

from support import processes
from support.cluster import jobs

JOB = "support.cluster.elastic_job"


def start_machine(port, *arguments):
    """A torchrun with one trainer, as on one of two machines."""
    launcher = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=2", "--rdzv-backend=c10d"]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", *launcher),
            *("--rdzv-id=elastic", f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"),
            *("-m", JOB, *map(str, arguments)),
        ],
        env=processes.environment(OMP_NUM_THREADS="1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(machine):
    """Ends a torchrun that a failed test has left, and has it end its trainer first."""
    if machine.poll() is None:
        machine.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            machine.wait(20)
        machine.kill()


def test_machines_that_count_restarts_differently(folder_of, tmp_path):
    """A trainer dies; on the other machine nothing has failed. They find each other again."""
    port = jobs.free_port()
    with contextlib.ExitStack() as stack:
        machines = [
            stack.enter_context(start_machine(port, folder_of("random", 2), tmp_path))
            for _ in range(2)
        ]
        for machine in machines:
            stack.callback(end, machine)
        said = [machine.communicate(timeout=150)[1] for machine in machines]
        assert [machine.returncode for machine in machines] == [0, 0], said
    found = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in range(2)]
    assert sorted(entry["restarts"] for entry in found) == ["0", "1"]
    assert [entry["sum"] for entry in found] == [1.0, 1.0]
    assert sum(entry["seeds"] for entry in found) == sum(
        len(jobs.seeds_of_rank(rank)) for rank in range(2)
    )
