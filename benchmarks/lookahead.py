"""Rows asked of other partitions in an epoch: look-ahead and Belady's rule, beside other caches.

    python benchmarks/lookahead.py                       # one sampler, in the trainer
    python benchmarks/lookahead.py --batch-size 32 --lookahead 8    # small batches need more
    python benchmarks/lookahead.py --workers 2           # each sampler has half of the cache
    python benchmarks/lookahead.py --served              # graph servers, with windows and without

The graph is Debian's packages in random parts, of which the trainer has one. Part 0's nodes are the
seeds. All caches have the same bytes: `--cache` of the rows of all nodes. The first epoch is left
out. Ratios are to asking for each row once per batch.

- 'static' has the hottest rows, by counts of other epochs' batches.
- 'lru', 'sieve' and 'belady' are simulated on the recorded batches, one row after the other (with
  'belady', one batch after the other, and all batches of the epoch known).
- 'belady, divided' has a cache for each sampler, of its share of the bytes, and batches in turn.
- 'khop' is what loaders ask for, by their `stats()`.

Then loaders with and without the cache take alternating turns. The program prints the processor
time of all processes, and the time of an epoch.

With `--served`, each part has a graph server, and the sampler of server 0 makes the batches. Its
client names the next batches ('window'), or does not. Batches are sent over a socket.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
import statistics
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from khop import _native
from khop.datasets import DebianPackages
from khop.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    init_client,
    shutdown_client,
    shutdown_worker_group,
)
from khop.distributed.remote.launch import start_server
from khop.distributed.remote.server.server_config import ServerConfig
from khop.partition import PartitionFolder, RandomPartitioner
from khop.sampler.rows.row_cache import PLAN_BYTES

Batches = list[npt.NDArray[np.int64]]
_SEED = 1


def lru(batches: Batches, capacity: int) -> int:
    """Return the misses of a cache that evicts the row used least recently."""
    rows: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for row in (row for batch in batches for row in batch.tolist()):
        if row in rows:
            rows.move_to_end(row)
            continue
        misses += 1
        rows[row] = None
        if len(rows) > capacity:
            rows.popitem(last=False)
    return misses


def sieve(batches: Batches, capacity: int) -> int:
    """Return the misses of SIEVE (Zhang et al., NSDI 2024).

    Rows are in order of insertion. A hand goes from the oldest to the newest, and evicts the first
    row that was not used since the hand passed it.
    """
    newer: dict[int, int | None] = {}
    older: dict[int, int | None] = {}
    used: dict[int, bool] = {}
    oldest: int | None = None
    newest: int | None = None
    hand: int | None = None
    misses = 0
    for row in (row for batch in batches for row in batch.tolist()):
        if row in used:
            used[row] = True
            continue
        misses += 1
        if len(used) == capacity:
            victim = oldest if hand is None else hand
            while victim is not None and used[victim]:
                used[victim] = False
                victim = oldest if newer[victim] is None else newer[victim]
            assert victim is not None
            hand, before = newer.pop(victim), older.pop(victim)
            del used[victim]
            if before is None:
                oldest = hand
            else:
                newer[before] = hand
            if hand is None:
                newest = before
            else:
                older[hand] = before
        used[row], older[row], newer[row] = False, newest, None
        if newest is None:
            oldest = row
        else:
            newer[newest] = row
        newest = row
    return misses


def belady(batches: Batches, capacity: int) -> int:
    """Return the misses if all batches are known. Sorts all candidates after each batch."""
    never = len(batches)
    following: list[npt.NDArray[np.int64]] = []
    last: dict[int, int] = {}
    for number in range(len(batches) - 1, -1, -1):
        rows = batches[number].tolist()
        following.append(np.array([last.get(row, never) for row in rows]))
        last.update(dict.fromkeys(rows, number))
    following.reverse()
    size = 1 + max(int(batch.max(initial=0)) for batch in batches)
    is_cached, needed = np.zeros(size, bool), np.full(size, never)
    misses = 0
    for batch, uses in zip(batches, following, strict=True):
        misses += int((~is_cached[batch]).sum())
        needed[batch], is_cached[batch] = uses, True
        rows = np.flatnonzero(is_cached)
        is_cached[rows[np.argsort(needed[rows], kind="stable")[capacity:]]] = False
    return misses


def windowed(batches: Batches, capacity: int, window: int) -> int:
    """Return the misses of khop's plan, with `window` batches announced."""
    cache, announced, misses = _native.LookaheadCache(capacity), 0, 0
    for number in range(len(batches)):
        while announced < min(number + 1 + window, len(batches)):
            cache.announce(batches[announced])
            announced += 1
        misses += len(cache.take(number)[2])
    return misses


def processor_seconds() -> float:
    """Return the processor time of this process and of its living descendants."""
    total, todo = 0.0, [os.getpid()]
    while todo:
        pid = todo.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            for task in Path(f"/proc/{pid}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except OSError:  # it has ended
            continue
    return total


def epoch(loader: DistNeighborLoader) -> tuple[float, float]:
    """Return seconds and processor seconds of an epoch."""
    began, spent = time.perf_counter(), processor_seconds()
    for batch in loader:
        del batch
    return time.perf_counter() - began, processor_seconds() - spent


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 10])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--cache", type=float, default=0.1, help="share of the nodes' rows")
    parser.add_argument("--lookahead", type=int, help="default: as khop chooses")
    parser.add_argument("--workers", type=int, default=0, help="0: the trainer samples")
    parser.add_argument("--turns", type=int, default=5, help="turns of the timing")
    parser.add_argument("--served", action="store_true", help="graph servers and a client")
    arguments = parser.parse_args()
    data = DebianPackages(undirected=True)[0]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "parts"
        RandomPartitioner.from_data(data, root, arguments.parts).partition()
        if arguments.served:
            measure_served(root, arguments)
            return
        measure(root, arguments)
        shutdown_worker_group()


def measure_served(root: Path, arguments: argparse.Namespace) -> None:
    """Print the share of other partitions' rows that graph servers ask for, and times."""
    part = PartitionFolder(root)
    (node_type,) = part.meta.node_types
    seeds = torch.from_numpy(np.sort(part.node_ids(0, node_type.name)).astype(np.int64))
    row_bytes = 8 + sum(attr.row_bytes for attr in node_type.attrs.values()) + PLAN_BYTES
    rows = int(arguments.cache * node_type.count)
    # name -> rows of the cache, lookahead
    cases = {"no cache": (0, None), "no window": (rows, 0), "window": (rows, arguments.lookahead)}
    cases["all rows"] = (node_type.count, None)
    with ExitStack() as stack:
        address = open_servers(root, arguments.parts, stack)
        init_client(arguments.parts, 1, 0, "127.0.0.1", address)
        stack.callback(shutdown_client)
        options = RemoteDistSamplingWorkerOptions(num_workers=1, server_rank=0, shared_memory=False)
        loaders = {
            name: DistNeighborLoader(
                None,
                arguments.fanouts,
                seeds,
                batch_size=arguments.batch_size,
                shuffle=True,
                seed=_SEED,
                with_edge=False,
                worker_options=options,
                cache_memory=count * row_bytes,
                lookahead=lookahead,
            )
            for name, (count, lookahead) in cases.items()
        }
        for loader in loaders.values():
            epoch(loader)
            loader.reset_stats()
        taken = [
            {name: epoch(loader) for name, loader in loaders.items()}
            for _ in range(max(arguments.turns, 1))
        ]
        print(f"{'':<12}{'rows asked for':>16}{'time':>8}{'processor':>11}")
        for name, loader in loaders.items():
            share = 1 - loader.stats().hit_rate
            times = [[a / b for a, b in zip(t[name], t["no cache"], strict=True)] for t in taken]
            seconds, processor = (statistics.median(column) for column in zip(*times, strict=True))
            print(f"{name:<12}{share:>16.3f}{seconds:>8.2f}{processor:>11.2f}")
            loader.shutdown()


def open_servers(root: Path, num_parts: int, stack: ExitStack) -> int:
    """Start a graph server for each part of a folder. Return the port of the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    for rank in range(num_parts):
        dataset = DistDataset().load(root, rank, same_host_reads=False)
        config = ServerConfig("", rank, num_parts, 1, f"127.0.0.1:{port}", same_host_reads=False)
        stack.callback(start_server(dataset, config).close)
    return port


def measure(root: Path, arguments: argparse.Namespace) -> None:
    """Print misses, then times."""
    dataset = DistDataset().load(
        root, 0, also_serve=range(1, arguments.parts), same_host_reads=False
    )
    node_type = dataset.opened.meta.node_types[0]
    own = np.asarray(dataset.opened.node_ids(0, node_type.name)).astype(np.int64)
    is_own = np.zeros(node_type.count, bool)
    is_own[own] = True
    row_bytes = 8 + sum(attr.row_bytes for attr in node_type.attrs.values())
    capacity = int(arguments.cache * node_type.count)
    samplers = max(arguments.workers, 1)

    def make_loader(cached: bool) -> Any:
        # Each sampler's bytes are rounded down to rows.
        rows = -(-capacity // samplers) * samplers if cached else 0
        return DistNeighborLoader(
            dataset,
            arguments.fanouts,
            torch.from_numpy(np.sort(own)),
            batch_size=arguments.batch_size,
            shuffle=True,
            seed=_SEED,
            with_edge=False,
            worker_options=MpDistSamplingWorkerOptions(num_workers=arguments.workers),
            cache_memory=rows * (row_bytes + PLAN_BYTES),
            lookahead=arguments.lookahead,
        )

    plain, cached = make_loader(False), make_loader(True)

    def recorded() -> Batches:
        batches = [batch.n_id.numpy() for batch in plain]
        return [batch[~is_own[batch]] for batch in batches]

    first, second = recorded(), recorded()
    counts = np.bincount(np.concatenate([b for _ in range(2) for b in recorded()]), minlength=1)
    is_hot = np.zeros(node_type.count, bool)
    is_hot[np.argsort(-counts, kind="stable")[:capacity]] = True
    total, mean = sum(map(len, second)), sum(map(len, second)) / len(second)
    print(
        f"{node_type.count:,} nodes in {arguments.parts} parts, {len(second)} batches per epoch, "
        f"{mean:,.0f} rows of others per batch; cache of {capacity:,} rows of {row_bytes} bytes "
        f"({capacity / mean:.2f} batches)\n"
    )
    both = [*first, *second]
    window = arguments.lookahead
    if window is None:
        window = min(max(math.ceil(4 * capacity / samplers / mean), 8), 64)

    def steady(simulate: Callable[[Batches], int]) -> float:
        return (simulate(both) - simulate(first)) / total

    for _ in cached:
        pass
    cached.reset_stats()
    for _ in cached:
        pass
    rows = cached.stats().rows

    def divided(batches: Batches) -> int:
        share = capacity // samplers
        return sum(belady(batches[i::samplers], share) for i in range(samplers))

    misses = {
        "once per batch": 1.0,
        "lru": steady(lambda batches: lru(batches, capacity)),
        "sieve": steady(lambda batches: sieve(batches, capacity)),
        "static": sum((~is_hot[batch]).sum() for batch in second) / total,
        "belady": steady(lambda batches: belady(batches, capacity)),
        "belady, divided": steady(divided),
        "khop's plan": steady(lambda batches: windowed(batches, capacity, window)),
        "khop": rows["remote"] / (rows["remote"] + rows["reused"]),
    }
    print(f"{'rows asked for':<16}{'ratio':>8}{'  of khop':>10}")
    for name, share in misses.items():
        print(f"{name:<16}{share:>8.3f}{share / misses['khop']:>10.3f}")
    if arguments.turns:
        print_times(plain, cached, arguments.turns)
    plain.shutdown()
    cached.shutdown()


def print_times(plain: DistNeighborLoader, cached: DistNeighborLoader, turns: int) -> None:
    """Print ratios of times with the cache to times without, in alternating turns."""
    ratios = []
    for turn in range(turns):
        pair = [epoch(loader) for loader in ((plain, cached) if turn % 2 else (cached, plain))]
        without, with_cache = pair if turn % 2 else pair[::-1]
        ratios.append([a / b for a, b in zip(with_cache, without, strict=True)])
    seconds, processor = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"\nwith the cache, without = 1: time {seconds:.2f}, processor time {processor:.2f}")


if __name__ == "__main__":
    main()
