"""A graph store of a client of graph servers beside a store of a trainer that loads the partition.

    python benchmarks/served_store.py                 # 100,000 rows of 128 float32
    python benchmarks/served_store.py --rows 20000 --turns 5

Both are on one machine with one partition. A process with the trainer and its partition server, and
this process with a graph server, take turns. `--apart` requests rows from the graph server, as from
another machine, and does not read them in its memory. Ratios are medians over turns: the time of
the client by that of the trainer.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from khop import partition_graph
from khop.distributed import (
    DistDataset,
    GraphStore,
    GraphStoreReader,
    init_client,
    shutdown_client,
    shutdown_worker_group,
)
from khop.distributed.partitions.service import PartitionService
from khop.distributed.remote.client.served_access import ServedAccess
from khop.distributed.remote.launch import start_server
from khop.distributed.remote.server.server_config import ServerConfig


def cases(
    store: GraphStore, reader: GraphStoreReader, arguments: argparse.Namespace
) -> dict[str, Callable[[], object]]:
    """Return the calls to measure."""
    rows = store.create_node_tensor("rows", shape=(arguments.width,))
    ids = np.random.default_rng(0).integers(0, arguments.nodes, arguments.rows)
    values = torch.rand(arguments.rows, arguments.width)
    read = reader["rows"]
    return {
        "push, accepted": lambda: rows.push(ids, values).wait(),
        "step that applies it": store.step,
        "pull": lambda: rows.pull(ids),
        "pull by a reader": lambda: read.pull(ids),
        "step without pushes": store.step,
        "pull of 1,000 rows": lambda: rows.pull(ids[:1000]),
    }


def be_trainer(pipe: Connection, folder: str, arguments: argparse.Namespace) -> None:
    """Run the cases that are named over a pipe, and send their seconds back."""
    torch.set_num_threads(1)
    if arguments.apart:
        PartitionService.is_near = lambda *_: False  # type: ignore[method-assign]
    with GraphStore(DistDataset.from_folder(folder)) as store, store.reader() as reader:
        calls = cases(store, reader, arguments)
        while (name := pipe.recv()) is not None:
            pipe.send(seconds_of(calls[name]))
    shutdown_worker_group()


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def free_port() -> int:
    """Return a port that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--nodes", type=int, default=1_000_000, help="rows of the tensors")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--apart", action="store_true", help="as from another machine")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        parts, port = Path(folder) / "parts", free_port()
        graph = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=arguments.nodes)
        partition_graph(graph, parts, 1)
        near, far = multiprocessing.get_context("spawn").Pipe()
        trainer = multiprocessing.get_context("spawn").Process(
            target=be_trainer, args=(far, str(parts), arguments)
        )
        trainer.start()
        config = ServerConfig("", 0, 1, 1, f"127.0.0.1:{port}")
        server = start_server(DistDataset.from_folder(parts), config)
        init_client(1, 1, 0, "127.0.0.1", port)
        if arguments.apart:
            ServedAccess.is_near = lambda *_: False  # type: ignore[method-assign]
        times: dict[str, list[tuple[float, float]]] = {}
        with GraphStore(None) as store, store.reader() as reader:
            calls = cases(store, reader, arguments)
            for turn in range(arguments.turns + 1):
                for name, call in calls.items():
                    near.send(name)
                    pair = near.recv(), seconds_of(call)
                    if turn:
                        times.setdefault(name, []).append(pair)
        near.send(None)
        print("| case | trainer, ms | client, ms | client by trainer |")
        print("|---|---|---|---|")
        for name, pairs in times.items():
            of_trainer, of_client = np.array(pairs).T
            print(f"| {name} | {1e3 * np.median(of_trainer):.1f} ", end="")
            print(f"| {1e3 * np.median(of_client):.1f} ", end="")
            print(f"| {np.median(of_client / of_trainer):.2f} |")
        shutdown_client()
        server.close()
        trainer.join()


if __name__ == "__main__":
    main()
