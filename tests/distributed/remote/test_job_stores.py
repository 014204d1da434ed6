"""Tensors of clients of graph servers: jobs, their steps, their ends, and who may write."""

import hashlib

import pytest

from khop.partition import RandomPartitioner
from support.cluster import jobs, store_jobs
from support.cluster.servers import cluster

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
