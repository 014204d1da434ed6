"""Trainers of `khop run` at a NUMA node: bound before they begin, with their samplers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from khop import placement
from khop.loader import NeighborLoader
from khop.numa import format_cpus
from support import launching, processes
from support.cluster import jobs
from support.cluster.launched import digest
from support.cluster.placed import OPTIONS, where

CORES = sorted(os.sched_getaffinity(0))
ALL, LAST = format_cpus(CORES), str(CORES[-1])
NUMA_CALLS = "237,238" if os.uname().machine == "x86_64" else "235,237"
PROGRAM = "support.cluster.placed"


@pytest.fixture(autouse=True)
def one_node():
    """Skip where Linux has no NUMA: there are no policies to read back."""
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("this Linux is built without NUMA")


def test_trainers_are_bound_and_their_servers_are_not(tmp_path):
    """Samplers and arenas stay with their trainer. Batches are those of the in-memory loader."""
    parts = launching.partitioned(tmp_path)
    words = ("--local", 2, "--placement", f"cpus:{LAST}", "--", "python", "-m", PROGRAM, parts)
    done = launching.run(*words, folder=tmp_path, KHOP_SAME_HOST_READS="0")
    assert done.returncode == 0, done.stderr
    lines = sorted(line.split(": ", 1) for line in done.stdout.splitlines())
    assert [origin for origin, _ in lines] == ["localhost/0", "localhost/1"]
    expected = [LAST, "prefer:0"]
    local = "100 % of memory and 100 % of files on node 0"
    here = f"node 0, cores {LAST}, memory prefer:0, {local}"
    for rank, (_, text) in enumerate(lines):
        found = json.loads(text)
        loader = NeighborLoader(jobs.make_graph(), stream=rank, **OPTIONS)
        assert found["digest"] == digest(loader)
        assert found["position"] == [rank, 2, None]
        assert found["trainer"] == expected and found["samplers"] == [expected] * 2
        assert found["rings"] == ["prefer:0"]
        assert found["servers"] == [[ALL, "default"]]
        assert found["stats"] == {"trainer": here, "samplers": here}


def test_refused_policies_are_a_note(tmp_path):
    """As in a container: the job runs, and khop run shows what was refused."""
    words = launching.command(
        *("--local", 1, "--placement", f"cpus:{LAST}", "--"),
        *("grep", "Cpus_allowed_list", "/proc/self/status"),
    )
    done = subprocess.run(
        [sys.executable, "-m", "support.seccomp", NUMA_CALLS, *words],
        env=processes.environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "takes no filter" in done.stderr:
        pytest.skip("this system does not allow filters of system calls")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"localhost/0: Cpus_allowed_list:\t{LAST}",
        "localhost/0: khop: placement: set_mempolicy: Operation not permitted",
    ]


def show(folder, *options, **variables):
    """Cores, policy, threads and the words of one trainer, which is no program of Python."""
    text = "echo $(grep Cpus_allowed_list /proc/self/status) $OMP_NUM_THREADS $KHOP_PLACEMENT"
    done = launching.run(*options, "--", "sh", "-c", text, folder=folder, **variables)
    return done, done.stdout.rpartition("Cpus_allowed_list: ")[2].split()


def test_threads_and_variables(tmp_path):
    """Of any command. The user's number of threads stays, and so does the user's mask."""
    done, found = show(tmp_path, "--local", 1, "--placement", f"cpus:{LAST}", OMP_NUM_THREADS="3")
    assert done.returncode == 0 and found == [LAST, "3", f"cpus:{LAST}"], done
    done, found = show(tmp_path, "--local", 1, KHOP_PLACEMENT="node:0", OMP_NUM_THREADS="3")
    assert done.returncode == 0 and found == [ALL, "3", "node:0"], done
    inside = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    done, found = show(tmp_path, "--placement", f"cpus:{LAST}", **inside)
    assert done.returncode == 0 and found[::2] == [LAST, f"cpus:{LAST}"], done


def test_mistakes_are_of_the_checks(tmp_path):
    """Of each host, before anything starts."""
    words = ("--rsh", launching.RSH, "--hosts", "a,b", "--placement")
    for text, message in (
        ("node:7", "KHOP_PLACEMENT: nodes with cores of this process are 0 (got 'node:7')"),
        ("both", "KHOP_PLACEMENT must be 'auto', 'none', 'node:K' or 'cpus:0-15' (got 'both')"),
    ):
        done = launching.run(*words, text, "--", "true", folder=tmp_path)
        assert done.returncode == 2 and "2 problems, nothing was started" in done.stderr
        assert f"khop run: a: {message}" in done.stderr and f"b: {message}" in done.stderr


def test_a_command_that_does_not_exist(tmp_path):
    words = ("--local", 1, "--placement", f"cpus:{LAST}", "--", "/nowhere/x")
    done = launching.run(*words, folder=tmp_path)
    assert done.returncode == 127
    assert "khop: cannot start /nowhere/x: No such file or directory" in done.stderr


def test_this_process_is_as_before():
    """What the system allows is found out in a thread, which takes what it has set along."""
    before = where("self")
    assert placement.refusals(placement.Placement((CORES[-1],), 0)) == []
    assert where("self") == before
