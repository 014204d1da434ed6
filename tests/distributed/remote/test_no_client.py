"""Processes that are no clients, or cannot become one."""

import pytest

from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    RemoteDistSamplingWorkerOptions,
    get_context,
    init_client,
    request_server,
    shutdown_client,
)
from khop.errors import RendezvousError, SecurityError
from support.cluster import jobs, twins
from support.cluster.servers import cluster

Remote = RemoteDistSamplingWorkerOptions


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folder of a small graph."""
    return twins.partitioned(twins.homogeneous(), tmp_path_factory.mktemp("small") / "parts", 2)


@pytest.mark.parametrize(("numbers", "error", "match"), [
    ((0, 1, 0), ValueError, "num_servers must be at least 1"),
    ((1, 2, 2), ValueError, "client_rank 2 is not one of 2"),
    ((1, -1, 0), ValueError, "num_clients"),
    ((1, 1, True), TypeError, "client_rank must be an integer"),
])  # fmt: skip
def test_bad_numbers(numbers, error, match):
    with pytest.raises(error, match=match):
        init_client(*numbers, "localhost", 11111)


def test_loaders_without_init_client_are_refused():
    """Loaders and requests without `init_client`."""
    assert get_context() is None
    for options in (None, Remote()):
        with pytest.raises(RuntimeError, match=r"no client of graph servers\. Call init_client"):
            DistNeighborLoader(None, [2], worker_options=options)
    with pytest.raises(RuntimeError, match="call init_client first"):
        request_server(0, "ping")
    shutdown_client()


def test_remote_options_with_a_dataset(root):
    with pytest.raises(ValueError, match="pass data=None"):
        DistNeighborLoader(DistDataset().load(root, 0), [2], worker_options=Remote())


def test_unreachable_servers_fail_after_the_timeout():
    """No server: an error after the time that was given, and nothing is left."""
    port = jobs.free_port()
    with pytest.raises(RendezvousError, match=f"waited 1 s.*127.0.0.1:{port}"):
        init_client(1, 1, 0, "127.0.0.1", port, timeout=1)
    assert get_context() is None


def test_other_addresses_need_keys():
    with pytest.raises(SecurityError, match="khop keygen"):
        init_client(1, 1, 0, "192.0.2.1", 11111)


def test_refused_by_the_directory(root):
    """Numbers that differ from the servers', and a rank that somebody has."""
    with cluster(root, [[0, 1]], 1) as servers:
        with pytest.raises(RendezvousError, match=r"num_clients=2.*num_clients=1"):
            init_client(1, 2, 0, servers.host, servers.port)
        with pytest.raises(RendezvousError, match="num_servers=3"):
            init_client(3, 1, 0, servers.host, servers.port)
