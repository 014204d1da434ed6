#!/usr/bin/env python3
"""Epochs of two trainers by each way to neighbours and rows of the other's partition.

    python benchmarks/transports.py                    # 1 Gbit/s; 0, 1 and 20 ms: four minutes
    python benchmarks/transports.py --delays 1 --turns 3 --batches 10

The hosts are two network namespaces, and a thread of this program is the cable between them
(`tests/soak/network.py`). So it needs root, iproute2 and /dev/net/tun. Where a system does not
allow namespaces, it measures the last table alone.

The graph is Debian's packages in two random parts. Both trainers load, with fan-outs 10, 10 and
batches of 512 seeds of their own part. For each delay, epochs take turns:

- messages, with a sampler process per trainer,
- messages, the trainer samples,
- collective calls (`exchange='all_to_all'`, gloo), the trainer samples,

without and with the cache of the other part's rows. In the last table both trainers run on one
host without the cable, where partitions can also be read from files. Ratios are of medians. The
first way with the cache is 1. Rows of other parts per second are printed beside a bare TCP
connection's, which is the cable's own limit.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from khop.datasets import DebianPackages
from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    init_worker_group,
    shutdown_worker_group,
)
from khop.partition import RandomPartitioner
from soak.network import DEVICE, Hosts, NoNetworkError

_PORT = 29_431
_BATCH_SIZE = 512
_CACHES = {"with the cache": None, "without": 0}


def ways(reads_files: bool) -> dict[str, dict[str, object]]:
    """Return {name: options of a loader} of each way. One host can read files."""
    samplers = {"worker_options": MpDistSamplingWorkerOptions(num_workers=1)}
    trainer = {"worker_options": CollocatedDistSamplingWorkerOptions()}
    if reads_files:
        return {"files, samplers": samplers, "files, trainer": trainer}
    return {
        "messages, samplers": samplers,
        "messages, trainer": trainer,
        "all_to_all, trainer": {**trainer, "exchange": "all_to_all"},
    }


def main() -> None:
    """Run the trainers for each delay, and on one host. Print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=1.0, help="Gbit/s of the cable")
    parser.add_argument("--delays", type=float, nargs="*", default=[0.0, 1.0, 20.0], help="ms")
    parser.add_argument("--batches", type=int, default=12, help="batches of an epoch")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--trainer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trainer is not None:
        train(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "parts"
        RandomPartitioner.from_data(DebianPackages(undirected=True)[0], root, 2).partition()
        for delay in arguments.delays:
            try:
                hosts = Hosts()
            except NoNetworkError as error:
                print(f"skipped: {error}")
                break
            try:
                hosts.cable.set(delay=delay / 1000, rate=arguments.rate * 1e9 / 8)
                print(f"\n{arguments.rate:g} Gbit/s, {delay:g} ms each way")
                run(root, hosts)
            finally:
                hosts.close()
        print("\none host, no cable")
        run(root, None)


def run(root: Path, hosts: Hosts | None) -> None:
    """Run both trainers to their end."""
    trainers = []
    for rank in (1, 0):
        prefix, address, device, peer = [], "127.0.0.1", "lo", "127.0.0.1"
        if hosts is not None:
            prefix, address, device = hosts.prefixes[rank], hosts.addresses[0], DEVICE
            peer = hosts.addresses[1 - rank]
        words = ["--trainer", str(rank), "--folder", str(root), "--peer", peer]
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": address,
            "MASTER_PORT": str(_PORT),
            "GLOO_SOCKET_IFNAME": device,
            "OMP_NUM_THREADS": "1",
        }
        command = [*prefix, sys.executable, __file__, *sys.argv[1:], *words]
        trainers.append(subprocess.Popen(command, env={**os.environ, **variables}))
    for trainer in trainers:
        trainer.wait()


def train(arguments: argparse.Namespace) -> None:
    """Measure all ways together with the other trainer. Trainer 0 prints the table."""
    rank, is_one_host = arguments.trainer, arguments.peer == "127.0.0.1"
    dist.init_process_group("gloo")
    init_worker_group(insecure=True)
    loaders = {}
    for reads_files in (False, True)[: 1 + is_one_host]:
        data = DistDataset().load(arguments.folder, rank, same_host_reads=reads_files)
        seeds = data.local_nodes()[: arguments.batches * _BATCH_SIZE]
        for name, options in ways(reads_files).items():
            for cache, nbytes in _CACHES.items():
                common = {"batch_size": _BATCH_SIZE, "shuffle": True, "seed": 1}
                loaders[f"{name}, {cache}"] = DistNeighborLoader(
                    data, [10, 10], seeds, cache_memory=nbytes, **common, **options
                )
    times: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(arguments.turns + 1):  # the first turn fills caches
        for name, loader in loaders.items():
            dist.barrier()
            began = time.perf_counter()
            for _ in loader:
                pass
            dist.barrier()
            times[name].append(time.perf_counter() - began)
    bare = bare_rate(rank, arguments)
    if rank == 0:
        report(times, loaders, bare)
    dist.barrier()
    for loader in loaders.values():
        loader.shutdown()
    dist.destroy_process_group()
    shutdown_worker_group()


def report(
    times: dict[str, list[float]], loaders: dict[str, DistNeighborLoader], bare: float
) -> None:
    """Print a row for each way."""
    medians = {name: statistics.median(taken[1:]) for name, taken in times.items()}
    first = next(iter(medians.values()))
    for name, seconds in medians.items():
        stats, count = loaders[name].stats(), len(times[name])
        rate = stats.remote_bytes / count / seconds if "files" not in name else 0.0
        per_batch = 1000 * seconds / len(loaders[name])
        sent = f"{rate / bare:6.2f} of TCP" if rate else ""
        print(f"{name:36}{seconds / first:6.2f}  {per_batch:7.1f} ms a batch {sent}", flush=True)
    print(f"a bare TCP connection: {bare / 1e6:.0f} MB/s")


def bare_rate(rank: int, arguments: argparse.Namespace) -> float:
    """Return the bytes per second that a TCP connection carries to trainer 0."""
    nbytes = 32 << 20
    if rank == 1:
        with socket.create_server(("", _PORT + 1)) as server:
            dist.barrier()
            connection, _ = server.accept()
            for _ in range(3):
                connection.recv(1)
                connection.sendall(bytes(nbytes))
            connection.recv(1)
        return 0.0
    dist.barrier()
    taken = []
    with socket.create_connection((arguments.peer, _PORT + 1)) as connection:
        for _ in range(3):
            began = time.perf_counter()
            connection.sendall(b"x")
            left = nbytes
            while left:
                left -= len(connection.recv(min(left, 1 << 20)))
            taken.append(time.perf_counter() - began)
    return nbytes / min(taken)


if __name__ == "__main__":
    main()
