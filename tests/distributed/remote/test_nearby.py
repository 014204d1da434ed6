"""Clients on the machine of their servers: samplers write into the trainer's own memory."""

import itertools
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from khop.channel.arena import create_memory
from khop.channel.control import ControlLine, Op
from khop.codec import to_json
from khop.distributed import (
    DistLinkNeighborLoader,
    DistNeighborLoader,
    RemoteDistSamplingWorkerOptions,
)
from khop.distributed.job.context import get_context
from khop.distributed.processes.socket_files import lines_path
from khop.distributed.remote.client.local_sampler import LocalSampler
from khop.distributed.remote.messages import Ping
from khop.errors import PartitionUnavailableError, ProtocolError, SamplerDiedError
from khop.loader import LinkNeighborLoader, NeighborLoader
from support import processes
from support.cluster import jobs
from support.cluster.servers import cluster
from support.cluster.serving import client_of, serving, wait_until

COMMON = {"batch_size": 8, "shuffle": True, "seed": 3}


@pytest.fixture
def servers(folder_of):
    """Two servers, and this process as their only client."""
    with cluster(folder_of("frequency", 2), [[0], [1]]) as found, found.client():
        yield found


def remote_loader(to_device=None, **options):
    """A client's loader."""
    return DistNeighborLoader(
        None,
        jobs.FANOUTS,
        jobs.seeds_of_rank(0),
        with_edge=True,
        collect_features=True,
        device=to_device,
        worker_options=RemoteDistSamplingWorkerOptions(**options),
        **COMMON,
    )


def twin():
    """The in-memory loader of the same graph."""
    return NeighborLoader(jobs.make_graph(), jobs.FANOUTS, jobs.seeds_of_rank(0), **COMMON)


def is_child(pid):
    """Whether a process is one of this one's own."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1] == str(os.getpid())


@pytest.mark.parametrize(
    ("options", "near"),
    [
        ({"num_workers": 2}, 2),
        ({"num_workers": 1, "server_rank": [1, 0]}, 2),
        ({"num_workers": 2, "shared_memory": False}, 0),
    ],
    ids=["two", "both", "sent"],
)
def test_batches_are_equal_with_local_samplers_or_a_receiver(servers, options, near):
    """Samplers of the servers in rings of the trainer, or one receiver; the same batches."""
    loader, reference = remote_loader(**options), twin()
    assert [jobs.same_batches(loader, reference) for _ in range(2)] == [20, 20]
    pids = jobs.pids_of(loader)
    assert [is_child(pid) for pid in pids] == ([False] * near or [True])
    loader.shutdown()
    assert jobs.wait_for_ends(pids) == []


@pytest.mark.parametrize("shared_memory", [True, False])
def test_pinned_memory(servers, shared_memory):
    """Rings that a GPU copies from are registered with CUDA; without one, a warning says so."""
    options = {"num_workers": 2, "shared_memory": shared_memory, "pin_memory": True}
    if not torch.cuda.is_available():
        with pytest.warns(UserWarning, match="pin_memory=True has no effect"):
            loader = remote_loader(**options)
        assert jobs.same_batches(loader, twin()) == len(loader)
        return
    for _ in range(2):  # they are given back at the end
        loader = remote_loader("cuda", **options)
        batches = [batch.clone() for batch in loader]
        assert all(batch.x.is_cuda for batch in batches)
        assert jobs.same_batches([b.to("cpu") for b in batches], twin()) == len(loader)
        loader.shutdown()


def test_links_and_weights(servers):
    """What a loader shares with its samplers reaches them, too."""
    graph = jobs.make_graph()
    links = graph.edge_index[:, :100]
    weight = torch.rand(graph.num_nodes, generator=torch.Generator().manual_seed(1))
    negatives = {"mode": "triplet", "amount": 2, "dst_weight": weight}
    common = {"neg_sampling": negatives, "batch_size": 16, "seed": 3}
    loader = DistLinkNeighborLoader(
        None, [3, 2], edge_label_index=links, collect_features=True, **common,
        worker_options=RemoteDistSamplingWorkerOptions(num_workers=2),
    )  # fmt: skip
    reference = LinkNeighborLoader(graph, [3, 2], edge_label_index=links, **common)
    names = ("n_id", "edge_index", "x", "src_index", "dst_pos_index", "dst_neg_index")
    assert len(loader) == len(reference) == 7
    for ours, theirs in zip(loader, reference, strict=True):
        for name in names:
            assert torch.equal(ours[name], theirs[name]), name


def test_a_killed_sampler(servers):
    """Its successor is a sampler of the server again, in the trainer's memory."""
    loader = remote_loader(num_workers=2, buffer_size="128KB")
    batches = []
    for number, batch in enumerate(loader):
        if number in (2, 6):
            os.kill(loader.workers[number // 6].pid, signal.SIGKILL)
        batches.append(batch.clone())
    assert jobs.same_batches(batches, twin()) == len(loader)
    assert loader.stats().restarts == 2
    assert not any(is_child(pid) for pid in jobs.pids_of(loader))


def test_a_sampler_killed_too_often(servers):
    """The server says how it ended."""
    loader = remote_loader(max_restarts=0, buffer_size="64KB")
    iterator = iter(loader)
    next(iterator)
    os.kill(loader.workers[0].pid, signal.SIGKILL)
    with pytest.raises(SamplerDiedError, match="was killed by SIGKILL"):
        list(iterator)


def test_a_killed_server(servers):
    """Its samplers end with it; a receiver takes over, and asks the server that comes back."""
    loader = remote_loader(server_rank=1, buffer_size="64KB")
    batches = []
    for number, batch in enumerate(loader):
        if number == 3:
            pids = jobs.pids_of(loader)
            servers.kill(1)
            assert jobs.wait_for_ends(pids) == []
            servers.restart(1)
        batches.append(batch.clone())
    assert jobs.same_batches(batches, twin()) == len(loader)


def test_a_server_that_is_back(servers):
    """From the next epoch on its samplers write into the trainer's memory again."""
    loader, reference = remote_loader(server_rank=1, num_workers=2), twin()
    kept = [batch.clone() for batch in loader]
    pids = jobs.pids_of(loader)
    remote = get_context().remote
    before = remote.table.servers[1].incarnation
    servers.kill(1)
    assert jobs.wait_for_ends(pids) == []
    running = iter(loader)  # nobody is there: receivers wait for it
    servers.restart(1)
    kept += [batch.clone() for batch in running]
    receivers = jobs.pids_of(loader)
    assert all(map(is_child, receivers))
    remote.wait_for_table(lambda t: t.servers[1].incarnation != before, "the successor")
    kept += [batch.clone() for batch in loader]
    assert not any(map(is_child, jobs.pids_of(loader)))
    assert jobs.wait_for_ends(receivers) == []
    assert jobs.same_batches(kept, [batch for _ in range(3) for batch in reference]) == 60


def test_a_server_that_refuses(servers, monkeypatch):
    """Receivers stay; it is asked once, not for each sampler and epoch."""
    asked = []

    def refuse(self, *arguments):
        asked.append(arguments)
        raise PartitionUnavailableError("no")

    monkeypatch.setattr(LocalSampler, "__init__", refuse)
    loader, reference = remote_loader(num_workers=2), twin()
    pids = jobs.pids_of(loader)
    assert [jobs.same_batches(loader, reference) for _ in range(2)] == [20, 20]
    assert len(asked) == 1
    assert jobs.pids_of(loader) == pids


def test_a_client_that_goes(servers):
    """The server ends a sampler whose client closes the connection, and tells how one ended."""
    entry = wait_for_server()
    path = lines_path(entry["addresses"]["ipc"].removeprefix("ipc://"))
    loader = remote_loader()
    sampler = loader._backend._pool.samplers[0]
    session = loader._backend._config["session"]
    spec = {
        **{name: value for name, value in session.items() if name != "loader"},
        "session": "x/0", "depth": 4, "timeout": 10.0, "credits": 1 << 16,
    }  # fmt: skip
    config = {"spec": spec, "sampler": 0, "has_arrays": False}
    memory = create_memory(1 << 20)
    process = LocalSampler(path, config, [memory])
    process._server.close()
    assert jobs.wait_for_ends([process.pid]) == []
    with pytest.raises(EOFError):
        while True:
            process.line.receive()
            time.sleep(0.01)
    process.close()
    specs = [{"spec": {**spec, **bad}} for bad in ({"num_workers": 0}, {"pipeline": {}})]
    for bad in ({"has_arrays": True}, {"sampler": -1}, *specs):
        with pytest.raises(ProtocolError, match="graph server of this machine"):
            LocalSampler(path, {**config, **bad}, [memory])
    os.close(memory)
    assert jobs.wait_for_ends([sampler.process.pid], 0.2) == [sampler.process.pid]


def wait_for_server():
    """What the directory says of server 0."""
    return to_json(get_context().remote.wait_for_servers().servers[0])


def test_a_killed_client_whose_fork_lives(servers):
    """A fork holds the client's end of the connection; the sampler ends nevertheless."""
    code = (
        "import os, time\n"
        "from support.cluster import jobs\n"
        "from khop.distributed import *\n"
        f"init_client(2, 0, 7, '127.0.0.1', {servers.port})\n"
        "loader = DistNeighborLoader(None, [3], batch_size=8)\n"
        "next(iter(loader)); pids = [worker.pid for worker in loader.workers]\n"
        "fork = os.fork()\n"
        "if fork: print(fork, *pids, flush=True)\n"
        "time.sleep(60)\n"
    )
    command, environment = [sys.executable, "-c", code], processes.environment()
    client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    fork, *samplers = [int(pid) for pid in client.stdout.readline().split()]
    try:
        assert samplers
        client.kill()
        client.wait()
        assert jobs.wait_for_ends(samplers) == []
    finally:
        client.kill()
        os.kill(fork, signal.SIGKILL)
        client.stdout.close()


def test_strange_messages(servers):
    """Anything else than a request is refused or ends the connection; the server goes on."""
    path = lines_path(wait_for_server()["addresses"]["ipc"].removeprefix("ipc://"))
    payloads = (b"", b"{}", b"[1", np.random.default_rng(0).bytes(5000))
    for op, payload in itertools.product((Op.CONFIG, Op.BATCH, 99), payloads):
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.connect(path)
        end.send(bytes([op]) + payload)
        end.settimeout(5)
        answer = end.recv(65536)
        assert answer == b"" or answer[0] == Op.ERROR
        ControlLine(end).close()
    assert jobs.same_batches(remote_loader(), twin()) == 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_are_not_let_in(servers):
    """Even where they can reach the sockets: neither at the samplers' nor at ZeroMQ's."""
    path = wait_for_server()["addresses"]["ipc"].removeprefix("ipc://")
    Path(path).parent.chmod(0o777)
    for file in (path, lines_path(path)):
        Path(file).chmod(0o777)
    code = (
        "import os, socket, sys, zmq\n"
        "from khop.channel.message import pack\n"
        "from khop.distributed.rpc.protocol import PROTOCOL\n"
        "os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))\n"
        "end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "end.settimeout(10)\n"
        "end.connect('lines')\n"
        "try:\n"
        "    end.send(bytes([1]) + b'{}')\n"
        "    print(len(end.recv(1000)))\n"
        "except (BrokenPipeError, ConnectionResetError):\n"
        "    print(0)\n"
        "dealer = zmq.Context().socket(zmq.DEALER)\n"
        "dealer.linger = 0\n"
        "dealer.connect('ipc://server')\n"
        "dealer.send_multipart(pack({'op': 'ping', 'protocol': PROTOCOL, 'id': 1}, []))\n"
        "print(bool(dealer.poll(1000)), flush=True)\n"
        "os._exit(0)\n"
    )
    for user, answers in ((0, "True"), (65534, "False")):
        command = [sys.executable, "-c", code, str(user)]
        said = subprocess.check_output(command, text=True, timeout=60, cwd=Path(path).parent)
        length, answered = said.split()
        assert (int(length) > 0, answered) == (user == 0, answers)


def test_a_server_without_descriptors_lives(folder_of):
    """Clients of its machine, and samplers, wait or are refused until there are some again."""
    with serving(folder_of("frequency", 2)) as served, client_of(served) as remote:
        pid, near = served.processes[0].pid, served.addresses[0]["ipc"]
        remote.wait_for_servers()
        remote.request(0, Ping())
        link = remote._connections[0]  # takes no descriptor from now on
        wait_until(lambda: link.is_up and link.address == near)
        highest = max(int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir())
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        ends = []
        for more in (0, 1, 3):  # none for the connection, for its client's end, for a sampler
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + more, before[1]))
            ends.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            ends[-1].connect(lines_path(near.removeprefix("ipc://")))
            ends[-1].send(bytes([Op.CONFIG]) + b"{}")
            time.sleep(0.5)
            assert remote.request(0, Ping(), timeout=10).fields.rank == 0
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        for end in ends:  # the first waited; all are answered now
            end.settimeout(10)
            assert end.recv(65536)[0] == Op.ERROR
            end.close()
