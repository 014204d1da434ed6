"""Time to gather a batch's feature rows from a mapped file, by the order of rows in a part.

    python benchmarks/order.py                 # a power law with the degrees of ogbn-products
    python benchmarks/order.py --graph debian  # Debian's packages, which have clusters

Each order has a file of 400-byte rows. Batches are drawn once, and all orders gather the same
nodes. Orders take alternating turns. The file is in the page cache as a whole, or not at all.

The program prints the pages of 4 KiB that a batch touches, and milliseconds per batch. Ratios are
to the original order. Files are in a temporary folder (--folder).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from khop.data import Feature
from khop.datasets import DebianPackages, PowerLaw
from khop.partition import GraphSource
from khop.partition.batches import seeds_of, typed_rows
from khop.partition.writing.numbering import Numbering
from khop.partition.writing.order import row_keys
from khop.sampler.drawing.hotness import Seeds, random_batches
from khop.storage.folder import ORDERS

PRODUCTS_NODES, PRODUCTS_EDGES = 2_449_029, 123_718_280


def graph_of(name: str, scale: float) -> GraphSource:
    """Return the graph, without features."""
    if name == "debian":
        return GraphSource.from_data(DebianPackages(undirected=True)[0])
    edges = int(PRODUCTS_EDGES * scale) // 2 * 2
    data = PowerLaw(int(PRODUCTS_NODES * scale), edges, undirected=True).data()
    return GraphSource.from_data(data)


def written(folder: Path, order: str, numbering: Numbering, width: int) -> Path:
    """Write a file of rows in an order."""
    file, count = folder / f"{order}.npy", len(numbering.owners)
    rows = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(count, width))
    step = 1 << 16
    for first in range(0, count, step):
        rows[first : first + step] = numbering.old_of_new[first : first + step, None]
    return file


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", choices=["products", "debian"], default="products")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="scale of products' nodes and edges"
    )
    parser.add_argument("--row-bytes", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--cold-turns", type=int, default=1)
    parser.add_argument("--folder", help="folder of the files (default: temporary)")
    arguments = parser.parse_args()
    source = graph_of(arguments.graph, arguments.scale)
    rows, (node_type, ids) = typed_rows(source, "in"), seeds_of(source, None)
    seeds = Seeds(0, ids, arguments.batch_size)
    count = source.nodes[node_type].count
    batches = [b[0] for b in random_batches(rows, [[15, 10, 5]], seeds, arguments.batches)]
    drawn = np.mean([len(batch) for batch in batches])
    print(f"{count:,} nodes, {len(source.edges[next(iter(source.edges))].src):,} edges, ", end="")
    print(f"{drawn:,.0f} rows of {arguments.row_bytes} bytes per batch\n", flush=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        features, positions, seconds = {}, {}, {}
        for order in ORDERS:
            began = time.perf_counter()
            keys = row_keys(source, "in", order, 0, lambda step, done, total: None)
            numbering = Numbering(np.zeros(count, np.int32), 1, keys.get(node_type))
            seconds[order] = time.perf_counter() - began
            features[order] = written(Path(folder), order, numbering, arguments.row_bytes // 4)
            positions[order] = [numbering.new_of_old[batch] for batch in batches]
        warm = measured(features, positions, arguments.turns, cold=False)
        cold = measured(features, positions, arguments.cold_turns, cold=True)
    print("| order | pages | ms, cached | of original | ms, from disk | of original | s to order |")
    print("|---|---|---|---|---|---|---|")
    for order in ORDERS:
        pages = np.mean([pages_of(batch, arguments.row_bytes) for batch in positions[order]])
        cells = [f"{pages:,.0f}"]
        for times in (warm, cold):
            ratio = np.median(times[order] / times["original"])
            cells += [f"{1e3 * np.median(times[order]):.2f}", f"{ratio:.2f}"]
        print(f"| {order} | {' | '.join(cells)} | {seconds[order]:.1f} |")


def pages_of(rows: np.ndarray, row_bytes: int) -> int:
    """Return the number of pages of 4 KiB that contain the rows."""
    first, last = rows * row_bytes // 4096, ((rows + 1) * row_bytes - 1) // 4096
    return len(np.unique(np.concatenate([first, last])))


def measured(
    features: dict[str, Path], positions: dict[str, list[np.ndarray]], turns: int, cold: bool
) -> dict[str, np.ndarray]:
    """Return the mean seconds per batch of each turn, by order."""
    opened = {order: Feature(np.load(file, mmap_mode="r")) for order, file in features.items()}
    times: dict[str, list[float]] = {order: [] for order in features}
    shape = opened["original"].row_shape
    out = np.empty((max(map(len, positions["original"])), *shape), np.float32)
    for turn in range(turns + (not cold)):
        for order in [*features][:: 1 if turn % 2 else -1]:
            spent = 0.0
            for batch in positions[order]:
                if cold:
                    opened.pop(order)  # mapped pages would stay in the cache
                    opened[order] = Feature(forgotten(features[order]))
                began = time.perf_counter()
                opened[order].gather(batch, out[: len(batch)])
                spent += time.perf_counter() - began
            if turn or cold:
                times[order].append(spent / len(positions[order]))
    return {order: np.array(seconds) for order, seconds in times.items()}


def forgotten(file: Path) -> np.ndarray:
    """Map a file, after its pages have left the page cache."""
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return np.load(file, mmap_mode="r")


if __name__ == "__main__":
    main()
