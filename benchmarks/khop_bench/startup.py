"""Suite `startup`: time to the first batch, and private memory of a sampler.

Each turn loads the folder, makes a loader with two sampler processes, takes the first batch, then a
few more, and ends it all. The folder has 2.5 times the nodes and edges of the other suites', 5 GB
at scale 1. It has been read before, so that its pages are in the page cache.

Private memory is what the kernel calls Private_Clean and Private_Dirty in /proc/PID/smaps, without
the arena. Pages of the folder that no other process has mapped count, too, though they are in the
page cache. A separate row gives their size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from khop.distributed import DistDataset, node_split
from khop_bench.bench import Bench
from khop_bench.graphs import SeedOrder
from khop_bench.idle import settle
from khop_bench.loaders import dist_loader, epoch_seeds
from khop_bench.measure import Row, Turn
from khop_bench.peers import touch
from khop_bench.settings import BATCH_SIZE

_RING = "khop-ring"
_TIMES_THE_SCALE = 2.5


def run(bench: Bench) -> list[Row]:
    """Measure the suite `startup`."""
    folder = bench.graphs.at(_TIMES_THE_SCALE * bench.settings.scale).products_parts(1)
    bench.note(f"startup: the folder has {read_all(folder) / 1e6:,.0f} MB, all in the page cache")
    start = starter(folder, training_order(folder, BATCH_SIZE), bench.settings.batches)

    def turn(_: int) -> list[Turn]:
        measured = start()
        values = (measured.first, measured.made, measured.memory.own, measured.memory.mapped)
        return [Turn(value) for value in values]

    rows = [
        Row("first batch", "khop", "s"),
        Row("first batch", "of it, making the loader", "s"),
        Row("private memory", "sampler", "MB"),
        Row("private memory", "of it, pages of files", "MB"),
    ]
    return bench.take_joint_turns(rows, turn)


@dataclass(frozen=True)
class Memory:
    """Bytes that only this process has mapped, without arenas.

    Attributes:
        own: all such bytes.
        mapped: bytes of mapped files among them.
    """

    own: float
    mapped: float


@dataclass(frozen=True)
class Start:
    """Measurements of a loader's start.

    Attributes:
        first: seconds from before its construction to the first batch.
        made: seconds of these until the loader was constructed.
        memory: memory of the largest sampler, after some batches.
    """

    first: float
    made: float
    memory: Memory


def starter(folder: Path, order: SeedOrder, batches: int) -> Callable[[], Start]:
    """Return a function that starts a loader of a folder and ends it again.

    Args:
        folder: the folder.
        order: the seeds.
        batches: number of batches after the first.
    """
    seeds = epoch_seeds(order, batches)

    def start() -> Start:
        begin = time.perf_counter()
        with dist_loader(folder, seeds, order.batch_size) as loader:
            made = time.perf_counter() - begin
            iterator = iter(loader)
            batch: Any = next(iterator)
            first = time.perf_counter() - begin
            touch(batch)
            for _ in range(batches):
                touch(next(iterator))
            measured = [private_memory(worker.pid) for worker in loader.workers]
            del batch, iterator
        settle()
        return Start(first, made, max(measured, key=lambda memory: memory.own))

    return start


def training_order(folder: Path, batch_size: int) -> SeedOrder:
    """Return the training seeds of a folder, in the order that all suites use."""
    seeds = node_split("train_mask", DistDataset().load(folder, 0))
    return SeedOrder(seeds.sort().values, batch_size)


def private_memory(pid: int) -> Memory:
    """Return the private memory of a process."""
    own = mapped = 0
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head, *rest = line.split()
        if not head.endswith(":"):
            name = rest[4] if len(rest) > 4 else ""
        elif head in ("Private_Clean:", "Private_Dirty:") and _RING not in name:
            own += int(rest[0]) * 1024
            mapped += int(rest[0]) * 1024 if Path(name).is_absolute() else 0
    return Memory(own, mapped)


def read_all(folder: Path) -> int:
    """Read all files of a folder, which brings them to the page cache, and return their bytes."""
    total = 0
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb", buffering=0) as opened:
                while block := opened.read(1 << 22):
                    total += len(block)
    return total
