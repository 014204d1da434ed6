#!/usr/bin/env python3
"""Processor time per batch over two partitions of one machine, compared with one partition.

    python benchmarks/one_copy.py             # two minutes: products' shape x 0.2
    python benchmarks/one_copy.py --threads   # also the time of each thread

The graph has the shape of ogbn-products (`--scale 0.2`: 490 k nodes, 12.4 M edges, 100 floats).
Batches have 1,024 seeds and fan-outs 15, 10, 5. The trainer is at home in part 0 of random parts,
so half of the rows of a batch belong to part 1.

- `one partition` reads a folder of one part. Its time is 1.
- `by message` asks the server of part 1 for its rows (`same_host_reads=False`).
- `by message, no cache` asks for all of them in each batch. By default the cache has all of these.
- `same host` maps the files of part 1.

Loaders with one sampler process take turns, and then loaders that sample in the trainer. The time
is the processor time of all processes: trainer, sampler and partition server. It is read from
`/proc`, whose clock ticks every 10 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from khop.distributed import DistDataset, DistNeighborLoader, MpDistSamplingWorkerOptions
from khop_bench.graphs import Graphs, SeedOrder
from khop_bench.idle import settle
from khop_bench.settings import BATCH_SIZE, FANOUTS, default_cache

CASES = {
    "one partition": (1, True, None),
    "two partitions, by message": (2, False, None),
    "two partitions, by message, no cache": (2, False, 0),
    "two partitions, same host": (2, True, None),
}
"""Name -> (number of parts, same_host_reads, cache_memory)."""

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_times(loader: DistNeighborLoader) -> Counter[str]:
    """Return processor seconds of a loader's processes so far, by process and thread."""
    processes = {"trainer": os.getpid()}
    processes |= {f"sampler {i}": worker.pid for i, worker in enumerate(loader.workers)}
    servers = loader.data.service().endpoint_registry.supervisor.servers
    processes |= {f"server {key}": server.process.pid for key, server in servers.items()}
    times: Counter[str] = Counter()
    for name, pid in processes.items():
        for task in Path(f"/proc/{pid}/task").iterdir():
            head, _, tail = (task / "stat").read_text().rpartition(")")
            fields = tail.split()
            thread = head.partition("(")[2]
            times[f"{name}, {thread}"] += (int(fields[11]) + int(fields[12])) / _TICKS
    return times


@contextmanager
def open_loader(
    folder: Path, seeds: Any, num_workers: int, same_host_reads: bool, cache_memory: int | None
) -> Iterator[DistNeighborLoader]:
    """Open a loader at home in part 0, of a trainer that serves all other parts."""
    others = {1: range(1, 2)}.get(int("parts2" in folder.name), range(0))
    dataset = DistDataset().load(folder, 0, also_serve=others, same_host_reads=same_host_reads)
    loader = DistNeighborLoader(
        dataset,
        list(FANOUTS),
        seeds,
        batch_size=BATCH_SIZE,
        seed=0,
        cache_memory=cache_memory,
        worker_options=MpDistSamplingWorkerOptions(num_workers=num_workers),
    )
    try:
        yield loader
    finally:
        loader.shutdown()


def measure(loader: DistNeighborLoader, batches: int) -> Counter[str]:
    """Return processor seconds per batch of an epoch, by process and thread."""
    before = processor_times(loader)
    for _ in islice(loader, batches):
        pass
    settle()
    times = processor_times(loader)
    times.subtract(before)
    return Counter({name: seconds / batches for name, seconds in times.items()})


def compare(graphs: Graphs, num_workers: int, batches: int, turns: int, threads: bool) -> None:
    """Print a row for each case, and the time of its threads."""
    mask = graphs.products(with_features=False).train_mask
    seeds = SeedOrder(mask.nonzero().view(-1), BATCH_SIZE).epoch(batches)
    taken: dict[str, list[Counter[str]]] = {name: [] for name in CASES}
    with ExitStack() as stack:
        loaders = {
            name: stack.enter_context(
                open_loader(graphs.products_parts(parts), seeds, num_workers, same, cache)
            )
            for name, (parts, same, cache) in CASES.items()
        }
        for _ in range(turns + 1):  # the first one reads the files
            for name, loader in loaders.items():
                taken[name].append(measure(loader, batches))
    for costs in taken.values():
        del costs[0]
    one = [costs.total() for costs in taken["one partition"]]
    mode = f"{num_workers} sampler" if num_workers else "in the trainer"
    for name, costs in taken.items():
        totals = [cost.total() for cost in costs]
        ratio = statistics.median(a / b for a, b in zip(totals, one, strict=True))
        print(f"| {mode} | {name} | {1000 * statistics.median(totals):.1f} | {ratio:.2f} |")
        for thread in sorted({t for cost in costs for t in cost}) if threads else ():
            spent = 1000 * statistics.median(cost[thread] for cost in costs)
            if spent >= 0.3:
                print(f"| | {thread} | {spent:.1f} | |")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.2, help="1: ogbn-products")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="folder of graphs")
    parser.add_argument("--batches", type=int, default=30, help="batches per turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", action="store_true", help="print the time of each thread")
    arguments = parser.parse_args()
    graphs = Graphs(arguments.cache, arguments.scale)
    print("| | | ms per batch | one partition = 1 |")
    print("|---|---|--:|--:|")
    for num_workers in (1, 0):
        compare(graphs, num_workers, arguments.batches, arguments.turns, arguments.threads)


if __name__ == "__main__":
    main()
