"""Trainers whose servers, networks and schedulers fail. They run like `cluster.jobs`."""

import faulthandler
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from support.cluster import jobs


def job_steady(arguments):
    """Check epochs against the in-memory loader until told to stop. Return the longest wait."""
    loader, reference, rank = _loaders(arguments)
    longest = count = 0
    while not Path(arguments["enough"]).exists():
        count += jobs.same_batches(_paced(loader, gaps := []), reference)
        longest = max(longest, *gaps)
        Path(arguments["ready"] + f".{rank}").touch()
    return {"batches": count, "longest": longest, "rows": loader.stats().rows}


def job_moved(arguments):
    """Let the first trainer's server die in an epoch, and restart while another has its port.

    The second trainer may have all batches of this epoch by then. It begins another one when the
    port is taken. Its first requests go to the old address, in vain.
    """
    from khop.distributed.partitions.server_process import PartitionServerProcess

    loader, reference, rank = _loaders(arguments)
    start_again, taken = PartitionServerProcess.start_again, Path(arguments["ready"] + ".taken")
    others = []

    def start_elsewhere(server):
        server.process.close()
        host, _, port = server.announcement["tcp"].removeprefix("tcp://").rpartition(":")
        others.append(socket.create_server((host, int(port))))
        taken.touch()
        start_again(server)

    PartitionServerProcess.start_again = start_elsewhere
    before = loader.data.service().endpoints()
    servers = loader.data.service().endpoint_registry.supervisor.servers
    batches = []
    for number, batch in enumerate(loader):
        if rank == 0 and number == 1:
            os.kill(servers[0].process.pid, signal.SIGKILL)
        batches.append(batch.clone())
    counts = [jobs.same_batches(batches, reference)]
    while not taken.exists():
        time.sleep(0.01)
    counts.append(jobs.same_batches(loader, reference))
    moved = before != loader.data.service().endpoints()
    return {"batches": counts, "moved": moved, "taken": len(others)}


def job_terminated(arguments):
    """Iterate until SIGTERM makes it exit as schedulers expect."""

    def end(*_):
        faulthandler.dump_traceback_later(20)  # where it is if it does not end
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)
    loader, _, rank = _loaders(arguments)
    next(iter(loader))
    jobs.publish(Path(arguments["ready"] + f".{rank}"), json.dumps(jobs.khop_processes()))
    while True:
        for _ in loader:
            time.sleep(0.01)


def _loaders(arguments):
    from khop.distributed import DistNeighborLoader
    from khop.loader import NeighborLoader

    context, dataset, options = jobs._load(arguments)
    seeds = jobs.seeds_of_rank(context.rank)
    common = {"batch_size": 8, "shuffle": True, "seed": 3}
    loader = DistNeighborLoader(
        dataset,
        jobs.FANOUTS,
        seeds,
        with_edge=True,
        collect_features=True,
        worker_options=options,
        **common,
    )
    reference = NeighborLoader(
        jobs.make_graph(), jobs.FANOUTS, seeds, stream=context.rank, **common
    )
    return loader, reference, context.rank


def _paced(loader, gaps):
    """Yield batches no faster than a model takes them, and append each wait to `gaps`."""
    batches = iter(loader)
    while True:
        began = time.monotonic()
        batch = next(batches, None)
        gaps.append(time.monotonic() - began)
        if batch is None:
            return
        yield batch
        time.sleep(0.02)


if __name__ == "__main__":
    jobs.run(globals())
