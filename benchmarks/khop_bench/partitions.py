"""Suite `partitions`: cost of a second partition on the same machine, by phase of a batch.

One sampler process reads a folder of one part. Another reads a folder of two parts, the second of
which has a server on this machine, over `ipc`. Every turn takes batches of both, with a trace. The
phases of sampler and trainer come from `loader.stats()`, the server's from the trace. All times are
in microseconds per batch. A sampler's phases do not overlap, so that they add up to its time.
The server works at the same time.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import khop.trace
from khop.distributed import MpDistSamplingWorkerOptions
from khop.metrics.loader_stats import TRAINER_PHASES
from khop.trace.clock import PHASES
from khop_bench.bench import Bench
from khop_bench.graphs import SeedOrder
from khop_bench.idle import settle
from khop_bench.loaders import dist_loader, epoch_seeds
from khop_bench.measure import Row, Turn
from khop_bench.peers import touch
from khop_bench.settings import BATCH_SIZE

_PARTS = (1, 2)
_SERVED = {"sample": "drawing", "fetch": "copying rows"}
_WHOLE = "a batch"
_WAITING = "sampler, remote"
_GROUPS = (
    _WHOLE,
    *(f"sampler, {phase}" for phase in PHASES),
    *(f"server, {phase}" for phase in _SERVED.values()),
    *(f"trainer, {phase}" for phase in TRAINER_PHASES),
)
_AHEAD = MpDistSamplingWorkerOptions().worker_concurrency


def run(bench: Bench) -> list[Row]:
    """Measure the suite `partitions`."""
    rows = [Row(group, _name(parts), "us") for group in _GROUPS for parts in _parts_of(group)]
    data = bench.graphs.products(with_features=False)
    order = SeedOrder(data.train_mask.nonzero().view(-1), BATCH_SIZE)
    seeds = epoch_seeds(order, bench.settings.batches)
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(
                dist_loader(bench.graphs.products_parts(n), seeds, order.batch_size, 1)
            )
            for n in _PARTS
        ]

        def turn(_: int) -> list[Turn]:
            costs_of = {
                parts: _costs(loader, bench.settings.batches)
                for parts, loader in zip(_PARTS, loaders, strict=True)
            }
            return [Turn(costs_of[n][group]) for group in _GROUPS for n in _parts_of(group)]

        return bench.take_joint_turns(rows, turn)


def _parts_of(group: str) -> tuple[int, ...]:
    """Return the numbers of parts for a group of rows. With one part, no server works."""
    return _PARTS[1:] if group == _WAITING or group.startswith("server") else _PARTS


def _name(parts: int) -> str:
    return "1 partition" if parts == 1 else f"{parts} partitions"


def _costs(loader: Any, batches: int) -> dict[str, float]:
    """Measure the seconds per batch of a loader, by phase."""
    iterator = iter(loader)
    for _ in range(_AHEAD + 1):
        touch(next(iterator))
    loader.reset_stats()
    count = max(batches, 2 * _AHEAD)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        begin = time.perf_counter()
        with khop.trace.record(file):
            for _ in range(count):
                touch(next(iterator))
            seconds = time.perf_counter() - begin
        served = dict.fromkeys(_SERVED, 0.0)
        for name, spent in _served(json.loads(file.read_text())["traceEvents"]):
            if name in served:
                served[name] += spent
    stats = loader.stats()
    del iterator
    settle()
    costs = {_WHOLE: seconds}
    costs |= {f"sampler, {phase}": stats.sampler_seconds[phase] for phase in PHASES}
    costs |= {f"server, {phase}": served[name] for name, phase in _SERVED.items()}
    costs |= {f"trainer, {phase}": stats.trainer_seconds[phase] for phase in TRAINER_PHASES}
    return {group: cost / count for group, cost in costs.items()}


def _served(events: Sequence[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield name and seconds of each span of the servers."""
    servers = {
        event["pid"]
        for event in events
        if event["name"] == "process_name" and event["args"]["name"].startswith("server")
    }
    for event in events:
        if event["ph"] == "X" and event["pid"] in servers:
            yield event["name"], event["dur"] / 1e6
