"""Suite `gather`: the feature rows of a batch, copied to existing memory.

The rows are the nodes of drawn batches, in their order. The output is one array for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from khop import _native
from khop.data import Graph, Topology
from khop.typing import Array, Int64Array
from khop_bench.bench import Bench
from khop_bench.floor import Floor
from khop_bench.goals import FLOOR, KHOP
from khop_bench.graphs import SeedOrder
from khop_bench.kernels import KhopKernel, one_thread
from khop_bench.measure import Case, Row, Turn
from khop_bench.settings import BATCH_SIZE, FANOUTS

Gather = Callable[[Int64Array, Array], None]
"""Copies rows to an array."""


def run(bench: Bench) -> list[Row]:
    """Measure the suite `gather`."""
    data = bench.graphs.products()
    topology = Topology(data.edge_index, num_src=data.num_nodes, num_dst=data.num_nodes)
    del data.edge_index
    draws = RowsOfBatches(
        KhopKernel(Graph(topology), FANOUTS),
        SeedOrder(data.train_mask.nonzero().view(-1), BATCH_SIZE),
        bench.settings.batches,
    )
    table = data.x.numpy()
    out = np.zeros((draws.most_rows(bench.settings.repeat), table.shape[1]), table.dtype)
    with one_thread():
        cases = [
            Case(name, gather_turn(gather, draws, out))
            for name, gather in _gathers(table, bench.floor).items()
        ]
        rows = bench.take_turns("rows of a batch", cases, work_unit="row")
    bench.note(f"gather: a row has {table.shape[1] * table.itemsize} bytes")
    return rows


class RowsOfBatches:
    """Nodes of the batches of each turn.

    Args:
        kernel: kernel that draws the batches.
        order: the seeds.
        batches: number of batches in a turn.
    """

    def __init__(self, kernel: KhopKernel, order: SeedOrder, batches: int) -> None:
        self._kernel = kernel
        self._order = order
        self._batches = batches
        self._turn = -1
        self._rows: list[Int64Array] = []

    def of_turn(self, turn: int) -> list[Int64Array]:
        """Return the nodes of each batch of a turn. The last turn's nodes are cached."""
        if turn != self._turn:
            batches = self._order.of_turn(turn, self._batches)
            self._rows = [
                self._kernel.nodes(batch.numpy(), batch_number) for batch_number, batch in batches
            ]
            self._turn = turn
        return self._rows

    def most_rows(self, turns: int) -> int:
        """Return the size of the largest batch."""
        return max(len(rows) for turn in range(turns) for rows in self.of_turn(turn))


def gather_turn(gather: Gather, draws: RowsOfBatches, out: Array) -> Callable[[int], Turn]:
    """Return a function that measures one turn of a gather: rows of several batches to `out`."""

    def turn(turn_number: int) -> Turn:
        batches = draws.of_turn(turn_number)
        gather(batches[0], out[: len(batches[0])])
        begin = time.perf_counter()
        for rows in batches:
            gather(rows, out[: len(rows)])
        seconds = time.perf_counter() - begin
        return Turn(seconds / len(batches), sum(map(len, batches)) / len(batches))

    return turn


def khop_gather(table: Array) -> Gather:
    """Return khop's gather, on one thread."""
    return lambda rows, out: _native.gather(table, rows, out)


def _gathers(table: Array, floor: Floor | None) -> dict[str, Gather]:
    tensor = torch.from_numpy(table)

    def index_select(rows: Int64Array, out: Array) -> None:
        torch.index_select(tensor, 0, torch.from_numpy(rows), out=torch.from_numpy(out))

    def take(rows: Int64Array, out: Array) -> None:
        # With its default mode 'raise' NumPy would copy through a buffer.
        np.take(table, rows, axis=0, out=out, mode="clip")

    gathers = {KHOP: khop_gather(table)}
    if floor is not None:
        gathers[FLOOR] = _gather_floor(floor, table)
    return {**gathers, "torch index_select": index_select, "NumPy take": take}


def _gather_floor(floor: Floor, table: Array) -> Gather:
    def touch(rows: Int64Array, out: Array) -> None:
        floor.gather_floor(table, rows, out)

    return touch
