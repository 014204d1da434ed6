"""Servers that die, stop or are cut off come back, or all hear of it; batches are the same."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from khop.distributed.partitions import supervisor
from khop.errors import PartitionUnavailableError
from support.cluster import jobs, recovery_jobs
from support.cluster.faults import FEW_AHEAD, RECOVERED, SOON, make_loader, make_reference, within


def server_pids(loader):
    """Process ids of the servers that this trainer keeps."""
    servers = loader.data.service().endpoint_registry.supervisor.servers
    return [server.process.pid for server in servers.values()]


def with_fault(loader, fault, at=(1, 9)):
    """Batches of an epoch, in the middle of which `fault()` happens."""
    for number, batch in enumerate(loader):
        if number in at:
            fault()
        yield batch.clone()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_servers_that_die_come_back(graph, folder_of, num_workers, number):
    """However it ends, a server is there again at its place, and what was asked is asked again."""
    loader = make_loader(folder_of("random", 2), 2, num_workers, buffer_size=FEW_AHEAD)
    service = loader.data.service()
    before, kills = service.endpoints(), []

    def kill():
        while set(server_pids(loader)) & set(kills):
            time.sleep(0.01)  # batches may have been made ahead: the first may not be missed yet
        for pid in server_pids(loader):
            kills.append(pid)
            os.kill(pid, number)

    with within(RECOVERED):
        assert jobs.same_batches(with_fault(loader, kill), make_reference(graph)) == len(loader)
        while service.endpoint_registry.supervisor.num_restarts < 2:
            time.sleep(0.01)
    assert len(set(kills)) == 2
    assert service.endpoint_registry.supervisor.num_restarts == 2
    assert service.endpoints() == before


def test_server_that_never_works_again(folder_of, monkeypatch):
    """One that dies whenever it is started is given up: an exception that says how it ended."""
    monkeypatch.setattr(supervisor, "_MAX_IN_A_ROW", 3)
    # Without rows and draws ahead, with which an epoch may need the server no more.
    loader = make_loader(
        folder_of("random", 2), 2, buffer_size=FEW_AHEAD, cache_memory=0, lookahead=0
    )
    iterator = iter(loader)
    next(iterator)
    over = threading.Event()

    def kill():
        while not over.wait(0.02):
            for pid in server_pids(loader):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with (
            within(SOON),
            pytest.raises(
                PartitionUnavailableError, match=r"partition 1 has ended for good.*SIGKILL"
            ),
        ):
            list(iterator)
        with within(SOON), pytest.raises(PartitionUnavailableError, match="ended for good"):
            list(loader)
    finally:
        over.set()
        thread.join()


def test_server_whose_place_is_not_safe_any_more(graph, folder_of):
    """Its folder has been opened to others: it comes back in another, and samplers are told."""
    loader = make_loader(folder_of("random", 2), 2, buffer_size=FEW_AHEAD)
    before = loader.data.service().endpoints()[1]

    def kill():
        Path(before.address.removeprefix("ipc://")).parent.chmod(0o755)
        for pid in server_pids(loader):
            os.kill(pid, signal.SIGKILL)

    with within(RECOVERED):
        batches = with_fault(loader, kill, at=[2])
        assert jobs.same_batches(batches, make_reference(graph)) == len(loader)
    assert loader.data.service().endpoints()[1] != before
    with within(SOON):  # and a sampler that begins now looks there at once
        os.kill(loader.workers[0].pid, signal.SIGKILL)
        assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_server_that_stops_for_a_while(graph, folder_of, num_workers):
    """Longer than heartbeats allow: it is lost, comes back and answers."""
    loader = make_loader(folder_of("random", 2), 2, num_workers, buffer_size=FEW_AHEAD)
    timers = []

    def stop():
        for pid in server_pids(loader):
            os.kill(pid, signal.SIGSTOP)
            timers.append(threading.Timer(4.5, os.kill, (pid, signal.SIGCONT)))
            timers[-1].start()

    with within(RECOVERED):
        batches = with_fault(loader, stop, at=[2])
        assert jobs.same_batches(batches, make_reference(graph)) == len(loader)
    for timer in timers:
        timer.join()
    assert loader.data.service().endpoint_registry.supervisor.num_restarts == 0


@pytest.mark.parametrize(
    ("seconds", "state"), [(1, "is connected, but gave no answer in 1"), (5, "unreachable for")]
)
def test_server_that_stops_for_good(folder_of, seconds, state):
    """After `timeout`, and the error says what is known of the server."""
    loader = make_loader(folder_of("random", 2), 2, 1, buffer_size=FEW_AHEAD, timeout=seconds)
    iterator = iter(loader)
    next(iterator)
    for pid in server_pids(loader):
        os.kill(pid, signal.SIGSTOP)
    try:
        with (
            within(RECOVERED),
            pytest.raises(PartitionUnavailableError, match=rf"partition 1 at ipc://\S+ .*{state}"),
        ):
            list(iterator)
    finally:
        for pid in server_pids(loader):
            os.kill(pid, signal.SIGCONT)


def start_pair(job, folder_of, tmp_path, prefixes=None, master="127.0.0.1", port=None, **more):
    """Two trainers that run a job, when both have begun in earnest."""
    arguments = {
        "root": str(folder_of("random", 2)),
        "homes": [0, 1],
        "num_workers": 1,
        "ready": str(tmp_path / "ready"),
        **more,
    }
    return jobs.start_trainers(
        job, arguments, 2, prefixes, master, port, program=recovery_jobs.__name__
    )


def wait_until_ready(trainers, tmp_path, seconds=90):
    """What the two have left to read."""
    files = [tmp_path / f"ready.{rank}" for rank in (0, 1)]
    end = time.monotonic() + seconds
    while not all(f.exists() for f in files):
        if time.monotonic() > end or any(t.poll() is not None for t in trainers):
            for trainer in trainers:
                trainer.kill()
            raise AssertionError([t.communicate()[1][-2000:] for t in trainers])
        time.sleep(0.05)
    return [f.read_text() for f in files]


def test_scheduler_that_ends_the_job(folder_of, tmp_path):
    """SIGTERM that a trainer turns into exit status 143: soon, and nothing is left."""
    trainers = start_pair("terminated", folder_of, tmp_path)
    children = [pid for text in wait_until_ready(trainers, tmp_path) for pid in json.loads(text)]
    assert len(children) == 4
    for trainer in trainers:
        trainer.terminate()
    try:
        for trainer in trainers:
            trainer.communicate(timeout=RECOVERED)
    except subprocess.TimeoutExpired:  # they have said where they are
        for trainer in trainers:
            trainer.kill()
        raise AssertionError([t.communicate()[1][-4000:] for t in trainers]) from None
    assert [trainer.returncode for trainer in trainers] == [143, 143]
    assert jobs.wait_for_ends(children) == []


@pytest.mark.network
def test_server_that_comes_back_at_another_port(folder_of, two_hosts, tmp_path):
    """On another machine: the store tells where."""
    prefixes, master = two_hosts
    trainers = start_pair("moved", folder_of, tmp_path, prefixes, master, 29512)
    results = jobs.finish_trainers(trainers)
    assert [r["batches"] for r in results] == [[20, 20], [20, 20]]
    assert [r["taken"] for r in results] == [1, 0]
    assert [r["moved"] for r in results] == [False, True]


@pytest.mark.network
def test_network_that_is_cut(folder_of, two_hosts, tmp_path):
    """For ten seconds: connections are half open, then gone; batches are the same."""
    prefixes, master = two_hosts
    enough = tmp_path / "enough"
    trainers = start_pair(
        "steady", folder_of, tmp_path, prefixes, master, 29513, enough=str(enough)
    )
    wait_until_ready(trainers, tmp_path)
    command = [*prefixes[0], "ip", "-o", "link", "show", "type", "veth"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    cable = shown.split()[1].split("@")[0]

    def put(state):
        subprocess.run([*prefixes[0], "ip", "link", "set", cable, state], check=True)

    put("down")
    try:
        time.sleep(10)
    finally:
        put("up")
        enough.touch()
    results = jobs.finish_trainers(trainers)
    assert all(r["batches"] % 20 == 0 and r["rows"]["remote"] > 0 for r in results)
    assert all(9 < r["longest"] < 20 for r in results)
