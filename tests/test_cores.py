"""The number of cores that a process may use: its affinity, and the quota of its control groups."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from torch_geometric.data import Data

from khop import cores
from khop.loader import NeighborLoader

V2 = "26 25 0:23 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
V1 = "33 25 0:30 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
OTHER = "22 25 0:21 / /proc rw - proc proc rw"


def tree(root, mounts, groups, files):
    """A file system with what the kernel says of control groups."""
    content = {"proc/self/mountinfo": "\n".join([OTHER, *mounts]), "proc/self/cgroup": groups}
    for name, text in {**content, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def v2(quota, below=""):
    return {f"sys/fs/cgroup{below}/cpu.max": quota}


def v1(quota, below="", period="100000"):
    folder = f"sys/fs/cgroup/cpu,cpuacct{below}"
    return {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": period}


CASES = {
    "none": ([], "", {}, None),
    "v2": ([V2.format(top="/")], "0::/", v2("150000 100000"), 1.5),
    "v2 without limit": ([V2.format(top="/")], "0::/a", v2("max 100000", "/a"), None),
    "v2, of a group above": (
        [V2.format(top="/")],
        "0::/slurm/job_7/step_0",
        {**v2("800000 100000", "/slurm"), **v2("200000 100000", "/slurm/job_7"),
         **v2("max 100000", "/slurm/job_7/step_0")},
        2.0,
    ),
    "v2, the host's name for a container's group": (
        [V2.format(top="/kubepods/pod1/c1")], "0::/kubepods/pod1/c1", v2("50000 100000"), 0.5,
    ),
    "v2, a group outside of what is mounted": (
        [V2.format(top="/kubepods/pod1")], "0::/other", v2("300000 100000"), 3.0,
    ),
    "v2, a sibling's limit": (
        [V2.format(top="/")], "0::/a", {**v2("100000 100000", "/ab"), **v2("max", "/a")}, None,
    ),
    "v1": (
        [V1.format(top="/")], "4:cpu,cpuacct:/docker/1", v1("400000", "/docker/1"), 4.0,
    ),
    "v1 without limit": ([V1.format(top="/")], "4:cpu,cpuacct:/", v1("-1"), None),
    "v1, other periods": ([V1.format(top="/")], "4:cpu:/", v1("25000", period="10000"), 2.5),
    "v1, memory's group": ([V1.format(top="/")], "4:memory:/a", v1("100000", "/a"), None),
    "both": (
        [V1.format(top="/"), V2.format(top="/").replace("cgroup rw", "cgroup/unified rw")],
        "4:cpu,cpuacct:/a\n0::/b",
        {**v1("400000", "/a"), "sys/fs/cgroup/unified/b/cpu.max": "300000 100000"},
        3.0,
    ),
    "nonsense": ([V2.format(top="/"), "a b c - cgroup2"], "0::/\nx\n::", v2("x 0"), None),
    "no period": ([V2.format(top="/")], "0::/", v2("100000 0"), None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_quota(tmp_path, case):
    mounts, groups, files, expected = CASES[case]
    assert cores.cpu_quota(tree(tmp_path, mounts, groups, files)) == expected


@pytest.mark.parametrize(
    ("allowed", "quota", "expected"),
    [(8, None, 8), (8, 2.0, 2), (8, 2.1, 3), (2, 7.5, 2), (4, 0.1, 1), (None, None, 64)],
)
def test_smallest_limit_counts(monkeypatch, allowed, quota, expected):
    """Rounded up, at least one; the machine's cores where nothing else is known."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    if allowed is None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    else:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    monkeypatch.setattr(cores, "_own_quota", lambda: quota)
    assert cores.available_cores() == expected


def test_half_of_the_cores(monkeypatch):
    for available, expected in [(1, 1), (2, 1), (6, 3), (64, 4)]:
        monkeypatch.setattr(cores, "available_cores", lambda n=available: n)
        assert cores.background_threads(1, 4) == expected


def test_threads_follow_affinity():
    """What is bound to one core uses one thread, however many the machine and torch have."""
    found = []

    def bound():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # this thread alone
        torch.set_num_threads(16)
        data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
        found.append((cores.available_cores(), NeighborLoader(data, [1])._joiner._num_threads))

    before = torch.get_num_threads()
    thread = threading.Thread(target=bound)
    thread.start()
    thread.join()
    torch.set_num_threads(before)
    assert found == [(1, 1)]


@pytest.mark.process
def test_no_torch_is_imported_for_it():
    program = "import sys; from khop.cores import available_cores; available_cores(); "
    program += "print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["False"], done.stderr


def test_memory_that_is_available(tmp_path):
    """What is left of the smallest limit, with the files that the kernel would drop."""
    machine = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:       1000 kB"}
    v1_mount = V1.replace("cpu,cpuacct", "memory").format(top="/")
    v2_mount, in_v2, in_v1 = V2.format(top="/"), "sys/fs/cgroup/a", "sys/fs/cgroup/memory/a"
    v2 = {f"{in_v2}/memory.max": "900", f"{in_v2}/memory.current": "700"}
    stat_2 = "anon 5\ninactive_file 30\nactive_file 20\nunevictable 0"
    v1 = {f"{in_v1}/memory.limit_in_bytes": "900", f"{in_v1}/memory.usage_in_bytes": "950"}
    stat_1 = "cache 1\nactive_file 1\ninactive_file 1\ntotal_active_file 60\ntotal_inactive_file 40"
    cases = [
        ([], "", {}, None),
        ([], "", machine, 1_024_000),
        ([v2_mount], "0::/a", {f"{in_v2}/memory.max": "max", **machine}, 1_024_000),
        ([v2_mount], "0::/a", {**v2, **machine}, 200),
        ([v2_mount], "0::/a", {**v2, f"{in_v2}/memory.stat": stat_2, **machine}, 250),
        ([v1_mount], "3:memory:/a", {**v1, f"{in_v1}/memory.stat": stat_1, **machine}, 50),
        ([v1_mount], "3:memory:/a", {**v1, **machine}, 0),
    ]
    for i, (mounts, groups, files, expected) in enumerate(cases):
        root = tree(tmp_path / str(i), mounts, groups, files)
        assert cores.available_memory(root) == expected, i


def test_memory_of_groups(tmp_path):
    """The smallest limit above a process counts, of both versions, and the machine's memory."""
    machine = {"proc/meminfo": "MemTotal:       1000 kB\nMemFree: 1 kB"}
    v1_mount = V1.replace("cpu,cpuacct", "memory")
    limit = "memory.limit_in_bytes"
    v2_mount, in_v2, in_v1 = V2.format(top="/"), "sys/fs/cgroup/a", "sys/fs/cgroup/memory/a"
    cases = [
        ([], "", {}, None),
        ([], "", machine, 1_024_000),
        ([v2_mount], "0::/a", {f"{in_v2}/memory.max": "max", **machine}, 1_024_000),
        ([v2_mount], "0::/a", {f"{in_v2}/memory.max": "500", **machine}, 500),
        ([v1_mount.format(top="/")], "3:memory:/a/b",
         {f"{in_v1}/{limit}": "700", f"{in_v1}/b/{limit}": "900"}, 700),
        ([V1.format(top="/")], "3:cpu,cpuacct:/a",
         {f"sys/fs/cgroup/cpu,cpuacct/a/{limit}": "700"}, None),
    ]  # fmt: skip
    for i, (mounts, groups, files, expected) in enumerate(cases):
        root = tree(tmp_path / str(i), mounts, groups, files)
        assert cores.memory_limit(root) == expected, i
