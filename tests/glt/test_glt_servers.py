"""GLT's server-client mode: splits of servers, requests, and servers that end with client 0."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import khop
from khop import glt
from khop.glt.distributed import DistServer, request_server
from support.glt_parts import EDGES, NUM

SERVER = Path(__file__).parents[1] / "support" / "glt_server.py"


@pytest.fixture
def port():
    """Port of two servers, with even and odd nodes; they must end by themselves."""
    port = glt.utils.get_free_port()
    path = [str(Path(khop.__file__).parents[1]), str(SERVER.parents[1])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
    }
    servers = [
        subprocess.Popen([sys.executable, str(SERVER), str(rank), str(port)], env=environment)
        for rank in range(2)
    ]
    try:
        yield port
        assert [server.wait(60) for server in servers] == [0, 0]
    finally:
        for server in servers:
            server.kill()
            server.wait()


@pytest.mark.process
def test_clients_read_servers_which_end_with_client_0(port):
    glts = glt.distributed
    glts.init_client(2, 1, 0, "127.0.0.1", port, is_dynamic=True)
    try:
        assert glts.all_gather("here") == {"khop-clients_0": "here"}
        options = glts.RemoteDistSamplingWorkerOptions()  # all servers are this client's
        seeds = [glt.typing.Split.train, glt.typing.Split.train]
        for given in (seeds, glt.typing.Split.train):
            loader = glts.DistNeighborLoader(
                None, [-1], given, 4, collect_features=True, worker_options=options
            )
            batches = list(loader)
            found = torch.cat([batch.batch for batch in batches]).sort().values
            assert found.tolist() == list(range(20))
            assert all(torch.equal(b.x.view(-1), b.node.float()) for b in batches)
            loader.shutdown()
        for rank in range(2):
            ids = torch.tensor([8, 2]) + rank
            assert request_server(rank, DistServer.get_dataset_meta) == (2, rank, None, None)
            rows = request_server(rank, DistServer.get_node_feature, None, ids)
            assert torch.equal(rows.view(-1), ids.float())
            assert torch.equal(request_server(rank, DistServer.get_node_label, None, ids), ids)
            ends = torch.stack(request_server(rank, DistServer.get_edge_index, None, "coo"))
            own = EDGES[:, EDGES[0] % 2 == rank]
            assert sorted(ends.t().tolist()) == sorted(own.t().tolist())
            assert torch.equal(ends[0], ends[0].sort().values)
        owners = request_server(0, DistServer.get_node_partition_id, None, torch.arange(NUM))
        assert torch.equal(owners, torch.arange(NUM) % 2)
        with pytest.raises(IndexError, match="node 3 is not one of partition 0"):
            request_server(0, DistServer.get_node_feature, None, torch.tensor([2, 3]))
        with pytest.raises((TypeError, ValueError)):
            request_server(0, print)
    finally:
        glts.shutdown_client()
