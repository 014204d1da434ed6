"""Servers and several clients: who gets what, and who ends when."""

import time

import pytest
import torch

from khop.distributed import (
    DistNeighborLoader,
    RemoteDistSamplingWorkerOptions,
    init_client,
    node_split,
    shutdown_client,
)
from khop.errors import PartitionUnavailableError
from khop.loader import NeighborLoader
from support import launching
from support.cluster import client_jobs, jobs, twins
from support.cluster.servers import cluster
from support.versions import reading_torch_files

COMMON = {"batch_size": 16, "shuffle": True, "seed": 3}


def loaders(seeds, **workers):
    """A client's loader and its in-memory twin."""
    options = RemoteDistSamplingWorkerOptions(**workers)
    loader = DistNeighborLoader(
        None, jobs.FANOUTS, seeds, with_edge=True, collect_features=True,
        worker_options=options, **COMMON,
    )  # fmt: skip
    return loader, NeighborLoader(jobs.make_graph(), jobs.FANOUTS, seeds, **COMMON)


def test_two_clients(folder_of):
    """They share nodes and edges, each once, and make the same number of batches."""
    with cluster(folder_of("random", 2), [[0], [1]], 2) as servers:
        arguments = {"num_servers": 2, "num_clients": 2, "port": servers.port}
        clients = jobs.start_trainers("client", arguments, 2, program=client_jobs.__name__)
        told = jobs.finish_trainers(clients)
        for server in servers.servers:  # all clients have gone
            server.wait()
    graph = jobs.make_graph()
    shares = [torch.tensor(t["share"]) for t in told]
    assert torch.equal(torch.cat(shares).sort().values, graph.train_mask.nonzero().view(-1))
    assert abs(len(shares[0]) - len(shares[1])) <= 1
    assert told[0]["batches"] == told[1]["batches"] > 2
    assert [sum(t["sizes"]) for t in told] == [40, 65]
    assert [len(t["sizes"]) for t in told] == [3, 3]
    assert sorted(told[0]["edges"] + told[1]["edges"]) == sorted(graph.edge_index.t().tolist())
    assert all(t["context"] for t in told)


def test_servers_that_stay(folder_of):
    """When their only client has left, for one that takes its place: a restarted trainer."""
    with cluster(folder_of("random", 2), [[0], [1]], 1, end_with_clients=False) as servers:
        for _ in range(2):
            with servers.client(0):
                assert jobs.same_batches(*loaders(jobs.seeds_of_rank(0))) == 10
            time.sleep(1.5)  # servers that end do so now
        running = [server.process.pid for server in servers.servers]
        assert len(launching.left_of(running, 0)) == 2


def test_homes_of_clients_are_spread_over_servers(folder_of):
    """Clients take turns at servers, then at a server's partitions; more clients share one."""
    with cluster(folder_of("random", 2), [[0, 1]], 3) as servers:
        shares, edges = [], []
        for rank in range(3):
            with servers.client(rank) as context:
                assert context.graph.homes == [0, 1, 0]
                shares.append(node_split("train_mask"))
                edges.append(torch.from_numpy(context.graph.owned_edges()))
    graph = jobs.make_graph()
    assert torch.equal(torch.cat(shares).sort().values, graph.train_mask.nonzero().view(-1))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    seen = torch.cat(edges, dim=1).t().tolist()
    assert sorted(seen) == sorted(graph.edge_index.t().tolist())
    assert abs(edges[0].size(1) - edges[2].size(1)) <= 1


def test_servers_started_by_python(folder_of):
    """`init_server` in two processes, this one their client; they end when it has gone."""
    port = jobs.free_port()
    arguments = {
        "root": str(folder_of("random", 2)), "num_servers": 2, "num_clients": 1, "port": port,
    }  # fmt: skip
    processes = jobs.start_trainers("server", arguments, 2, program=client_jobs.__name__)
    try:
        init_client(2, 1, 0, "localhost", port)
        ours, twin = loaders(jobs.seeds_of_rank(0))
        assert jobs.same_batches(ours, twin) == 10
        shutdown_client()
        told = jobs.finish_trainers(processes, 30)
    finally:
        shutdown_client()
        for process in processes:
            process.kill()
    for rank, one in enumerate(told):
        assert one == {
            "role": "SERVER", "worker_name": f"distributed-server_{rank}", "sizes": [2, 3],
            "ranks": [rank, rank], "counts": [2, 1], "left": True,
        }  # fmt: skip


def test_a_client_that_is_killed(folder_of, tmp_path):
    """It keeps no server up, and leaves none of its samplers."""
    ready = tmp_path / "ready"
    root = folder_of("random", 1)
    with cluster(root, [[0]], 1, lease=3.0) as servers:
        arguments = {
            "num_servers": 1, "num_clients": 1, "port": servers.port, "ready": str(ready),
        }  # fmt: skip
        (client,) = jobs.start_trainers("stay", arguments, 1, program=client_jobs.__name__)
        end = time.monotonic() + 60
        while not ready.exists() and time.monotonic() < end:
            assert client.poll() is None, client.communicate()
            time.sleep(0.05)
        client.kill()
        client.communicate()
        killed = time.monotonic()
        servers.servers[0].wait()
        assert time.monotonic() - killed < 20


def test_a_client_goes_on_where_another_stopped(folder_of):
    """The state of a loader is taken over by one of another client process, of other servers."""
    seeds = jobs.seeds_of_rank(0)
    root = folder_of("random", 2)
    with cluster(root, [[0, 1]], 1) as servers, servers.client():
        ours, twin = loaders(seeds)
        iterator = iter(ours)
        expected = [batch.n_id for batch in twin]
        assert all(torch.equal(next(iterator).n_id, ids) for ids in expected[:4])
        state = ours.state_dict()
    with cluster(root, [[0], [1]], 1) as servers, servers.client():
        ours, _ = loaders(seeds, num_workers=2)
        ours.load_state_dict(state)
        rest = [batch.n_id for batch in ours]
        assert len(rest) == len(expected) - 4
        assert all(map(torch.equal, rest, expected[4:]))


@pytest.mark.parametrize("lost", [0, 1], ids=["master", "other"])
def test_a_server_that_comes_back(folder_of, lost):
    """A server is killed in the middle of an epoch and started again: no batch differs."""
    parts = [[0], [1]]
    with cluster(folder_of("random", 2), parts, 1) as servers, servers.client():
        ours, twin = loaders(None, server_rank=1)
        expected = [batch.n_id for batch in twin]
        got = []
        for batch in ours:
            got.append(batch.n_id)
            if len(got) == 3:
                servers.kill(lost)
                servers.restart(lost)
        assert len(got) == len(expected)
        assert all(map(torch.equal, got, expected))
        # And it can be asked for another loader.
        assert len(list(DistNeighborLoader(None, [2], torch.arange(40), batch_size=16))) == 3


def test_a_server_that_others_stand_in_for(folder_of):
    """Of several servers that have everything one may stay away."""
    parts = [[0, 1], [0, 1]]
    with cluster(folder_of("random", 2), parts, 1) as servers, servers.client():
        ours, twin = loaders(None, server_rank=[0, 1])
        expected = [batch.n_id for batch in twin]
        got = []
        for batch in ours:
            got.append(batch.n_id)
            if len(got) == 3:
                servers.kill(1)
        assert len(got) == len(expected)
        assert all(map(torch.equal, got, expected))


def test_a_server_that_stays_away(folder_of):
    """Not for ever: an error that names the server, after the time that was given."""
    with cluster(folder_of("random", 1), [[0]], 1) as servers, servers.client():
        ours, _ = loaders(None, timeout=2)
        iterator = iter(ours)
        next(iterator)
        servers.kill(0)
        with pytest.raises(PartitionUnavailableError, match="server 0"):
            list(iterator)
            for _ in range(50):  # a sampler may have come far before it hears of its server's end
                list(ours)


@reading_torch_files
def test_labels_that_the_folder_lacks(tmp_path):
    """Servers are given a file of labels; batches carry them as `y`."""
    graph = jobs.make_graph()
    labels = torch.stack([graph.y * 3, graph.y], dim=1)
    torch.save(labels, tmp_path / "labels.pt")
    del graph.y
    root = twins.partitioned(graph, tmp_path / "parts", 2)
    labels_file = tmp_path / "labels.pt"
    with cluster(root, [[0], [1]], 1, labels_file) as servers, servers.client():
        loader = DistNeighborLoader(None, [4], None, batch_size=64, collect_features=False)
        for batch in loader:
            assert torch.equal(batch.y, labels[batch.n_id])
        assert "x" not in batch
