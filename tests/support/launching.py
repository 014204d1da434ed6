"""Jobs of `khop run` in tests, and the processes that they consist of."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

from support import processes

# Transport that is a process of its own, as ssh: a shell, which starts another with the command.
RSH = "sh -c 'sh -c \"$2\"; exit $?' rsh {host}"
_STAGE = b"sys.stdin.buffer.readline"


def command(*words):
    """Return the command line of `khop run WORDS`."""
    return [sys.executable, "-m", "khop", "run", *map(str, words)]


def start(*words, folder, **variables):
    """Start `khop run WORDS` in a folder."""
    return subprocess.Popen(
        command(*words),
        cwd=folder,
        env=processes.environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*words, folder, **variables):
    """Run `khop run WORDS` to its end."""
    job = start(*words, folder=folder, **variables)
    out, err = job.communicate(timeout=120)
    return subprocess.CompletedProcess(words, job.returncode, out, err)


def table():
    """Return {pid: (parent, state, command line)} of all processes."""
    found = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
                found[int(process.name)] = int(parent), state, (process / "cmdline").read_bytes()
    return found


def descendants(pid):
    """Return {pid: (parent, command line)} of a process's descendants that run."""
    found, all_of_them = {}, table()
    waiting = [pid]
    while waiting:
        above = waiting.pop()
        for child, (parent, state, line) in all_of_them.items():
            if parent == above and state != "Z":
                found[child] = parent, line
                waiting.append(child)
    return found


def roles(pid):
    """Return {role: pids} of a job: launcher, transport, stage, guard, trainer, child."""
    found = {"launcher": [pid]}
    found |= {role: [] for role in ("transport", "stage", "guard", "trainer", "child")}
    below = descendants(pid)
    is_stage = {p for p, (_, line) in below.items() if _STAGE in line and line[:3] != b"sh\0"}
    for process, (parent, _) in sorted(below.items()):
        if process in is_stage:
            found["guard" if parent in is_stage else "stage"].append(process)
        elif parent == pid:
            found["transport"].append(process)
        elif parent in is_stage:
            found["trainer"].append(process)
        elif parent in found["trainer"]:
            found["child"].append(process)
    found["trainer"].sort(key=_rank)
    return found


def _rank(pid):
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(int(entry[5:]) for entry in variables if entry.startswith(b"RANK="))


def left_of(pids, seconds):
    """Wait until processes have ended. Return those that still run after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        states = table()
        left = [pid for pid in pids if states.get(pid, (0, "Z"))[1] not in "ZX"]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def marked(text):
    """Return {pid: parent} of processes whose environment has `text`."""
    found = {}
    for pid, (parent, state, _) in table().items():
        with contextlib.suppress(OSError):
            if state != "Z" and text.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found[pid] = parent
    return found


def stages():
    """Return {pid: parent} of all stages and their guards."""
    running = table().items()
    return {p: parent for p, (parent, _, line) in running if _is_stage(line)}


def _is_stage(line):
    return _STAGE in line and b"python" in line.split(b"\0")[0]


def partitioned(folder):
    """Return a folder with a graph in two parts, made once."""
    import khop
    from support.cluster import jobs

    parts = folder / "parts"
    if not parts.exists():
        khop.partition_graph(jobs.make_graph(), parts, 2)
    return parts
