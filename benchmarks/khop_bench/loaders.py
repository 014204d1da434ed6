"""Suite `loaders`: batches with features, end to end, by a consumer that reads every tensor.

All loaders have the same seeds in the same order. A turn begins an epoch and first takes all
prefetched batches and one more. Later batches come at the rate of production, and the turn times
at least twice as many of these. Then it leaves the epoch, and the next turn waits until the
machine is idle.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch_geometric.loader
import torch_geometric.sampler
from torch import Tensor
from torch_geometric.data import Data

import khop.trace
from khop.data import Topology
from khop.distributed import DistDataset, DistNeighborLoader, MpDistSamplingWorkerOptions
from khop.loader import NeighborLoader
from khop_bench.bench import Bench
from khop_bench.graphs import SeedOrder
from khop_bench.idle import settle
from khop_bench.kernels import as_columns
from khop_bench.measure import Case, Row, Turn
from khop_bench.peers import (
    GLT,
    GRAPHBOLT,
    glt_loader,
    graphbolt_loader,
    pyg_kernel,
    touch,
)
from khop_bench.settings import BATCH_SIZE, FANOUTS

_GROUP = "end to end"
_SAMPLERS = 2
AHEAD = _SAMPLERS * MpDistSamplingWorkerOptions().worker_concurrency
"""Number of batches that two samplers prefetch."""
# PyG's worker processes and khop's threads keep two batches each in flight.
_AHEAD_OF_WORKERS = 2 * 2


def run(bench: Bench) -> list[Row]:
    """Measure the suite `loaders`."""
    with ExitStack() as stack:
        cases = list(_cases(bench, stack))
        rows = bench.take_turns(_GROUP, cases)
        if bench.settings.trace is not None:
            _record(bench, cases)
    bench.note(f"loaders: torch has {torch.get_num_threads()} threads")
    return rows


def _record(bench: Bench, cases: Sequence[Case]) -> None:
    """Run one more turn of khop's loaders, which is recorded as a trace but not measured."""
    with khop.trace.record(str(bench.settings.trace)):
        for case in cases:
            if case.name.startswith("khop"):
                case.turn(0)
    bench.print_line(f"recorded in {bench.settings.trace}: open it in ui.perfetto.dev")


def _cases(bench: Bench, stack: ExitStack) -> Iterator[Case]:
    data = bench.graphs.products()
    order = SeedOrder(data.train_mask.nonzero().view(-1), BATCH_SIZE)
    batches = bench.settings.batches
    seeds = epoch_seeds(order, batches)
    size = order.batch_size
    here = NeighborLoader(data, FANOUTS, seeds, batch_size=size, seed=0)
    yield stream_case("khop, in process", here, batches)
    threads = NeighborLoader(
        data, FANOUTS, seeds, batch_size=size, seed=0, num_workers=2, neighbor_sampler=here._sampler
    )
    yield stream_case("khop, 2 threads", threads, batches, _AHEAD_OF_WORKERS)
    for num_parts in (1, 2):
        folder = bench.graphs.products_parts(num_parts)
        loader = stack.enter_context(dist_loader(folder, seeds, size))
        more = "" if num_parts == 1 else f", {num_parts} partitions"
        yield stream_case(f"khop, {_SAMPLERS} samplers{more}", loader, batches, AHEAD)
    yield from _pyg_cases(bench, data, seeds, size)
    if GLT in bench.peers:
        yield stream_case(f"{GLT}, in process", glt_loader(data, FANOUTS, seeds, size), batches)
    if GRAPHBOLT in bench.peers:
        topology = Topology(data.edge_index, num_src=data.num_nodes, num_dst=data.num_nodes)
        columns = as_columns(topology)
        for workers in (0, 2):
            loader = graphbolt_loader(columns, data, FANOUTS, seeds, size, workers)
            name = f"{GRAPHBOLT}, {where(workers)}"
            yield stream_case(name, loader, batches, 2 * workers)


def _pyg_cases(bench: Bench, data: Data, seeds: Tensor, size: int) -> Iterator[Case]:
    if not bench.peers.pyg_kernels:
        return
    # Shared by all: each would hold its own 16 bytes per edge.
    sampler = torch_geometric.sampler.NeighborSampler(data, list(FANOUTS))
    for kernel in bench.peers.pyg_kernels:
        for workers in (0, 2):
            loader = torch_geometric.loader.NeighborLoader(
                data,
                list(FANOUTS),
                seeds,
                batch_size=size,
                num_workers=workers,
                neighbor_sampler=sampler,
            )
            name = f"PyG, {kernel}, {where(workers)}"
            yield stream_case(name, loader, bench.settings.batches, 2 * workers, kernel)


def where(workers: int) -> str:
    """Return the part of a case's name that states which processes make batches."""
    return "in process" if workers == 0 else f"{workers} workers"


def epoch_seeds(order: SeedOrder, batches: int) -> Tensor:
    """Return the seeds of an epoch that is long enough for a turn."""
    warm, timed = _window(batches, AHEAD)
    return order.epoch(warm + timed + AHEAD)


def _window(batches: int, ahead: int) -> tuple[int, int]:
    """Return the number of batches to take before timing, and the number to time.

    `ahead` is the number of batches that the loader prefetches.
    """
    return ahead + 1, max(batches, 2 * ahead)


@contextmanager
def dist_loader(
    folder: Path,
    seeds: Tensor,
    batch_size: int,
    num_workers: int = _SAMPLERS,
    fanouts: Sequence[int] = FANOUTS,
) -> Iterator[DistNeighborLoader]:
    """Open a distributed loader of khop with all attributes, and serve all parts of the folder."""
    dataset = DistDataset().load(folder, 0)
    others = range(1, dataset.num_partitions)
    if others:
        dataset = DistDataset().load(folder, 0, also_serve=others)
    loader = DistNeighborLoader(
        dataset,
        list(fanouts),
        seeds,
        batch_size=batch_size,
        with_edge=True,
        collect_features=True,
        seed=0,
        worker_options=MpDistSamplingWorkerOptions(num_workers=num_workers),
    )
    try:
        yield loader
    finally:
        loader.shutdown()


def stream_case(
    name: str, loader: Any, batches: int, ahead: int = 0, kernel: str | None = None
) -> Case:
    """Make a loader's case: seconds per batch.

    Args:
        name: name of the case.
        loader: a loader whose epochs have enough batches (`epoch_seeds`).
        batches: minimum number of batches to time.
        ahead: number of batches that the loader prefetches.
        kernel: the kernel that PyG uses. If None, the loader is not PyG's.
    """

    def turn(_: int) -> Turn:
        chosen: AbstractContextManager[None] = pyg_kernel(kernel) if kernel else nullcontext()
        with chosen:
            return Turn(time_stream(loader, batches, ahead))

    return Case(name, turn)


def time_stream(loader: Any, batches: int, ahead: int = 0) -> float:
    """Measure the seconds per batch of a new epoch, with arguments as for `stream_case`."""
    warm, timed = _window(batches, ahead)
    iterator = iter(loader)
    for _ in range(warm):
        touch(next(iterator))
    begin = time.perf_counter()
    for _ in range(timed):
        touch(next(iterator))
    seconds = time.perf_counter() - begin
    del iterator
    settle()
    return seconds / timed
