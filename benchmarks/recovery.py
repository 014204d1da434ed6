"""Delay of a trainer's batches after a sampler or partition server was killed.

    python benchmarks/recovery.py [--kills 9] [--scale 0.05] [--samplers 1 2] [--json out.json]

The trainer takes a loader's batches without pause. No batch is therefore ready when a process dies,
which is the hardest case. From time to time, a sampler or the server of the other partition
receives SIGKILL. The gap is the longest wait for one of the next batches.

After a server's death, the program also measures the time from the server's return to the first
batch of the new server. Each line has the median and the maximum over all kills, in milliseconds
and as multiples of a batch's usual time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch_geometric.data import Data

from khop.cores import available_cores
from khop.datasets import DebianPackages, PowerLaw
from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
)
from khop.partition import RandomPartitioner

BETWEEN_KILLS = 40
LIVES_SECONDS = 2.5


class Case(NamedTuple):
    """A loader, and the process that is killed."""

    graph: str
    samplers: int
    victim: str
    standby: bool = False


def main() -> None:
    """Measure all cases and print a table."""
    arguments = _arguments()
    rows = []
    print(f"{'':<52}{'batch':>9}{'gap: median':>14}{'worst':>9}{'batches':>9}{'after return':>14}")
    with tempfile.TemporaryDirectory(prefix="khop-recovery-") as folder:
        for name, data in _graphs(arguments.scale, Path(folder)):
            roots = {}
            for parts in (1, 2):
                roots[parts] = Path(folder) / f"{name}-{parts}"
                RandomPartitioner.from_data(data, roots[parts], parts).partition()
            for samplers in arguments.samplers:
                for victim in ("nobody", "sampler", "server"):
                    case = Case(name, samplers, victim)
                    root = roots[1 + (victim == "server")]
                    rows.append(_measure(case, root, data.num_nodes, arguments))
                    print(_line(rows[-1]), flush=True)
            case = Case(name, 1, "sampler", standby=True)
            rows.append(_measure(case, roots[1], data.num_nodes, arguments))
            print(_line(rows[-1]), flush=True)
            case = Case(name, 0, "server")
            rows.append(_measure(case, roots[2], data.num_nodes, arguments))
            print(_line(rows[-1]), flush=True)
    if arguments.json:
        machine = {"cpus": available_cores(), "machine": platform.processor() or platform.machine()}
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=9)
    parser.add_argument(
        "--scale", type=float, default=0.05, help="scale of the products-shaped graph"
    )
    parser.add_argument("--samplers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _graphs(scale: float, folder: Path) -> Iterator[tuple[str, Data]]:
    yield "debian", DebianPackages(folder / "debian", undirected=True)[0]
    yield "products-shaped", PowerLaw.products(scale).data()


def _measure(case: Case, root: Path, num_nodes: int, arguments: Any) -> dict[str, Any]:
    loader = _make_loader(case, root, num_nodes)
    kill = _killer(loader, case.victim)
    waits, gaps, returns = [], [], []
    batches = _forever(loader)
    for _ in range(BETWEEN_KILLS):
        next(batches)
    for _ in range(arguments.kills):
        waits += [_timed(batches)[0] for _ in range(BETWEEN_KILLS // 2)]
        # A server that dies soon after each start is not restarted any more.
        lived = time.monotonic() + LIVES_SECONDS
        while case.victim == "server" and time.monotonic() < lived:
            next(batches)
        kill()
        after = [_timed(batches) for _ in range(BETWEEN_KILLS)]
        longest, taken = max(after)
        gaps.append(longest)
        if case.victim == "server":
            returned = loader.data.service().endpoint_registry.supervisor.last_return
            if returned is not None:
                returns.append(max(0.0, taken - returned))
    loader.shutdown()
    batch = statistics.median(waits)
    gap = statistics.median(gaps)
    return {
        **case._asdict(),
        "batch_ms": 1000 * batch,
        "gap_ms": 1000 * gap,
        "worst_gap_ms": 1000 * max(gaps),
        "gap_batches": gap / batch,
        "worst_after_return_ms": 1000 * max(returns) if returns else None,
    }


def _make_loader(case: Case, root: Path, num_nodes: int) -> DistNeighborLoader:
    parts = 1 + (case.victim == "server")
    options: Any = CollocatedDistSamplingWorkerOptions()
    if case.samplers:
        options = MpDistSamplingWorkerOptions(
            num_workers=case.samplers, max_restarts=1000, standby=case.standby
        )
    return DistNeighborLoader(
        DistDataset().load(root, 0, also_serve=range(1, parts), same_host_reads=False),
        [15, 10, 5],
        torch.arange(num_nodes),
        batch_size=1024,
        shuffle=True,
        seed=1,
        with_edge=False,
        collect_features=True,
        worker_options=options,
    )


def _killer(loader: DistNeighborLoader, victim: str) -> Callable[[], None]:
    turn = iter(range(1_000_000))

    def kill() -> None:
        if victim == "sampler":
            workers = loader.workers
            os.kill(workers[next(turn) % len(workers)].pid, signal.SIGKILL)
        elif victim == "server":
            for server in loader.data.service().endpoint_registry.supervisor.servers.values():
                os.kill(server.process.pid, signal.SIGKILL)

    return kill


def _forever(loader: DistNeighborLoader) -> Iterator[Any]:
    while True:
        yield from loader


def _timed(batches: Iterator[Any]) -> tuple[float, float]:
    """Return the wait for the next batch, and the time of its arrival."""
    began = time.monotonic()
    next(batches)
    ended = time.monotonic()
    return ended - began, ended


def _line(row: dict[str, Any]) -> str:
    samplers = f"{row['samplers']} samplers" if row["samplers"] else "in the trainer"
    label = f"{row['graph']}, {samplers}, killed: {row['victim']}"
    label += ", standby" * row["standby"]
    after = row["worst_after_return_ms"]
    return (
        f"{label:<52}{row['batch_ms']:>6.0f} ms{row['gap_ms']:>11.0f} ms"
        f"{row['worst_gap_ms']:>6.0f} ms{row['gap_batches']:>9.1f}"
        + ("" if after is None else f"{after:>11.0f} ms")
    )


if __name__ == "__main__":
    main()
