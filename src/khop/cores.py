"""Numbers of cores and of bytes of memory that this process may use. Any process, no torch.

`os.cpu_count()` counts the machine's cores. Slurm, taskset and cpusets restrict a process to some
of them (its affinity). Kubernetes and Docker grant processor time (the quota of a control group),
which neither the machine's count nor the affinity shows.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path


def available_cores() -> int:
    """Return the number of cores that this process may use, at least 1.

    The number is the smaller of the process's affinity and the quota of its control groups, rounded
    up. If neither is known, the machine's cores.
    """
    cores = affinity() or os.cpu_count() or 1
    quota = _own_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def background_threads(least: int, most: int) -> int:
    """Return half the cores of this process, but at least `least` and at most `most`."""
    return max(least, min(most, available_cores() // 2))


def affinity() -> int | None:
    """Return the number of cores that this process may be scheduled on. If not known, None."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the processor time that control groups grant, in cores. If unlimited, None.

    Both versions of control groups are read below `root`. A group's limit also holds for the groups
    below it, so the smallest limit counts.
    """
    quotas = [quota for group in _groups(root, "cpu") for quota in _quotas(group) if quota > 0]
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that control groups grant, at most the machine's memory.

    They include files that the kernel keeps in memory for the process. If not known, None.
    """
    total = re.search(r"^MemTotal: +(\d+) kB", _text(root / "proc/meminfo") or "", re.MULTILINE)
    limits = [] if total is None else [str(int(total[1]) << 10)]
    limits += [
        _text(group / name) or "max"
        for group in _groups(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    return min((int(limit) for limit in limits if limit.isdecimal()), default=None)


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that this process may still fill. If not known, None.

    Files that the kernel keeps in memory count as available: it drops them. Control groups have
    the limits of `memory_limit`, less what their processes use.
    """
    info = _text(root / "proc/meminfo") or ""
    machine = re.search(r"^MemAvailable: +(\d+) kB", info, re.MULTILINE)
    amounts = [] if machine is None else [int(machine[1]) << 10]
    for group in _groups(root, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _text(group / limit_name) or "", _text(group / used_name) or ""
            if limit.isdecimal() and used.isdecimal():
                stat = _text(group / "memory.stat") or ""
                prefix = "total_" if "\ntotal_" in stat else ""
                files = re.findall(rf"^{prefix}(?:in)?active_file (\d+)$", stat, re.MULTILINE)
                amounts.append(max(0, int(limit) - int(used) + sum(map(int, files))))
    return min(amounts, default=None)


@cache
def _own_quota() -> float | None:
    """Return the processor time that control groups grant this process, in cores, or None."""
    return cpu_quota()


_Mount = tuple[frozenset[str], str, str]
"""Controllers (none in version 2), mounted group as in `/proc/self/cgroup`, and mount point."""


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups with a controller, outermost first."""
    mountinfo, cgroup = (_text(root / "proc/self" / name) for name in ("mountinfo", "cgroup"))
    mounts = [mount for line in (mountinfo or "").splitlines() for mount in _mounts(line)]
    for line in (cgroup or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        controllers = frozenset(name for name in names.split(",") if name)
        if controllers and controller not in controllers:
            continue
        for mounted, mounted_group, folder in mounts:
            if bool(mounted) is not bool(controllers) or not group:
                continue
            if controllers and controller not in mounted:
                continue
            top = root / folder.lstrip("/")
            # A container may name the host's group but see its own as the top.
            path = os.path.relpath(group, mounted_group)
            below = [] if path.startswith("..") else [p for p in path.split("/") if p != "."]
            yield top
            for depth in range(len(below)):
                yield top.joinpath(*below[: depth + 1])


def _mounts(line: str) -> Iterator[_Mount]:
    """Yield the mount of control groups that a line of `/proc/self/mountinfo` describes, if any."""
    about, _, source = line.partition(" - ")
    words, source_words = about.split(" "), source.split(" ")
    if len(words) < 5 or len(source_words) < 3:
        return
    top, folder = words[3], words[4]
    if source_words[0] == "cgroup2":
        yield frozenset(), top, folder
    elif source_words[0] == "cgroup":
        yield frozenset(source_words[2].split(",")), top, folder


def _quotas(group: Path) -> Iterator[float]:
    """Yield the limit of a control group (of version 1 or 2) in cores, if there is a limit."""
    quota, _, period = (_text(group / "cpu.max") or "max").partition(" ")
    quota_1, period_1 = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    for amount, per in ((quota, period), (quota_1, period_1)):
        if amount and per and amount.isdecimal() and per.isdecimal() and int(per) > 0:
            yield int(amount) / int(per)


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return None
