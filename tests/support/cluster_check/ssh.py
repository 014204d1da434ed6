"""Kill matrix of `khop run` over ssh: what is left 5 s later, the exit status and the cause."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from support import launching, processes
from support.cluster import jobs, launched
from support.cluster_check.hosts import SshHosts

SIGNALS = ("TERM", "KILL", "HUP")
ENDED_WITHIN = 5.0
LEASE = 5
LIGHT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
print("begun", flush=True)
time.sleep(1000)
"""


class Job:
    """A job of `khop run` on both hosts.

    Args:
        hosts: the hosts.
        folder: working folder.
        words: options and command.
        is_shared: True if trainers of a host read its parts from its files.
    """

    def __init__(
        self, hosts: SshHosts, folder: Path, *words: object, is_shared: bool = False
    ) -> None:
        options = ["--rsh", hosts.rsh, "--env", "PYTHONPATH"]
        options += ["--env", f"KHOP_SAME_HOST_READS={int(is_shared)}"]
        self.process = subprocess.Popen(
            [*hosts.inside, *launching.command(*options, "--env", "OMP_NUM_THREADS=1", *words)],
            cwd=folder,
            env=processes.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._hosts = hosts
        self.pids: set[int] = set()

    def wait_for(self, text: str, count: int) -> None:
        """Wait until `count` lines of output have `text`, and note all processes of the job."""
        while count:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(self.process.stderr.read())
            count -= text in line
        self.note()

    def named(self) -> tuple[float, str]:
        """Wait for the cause of an end. Return when it was named, and the cause."""
        while line := self.process.stderr.readline():
            text = line.removeprefix("khop run: ").strip()
            if text != line.strip() and " trainers" not in text:
                return time.monotonic(), text
        raise RuntimeError("khop run names no cause")

    def note(self) -> None:
        """Note all processes of the job that run now."""
        below = launching.descendants(self.process.pid)
        self.pids |= {self.process.pid, *below, *self._hosts.processes()}

    def stages(self) -> dict[int, int]:
        """Return {pid: parent} of the stages and their guards."""
        return {p: parent for p, parent in launching.stages().items() if p in self.pids}

    def programs(self, text: str) -> list[int]:
        """Return the job's processes on the hosts whose command line has `text`."""
        lines, running = launching.table(), self._hosts.processes()
        return sorted(p for p in running if p in lines and text.encode() in lines[p][2])

    def ended(self, since: float) -> dict[str, object]:
        """Wait for the end. Return seconds, the number of processes left, status and cause."""
        left = launching.left_of(self.pids, since + ENDED_WITHIN - time.monotonic())
        seconds = time.monotonic() - since
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        _, error = self.process.communicate(timeout=60)
        lines = [line for line in error.splitlines() if line.startswith("khop run: ")]
        causes = [line.removeprefix("khop run: ") for line in lines if " trainers" not in line]
        status, cause = self.process.returncode, causes[0] if causes else ""
        return {"seconds": round(seconds, 1), "left": len(left), "status": status, "cause": cause}


def target(job: Job, role: str) -> int:
    """Return the process id of a role in a job of light trainers."""
    if role == "launcher":
        return job.process.pid
    if role == "ssh":
        below = launching.descendants(job.process.pid)
        return max(pid for pid, (_, line) in below.items() if line.startswith(b"ssh\0"))
    stages = job.stages()
    guards = [pid for pid, parent in stages.items() if parent in stages]
    if role == "guard":
        return guards[0]
    if role == "stage":
        return next(pid for pid in stages if pid not in guards)
    return job.programs("light.py")[-1]


def kill_light(hosts: SshHosts, folder: Path) -> dict[str, dict[str, object]]:
    """Kill each process of jobs whose trainers need no start-up, and cut the network."""
    (folder / "light.py").write_text(LIGHT)
    results = {}
    cases = [(role, name) for role in ("launcher", "ssh", "stage", "trainer") for name in SIGNALS]
    for role, name in (*cases, ("guard", "KILL"), ("network", "cut")):
        words = ("--lease", LEASE, "--hosts", ",".join(f"{host}:2" for host in hosts.names))
        job = Job(hosts, folder, *words, "--", "light.py")
        job.wait_for("begun", 4)
        if role == "network":
            results[f"{role} {name}"] = _cut(hosts, job)
        else:
            since = time.monotonic()
            os.kill(target(job, role), getattr(signal, f"SIG{name}"))
            results[f"{role} {name}"] = job.ended(since)
    return results


def _cut(hosts: SshHosts, job: Job) -> dict[str, object]:
    """Cut the second host off. Return how the job ended, counted from the end of the lease."""
    hosts.network.set_link(1, False)
    try:
        return job.ended(time.monotonic() + LEASE)
    finally:
        hosts.network.set_link(1, True)


def cut_real(hosts: SshHosts, folder: Path) -> dict[str, dict[str, object]]:
    """Cut the second host off: from the first one's partition server, and with graph servers.

    Results have the numbers of khop's processes that ran on both hosts.
    """
    parts, stop = launching.partitioned(folder), folder / "never"
    command = ("--", "python", "-m", launched.__name__, parts, stop)
    first, second = hosts.names
    workers = ("--hosts", f"{first}:2,{second}:2")
    cases = {
        "samplers and partition servers": (workers, 4),
        "graph servers": (("--servers", second, "--clients", f"{first}:2"), 2),
        "clients of graph servers": (("--servers", first, "--clients", f"{second}:2"), 2),
    }
    results = {}
    for name, (words, trainers) in cases.items():
        options = ("--lease", LEASE, "--env", f"KHOP_LEASE={LEASE}", "--parts", parts)
        job = Job(hosts, folder, *options, *words, *command)
        job.wait_for("digest", trainers)
        programs = {
            "samplers": "sampling.worker",
            "partition servers": "partition_server",
            "graph servers": "khop\0serve",
            "receivers": "client.receiver",
        }
        counts = {role: len(job.programs(text)) for role, text in programs.items()}
        ran = {role: count for role, count in counts.items() if count}
        results[f"network cut off from {name}"] = {"ran": ran, **_cut(hosts, job)}
    return results


def kill_real(hosts: SshHosts, folder: Path) -> dict[str, dict[str, object]]:
    """Kill samplers and partition servers, which are restarted, then trainers, servers, clients."""
    parts, stop = launching.partitioned(folder), folder / "stop"
    command = ("python", "-m", launched.__name__, parts, stop)
    lists = ",".join(f"{host}:2" for host in hosts.names)
    job = Job(hosts, folder, "--parts", parts, "--hosts", lists, "--", *command)
    job.wait_for("digest", 4)
    results: dict[str, dict[str, object]] = {}
    for role, program in (("sampler", "sampling.worker"), ("partition server", "partition_server")):
        for name in SIGNALS:
            before = job.programs(program)
            os.kill(before[-1], getattr(signal, f"SIG{name}"))
            end = time.monotonic() + 60
            while len(set(job.programs(program)) - {before[-1]}) < len(before):
                if time.monotonic() > end or job.process.poll() is not None:
                    raise RuntimeError(f"{role} {name}: {job.process.stderr.read()}")
                time.sleep(0.1)
            time.sleep(1.0)
            state = "runs" if job.process.poll() is None else "ended"
            results[f"{role} {name}"] = {"job": state, "restarted": True}
    for name in SIGNALS:
        if name != SIGNALS[0]:  # the first one is that of the samplers
            job = Job(hosts, folder, "--parts", parts, "--hosts", lists, "--", *command)
            job.wait_for("digest", 4)
        results[f"trainer {name}, with samplers and servers"] = _kill(job, launched.__name__, name)
    servers, clients = hosts.names
    words = ("--parts", parts, "--servers", servers, "--clients", f"{clients}:2", "--", *command)
    for role, program in (("graph server", "khop\0serve"), ("client", launched.__name__)):
        for name in SIGNALS:
            job = Job(hosts, folder, *words)
            job.wait_for("digest", 2)
            results[f"{role} {name}"] = _kill(job, program, name)
    return results


def _kill(job: Job, program: str, name: str) -> dict[str, object]:
    """Kill the first process of a job that runs a program. Return how the job ended."""
    job.note()
    pid = next(pid for pid in job.programs(program) if pid not in job.stages())
    since = time.monotonic()
    os.kill(pid, getattr(signal, f"SIG{name}"))
    return job.ended(since)


def batches(hosts: SshHosts, folder: Path) -> dict[str, object]:
    """Compare digests of an epoch of four trainers on two hosts with loaders in memory."""
    import torch

    from khop.loader import NeighborLoader

    parts, stop = launching.partitioned(folder), folder / "done"
    stop.touch()
    lists = ",".join(f"{host}:2" for host in hosts.names)
    command = ("python", "-m", launched.__name__, parts, stop)
    job = Job(hosts, folder, "--hosts", lists, "--", *command)
    out, error = job.process.communicate(timeout=300)
    lines = sorted(re.findall(r"/(\d): digest (\d+) key (.*)", out))
    graph, seeds = jobs.make_graph(), torch.arange(500)
    loaders = [NeighborLoader(graph, [4, 4], seeds, stream=r, **launched.COMMON) for r in range(4)]
    same = [digest for _, digest, _ in lines] == [str(launched.digest(one)) for one in loaders]
    keys = lines[0][2] if lines else error
    return {"status": job.process.returncode, "equal": same, "keys": keys}
