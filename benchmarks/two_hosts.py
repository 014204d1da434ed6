#!/usr/bin/env python3
"""Rows and batches over a network of two hosts, beside a bare TCP connection.

    python benchmarks/two_hosts.py                         # 1 Gbit/s, 1 ms: a minute
    python benchmarks/two_hosts.py --rate 8 --delay 0.1

The hosts are two network namespaces, and a thread of this program is the cable between them
(`tests/soak/network.py`). So it needs root, iproute2 and /dev/net/tun. Where a system does not
allow namespaces, it says so and ends with status 0.

The graph is Debian's packages in two random parts, one for each host. The trainer of host 0 has
fan-outs 10, 10, batches of 512, and the seeds of its part. It measures in turns

- the rate of a bare TCP connection, with the bytes of the rows,
- the rate of rows of `x` that host 1 owns, all requested at once,
- the time of an epoch without and with the cache of other partitions' rows.

The medians are printed.
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

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from khop.data.steps import run
from khop.datasets import DebianPackages
from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    init_worker_group,
    shutdown_worker_group,
)
from khop.partition import RandomPartitioner
from khop.sampler.rows.row_fetch import write_rows
from khop.sampler.rows.row_fetcher import PartRows
from soak.network import Hosts, NoNetworkError

_PORT = 29_411
_BATCH_SIZE = 512


def main() -> None:
    """Connect two hosts, and run a trainer on each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=1.0, help="Gbit/s of the cable")
    parser.add_argument("--delay", type=float, default=1.0, help="ms of the cable, each way")
    parser.add_argument("--mib", type=int, default=48, help="MiB of rows that are read at once")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1, help="0: the trainer samples")
    parser.add_argument("--curve", action="store_true", help="encrypt what khop sends")
    parser.add_argument("--trainer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trainer is not None:
        train(arguments)
        return
    try:
        hosts = Hosts()
    except NoNetworkError as error:
        print(f"skipped: {error}")
        return
    try:
        hosts.cable.set(delay=arguments.delay / 1000, rate=arguments.rate * 1e9 / 8)
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "parts"
            data = DebianPackages(undirected=True)[0]
            RandomPartitioner.from_data(data, root, 2).partition()
            trainers = [start(hosts, rank, root) for rank in (1, 0)]
            for trainer in trainers:
                trainer.wait()
    finally:
        hosts.close()


def start(hosts: Hosts, rank: int, root: Path) -> subprocess.Popen[bytes]:
    """Start the trainer of a host."""
    group = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(_PORT)}
    return subprocess.Popen(
        [
            *(*hosts.prefixes[rank], sys.executable, __file__, *sys.argv[1:]),
            *("--trainer", str(rank), "--folder", str(root), "--peer", hosts.addresses[1 - rank]),
        ],
        env={**os.environ, **group, "MASTER_ADDR": hosts.addresses[0], "OMP_NUM_THREADS": "1"},
    )


def train(arguments: argparse.Namespace) -> None:
    """Measure on host 0. Host 1 serves its part."""
    rank, nbytes = arguments.trainer, arguments.mib << 20
    # Host 1 listens before host 0 goes on.
    server = socket.create_server(("", _PORT + 1))
    init_worker_group(2, rank, insecure=not arguments.curve)
    dataset = DistDataset().load(arguments.folder, rank, same_host_reads=False)
    dataset.service().endpoints()  # of both: each serves its part
    if rank == 1:
        connection, _ = server.accept()
        while connection.recv(1):
            connection.sendall(bytes(nbytes))
    else:
        with socket.create_connection((arguments.peer, _PORT + 1)) as bare:
            measure(dataset, bare, arguments)
    shutdown_worker_group()


def measure(dataset: DistDataset, bare: socket.socket, arguments: argparse.Namespace) -> None:
    """Print the rates and the times of batches."""
    nbytes = arguments.mib << 20
    node_type = dataset.opened.meta.node_types[0]
    client = dataset.service().client(60.0)
    rows = PartRows(dataset.connected_part(), "node", 0, ["x"], client)
    of_others = np.arange(*node_type.bounds[1:3])
    ids = np.random.default_rng(0).choice(of_others, nbytes // rows.row_bytes)
    outs = rows.empty(len(ids))

    def loader(**options: int) -> DistNeighborLoader:
        return DistNeighborLoader(
            dataset,
            [10, 10],
            torch.from_numpy(np.array(dataset.opened.node_ids(0, node_type.name))),
            batch_size=_BATCH_SIZE,
            seed=1,
            worker_options=MpDistSamplingWorkerOptions(num_workers=arguments.workers),
            even_batches=False,  # host 1 has no loader
            **options,
        )

    plain, cached = loader(cache_memory=0), loader()
    names = ("TCP", "rows", "epoch, no cache", "epoch, cache")
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(arguments.turns + 1):  # the first turn fills caches
        steps = (
            lambda: receive(bare, nbytes),
            lambda: run(write_rows([(rows.fetch(ids), outs)]), client),
            lambda: [None for _ in plain],
            lambda: [None for _ in cached],
        )
        for step, taken in zip(steps, times.values(), strict=True):
            began = time.perf_counter()
            step()
            taken.append(time.perf_counter() - began)
    tcp, read, *epochs = (statistics.median(taken[1:]) for taken in times.values())
    pairs = [*zip(times["TCP"], times["rows"], strict=True)][1:]
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"a bare TCP connection: {nbytes / tcp / 1e6:.0f} MB/s")
    print(f"rows: {nbytes / read / 1e6:.0f} MB/s, TCP = 1: {ratio:.2f}")
    for name, seconds in zip(("without", "with"), epochs, strict=True):
        print(f"a batch {name} the cache: {1000 * seconds / len(plain):.1f} ms")
    for each in (plain, cached):
        each.shutdown()


def receive(connection: socket.socket, nbytes: int) -> None:
    """Have the other host send bytes, and receive them."""
    connection.sendall(b"x")
    memory, taken = memoryview(bytearray(nbytes)), 0
    while taken < nbytes:
        taken += connection.recv_into(memory[taken:])


if __name__ == "__main__":
    main()
