"""Suite `growth`: cost at ten times the nodes and edges, degrees and batches being equal.

Batches are small (64 seeds at scale 1). Larger batches would meet most nodes of the smaller graph
several times, and so have fewer nodes there. Sampling is compared per edge and gathering per row,
which removes the rest of this difference. Whole batches still contain it. The larger graph then
costs more only by misses of caches and of address translation. Start-up and private memory should
not grow at all.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from khop.data import Graph, Topology
from khop.loader import NeighborLoader
from khop_bench.bench import Bench
from khop_bench.gather import RowsOfBatches, gather_turn, khop_gather
from khop_bench.graphs import Graphs, SeedOrder
from khop_bench.kernels import KhopKernel, Seeds, khop_case, one_thread
from khop_bench.loaders import AHEAD, dist_loader, epoch_seeds, stream_case
from khop_bench.measure import Case, Row, Turn
from khop_bench.settings import FANOUTS
from khop_bench.startup import read_all, starter, training_order

_NAMES = ("edges", "edges x 10")
_SEEDS = 64
_LEAST_SEEDS = 8


def run(bench: Bench) -> list[Row]:
    """Measure the suite `growth`."""
    scale = bench.settings.scale
    both = [bench.graphs.at(scale / 10), bench.graphs]
    size = max(_LEAST_SEEDS, round(_SEEDS * min(scale, 1.0)))
    return _in_memory(bench, both, size) + _from_folders(bench, both, size)


def _in_memory(bench: Bench, both: list[Graphs], size: int) -> list[Row]:
    sides = [
        _Side(name, graphs, size, bench.settings.batches)
        for name, graphs in zip(_NAMES, both, strict=True)
    ]
    with one_thread():
        rows = bench.take_turns("sampling", [s.sampling() for s in sides], work_unit="edge")
        cases = [s.gathering(bench.settings.repeat) for s in sides]
        rows += bench.take_turns("gather", cases, work_unit="row")
    return rows + bench.take_turns("in process", [s.loading() for s in sides])


class _Side:
    """One of the two graphs that are compared, the small or the large one.

    Args:
        name: name of its cases.
        graphs: graphs of its scale.
        batch_size: seeds in a batch.
        batches: number of batches that a turn times.
    """

    def __init__(self, name: str, graphs: Graphs, batch_size: int, batches: int) -> None:
        self._name = name
        self._batches = batches
        data = self._data = graphs.products()
        topology = Topology(data.edge_index, num_src=data.num_nodes, num_dst=data.num_nodes)
        self._order = SeedOrder(data.train_mask.nonzero().view(-1), batch_size)
        self._kernel = KhopKernel(Graph(topology), FANOUTS)

    def sampling(self) -> Case:
        return khop_case(self._name, self._kernel, Seeds(self._order, self._batches))

    def gathering(self, repeat: int) -> Case:
        table = self._data.x.numpy()
        draws = RowsOfBatches(self._kernel, self._order, self._batches)
        out = np.zeros((draws.most_rows(repeat), table.shape[1]), table.dtype)
        return Case(self._name, gather_turn(khop_gather(table), draws, out))

    def loading(self) -> Case:
        seeds = epoch_seeds(self._order, self._batches)
        size = self._order.batch_size
        loader = NeighborLoader(self._data, FANOUTS, seeds, batch_size=size, seed=0)
        return stream_case(self._name, loader, self._batches)


def _from_folders(bench: Bench, both: list[Graphs], size: int) -> list[Row]:
    batches = bench.settings.batches
    folders = [graphs.products_parts(1) for graphs in both]
    orders = [training_order(folder, size) for folder in folders]
    for folder in folders:
        read_all(folder)
    with ExitStack() as stack:
        cases = []
        for name, folder, order in zip(_NAMES, folders, orders, strict=True):
            seeds = epoch_seeds(order, batches)
            loader = stack.enter_context(dist_loader(folder, seeds, order.batch_size))
            cases.append(stream_case(name, loader, batches, AHEAD))
        rows = bench.take_turns("2 samplers", cases)
    starters = [starter(*pair, batches) for pair in zip(folders, orders, strict=True)]

    def turn(_: int) -> list[Turn]:
        starts = [start() for start in starters]
        return [Turn(s.first) for s in starts] + [Turn(s.memory.own) for s in starts]

    first = [Row("first batch", name, "s") for name in _NAMES]
    memory = [Row("private memory", name, "MB") for name in _NAMES]
    return rows + bench.take_joint_turns([*first, *memory], turn)
