"""Time until a process notices that another process has failed.

    python benchmarks/failure_detection.py [CASE ...] [--most 100]

Two trainers run on this machine. They run layer-wise inference, or a loader over two partitions.
The program kills or stops one process. It measures the time until the other trainer raises an
exception, or until a graph server ends the session of a client. `--most` limits the time of a case.
Leases have their default times.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    init_client,
    init_server,
    init_worker_group,
    layerwise_inference,
)
from khop.partition import RandomPartitioner

CASES = {
    "error": "a trainer raises an exception in its layer",
    "killed": "a trainer is killed in its layer",
    "stopped": "a trainer is stopped in its layer",
    "store killed": "the trainer that has the job's store is killed in its layer",
    "store stopped": "the trainer that has the job's store is stopped in its layer",
    "loader": "a trainer is killed whose partition server another trainer's loader uses",
    "client killed": "a client of a graph server is killed, and its session ends",
    "client gone": "a client and its receiver are killed, and its session ends",
    "client stopped": "a client and its receiver are stopped, and its session ends",
}


def main() -> None:
    """Measure the named cases, or all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--most", type=float, default=100.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="khop-failures-") as folder:
        for case in arguments.cases or CASES:
            root = Path(folder, case.replace(" ", "-"))
            seconds, error = measure(case, root, arguments.most)
            print(f"{CASES[case]:<78} {seconds:6.1f} s  {error}", flush=True)


def measure(case: str, root: Path, most: float) -> tuple[float, str]:
    """Return the seconds from a failure to its detection, and the error message."""
    graph = torch.arange(2000).view(2, 1000) % 400
    data = Data(x=torch.randn(400, 4), edge_index=graph)
    RandomPartitioner.from_data(data, root / "parts", 2).partition()
    port = free_port()
    context = multiprocessing.get_context("spawn")
    is_served = case.startswith("client")
    programs = (serve, be_client) if is_served else (train, train)
    begun, noticed = context.Queue(), context.Queue()
    processes = [
        context.Process(target=program, args=(case, rank, root, port, begun, noticed))
        for rank, program in enumerate(programs)
    ]
    for process in processes:
        process.start()
    try:
        pids = begun.get(timeout=60)
        failed_at = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP if "stopped" in case else signal.SIGKILL)
        noticed_at, error = noticed.get(timeout=most)
        return noticed_at - failed_at, error
    except Exception as error:
        return float("inf"), f"not within {most:.0f} s ({type(error).__name__})"
    finally:
        for process in processes:
            process.kill()
            process.join()
        time.sleep(1.0)


def train(case: str, rank: int, root: Path, port: int, begun: Any, noticed: Any) -> None:
    """Run a trainer. One trainer fails, and the other detects the failure."""
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    init_worker_group()
    dataset = DistDataset().load(root / "parts", partition_idx=rank)
    fails = rank == (0 if case.startswith("store") else 1)

    def layer(x: Any, edge_index: Any) -> Any:
        if fails and case == "error":
            begun.put([])
            raise ArithmeticError("error of this benchmark")
        if fails:
            begun.put([os.getpid()])
            time.sleep(1000.0)
        return x

    try:
        if case == "loader":
            options = MpDistSamplingWorkerOptions(num_workers=1, timeout=100.0)
            seeds = torch.arange(400)
            loader = DistNeighborLoader(
                dataset, [5, 5], seeds, batch_size=4, worker_options=options
            )
            if fails:
                next(iter(loader))
                begun.put([os.getpid()])
                time.sleep(1000.0)
            while True:
                for _ in loader:
                    time.sleep(0.01)
        layerwise_inference(dataset, [layer], root / f"out-{rank}", batch_size=64)
    except Exception as error:
        if not fails:
            noticed.put((time.monotonic(), str(error)[:100]))
        noticed.close()
        noticed.join_thread()
        if not fails:
            os._exit(1)
        raise


def serve(case: str, rank: int, root: Path, port: int, begun: Any, noticed: Any) -> None:
    """Run a graph server, and wait until the session of a client has ended."""
    from khop.distributed.remote.addresses import Servers
    from khop.distributed.remote.directory_client import DirectoryClient
    from khop.distributed.remote.messages import Statistics, read_json

    dataset = DistDataset().load(root / "parts", partition_idx=0, also_serve=[1])
    init_server(1, rank, dataset, "127.0.0.1", port, 1)
    client = DirectoryClient(Servers(f"127.0.0.1:{port}"))
    client.wait_for_servers()
    was_open = False
    while True:
        reply = client.request(0, Statistics())
        sessions = read_json(reply.arrays, "it")["sessions"]
        was_open = was_open or bool(sessions)
        if was_open and not sessions:
            noticed.put((time.monotonic(), "the session has ended"))
            return
        time.sleep(0.05)


def be_client(case: str, rank: int, root: Path, port: int, begun: Any, noticed: Any) -> None:
    """Run a client that fails."""
    context = init_client(1, 1, 0, "127.0.0.1", port)
    options = RemoteDistSamplingWorkerOptions(server_rank=0, num_workers=1, shared_memory=False)
    loader = DistNeighborLoader(
        None, [5, 5], torch.arange(400), batch_size=4, worker_options=options
    )
    batches = iter(loader)
    next(batches)
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    begun.put([own] if case == "client killed" else [*map(int, children), own])
    threading.Event().wait(1000.0)
    del context


def free_port() -> int:
    """Return a free port."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
