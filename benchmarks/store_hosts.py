"""Pushes and pulls of a graph store by message, beside a bare ZeroMQ connection.

    python benchmarks/store_hosts.py               # two network namespaces (as root)
    python benchmarks/store_hosts.py --same-host   # one host, without shared memory

Two trainers have a partition each. Trainer 0 pushes and pulls 100,000 rows of 128 float32, all of
the partition of trainer 1. A bare connection over TCP sends the same bytes in frames of 1 MiB, and
gets a short reply for each. Namespaces are connected by a veth pair, so the kernel is the network.

Cases take turns. The rate of ZeroMQ is 1, and ratios are medians over turns: of wall times, and of
processor times of all processes. On two cores, a ratio of processor times bounds the other one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import zmq
from torch_geometric.data import Data

from khop import partition_graph
from khop.distributed import DistDataset, GraphStore, init_worker_group, shutdown_worker_group
from khop.distributed.tensors.store_access import TrainerAccess

FRAME = 1 << 20
NAMES = ("khop-store-0", "khop-store-1")
PORT = 29_431


@contextlib.contextmanager
def namespaces() -> Iterator[None]:
    """Context with two connected network namespaces."""
    try:
        for name in NAMES:
            ip("netns", "add", name)
        ip("link", "add", "khs0", "type", "veth", "peer", "name", "khs1")
        for host, name in enumerate(NAMES):
            ip("link", "set", f"khs{host}", "netns", name)
            ip("-n", name, "addr", "add", f"10.213.79.{host + 1}/24", "dev", f"khs{host}")
            for device in (f"khs{host}", "lo"):
                ip("-n", name, "link", "set", device, "mtu", "65535", "up")
        yield
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def ip(*words: str) -> None:
    """Run iproute2's `ip`."""
    subprocess.run(["ip", *words], check=True)


def processor_seconds(root: int) -> float:
    """Return the processor time of a process and all of its descendants."""
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
            parents[int(path.name)] = int(fields[1])
            tasks = (path / "task").iterdir()
            seconds[int(path.name)] = sum(
                int((task / "schedstat").read_text().split()[0]) for task in tasks
            )
    total = 0
    for process, own in seconds.items():
        ancestor = process
        while ancestor not in (root, 0):
            ancestor = parents.get(ancestor, 0)
        total += own if ancestor == root else 0
    return total / 1e9


def echo(address: str) -> None:
    """Answer each frame by a byte, and each byte by a frame, until a message is empty."""
    socket, full = zmq.Context().socket(zmq.PAIR), bytes(FRAME)
    socket.bind(address)
    while size := len(socket.recv(copy=False)):
        socket.send(full if size == 1 else b".", copy=False)


def train(arguments: argparse.Namespace) -> None:
    """Be a trainer. Trainer 0 measures."""
    torch.set_num_threads(1)
    rank, (num_rows, width) = arguments.rank, (arguments.rows, arguments.width)
    bare = f"tcp://{arguments.peers.split(',')[1]}:{PORT + 1}"
    init_worker_group(2, rank, insecure=True)
    dataset = DistDataset().load(Path(arguments.folder), rank)
    if arguments.same_host:
        TrainerAccess.is_near = lambda *_: False  # type: ignore[method-assign]
    answers = subprocess.Popen([sys.executable, __file__, "--echo", bare]) if rank else None
    with GraphStore(dataset) as store:
        rows = store.create_node_tensor("rows", shape=(width,))
        for _ in range(arguments.turns + 1 if rank else 0):
            store.step()
        if rank == 0:
            ids = np.random.default_rng(0).choice(dataset.opened.node_ids(1, "node"), num_rows)
            measure(store, rows, ids, bare, arguments.turns)
    if answers is not None:
        answers.wait()
    shutdown_worker_group()


def measure(store: GraphStore, rows: object, ids: np.ndarray, bare: str, turns: int) -> None:
    """Print a table."""
    values = torch.rand(len(ids), rows.shape[1])
    socket = zmq.Context().socket(zmq.PAIR)
    socket.connect(bare)
    count = -(-values.nbytes // FRAME)

    def exchange(frame: bytes) -> None:
        for _ in range(count):
            socket.send(frame, copy=False)
        for _ in range(count):
            socket.recv(copy=False)

    full = bytes(FRAME)
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "push": (lambda: rows.push(ids, values).wait(), lambda: exchange(full)),
        "pull": (lambda: rows.pull(ids), lambda: exchange(b".")),
    }
    times: dict[str, list[list[float]]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        for name, pair in cases.items():
            measured = []
            for call in pair:
                spent, began = processor_seconds(os.getppid()), time.perf_counter()
                call()
                measured.append(time.perf_counter() - began)
                measured.append(processor_seconds(os.getppid()) - spent)
            times[name] += [measured] if turn else []
        store.step()
    socket.send(b"")
    print("| case | ms | ZeroMQ, ms | rate, ZeroMQ = 1 | by processor time |")
    print("|---|---|---|---|---|")
    for name, lists in times.items():
        own, spent, other, others = np.array(lists).T
        print(f"| {name} | {1e3 * np.median(own):.1f} | {1e3 * np.median(other):.1f} ", end="")
        print(f"| {np.median(other / own):.2f} | {np.median(others / spent):.2f} |", flush=True)


def main() -> None:
    """Start the trainers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--nodes", type=int, default=2_000_000, help="rows of the tensor")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--same-host", action="store_true", help="one host, by message")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--peers", help=argparse.SUPPRESS)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.echo is not None:
        echo(arguments.echo)
        return
    if arguments.rank is not None:
        train(arguments)
        return
    hosts = ["127.0.0.1"] * 2 if arguments.same_host else ["10.213.79.1", "10.213.79.2"]
    context = contextlib.nullcontext() if arguments.same_host else namespaces()
    with context, tempfile.TemporaryDirectory() as folder:
        graph = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=arguments.nodes)
        partition_graph(graph, Path(folder) / "parts", 2)
        command = [sys.executable, __file__, *sys.argv[1:], "--peers", ",".join(hosts)]
        command += ["--folder", f"{folder}/parts", "--rank"]
        trainers = []
        for rank in (1, 0):
            group = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank * arguments.same_host}
            group |= {"MASTER_ADDR": hosts[0], "MASTER_PORT": PORT, "OMP_NUM_THREADS": 1}
            prefix = [] if arguments.same_host else ["ip", "netns", "exec", NAMES[rank]]
            environment = {**os.environ, **{name: str(value) for name, value in group.items()}}
            trainers.append(subprocess.Popen([*prefix, *command, str(rank)], env=environment))
        for trainer in trainers:
            trainer.wait()


if __name__ == "__main__":
    main()
