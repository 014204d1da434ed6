"""Count of calls per batch: functions of khop that the trainer's thread enters, by mode.

    python benchmarks/calls.py            a table
    python benchmarks/calls.py --files    the table, and the calls of each file

Batches have 16 seeds and fan-outs 5, 5. The table has these counts per mode:

- calls of functions, where each resumption of a generator is a call
- files that contain these functions
- changes from one file to another
- the largest depth of nested calls

Comprehensions and generator expressions are left out, because only some versions of Python call
them. Each count is the smallest of several batches of the same seeds. The smallest count does not
depend on when a reply arrives.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

import khop
from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
)
from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.partition import RandomPartitioner

FANOUTS, SEEDS = [5, 5], 16
NUM_NODES, NUM_EDGES, NUM_BATCHES = 2_000, 30_000, 40
FRAMING = ("channel/message.py", "codec.py")
"""Files that pack and check messages."""

_ROOT = str(Path(khop.__file__).parent) + "/"


class Calls:
    """Counts of the calls of a batch."""

    def __init__(self) -> None:
        self.by_file: Counter[str] = Counter()
        self.switches = self.depth = 0
        self._stack: list[str] = []
        self._last = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count an event of `sys.setprofile`."""
        code = frame.f_code
        if not code.co_filename.startswith(_ROOT) or code.co_name in (
            "<listcomp>",
            "<setcomp>",
            "<dictcomp>",
            "<genexpr>",
        ):
            return
        file = code.co_filename.removeprefix(_ROOT)
        if event == "call":
            self.by_file[file] += 1
            self.switches += file != self._last
            self._last = file
            self._stack.append(file)
            self.depth = max(self.depth, len(self._stack))
        elif event == "return" and self._stack:
            self._stack.pop()

    @property
    def total(self) -> int:
        """Number of calls."""
        return self.by_file.total()

    def row(self, mode: str) -> str:
        """Return the line of a table."""
        framing = sum(self.by_file[file] for file in FRAMING) / self.total
        cells = len(self.by_file), self.total, f"{framing:.0%}", self.switches, self.depth
        return f"| {mode} | {' | '.join(map(str, cells))} |"


def calls_of(loader: Any) -> Calls:
    """Return the calls of the batch with the fewest calls, after batches that warm the caches."""
    batches = iter(loader)
    for _ in range(NUM_BATCHES // 4):
        next(batches)
    by_batch = []
    for _ in range(NUM_BATCHES // 2):
        calls = Calls()
        sys.setprofile(calls)
        try:
            next(batches)
        finally:
            sys.setprofile(None)
        by_batch.append(calls)
    return min(by_batch, key=lambda calls: (calls.total, calls.switches))


def graph() -> Data:
    """Return a random graph with features and labels."""
    rng = np.random.default_rng(0)
    edges = torch.from_numpy(rng.integers(0, NUM_NODES, (2, NUM_EDGES)))
    return Data(x=torch.zeros(NUM_NODES, 16), y=torch.arange(NUM_NODES), edge_index=edges)


@contextlib.contextmanager
def partitioned(data: Data, num_parts: int) -> Iterator[DistDataset]:
    """Yield a dataset that serves all parts of a graph."""
    with tempfile.TemporaryDirectory() as folder:
        RandomPartitioner.from_data(data, folder, num_parts, overwrite=True).partition()
        yield DistDataset().load(folder, 0, also_serve=range(1, num_parts), same_host_reads=False)
        khop.distributed.shutdown_worker_group()


def modes(data: Data) -> Iterator[tuple[str, Any]]:
    """Yield the name and the loader of each mode."""
    nodes = torch.arange(SEEDS).repeat(NUM_BATCHES)
    links = torch.arange(2 * SEEDS).view(2, -1).repeat(1, NUM_BATCHES)
    common = {"batch_size": SEEDS, "seed": 1}
    yield "in memory", NeighborLoader(data, FANOUTS, nodes, **common)
    negative = {"neg_sampling": "binary", **common}
    yield "in memory, links", LinkNeighborLoader(data, FANOUTS, links, **negative)
    collocated = CollocatedDistSamplingWorkerOptions
    cases: list[tuple[str, int, Callable[[], Any]]] = [
        ("collocated, 1 part", 1, collocated),
        ("collocated, 2 parts", 2, collocated),
        ("a sampler process, the trainer's side", 2, MpDistSamplingWorkerOptions),
    ]
    for name, num_parts, worker_options in cases:
        with partitioned(data, num_parts) as dataset:
            yield (
                name,
                DistNeighborLoader(
                    dataset, FANOUTS, nodes, worker_options=worker_options(), **common
                ),
            )


def main() -> None:
    """Count and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", action="store_true", help="print the calls of each file")
    arguments = parser.parse_args()
    print("| mode | files | calls per batch | share of framing | changes of file | depth |")
    print("|---|---|---|---|---|---|")
    by_mode = {}
    for mode, loader in modes(graph()):
        by_mode[mode] = calls_of(loader)
        print(by_mode[mode].row(mode), flush=True)
    for mode, calls in by_mode.items() if arguments.files else ():
        print(f"\n{mode}:")
        for file, count in sorted(calls.by_file.items(), key=lambda item: (-item[1], item[0])):
            print(f"  {count:4d}  {file}")


if __name__ == "__main__":
    main()
