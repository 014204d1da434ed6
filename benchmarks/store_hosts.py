"""Pushes and pulls of a graph store by message, beside a bare ZeroMQ connection.

    python benchmarks/store_hosts.py               # two network namespaces (as root)
    python benchmarks/store_hosts.py --same-host   # one host, without shared memory

Two trainers have a partition each. Trainer 0 pushes and pulls 100,000 rows of 128 float32, all of
the partition of trainer 1. A bare connection over TCP sends the same bytes in frames of 1 MiB, and
gets a short reply for each. It sends an array of as many bytes, or one frame of the cache again and
again, and does not read them. Namespaces are connected by a veth pair: the kernel is the network.

Cases take turns. The rate of ZeroMQ is 1, and ratios are medians over turns: of wall times, and of
processor times of all processes. On two cores, a ratio of processor times bounds the other one.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

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
    """Context with two connected network namespaces. Those of a killed run are deleted."""
    for name in NAMES:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
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


def processes_of(root: int) -> list[int]:
    """Return the descendants of a process."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
            parents[int(path.name)] = int(fields[1])
    found = []
    for process in parents:
        ancestor = process
        while ancestor not in (root, 0):
            ancestor = parents.get(ancestor, 0)
        found += [process] if ancestor == root else []
    return found


def processor_seconds(processes: list[int]) -> float:
    """Return the processor time of processes."""
    return sum(time.clock_gettime((~process << 3) | 2) for process in processes)


def frames_of(memory: memoryview) -> list[memoryview]:
    """Divide memory into frames."""
    return [memory[first : first + FRAME] for first in range(0, len(memory), FRAME)]


def echo(address: str, nbytes: int) -> None:
    """Answer each frame by a byte, and a byte by a frame, until a message is empty.

    To a byte of 1 the answer is the next frame of an array, else always the same one.
    """
    socket = zmq.Context().socket(zmq.PAIR)
    socket.bind(address)
    frames = itertools.cycle(frames_of(np.ones(nbytes, np.uint8).data))
    same = bytes(FRAME)
    while request := socket.recv(copy=False).bytes:
        answer = b"." if len(request) > 1 else next(frames) if request == b"1" else same
        socket.send(answer, copy=False)


def train(arguments: argparse.Namespace) -> None:
    """Be a trainer. Trainer 0 measures."""
    torch.set_num_threads(1)
    rank, (num_rows, width) = arguments.rank, (arguments.rows, arguments.width)
    bare = f"tcp://{arguments.peers.split(',')[1]}:{PORT + 1}"
    init_worker_group(2, rank, insecure=True)
    dataset = DistDataset().load(Path(arguments.folder), rank)
    if arguments.same_host:
        TrainerAccess.is_near = lambda *_: False  # type: ignore[method-assign]
    command = [sys.executable, *sys.argv, "--echo", bare]
    answers = subprocess.Popen(command) if rank else None
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
    frames = frames_of(values.numpy().data.cast("B"))

    def exchange(sent: Sequence[Any]) -> None:
        for frame in sent:
            socket.send(frame, copy=False)
        for _ in sent:
            socket.recv(copy=False)

    same = [bytes(FRAME)] * len(frames)
    cases: dict[str, list[Callable[[], object]]] = {
        "push": [
            lambda: rows.push(ids, values).wait(),
            lambda: exchange(frames),
            lambda: exchange(same),
        ],
        "pull": [
            lambda: rows.pull(ids),
            lambda: exchange([b"1"] * len(frames)),
            lambda: exchange([b"0"] * len(frames)),
        ],
    }
    processes = processes_of(os.getppid())
    times: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        for name, calls in cases.items():
            measured = []
            for call in calls:
                spent, began = processor_seconds(processes), time.perf_counter()
                call()
                wall = time.perf_counter() - began
                measured.append((wall, processor_seconds(processes) - spent))
            times[name] += [measured] if turn else []
        store.step()
    socket.send(b"")
    print("| case | | store, ms | ZeroMQ from an array, ms | one frame, ms | rates of the store |")
    print("|---|---|---|---|---|---|")
    for name, lists in times.items():
        for axis, clock in enumerate(("wall time", "processor time")):
            own, array, one = np.array(lists)[:, :, axis].T
            cells = [f"{1e3 * np.median(ms):.1f}" for ms in (own, array, one)]
            rates = f"{np.median(array / own):.2f}, {np.median(one / own):.2f}"
            print(f"| {name} | {clock} | {' | '.join(cells)} | {rates} |", flush=True)


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
        echo(arguments.echo, 4 * arguments.rows * arguments.width)
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
