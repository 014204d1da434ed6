"""Run of everything: four hosts with disks of their own, `khop distribute`, `khop run`, a cut.

A folder of eight parts goes to four hosts, each part to two. Two trainers on each host make an
epoch over a cable of 1 Gbit/s and 1 ms. Eight trainers on one host make the same epoch. Then a host
is cut off in mid-epoch, and the job is resumed on the other three. All batches are compared with
loaders in memory.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch_geometric.data import Data

import khop
from khop.distributed import DistDataset, node_split
from khop.loader import NeighborLoader
from soak.network import DEVICE
from support import launching, processes
from support.cluster_check import everything_job as job
from support.cluster_check.hosts import SshHosts
from support.cluster_check.ssh import Job

HOSTS, TRAINERS, PARTS = 4, 2, 8
RATE, DELAY = 1e9 / 8, 0.001
LEASE = 5
_NODES, _DEGREE, _WIDTH = 100_000, 12, 100
_SEEDS = job.VIRTUAL_RANKS * job.BATCH_SIZE * 4


def run(hosts: SshHosts, folder: Path) -> dict[str, object]:
    """Return results of all steps."""
    results: dict[str, object] = {"MB/s of the cable without rate and delay": _limit(hosts)}
    graph = _graph()
    source = folder / "source"
    khop.partition_graph(graph, source, PARTS)
    hosts.network.cable.set(rate=RATE, delay=DELAY)
    results["MB/s of one TCP connection"] = round(hosts.network.measured_limit(64), 1)
    results["khop distribute"] = _distribute(hosts, folder, source)
    expected = _expected(graph, source)
    results["one host"] = _one_host(hosts, folder, source, expected)
    results["four hosts"] = _four_hosts(hosts, folder, expected)
    results["a host cut off"] = _cut(hosts, folder, expected)
    return results


def _limit(hosts: SshHosts) -> float:
    hosts.network.cable.set()
    return round(hosts.network.measured_limit(), 1)


def _graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(_NODES, (2, _NODES * _DEGREE), generator=generator)
    features = torch.rand(_NODES, _WIDTH, generator=generator)
    mask = torch.zeros(_NODES, dtype=torch.bool)
    mask[torch.randperm(_NODES, generator=generator)[:_SEEDS]] = True
    return Data(x=features, edge_index=edges, train_mask=mask)


def _expected(graph: Data, source: Path) -> list[Counter[str]]:
    """Return digests of the batches of each turn of the virtual ranks, of loaders in memory."""
    dataset = DistDataset().load(source, 0, also_serve=range(1, PARTS))
    homes = [rank % PARTS for rank in range(job.VIRTUAL_RANKS)]
    epochs = []
    for rank in range(job.VIRTUAL_RANKS):
        share = node_split("train_mask", dataset, rank=rank, homes=homes)
        epochs.append(NeighborLoader(graph, job.FANOUTS, share, stream=rank, **job.OPTIONS))
    turns = itertools.zip_longest(*epochs)
    return [Counter(job.digest(batch) for batch in turn if batch is not None) for turn in turns]


def _distribute(hosts: SshHosts, folder: Path, source: Path) -> dict[str, object]:
    words = [sys.executable, "-m", "khop", "distribute", source, "--to", folder / "disk/parts"]
    options = ["--hosts", ",".join(hosts.names), "--copies", 2, "--rsh", hosts.rsh, "--json"]
    results: dict[str, object] = {}
    for name in ("first", "again"):
        begin, before = time.monotonic(), hosts.network.cable.carried
        done = subprocess.run(
            [*hosts.inside, *map(str, (*words, *options))],
            env=processes.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stderr)
        sent = sum(host["sent"] for host in json.loads(done.stdout)["hosts"])
        seconds = round(time.monotonic() - begin, 1)
        carried = hosts.network.cable.carried - before
        results[name] = {"seconds": seconds, "MB sent": _mb(sent), "MB carried": _mb(carried)}
    return results


def _mb(count: float) -> float:
    return round(count / 1e6, 1)


def _started(hosts: SshHosts, folder: Path, lists: str, seconds: float = 0.0) -> Job:
    command = ("python", "-m", job.__name__, folder / "disk", seconds)
    options = ("--interface", DEVICE, "--lease", LEASE, "--env", f"KHOP_LEASE={LEASE}")
    return Job(hosts, folder, *options, "--hosts", lists, "--", *command, is_shared=True)


def _epoch(process: subprocess.Popen[str]) -> dict[str, object]:
    """Return times and counts of the trainers of a job, to its end."""
    out, error = process.communicate(timeout=600)
    found = [json.loads(text) for text in re.findall(r"epoch (\{.*\})", out)]
    if process.returncode or not found:
        raise RuntimeError(out[-2000:] + error)
    rows = Counter[str]()
    for one in found:
        rows.update(one["rows"])
    total = sum(rows.values())
    return {
        "seconds": round(max(one["seconds"] for one in found), 1),
        "rows by origin": {name: round(count / total, 3) for name, count in rows.items()},
        "MB from other partitions": _mb(sum(one["remote_bytes"] for one in found)),
    }


def _digests(disks: list[Path], trainers: int, steps: range) -> Counter[str]:
    """Return digests of the batches of trainers of a job, of these steps."""
    found = Counter[str]()
    for disk in disks:
        for path in disk.glob(f"digests-*-of-{trainers}"):
            for line in path.read_text().splitlines():
                step, digest = line.split(" ", 1)
                found.update([digest] if int(step) in steps else [])
    return found


def _clean(disks: list[Path]) -> None:
    for disk in disks:
        for path in (*disk.glob("digests-*"), *disk.glob("checkpoint-*")):
            path.unlink()


def _one_host(
    hosts: SshHosts, folder: Path, source: Path, expected: list[Counter[str]]
) -> dict[str, object]:
    disk = folder / "one"
    disk.mkdir()
    shutil.copytree(source, disk / "parts")
    command = ("python", "-m", job.__name__, disk, 0.0)
    words = launching.command("--local", HOSTS * TRAINERS, "--env", "OMP_NUM_THREADS=1", "--")
    process = subprocess.Popen(
        [*hosts.inside, *words, *map(str, command)],
        env=processes.environment(), cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    result = _epoch(process)
    same = _digests([disk], HOSTS * TRAINERS, range(1 << 30)) == sum(expected, Counter())
    return {**result, "batches equal": same}


def _four_hosts(hosts: SshHosts, folder: Path, expected: list[Counter[str]]) -> dict[str, object]:
    disks = [folder / f"disk-{host}" for host in range(HOSTS)]
    running = _started(hosts, folder, ",".join(f"{name}:{TRAINERS}" for name in hosts.names))
    running.wait_for("begun", 1)
    before = hosts.network.cable.carried
    result = _epoch(running.process)
    carried = _mb(hosts.network.cable.carried - before)
    same = _digests(disks, HOSTS * TRAINERS, range(1 << 30)) == sum(expected, Counter())
    _clean(disks)
    return {**result, "MB carried": carried, "batches equal": same}


def _cut(hosts: SshHosts, folder: Path, expected: list[Counter[str]]) -> dict[str, object]:
    disks = [folder / f"disk-{host}" for host in range(HOSTS)]
    lists = ",".join(f"{name}:{TRAINERS}" for name in hosts.names)
    running = _started(hosts, folder, lists, seconds=0.5)
    running.wait_for("step 5", 1)
    since = time.monotonic()
    hosts.network.cable.set(rate=RATE, delay=DELAY, cut_off=[HOSTS - 1])
    named = running.named()
    ended = running.ended(since + LEASE)
    hosts.network.cable.set(rate=RATE, delay=DELAY)
    first = _started(hosts, folder, ",".join(f"{name}:{TRAINERS}" for name in hosts.names[:-1]))
    out, error = first.process.communicate(timeout=600)
    resumed = re.search(r"begun at (\d+)", out)
    if first.process.returncode or resumed is None:
        raise RuntimeError(out[-2000:] + error)
    step = int(resumed[1])
    found = _digests(disks, HOSTS * TRAINERS, range(step))
    found += _digests(disks[:-1], (HOSTS - 1) * TRAINERS, range(1 << 30))
    return {
        "seconds until the cause was named": round(named[0] - since, 1),
        "cause": named[1],
        "ended": ended,
        "resumed on three hosts after step": step,
        "batches equal": found == sum(expected, Counter()),
    }
