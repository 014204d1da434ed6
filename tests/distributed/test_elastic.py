"""torchrun starts all trainers again, also as more or fewer trainers in the middle of an epoch."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
import torch

from khop.distributed import DistDataset, node_split
from khop.loader import NeighborLoader
from support import processes
from support.cluster import elastic_ranks_job as ranks_job, jobs, resume_jobs

JOB = "support.cluster.elastic_job"
# Otherwise torchrun of torch 2.13 keeps the addresses of the first round, and a machine that joins
# later waits for them in vain.
STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def start_machine(port, *arguments, nodes="2", job=JOB, machine=0):
    """A torchrun with one trainer, as on one of several machines."""
    launcher = [f"--nnodes={nodes}", "--nproc-per-node=1", "--max-restarts=3"]
    # A machine is lost after 5 s of silence: busy ones are silent for longer than 1 s. Further ones
    # have 3 s to come.
    noticed = "keep_alive_interval=1,keep_alive_max_attempt=5,last_call_timeout=3"
    launcher += ["--rdzv-backend=c10d", f"--rdzv-conf={noticed}"]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", *launcher),
            *("--rdzv-id=elastic", f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"),
            *("-m", job, *map(str, arguments)),
        ],
        env=processes.environment(OMP_NUM_THREADS="1", MACHINE=str(machine), **STORE),
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


def wait_for(path, machines, seconds=90):
    """Wait until trainers have written a file. Return its text."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"no {path.name}"
        assert all(machine.poll() is None for machine in machines), machines[0].stderr.read()
        time.sleep(0.05)
    return path.read_text()


def wait_for_steps(results, world, machines):
    """Wait until `world` trainers have made some steps, and no more for now."""
    while int(wait_for(results / f"steps-of-{world}", machines)) < ranks_job.STEPS:
        time.sleep(0.05)


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_two_trainers_then_three_then_two(graph, folder_of, tmp_path):
    """A machine joins in the middle of an epoch, and is killed later in the same epoch.

    The epoch has the batches of the virtual ranks, bit for bit, each once. Only those that fill the
    last round come twice.
    """
    port, root = jobs.free_port(), folder_of("random", ranks_job.NUM_PARTS)
    with contextlib.ExitStack() as stack:
        machines = []

        def add_machine():
            options = {"nodes": "2:3", "job": ranks_job.__name__, "machine": len(machines)}
            machine = stack.enter_context(start_machine(port, root, tmp_path, **options))
            stack.callback(end, machine)
            machines.append(machine)

        add_machine()
        add_machine()
        wait_for_steps(tmp_path, 2, machines)
        add_machine()
        wait_for_steps(tmp_path, 3, machines)
        machines[2].kill()
        os.kill(int((tmp_path / "pid-2").read_text()), signal.SIGKILL)
        (tmp_path / "killed").touch()
        said = [machine.communicate(timeout=150)[1] for machine in machines[:2]]
        assert [machine.returncode for machine in machines[:2]] == [0, 0], said
    made = torch.load(tmp_path / "checkpoint.pt")["made"]
    worlds = [len(step) for step in made]
    assert [world for world, _ in itertools.groupby(worlds)] == [2, 3, 2]
    dataset = DistDataset().load(root, 0, also_serve=[1, 2])
    expected = []
    for rank in range(ranks_job.NUM_RANKS):
        homes = [virtual % 3 for virtual in range(ranks_job.NUM_RANKS)]
        share = node_split("train_mask", dataset, rank=rank, homes=homes)
        twin = NeighborLoader(graph, ranks_job.FANOUTS, share, stream=rank, **ranks_job.OPTIONS)
        expected += resume_jobs.virtual_digests(twin)
    counts = Counter(digest for step in made for digest in step)
    assert set(counts) == set(expected)
    assert sum(counts.values()) - len(counts) < len(made[-1])
