"""Trainers of a real mpirun (Open MPI and MPICH, from their wheels), on one host and on two."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

import torch

from khop.loader import NeighborLoader
from soak.network import DEVICE
from support import launching, processes
from support.cluster import jobs, launched
from support.cluster_check.hosts import SshHosts


def check(hosts: SshHosts, folder: Path) -> dict[str, object]:
    """Return whether batches of both programs, on one host and on two, equal loaders in memory."""
    parts, done = launching.partitioned(folder), folder / "done"
    done.touch()
    # Each process prints the address of its host first.
    shell = ("sh", "-c", f'ip -br -4 addr show {DEVICE}; exec "$@"', "sh")
    script = (*shell, sys.executable, "-m", launched.__name__, parts, done)
    graph, seeds = jobs.make_graph(), torch.arange(500)
    loaders = [NeighborLoader(graph, [4, 4], seeds, stream=r, **launched.COMMON) for r in range(2)]
    expected = sorted(str(launched.digest(loader)) for loader in loaders)
    agent = folder / "agent.sh"
    agent.write_text(f'#!/bin/sh\nexec {hosts.rsh} "$@"\n')
    agent.chmod(0o700)
    both = ",".join(hosts.names)
    environment = processes.environment(OMP_NUM_THREADS="1")
    master = {"MASTER_ADDR": hosts.names[0], "MASTER_PORT": str(jobs.free_port())}

    def equal(num_hosts: int, *words: object, **variables: str) -> bool | str:
        ended = subprocess.run(
            [*hosts.inside, *map(str, (*words, *script))], cwd=folder, text=True, check=False,
            capture_output=True, env={**environment, **variables}, timeout=120,
        )  # fmt: skip
        found = sorted(re.findall(r"digest (\d+)", ended.stdout))
        addresses = {name for name in hosts.names if f"{name}/" in ended.stdout}
        is_equal = found == expected and len(addresses) == num_hosts
        return is_equal or ended.stdout + ended.stderr

    open_mpi = _installed(folder, "openmpi") / "mpirun"
    options = ("--allow-run-as-root", "-n", 2)
    by_ssh = ("--prtemca", "plm_ssh_agent", agent, "--prtemca", "prte_if_include", DEVICE)
    exported = ("-x", "MASTER_ADDR", "-x", "MASTER_PORT", "-x", "PYTHONPATH")
    mpich = _installed(folder, "mpich") / "mpiexec"
    return {
        "Open MPI, one host": equal(1, open_mpi, *options, "--oversubscribe"),
        "Open MPI, two hosts": equal(
            *(2, open_mpi, *options, *by_ssh, *exported),
            *("--host", both, "--map-by", "ppr:1:node"),
            **master,
        ),
        "MPICH, one host": equal(1, mpich, "-n", 2, **master),
        "MPICH, two hosts": equal(
            2, mpich, "-n", 2, "-launcher-exec", agent, "-iface", DEVICE, "-hosts", both, **master
        ),
    }


def _installed(folder: Path, package: str) -> Path:
    """Install a wheel into an environment of its own. Return the folder of its programs."""
    venv.create(folder / package, with_pip=True)
    programs = folder / package / "bin"
    subprocess.run([programs / "pip", "install", "--quiet", package], check=True)
    return programs
