"""Time to start a job on two hosts with two trainers each: `khop run`, beside torchrun.

Both times go from the command to the last trainer's line: with `khop run` after its first batch,
with torchrun after its first all-reduce, of a script that imports torch and PyG.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from soak.network import DEVICE
from support import launching, processes
from support.cluster_check.hosts import SshHosts

_LOADING = """
import sys, torch, torch_geometric
from khop.distributed import *
context = init_worker_group()
dataset = DistDataset().load(sys.argv[1], context.rank % 2)
options = MpDistSamplingWorkerOptions(num_workers=1)
loader = DistNeighborLoader(dataset, [4, 4], torch.arange(500), worker_options=options)
next(iter(loader))
print("first", flush=True)
"""
_REDUCING = """
import os, torch, torch_geometric
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("first", flush=True)
dist.barrier()
"""


def measure(hosts: SshHosts, folder: Path, pairs: int = 3) -> dict[str, object]:
    """Return seconds of each start, in turns, and the ratio of medians."""
    (folder / "loading.py").write_text(_LOADING)
    (folder / "reducing.py").write_text(_REDUCING)
    parts = launching.partitioned(folder)
    times: dict[str, list[float]] = {"khop run": [], "torchrun": []}
    for turn in range(pairs + 1):
        khop, torchrun = _khop_run(hosts, folder, parts), _torchrun(hosts, folder, 29600 + turn)
        if turn:  # the first of each reads files
            times["khop run"].append(round(khop, 2))
            times["torchrun"].append(round(torchrun, 2))
    ratio = statistics.median(times["khop run"]) / statistics.median(times["torchrun"])
    return {**times, "ratio of medians": round(ratio, 2)}


def _khop_run(hosts: SshHosts, folder: Path, parts: Path) -> float:
    lists = ",".join(f"{host}:2" for host in hosts.names)
    words = ("--rsh", hosts.rsh, "--env", "PYTHONPATH", "--hosts", lists, "--", "loading.py", parts)
    return _first([[*hosts.inside, *launching.command(*words)]], folder)


def _torchrun(hosts: SshHosts, folder: Path, port: int) -> float:
    commands = []
    for rank, prefix in enumerate(hosts.network.prefixes):
        device = f"GLOO_SOCKET_IFNAME={DEVICE}"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2"]
        options = [f"--node-rank={rank}", "--nproc-per-node=2", f"--master-port={port}"]
        master = f"--master-addr={hosts.names[0]}"
        commands.append([*prefix, "env", device, *torchrun, *options, master, "reducing.py"])
    return _first(commands, folder)


def _first(commands: list[list[str]], folder: Path) -> float:
    """Return the seconds until four lines `first` have come from the commands."""
    begin = time.monotonic()
    started = [
        subprocess.Popen(
            command, cwd=folder, env=processes.environment(), text=True, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for command in commands
    ]  # fmt: skip
    each = 4 // len(started)
    for process in started:
        count = 0
        while count < each:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise RuntimeError(f"{commands} ended early")
            count += "first" in line
    seconds = time.monotonic() - begin
    for process in started:
        process.communicate(timeout=60)
    return seconds
