"""Programs of clients and of graph servers, for tests. They run like `cluster.jobs`."""

import os
from pathlib import Path

from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    get_context,
    init_client,
    init_server,
    node_split,
    shutdown_client,
    wait_and_shutdown_server,
)
from support.cluster import jobs


def _become_client(arguments):
    rank = int(os.environ["RANK"])
    return init_client(
        arguments["num_servers"], arguments["num_clients"], rank, "127.0.0.1", arguments["port"]
    )


def job_client(arguments):
    """Check that a client's share of the training nodes gives the in-memory loader's batches."""
    from khop.loader import NeighborLoader

    context = _become_client(arguments)
    common = {"batch_size": jobs.BATCH_SIZE, "shuffle": True, "seed": 3}
    share = node_split("train_mask")
    loader = DistNeighborLoader(
        None, jobs.FANOUTS, share, with_edge=True, collect_features=True, **common
    )
    twin = NeighborLoader(jobs.make_graph(), jobs.FANOUTS, share, stream=context.rank, **common)
    batches = jobs.same_batches(loader, twin)
    few = share[: 40 + 25 * context.rank]  # 2 batches on rank 0, 3 on rank 1
    sizes = [
        batch.batch_size for batch in DistNeighborLoader(None, [3], few, batch_size=jobs.BATCH_SIZE)
    ]
    edges = context.graph.owned_edges()
    shutdown_client()
    return {
        "share": share.tolist(),
        "batches": batches,
        "sizes": sizes,
        "edges": edges.T.tolist(),
        "context": get_context() is None,
    }


def job_stay(arguments):
    """Take batches without end, and report when the first has come."""
    _become_client(arguments)
    loader = DistNeighborLoader(None, [4], None, batch_size=16)
    while True:
        for _ in loader:
            Path(arguments["ready"]).touch()


def job_server(arguments):
    """Serve a partition until all clients have left."""
    rank = int(os.environ["RANK"])
    dataset = DistDataset().load(arguments["root"], rank)
    init_server(
        num_servers=arguments["num_servers"],
        num_clients=arguments["num_clients"],
        server_rank=rank,
        dataset=dataset,
        master_addr="localhost",
        master_port=arguments["port"],
        num_rpc_threads=16,
        server_group_name="distributed-server",
    )
    context = get_context()
    told = {
        "role": context.role.name,
        "worker_name": context.worker_name,
        "sizes": [context.world_size, context.global_world_size],
        "ranks": [context.rank, context.global_rank],
        "counts": [context.num_servers(), context.num_clients()],
    }
    wait_and_shutdown_server()
    return {**told, "left": get_context() is None}


if __name__ == "__main__":
    jobs.run(globals())
