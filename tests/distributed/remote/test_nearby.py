"""Samplers that a graph server lends to clients of its machine."""

import os
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jobs
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from receiving import collect_all
from serving import client_of, serving, sessions, wait_until

from khop.channel.control import Op
from khop.channel.ring import create_memory
from khop.distributed.pipeline import PipelineSpec
from khop.distributed.remote.borrowed import BorrowedProcess, nearby_socket
from khop.errors import PartitionUnavailableError, ProtocolError
from khop.partition import PartitionFolder
from khop.sampler.spec import SamplingSpec


def wanted(root, **changes):
    """What a client says of the sampler that it wants."""
    meta = PartitionFolder(root).meta
    sampling = SamplingSpec.create([3, 3], [t.name for t in meta.edge_types])
    return {
        "loader": "l",
        "client": "c",
        "pipeline": PipelineSpec(sampling, collect_all(meta, sampling)).to_json(),
        "concurrency": 2,
        "timeout": 10.0,
        "number": 0,
        "device": None,
        "num_shared": 0,
        **changes,
    }


def borrow(client, config, rank=0, timeout=20.0):
    """Borrows a sampler."""
    ring = create_memory(1 << 20)
    try:
        wait = partial(client.wait_for_table, what="a server")
        return BorrowedProcess(rank, wait, config, [ring], timeout)
    finally:
        os.close(ring)


def next_message(process, seconds=20.0):
    """What a process says next; EOFError when it has ended."""
    poller = select.poll()
    poller.register(process.line.fileno(), select.POLLIN)
    end = time.monotonic() + seconds
    while (message := process.line.receive()) is None:
        assert time.monotonic() < end
        poller.poll(100)
    return message


def wait_for_end(process):
    """Waits until the process has closed its line."""
    with pytest.raises(EOFError):
        while True:
            next_message(process)


def test_given_back_and_killed(folder_of):
    """A sampler ends with its client's line, and says how it ended if it does so itself."""
    root = folder_of("random", 1)
    with serving(root) as served, client_of(served) as client:
        process = borrow(client, wanted(root))
        assert next_message(process).op is Op.READY
        (session,) = sessions(client)
        assert session["samplers"][0]["pid"] == process.pid
        process.close()
        wait_until(lambda: not sessions(client))
        assert jobs.wait_for_ends([process.pid]) == []

        process = borrow(client, wanted(root))
        assert next_message(process).op is Op.READY
        os.kill(process.pid, signal.SIGKILL)
        wait_for_end(process)
        assert process.exit_status() == "was killed by SIGKILL"
        assert not process.ended_with_server
        process.close()
        wait_until(lambda: not sessions(client))


def test_killed_server(folder_of):
    """Samplers end with their server; the next one is borrowed of its successor."""
    root = folder_of("random", 2)
    with serving(root, 2) as served, client_of(served) as client:
        process = borrow(client, wanted(root), rank=1)
        assert next_message(process).op is Op.READY
        served.kill(1)
        wait_for_end(process)
        process.exit_status()
        assert process.ended_with_server
        process.close()
        with pytest.raises(
            PartitionUnavailableError, match=r"graph server 1 lends no sampler in 1"
        ):
            borrow(client, wanted(root), rank=1, timeout=1.0)
        served.start(1)
        process = borrow(client, wanted(root), rank=1)
        assert next_message(process).op is Op.READY
        process.close()


def test_killed_client_whose_fork_lives_on(folder_of):
    """A client that is killed leaves nothing, also if a fork of it still holds all it had open."""
    root = folder_of("random", 1)
    paths = [str(Path(__file__).parent), *sys.path]
    code = (
        f"import sys; sys.path[:] = {paths!r}\n"
        "import os, time, test_nearby as t\n"
        "from khop.distributed.remote.connection import RemoteClient, Servers\n"
        "client = RemoteClient(Servers(sys.argv[1]))\n"
        "process = t.borrow(client, t.wanted(sys.argv[2])); t.next_message(process)\n"
        "fork = os.fork()\n"
        "if fork == 0: time.sleep(600)\n"
        "print(process.pid, fork, flush=True)\n"
        "time.sleep(600)\n"
    )
    with serving(root) as served, client_of(served) as client:
        trainer = subprocess.Popen(
            [sys.executable, "-c", code, served.master, str(root)],
            stdout=subprocess.PIPE,
            text=True,
        )
        sampler, fork = map(int, trainer.stdout.readline().split())
        try:
            assert len(sessions(client)) == 1
            trainer.kill()
            trainer.wait()
            wait_until(lambda: not sessions(client))
            assert jobs.wait_for_ends([sampler]) == []
        finally:
            os.kill(fork, signal.SIGKILL)
            trainer.stdout.close()


def test_refused(folder_of):
    """What is wrong with a request is the client's error, with the server's words."""
    root = folder_of("random", 1)
    with serving(root, sampler_limit=1) as served, client_of(served) as client:
        bad = wanted(root)
        bad["pipeline"]["sampling"]["fanouts"] = [[3], [3]]
        for config, error in (
            (bad, ProtocolError),
            (wanted(root, concurrency=0), ProtocolError),
            (wanted(root, num_shared=1), ProtocolError),
            (wanted(root, pipeline="x"), ProtocolError),
            (wanted(root, client=5), ProtocolError),
        ):
            with pytest.raises(error, match="graph server 0"):
                borrow(client, config)
        process = borrow(client, wanted(root))
        with pytest.raises(MemoryError, match="sampler processes"):
            borrow(client, wanted(root))
        process.close()
        wait_until(lambda: not sessions(client))
        borrow(client, wanted(root)).close()
        socket = nearby_socket(client.table["servers"]["0"])
        assert Path(socket).parent.stat().st_mode & 0o077 == 0
        assert nearby_socket({**client.table["servers"]["0"], "host": "another"}) is None
