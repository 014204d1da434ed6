"""What a client may not do, and what happens to it then."""

import pytest
import torch
from torch_geometric.data import Data

from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistRole,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    async_request_server,
    get_context,
    init_client,
    init_worker_group,
    node_split,
    request_server,
    wait_and_shutdown_server,
)
from khop.errors import RendezvousError
from support.cluster import twins
from support.cluster.servers import cluster

Remote = RemoteDistSamplingWorkerOptions


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of six nodes, all of which are joined."""
    every = torch.cartesian_prod(torch.arange(6), torch.arange(6)).t()
    data = Data(edge_index=every, x=torch.arange(6.0).view(-1, 1), num_nodes=6)
    return twins.partitioned(data, tmp_path_factory.mktemp("dense") / "parts", 2)


@pytest.fixture(scope="module")
def servers(root):
    """Two servers of any number of clients."""
    with cluster(root, [[0], [1]]) as servers:
        yield servers


@pytest.fixture(scope="module")
def client(servers):
    """This process as a client of theirs."""
    with servers.client(rank=3) as context:
        yield context


def test_errors_arrive_as_they_are(client):
    """An exception of a sampler on a server has its type, its text and its traceback."""
    links = torch.tensor([[0, 1], [2, 3]])
    loader = DistLinkNeighborLoader(
        None,
        [2],
        batch_size=1,
        edge_label_index=links,
        neg_sampling="triplet",
        strict_negatives=True,
    )
    with pytest.raises(ValueError, match="no strict negative can be drawn for source") as error:
        list(loader)
    assert "Traceback" in str(error.value)
    with pytest.raises(ValueError, match="no strict negative"):  # the loader goes on
        list(loader)
    assert len(list(DistNeighborLoader(None, [2], None, batch_size=2))) == 3


def test_context(client):
    """Who this process is among servers and clients."""
    assert get_context() is client
    assert client.is_client() and not client.is_worker() and not client.is_server()
    assert client.role is DistRole.CLIENT
    assert (client.rank, client.num_servers(), client.num_clients()) == (3, 2, 0)
    assert (client.worker_name, client.global_rank) == ("khop-clients_3", 5)


def test_arguments_that_are_missing(monkeypatch):
    """They are variables of `khop run`, which this process has not."""
    for name in ("KHOP_NUM_SERVERS", "WORLD_SIZE", "RANK", "KHOP_SERVERS_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="num_servers is missing: pass it, or start this trainer"):
        init_client()
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(RendezvousError, match="RANK must be a number"):
        init_client(1, 1)
    with pytest.raises(ValueError, match="master_addr is missing"):
        init_client(1, 1, 0)


def test_one_role_at_a_time(client, root):
    """A client is no trainer with a partition, and no other client."""
    with pytest.raises(RuntimeError, match=r"client of graph servers.*shutdown_client"):
        init_worker_group()
    with pytest.raises(RuntimeError, match=r"client of graph servers.*data=None"):
        DistNeighborLoader(DistDataset().load(root, 0), [2])
    with pytest.raises(RuntimeError, match="khop-clients_3 already"):
        init_client(1, 1, 0, "localhost", 1)
    with pytest.raises(RuntimeError, match="runs no graph server"):
        wait_and_shutdown_server()


def test_named_requests(client):
    """Servers answer by name; a few functions stand for names; code is never sent."""
    assert request_server(1, "ping")["rank"] == 1
    count = request_server(0, torch.cuda.device_count)
    assert count == request_server(0, func="device_count") == torch.cuda.device_count()
    assert async_request_server(1, torch.cuda.device_count).wait() == count
    assert request_server(1, "graph")["parts"] == [1]
    assert request_server(0, "statistics")["rank"] == 0
    for func, error in ((len, TypeError), ("eval", ValueError), (None, TypeError)):
        with pytest.raises(error, match=r"by name.*device_count.*ping.*statistics"):
            request_server(0, func)
    with pytest.raises(TypeError, match="takes no arguments"):
        request_server(0, "ping", 3)
    with pytest.raises(ValueError, match="server_rank 2 is not one of 2 servers"):
        async_request_server(2, "ping")


@pytest.mark.parametrize(("make", "error", "match"), [
    (lambda: DistNeighborLoader(None, [2], worker_options=Remote(2)), ValueError,
     "server_rank 2 is not one of 2"),
    (lambda: DistNeighborLoader(None, [2], worker_options=Remote([0, 0])), ValueError, "each once"),
    (lambda: DistNeighborLoader(None, [2], worker_options=Remote([])), ValueError, "each once"),
    (lambda: DistNeighborLoader(None, [2], worker_options=Remote("0")), TypeError, "integer"),
    (lambda: DistNeighborLoader(None, [2], [[0], [1]], worker_options=Remote(0)), ValueError,
     "list of 2 lists.*server_rank=0"),
    (lambda: DistNeighborLoader(None, [2], [[0], [1]]), ValueError, "list of 2 lists"),
    (lambda: DistNeighborLoader(None, [2], [[0]], worker_options=Remote([0, 1])), ValueError,
     "list of 1 lists.*server_rank="),
    (lambda: DistNeighborLoader(None, [2], [[0], [9]], worker_options=Remote([0, 1])), IndexError,
     r"id 9.*input_nodes\[1\]|input_nodes\[1\].*id 9"),
    (lambda: DistNeighborLoader(None, [2], torch.tensor([6])), IndexError, "id 6 at position 0"),
    (lambda: DistNeighborLoader(None, [2], "train_mask"), KeyError, "train_mask"),
    (lambda: DistNeighborLoader(None, [2], edge_dir="out"), ValueError, "served at.*'in'"),
    (lambda: DistNeighborLoader(None, [2], time_attr="t", input_time=[1]), ValueError, "served at"),
    (lambda: DistNeighborLoader(None, [2], worker_options=MpDistSamplingWorkerOptions()),
     ValueError, "data=None is for graph servers.*Mp"),
    (lambda: DistNeighborLoader(None, [2], worker_options=CollocatedDistSamplingWorkerOptions()),
     ValueError, "data=None is for graph servers.*Collocated"),
    (lambda: node_split(torch.arange(3)), ValueError, "num_clients=0.*homes="),
    (lambda: DistLinkNeighborLoader(None, [2]), ValueError, "num_clients=0"),
])  # fmt: skip
def test_bad_loaders(client, make, error, match):
    """Refused before anything is asked of a server's samplers."""
    with pytest.raises(error, match=match):
        make()


def test_splits_with_given_homes(client):
    """Clients that come and go can still divide, if they say among whom."""
    shares = [node_split(torch.arange(6), rank=rank, homes=[0, 1, 1]) for rank in range(3)]
    assert sorted(torch.cat(shares).tolist()) == list(range(6))


@pytest.mark.parametrize(("options", "error", "match"), [
    ({"num_workers": 0}, ValueError, "num_workers must be at least 1"),
    ({"prefetch_size": 0}, ValueError, "prefetch_size must be at least 1"),
    ({"num_workers": 1.5}, TypeError, "num_workers must be an integer"),
    ({"timeout": 0}, ValueError, "timeout"),
    ({"buffer_size": "many"}, ValueError, "many"),
    ({"batch_limit": 0}, ValueError, "batch_limit must be at least 1 byte"),
    ({"max_restarts": -1}, ValueError, "max_restarts"),
])  # fmt: skip
def test_bad_options(options, error, match):
    with pytest.raises(error, match=match):
        Remote(**options)
