"""Samplers and arenas at a NUMA node: what Linux reports, and batches that do not change by it.

Tests run on machines with one node. Its cores are divided, and its memory is preferred.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from khop.distributed import DistDataset, DistNeighborLoader, MpDistSamplingWorkerOptions
from khop.distributed.loaders import placing
from khop.loader import NeighborLoader
from khop.numa import Machine, NumaNode, format_cpus
from khop.placement import Position
from support import processes
from support.cluster import jobs
from support.cluster.launched import digest
from support.cluster.placed import OPTIONS, ring_policies, where

CORES = sorted(os.sched_getaffinity(0))
ALL, LAST = format_cpus(CORES), str(CORES[-1])
HERE = "cpus:" + LAST
LOCAL = "100 % of memory and 100 % of files on node 0"  # there is no other
DENIED = "Operation not permitted"
MBIND, SET_MEMPOLICY, SET_AFFINITY = (
    (237, 238, 203) if os.uname().machine == "x86_64" else (235, 237, 122)
)


def reference(graph):
    seeds = jobs.seeds_of_rank(0)
    return NeighborLoader(graph, jobs.FANOUTS, seeds, batch_size=16, seed=3, shuffle=True)


@pytest.fixture(scope="module", autouse=True)
def one_node():
    """Skip where Linux has no NUMA: there are no policies to read back."""
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("this Linux is built without NUMA")


@pytest.mark.parametrize("placement", ["none", "auto", HERE, "node:0"])
def test_batches_are_the_same(folder_of, graph, placement):
    """With servers of other parts, too, which are where the trainer is."""
    before = where("self")
    loader = jobs.make_loader(
        folder_of("random", 2), 2, 2, seed=3, shuffle=True, placement=placement
    )
    assert jobs.same_batches(loader, reference(graph)) > 2
    samplers = [worker.pid for worker in loader.workers]
    expected = {HERE: [LAST, "prefer:0"], "node:0": [ALL, "prefer:0"]}.get(placement, before)
    assert [where(pid) for pid in samplers] == [expected] * 2
    servers = [pid for pid in jobs.khop_processes() if pid not in samplers]
    assert [where(pid) for pid in servers] == [before]
    assert where("self") == before
    assert ring_policies(samplers[0]) == [expected[1]]
    assert expected[1] in ring_policies("self")  # it may have arenas of other tests, too
    loader.shutdown()


def test_successors(folder_of):
    """Restarted samplers and processes in reserve are bound as the first ones."""
    dataset = DistDataset().load(folder_of("random", 1), 0)
    options = MpDistSamplingWorkerOptions(num_workers=1, standby=True, max_restarts=5)
    loader = DistNeighborLoader(
        dataset, [2], torch.arange(64), batch_size=8, worker_options=options, placement=HERE
    )
    for _ in range(2):
        list(loader)
        assert where(loader.workers[0].pid) == [LAST, "prefer:0"]
        (reserve,) = {*jobs.khop_processes()} - {loader.workers[0].pid}
        end = time.monotonic() + 20
        while where(reserve) != [LAST, "prefer:0"] and time.monotonic() < end:
            time.sleep(0.02)  # it has just been started
        assert where(reserve) == [LAST, "prefer:0"]
        os.kill(loader.workers[0].pid, signal.SIGKILL)
        time.sleep(0.1)
    loader.shutdown()


def test_auto(folder_of, graph, monkeypatch):
    """On two nodes, of which Linux has one here: cores are bound, and it refuses the memory."""
    if len(CORES) < 2:
        pytest.skip("needs two cores")
    nodes = tuple(NumaNode(i, (CORES[i],), 1 << 30, {i: 10, 1 - i: 20}) for i in (0, 1))
    monkeypatch.setattr(placing, "topology", lambda: Machine(nodes, {}, True))
    for position, expected in (
        (Position(0, 1), [ALL, "default"]),
        (Position(2, 4), [str(CORES[0]), "prefer:0"]),
        (Position(1, 2), [str(CORES[1]), "default"]),
    ):
        monkeypatch.setattr(placing, "_position", lambda data, found=position: found)
        loader = jobs.make_loader(folder_of("random", 1), 1, 1, seed=3, shuffle=True)
        assert jobs.same_batches(loader, reference(graph)) > 2
        assert where(loader.workers[0].pid) == expected
        stats = loader.stats().placement
        invalid = "set_mempolicy: Invalid argument; mbind: Invalid argument"
        assert stats.get("refused") == (invalid if position.rank == 1 else None)
        assert stats["trainer"].startswith("node 0, ")
        loader.shutdown()


def test_stats_say_it(folder_of, monkeypatch):
    """By the variable as well. Nothing is said on one node, unless the user has chosen."""
    folder = folder_of("random", 1)
    loader = jobs.make_loader(folder, 1, 1)
    assert loader.stats().placement == {} and "placement" not in loader.stats().summary()
    loader.shutdown()
    monkeypatch.setenv("KHOP_PLACEMENT", HERE)
    loader = jobs.make_loader(folder, 1, 2)
    list(loader)
    stats = loader.stats()
    assert stats.placement == {
        "trainer": f"node 0, cores {ALL}, memory default, {LOCAL}",
        "samplers": f"node 0, cores {LAST}, memory prefer:0, {LOCAL}",
    }
    assert f"placement   samplers: node 0, cores {LAST}, memory prefer:0, " in stats.summary()
    assert stats.as_dict()["placement"] == stats.placement
    loader.shutdown()
    assert "samplers" not in loader.stats().placement


def test_mistakes_are_found_before_anything_starts(folder_of):
    for placement, words in (("node:7", "nodes with cores of this process are 0"), ("x", "must")):
        with pytest.raises(ValueError, match=f"placement.*{words}"):
            jobs.make_loader(folder_of("random", 1), 1, 1, placement=placement)
    assert jobs.khop_processes() == []


def refused(calls, *command):
    """Run a program to which the kernel refuses system calls. Return what it prints, from JSON."""
    numbers = ",".join(map(str, calls))
    done = subprocess.run(
        [*processes.command("support.seccomp", numbers), *command],
        check=False,
        env=processes.environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    if "takes no filter" in done.stderr:
        pytest.skip("this system does not allow filters of system calls")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.real_exec
def test_what_the_system_refuses_is_a_note(folder_of, graph):
    """As in a container without CAP_SYS_NICE: cores are still chosen, and batches are the same."""
    command = processes.command("support.cluster.placed", folder_of("random", 1), HERE)
    found = refused([MBIND, SET_MEMPOLICY], *command)
    assert found["digest"] == digest(NeighborLoader(graph, **OPTIONS))
    assert (found["samplers"], found["rings"]) == ([[LAST, "default"]] * 2, ["default"])
    assert found["stats"]["refused"] == f"set_mempolicy: {DENIED}; mbind: {DENIED}"


@pytest.mark.real_exec
def test_each_call_stands_alone():
    """Memory is placed where cores cannot be chosen."""
    program = (
        "import json; from khop.placement import bind, describe; "
        f"print(json.dumps([bind([{LAST}], 0), describe()]))"
    )
    found = refused([SET_AFFINITY], sys.executable, "-c", program)
    expected = f"node 0, cores {ALL}, memory prefer:0"
    assert found == [[f"sched_setaffinity: {DENIED}"], expected]
