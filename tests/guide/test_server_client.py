"""Sections 2.2 and 4.2: two servers that hold the partitions, four clients that load from them."""

import json
import math
import subprocess

import pytest
import torch

from guide import products
from support import processes
from support.cluster import jobs

NUM_SERVERS, NUM_CLIENTS = 2, 4


def start(job, arguments):
    command, pipe = processes.command("guide.job", job, json.dumps(arguments)), subprocess.PIPE
    environment = processes.environment()
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def context_of(rank, offset, world_size, group):
    return {
        "dist_ctx.world_size": world_size,
        "dist_ctx.rank": rank,
        "dist_ctx.group_name": group,
        "dist_ctx.worker_name": f"{group}_{rank}",
        "dist_ctx.global_world_size": NUM_SERVERS + NUM_CLIENTS,
        "dist_ctx.global_rank": offset + rank,
    }


@pytest.mark.timeout(400)
def test_server_client_mode(parts, tmp_path):
    """Contexts, device counts, and batches of all clients, which each compares in `job.py`."""
    data = parts["data"]
    graph = {"x": data.x, "y": data.y.view(-1), "edge_index": data.edge_index}
    torch.save(graph, tmp_path / "graph.pt")
    common = {
        "root": parts["root_dir"],
        "graph": str(tmp_path / "graph.pt"),
        "port": jobs.free_port(),
    }
    processes = [start("server", {**common, "rank": rank}) for rank in range(NUM_SERVERS)]
    processes += [start("client", {**common, "rank": rank}) for rank in range(NUM_CLIENTS)]
    done = jobs.finish_trainers(processes, 360)
    servers, clients = done[:NUM_SERVERS], done[NUM_SERVERS:]
    for rank, server in enumerate(servers):
        assert server["role"] == "SERVER"
        assert server["context"] == context_of(rank, 0, NUM_SERVERS, "distributed-server")
    for rank, client in enumerate(clients):
        assert client["role"] == "CLIENT"
        group = "distributed-trainer-client"
        assert client["context"] == context_of(rank, NUM_SERVERS, NUM_CLIENTS, group)
        assert client["server"] == rank % NUM_SERVERS
        assert client["devices"] == torch.cuda.device_count()
        assert client["batches"] == math.ceil(products.NUM_TRAIN / NUM_CLIENTS / 1024)
    seeds = sorted(seed for client in clients for seed in client["seeds"])
    assert seeds == sorted(parts["split_idx"]["train"].tolist())
