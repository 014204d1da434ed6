"""Propagation over the whole graph, beside SciPy's product of a sparse and a dense matrix.

    python benchmarks/propagation.py                       # 300,000 nodes, 5 M edges
    python benchmarks/propagation.py --nodes 1000000 --edges 20000000 --widths 64

`update_all` computes with one thread of the trainer. One server per part takes the rows that it
writes, so a second core is in use for a part of the time. SciPy has one thread, the matrix in
memory, and for 'sym' the normalised matrix. `khop propagate` has one thread (`jobs=1`), and its
time includes reading and writing files.

Cases take turns. Ratios are medians over turns: the time of SciPy is 1.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch_geometric.data import Data

import khop
from khop.distributed import DistDataset, GraphStore, shutdown_worker_group
from khop.partition import propagate


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def normalised(matrix: Any) -> Any:
    """Return D^-1/2 A D^-1/2."""
    degrees = np.asarray(matrix.sum(axis=1)).ravel()
    roots = scipy.sparse.diags(np.where(degrees > 0, degrees, 1) ** -0.5)
    return (roots @ matrix @ roots).astype(np.float32).tocsr()


def measure(folder: Path, matrix: Any, x: torch.Tensor, num_parts: int, turns: int) -> None:
    """Print a line of the table for each case with these features and parts."""
    root = folder / f"parts-{x.shape[1]}-{num_parts}"
    ends = torch.from_numpy(np.stack([matrix.indices, matrix.tocoo().row])).long()
    khop.partition_graph(Data(edge_index=ends, x=x), root, num_parts, method="random")
    dataset = DistDataset().load(root, 0, also_serve=range(1, num_parts))
    store, copy = GraphStore(dataset), folder / "copy"
    store.create_node_tensor("x", shape=x.shape[1:], init=x)
    store.create_node_tensor("y", shape=x.shape[1:])
    sym, dense = normalised(matrix), x.numpy()

    def in_folder() -> None:
        propagate(copy, "x", f"y{time.perf_counter_ns()}", jobs=1)

    cases: dict[str, tuple[Callable[[], object], Any]] = {
        "update_all, sum": (lambda: store.update_all("x", "y"), matrix),
        "update_all, sym": (lambda: store.update_all("x", "y", norm="sym"), sym),
        "khop propagate, sum, and files": (in_folder, matrix),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        shutil.copytree(root, copy)
        for name, (ours, other) in cases.items():
            pair = seconds_of(ours), seconds_of(lambda other=other: other @ dense)
            if turn:
                times[name].append(pair)
        shutil.rmtree(copy)
    np.testing.assert_allclose(
        store["y"].pull().numpy(), sym @ dense, rtol=1e-3, atol=1e-4, err_msg="sym"
    )
    for name, pairs in times.items():
        mine, beside = np.array(pairs).T
        print(f"| {name} | {x.shape[1]} | {num_parts} | {np.median(mine):.3f} ", end="")
        print(f"| {np.median(beside):.3f} | {np.median(mine / beside):.2f} |", flush=True)
    store.close()
    shutdown_worker_group()


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=300_000)
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--parts", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    ends = rng.integers(0, arguments.nodes, (2, arguments.edges))
    values = np.ones(arguments.edges, np.float32)
    shape = (arguments.nodes, arguments.nodes)
    matrix = scipy.sparse.csr_matrix((values, (ends[1], ends[0])), shape=shape)
    matrix.data[:] = 1  # an edge that was drawn twice is one
    print("| case | floats per row | parts | s | SciPy, s | time, SciPy = 1 |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for width in arguments.widths:
            x = torch.rand(arguments.nodes, width)
            for num_parts in arguments.parts:
                measure(Path(folder), matrix, x, num_parts, arguments.turns)


if __name__ == "__main__":
    main()
