"""A graph store's pushes and pulls, and its embeddings beside torch's.

    python benchmarks/store.py                 # 100,000 rows of 128 float32
    python benchmarks/store.py --rows 20000 --turns 3

Push and pull are compared with a bare ZeroMQ connection to another process, which sends the same
bytes in frames of 1 MiB and gets a short reply for each, over a Unix socket. One trainer has one
partition, so all rows go to one server. A push is timed until the server has accepted it, and a
step applies it.

Training compares `DistEmbedding` and `SparseAdagrad` with `torch.nn.Embedding(sparse=True)` and
`torch.optim.Adagrad`: forward, backward and update of a batch of ids of a power law.

Cases take turns. Ratios are medians over turns: the rate of ZeroMQ or torch is 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import zmq
from torch_geometric.data import Data

from khop import partition_graph
from khop.distributed import DistDataset, GraphStore, shutdown_worker_group
from khop.nn import DistEmbedding
from khop.optim import SparseAdagrad

FRAME = 1 << 20


def echo(address: str, is_pull: bool, count: int) -> None:
    """Answer frames: bytes with one byte, or the other way round."""
    socket = zmq.Context().socket(zmq.PAIR)
    socket.connect(address)
    full = bytes(FRAME)
    while socket.recv(copy=False).bytes != b"end":
        socket.send(full if is_pull else b".", copy=False)


class Bare:
    """A bare connection to another process."""

    def __init__(self, folder: str, is_pull: bool, nbytes: int) -> None:
        address = f"ipc://{folder}/{'pull' if is_pull else 'push'}"
        self.socket = zmq.Context().socket(zmq.PAIR)
        self.socket.bind(address)
        self.count = -(-nbytes // FRAME)
        self.frame = b"." if is_pull else bytes(FRAME)
        self.process = multiprocessing.get_context("spawn").Process(
            target=echo, args=(address, is_pull, self.count)
        )
        self.process.start()
        self.turn()

    def turn(self) -> None:
        """Send all frames, then wait for all replies."""
        for _ in range(self.count):
            self.socket.send(self.frame, copy=False)
        for _ in range(self.count):
            self.socket.recv(copy=False)

    def close(self) -> None:
        """End the process."""
        self.socket.send(b"end")
        self.process.join()


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def trainer(embedding: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., None]:
    """Return a function that trains on one batch of ids."""

    def train(ids: torch.Tensor) -> None:
        optimizer.zero_grad()
        embedding(ids).square().sum().backward()
        optimizer.step()

    return train


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--nodes", type=int, default=1_000_000, help="rows of the tensors")
    parser.add_argument("--dim", type=int, default=64, help="size of an embedding")
    parser.add_argument("--ids", type=int, default=20_000, help="ids in a batch of training")
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    nodes, width = arguments.nodes, arguments.width
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        graph = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=nodes)
        partition_graph(graph, Path(folder) / "parts", 1)
        store = GraphStore(DistDataset.from_folder(Path(folder) / "parts"))
        rows = store.create_node_tensor("rows", shape=(width,))
        ids = rng.integers(0, nodes, arguments.rows)
        values = torch.rand(arguments.rows, width)
        nbytes = arguments.rows * width * 4
        to, back = Bare(folder, False, nbytes), Bare(folder, True, nbytes)
        embedding = DistEmbedding(nodes, arguments.dim, store, "e")
        own = trainer(embedding, SparseAdagrad([embedding], lr=0.1))
        plain = torch.nn.Embedding(nodes, arguments.dim, sparse=True)
        torchs = trainer(plain, torch.optim.Adagrad(plain.parameters(), lr=0.1))
        batch = torch.from_numpy((rng.pareto(1.0, arguments.ids) * 100).astype(np.int64) % nodes)
        cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "push": (lambda: rows.push(ids, values).wait(), to.turn),
            "step that applies the push": (store.step, to.turn),
            "pull": (lambda: rows.pull(ids), back.turn),
            "training step": (lambda: own(batch), lambda: torchs(batch)),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        for turn in range(arguments.turns + 1):
            for name, (ours, other) in cases.items():
                pair = seconds_of(ours), seconds_of(other)
                if turn:
                    times[name].append(pair)
        print("| case | ms | beside it, ms | rate, beside it = 1 |")
        print("|---|---|---|---|")
        for name, pairs in times.items():
            mine, other = np.array(pairs).T
            ratio = np.median(other / mine)
            print(f"| {name} | {1e3 * np.median(mine):.1f} | {1e3 * np.median(other):.1f} ", end="")
            print(f"| {ratio:.2f} |")
        to.close()
        back.close()
        store.close()
        shutdown_worker_group()


if __name__ == "__main__":
    main()
