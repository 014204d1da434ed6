"""Tensors of clients of graph servers: jobs, their steps, their ends, and who may write."""

import hashlib

import pytest

from khop.distributed import request_server
from khop.partition import RandomPartitioner
from support.cluster import jobs, store_jobs
from support.cluster.servers import cluster
from support.cluster.serving import wait_until

PARTS = {1: [[0, 1, 2]], 2: [[1], [0, 2]], 3: [[2], [0], [1]]}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("stores") / "parts"
    RandomPartitioner.from_data(jobs.make_graph(), root, 3).partition()
    return root


def start(servers, job, stores, **arguments):
    """Start the clients of jobs: {name: ranks}."""
    arguments |= {"num_servers": len(servers.servers), "port": servers.port, "jobs": stores}
    return jobs.start_trainers(
        job, arguments, sum(map(len, stores.values())), program=store_jobs.__name__
    )


@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_three_clients_give_the_bits_of_trainers_with_partitions(root, num_servers):
    digest = hashlib.sha256(store_jobs.expected(3).tobytes()).hexdigest()
    total = 2000 * store_jobs.PUSHES * (1 + 2 + 3)
    with cluster(root, PARTS[num_servers]) as servers:
        for result in jobs.finish_trainers(start(servers, "push", {"a": [0, 1, 2]})):
            assert result == {"digest": digest, "total": total, "before": 0.0, "version": 1}


def stores_of(servers):
    """The stores of jobs at each server."""
    with servers.client(2000):
        return [request_server(r, "statistics")["stores"] for r in range(len(servers.servers))]


def test_two_jobs_have_stores_of_their_own(root):
    """Each with a tensor of the same name, and the rows of its own clients only."""
    with cluster(root, PARTS[2]) as servers:
        results = jobs.finish_trainers(start(servers, "push", {"a": [0, 2], "b": [1]}))
        digests = [hashlib.sha256(store_jobs.expected(n).tobytes()).hexdigest() for n in (2, 1, 2)]
        assert [result["digest"] for result in results] == digests
        assert stores_of(servers) == [[], []]


@pytest.mark.fault
@pytest.mark.parametrize("victim", [0, 1])
def test_a_graph_server_that_is_killed_between_push_and_wait(root, victim):
    """All clients get an exception that names it, within seconds."""
    with cluster(root, PARTS[3]) as servers:
        pids = [server.process.pid for server in servers.servers]
        clients = start(servers, "lose", {"a": [0, 1, 2]}, how="server", pids=pids, victim=victim)
        for result in jobs.finish_trainers(clients):
            print(result)
            assert f"graph server {victim}" in result["error"] or "directory" in result["error"]
            assert result["seconds"] < 8, result


@pytest.mark.fault
def test_a_client_that_is_killed_in_a_step(root):
    """The others name it. The tensors stay until they have left, too."""
    with cluster(root, PARTS[2], lease=5.0) as servers:
        clients = start(servers, "lose", {"a": [0, 1, 2]}, how="client")
        for result in jobs.finish_trainers([clients[0], clients[2]]):
            assert "client 1" in result["error"] and result["seconds"] < 8, result
        assert clients[1].wait() == -9
        wait_until(lambda: stores_of(servers) == [[], []])
