"""Jobs of a real Slurm of two nodes on this machine: srun, sbatch, scancel, kill, requeue."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch_geometric.data import Data

from khop.loader import NeighborLoader
from support import launching
from support.cluster import jobs, launched
from support.cluster_check import requeue_job
from support.cluster_check.debian import libraries

_CONFIG = """ClusterName=khop
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
PluginDir={plugins}
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=3
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_1} CPUs=4
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_2} CPUs=4
PartitionName=all Nodes=n1,n2 Default=YES State=UP OverSubscribe=YES
"""


class Slurm:
    """A running Slurm.

    Args:
        root: folder of the unpacked programs.
        folder: folder for its state.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self.folder = root, folder
        ports = [jobs.free_port() for _ in range(3)]
        text = _CONFIG.format(
            host=socket.gethostname(),
            folder=folder,
            plugins=root / "usr/lib/x86_64-linux-gnu/slurm-wlm",
            **dict(zip(("port", "port_1", "port_2"), ports, strict=True)),
        )
        (folder / "slurm.conf").write_text(text)
        (folder / "state").mkdir()
        self.environment = {
            **libraries(root),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "MASTER_ADDR": "127.0.0.1",  # n1 and n2 are names for Slurm alone
        }
        step = str(root / "usr/sbin/slurmstepd-wlm")
        self._daemons = [self._daemon("slurmctld-wlm", "-D")]
        for node in ("n1", "n2"):
            (folder / f"spool-{node}").mkdir()
            self._daemons.append(self._daemon("slurmd-wlm", "-D", "-N", node, "-d", step))

    def _daemon(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{program}-{words[-1].rpartition('/')[2]}-{len(words)}.log").open("a")
        command = [str(self._root / "usr/sbin" / program), *words]
        return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def path(self, program: str) -> str:
        """Return the path of srun, sbatch, ..."""
        return str(self._root / "usr/bin" / program)

    def call(self, program: str, *words: object, **options: object) -> subprocess.Popen[str]:
        """Start srun, sbatch, ... in the folder."""
        return subprocess.Popen(
            [self.path(program), *map(str, words)],
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    def output(self, program: str, *words: object, seconds: float = 120) -> str:
        """Return what a program prints to both streams."""
        return "".join(self.call(program, *words).communicate(timeout=seconds))

    def wait(self) -> None:
        """Wait until both nodes are idle."""
        end = time.monotonic() + 60
        while self.output("sinfo", "-h", "-o", "%T %D").split() != ["idle", "2"]:
            if time.monotonic() > end:
                raise RuntimeError(self.output("sinfo", "-l"))
            time.sleep(0.5)

    def close(self) -> None:
        """End all daemons."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait()


@contextlib.contextmanager
def running(root: Path, folder: Path) -> Iterator[Slurm]:
    """Start Slurm for the block."""
    slurm = Slurm(root, folder)
    try:
        slurm.wait()
        yield slurm
    finally:
        slurm.close()


def check(slurm: Slurm) -> dict[str, object]:
    """Return results: equal batches of three ways to start, refusals, a killed task, scancel."""
    parts, done = launching.partitioned(slurm.folder), slurm.folder / "done"
    done.touch()
    script = [sys.executable, "-m", launched.__name__, str(parts), str(done)]
    run = [sys.executable, "-m", "khop", "run", "--slurm", "--", "python", *script[1:]]
    two = ("--nodes=2", "--ntasks=2", "--kill-on-bad-exit=1")
    graph, seeds = jobs.make_graph(), torch.arange(500)
    loaders = [NeighborLoader(graph, [4, 4], seeds, stream=r, **launched.COMMON) for r in range(2)]
    expected = sorted(str(launched.digest(loader)) for loader in loaders)

    def equal(text: str) -> bool | str:
        return sorted(re.findall(r"digest (\d+)", text)) == expected or text

    results: dict[str, object] = {
        "srun python": equal(slurm.output("srun", *two, *script)),
        "srun khop run": equal(slurm.output("srun", *two, *run)),
    }
    batch = slurm.folder / "job.sh"
    quoted, srun = " ".join(run), slurm.path("srun")
    batch.write_text(f"#!/bin/sh\n{' '.join(run).replace('--slurm', '')}\n{srun} {quoted}\n")
    slurm.output("sbatch", "--wait", *two[:2], "-o", "job.out", batch)
    text = (slurm.folder / "job.out").read_text()
    results["sbatch: srun khop run"] = equal(text)
    results["sbatch: khop run without srun"] = "not started by srun" in text or text
    results["killed task"] = _killed(slurm, two, run)
    results["scancel"] = _cancelled(slurm, two, run)
    results["requeue"] = _requeued(slurm, two, parts, graph)
    return results


def _requeued(slurm: Slurm, two: tuple[str, ...], parts: Path, graph: Data) -> dict[str, object]:
    """Ask a job to stop in mid-epoch, twice, by a signal. Its script puts it back in the queue."""
    folder, seeds = slurm.folder / "requeued", torch.arange(500)
    folder.mkdir()
    words = [sys.executable, "-m", "khop", "run", "--slurm", "--", "python", "-m"]
    command = " ".join(map(str, (*words, requeue_job.__name__, parts, folder)))
    batch = slurm.folder / "requeue.sh"
    batch.write_text(
        f"#!/bin/sh\n{slurm.path('srun')} {' '.join(two[:2])} {command} || exit 1\n"
        f"test -e {folder}/done-1 || {slurm.path('scontrol')} requeue $SLURM_JOB_ID\n"
    )
    options = (*two[:2], "--requeue", "--open-mode=append", "-o", "requeue.out")
    number = slurm.output("sbatch", "--parsable", *options, batch).strip()
    out = slurm.folder / "requeue.out"

    def wait_for(count: int) -> None:
        end = time.monotonic() + 120
        while not out.exists() or out.read_text().count("begins") < 2 * count:
            if time.monotonic() > end:
                raise RuntimeError(slurm.output("scontrol", "show", "job", number))
            time.sleep(0.2)
        time.sleep(0.5)

    for count, name in ((1, "USR1"), (2, "TERM")):
        wait_for(count)
        # Both signals go to the tasks of the step, as those of `sbatch --signal` do.
        slurm.output("scancel", f"--signal={name}", number)
    wait_for(3)
    end = time.monotonic() + 120
    while (state := slurm.output("squeue", "-h", "-o", "%T", "-j", number).strip()).isalpha():
        if time.monotonic() > end or state == "CANCELLED":
            raise RuntimeError(slurm.output("scontrol", "show", "job", number))
        time.sleep(0.5)
    same = True
    for rank in range(2):
        loader = NeighborLoader(graph, [4, 4], seeds, stream=rank, **launched.COMMON)
        found = (folder / f"digests-{rank}").read_text().splitlines()
        same = same and found == [requeue_job.digest(one) for one in loader]
    text = out.read_text()
    return {
        "restart counts": sorted({int(n) for n in re.findall(r"restart (\d+)", text)}),
        "checkpoints": len(re.findall(r"saved, 0 samplers", text)),
        "job": re.findall(r"JobState=(\w+)", slurm.output("scontrol", "show", "job", number)),
        "batches equal": same,
    }


def _started(slurm: Slurm, two: tuple[str, ...], run: list[str]) -> subprocess.Popen[str]:
    process = slurm.call("srun", *two, *run[:-1], slurm.folder / "never")
    for _ in range(2):
        line = process.stdout.readline() if process.stdout else ""
        if "digest" not in line:
            raise RuntimeError(line + "".join(process.communicate()))
    return process


def _pids(slurm: Slurm) -> list[int]:
    tasks = set(launching.marked("SLURM_STEP_ID="))
    return sorted(tasks & set(launching.marked(f"SLURM_CONF={slurm.folder}")))


def _killed(slurm: Slurm, two: tuple[str, ...], run: list[str]) -> dict[str, object]:
    process, pids = _started(slurm, two, run), _pids(slurm)
    lines = launching.table()
    trainer = next(p for p in pids if launched.__name__.encode() in lines[p][2])
    os.kill(trainer, signal.SIGKILL)
    since = time.monotonic()
    left = launching.left_of(pids, 10)
    seconds = round(time.monotonic() - since, 1)
    process.communicate(timeout=60)
    return {"left": len(left), "seconds": seconds, "status": process.returncode}


def _cancelled(slurm: Slurm, two: tuple[str, ...], run: list[str]) -> dict[str, object]:
    process, pids = _started(slurm, two, run), _pids(slurm)
    since = time.monotonic()
    slurm.output("scancel", *slurm.output("squeue", "-h", "-o", "%i").split())
    left = launching.left_of(pids, 10)
    seconds = round(time.monotonic() - since, 1)
    process.communicate(timeout=60)
    return {"left": len(left), "seconds": seconds, "status": process.returncode}
