"""Suite `small`: cost of a small batch without its kernels, which is the cost of Python code.

Batches have 32 seeds and fan-outs 5 and 5, on the bundled graph of Debian's packages, with all
attributes. In process, the cost is the time of a batch minus the time of the native calls for the
same draws and copies. From a sampler process, the cost is the trainer's time in `next()`
when the batch is ready, including the return of the last batch's memory. This is measured for some
twenty batches in a row, between pauses in which samplers prefetch. It is also measured with a pause
before each batch, after which little of Python is left in the caches. A turn's value is the median
of its batches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import torch_geometric.loader
from torch_geometric.data import Data

from khop import _native
from khop.data import Feature, Graph, Topology
from khop.loader import NeighborLoader
from khop.typing import Array, Int64Array
from khop_bench.bench import Bench
from khop_bench.graphs import SeedOrder
from khop_bench.idle import settle
from khop_bench.kernels import KhopKernel
from khop_bench.loaders import dist_loader
from khop_bench.measure import Row, Turn
from khop_bench.peers import pyg_kernel

_BATCH_SIZE = 32
_FANOUTS = (5, 5)
_BATCHES = 40  # for each that larger batches have in a turn: 40 of them take milliseconds
_WAIT = 0.002  # many times what a sampler needs for a batch
_IN_A_ROW = 20  # fewer than a sampler makes ahead


def run(bench: Bench) -> list[Row]:
    """Measure the suite `small`."""
    order = SeedOrder(torch.arange(bench.graphs.debian.num_nodes), _BATCH_SIZE)
    count = _BATCHES * bench.settings.batches
    return _in_process(bench, order, count) + _from_sampler(bench, order, count)


def _in_process(bench: Bench, order: SeedOrder, count: int) -> list[Row]:
    data = bench.graphs.debian
    seeds = order.epoch(count)
    loader = NeighborLoader(data, _FANOUTS, seeds, batch_size=_BATCH_SIZE, seed=0)
    kernels = Kernels(data)
    batches = order.of_turn(0, count)
    peers = {
        name: torch_geometric.loader.NeighborLoader(
            data, list(_FANOUTS), seeds, batch_size=_BATCH_SIZE
        )
        for name in bench.peers.pyg_kernels
    }

    def turn(_: int) -> list[Turn]:
        whole = _median_time(loader)
        alone = statistics.median(_times(lambda b: kernels.run(b[1].numpy(), b[0]), batches))
        turns = [Turn(whole), Turn(alone), Turn(whole - alone)]
        for name, peer in peers.items():
            with pyg_kernel(name):
                turns.append(Turn(_median_time(peer)))
        return turns

    names = ["khop", "kernels", "overhead", *(f"PyG, {name}" for name in peers)]
    rows = [Row("in process", name, "us") for name in names]
    return bench.take_joint_turns(rows, turn)


class Kernels:
    """The native calls that make a batch, without the Python code around them.

    Args:
        data: the graph.
    """

    def __init__(self, data: Data) -> None:
        topology = Topology(data.edge_index, num_src=data.num_nodes, num_dst=data.num_nodes)
        self._kernel = KhopKernel(Graph(topology), _FANOUTS)
        self._edge_ids = topology.edge_ids
        self._node_tables = [_table(data, name) for name in data.node_attrs()]
        edge_attrs = (name for name in data.edge_attrs() if name != "edge_index")
        self._edge_tables = [_table(data, name) for name in edge_attrs]
        self._outs: dict[int, Array] = {}

    def run(self, seeds: Int64Array, batch_number: int) -> None:
        """Draw one batch and copy its rows."""
        self._kernel.draw(seeds, None, batch_number)
        nodes, edges = self._kernel.written(0)
        if self._edge_ids is not None:
            edges = self._copied(self._edge_ids, edges).astype(np.int64, copy=False)
        for table in self._node_tables:
            self._copied(table, nodes)
        for table in self._edge_tables:
            self._copied(table, edges)

    def _copied(self, table: Array, rows: Int64Array) -> Array:
        out = self._outs.get(id(table))
        if out is None or len(out) < len(rows):
            out = np.zeros((2 * len(rows), *table.shape[1:]), table.dtype)
            self._outs[id(table)] = out
        _native.gather(table, rows, out[: len(rows)])
        return out[: len(rows)]


def _table(data: Data, name: str) -> Array:
    return Feature(data[name]).array


def _from_sampler(bench: Bench, order: SeedOrder, count: int) -> list[Row]:
    seeds = order.epoch(2 * count)
    with ExitStack() as stack:
        loader = stack.enter_context(
            dist_loader(bench.graphs.debian_parts(), seeds, _BATCH_SIZE, 1, _FANOUTS)
        )

        def turn(_: int) -> list[Turn]:
            in_a_row = _time_ready(loader, count, _IN_A_ROW)
            return [Turn(in_a_row), Turn(_time_ready(loader, count, 1))]

        rows = [Row("1 sampler", name, "us") for name in ("trainer's time", "after a pause each")]
        return bench.take_joint_turns(rows, turn)


def _time_ready(loader: Any, count: int, in_a_row: int) -> float:
    """Return the median time in `next()` of ready batches, with a pause before each `in_a_row`."""
    iterator = iter(loader)
    batch = next(iterator)
    times = []
    for batch_number in range(count):
        if batch_number % in_a_row == 0:
            end = time.perf_counter() + _WAIT * in_a_row
            while time.perf_counter() < end:  # like a trainer that computes
                pass
        begin = time.perf_counter()
        batch = next(iterator)
        times.append(time.perf_counter() - begin)
    del batch, iterator
    settle()
    return statistics.median(times)


def _median_time(loader: Any) -> float:
    iterator: Iterator[Any] = iter(loader)
    return statistics.median(_times(lambda _: next(iterator), range(len(loader))))


def _times(call: Callable[[Any], Any], arguments: Sequence[Any]) -> list[float]:
    """Return the seconds of each call. Its result is freed before the clock stops."""
    times = []
    for argument in arguments:
        begin = time.perf_counter()
        call(argument)
        times.append(time.perf_counter() - begin)
    return times
