"""Suite `device`: sampling, gathering and training on a GPU, and equality with the CPU's batches.

Runs on the device that `--device` names. On the emulated one everything is done as on a GPU, except
that groups of times are named so and no goal applies to them. Shares of rows and the equality of
batches are as valid as on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from khop import _native
from khop.typing import Int64Array
from khop_bench.bench import Bench
from khop_bench.device_equality import compare
from khop_bench.device_gather import measure_gathers, measure_hot_cache
from khop_bench.device_model import Batch, Counts, count, model_row, predict
from khop_bench.device_peers import gpu_peers
from khop_bench.device_training import measure_training
from khop_bench.goals import DEVICE, ONE_CORE
from khop_bench.kernels import KhopKernel, Seeds, as_columns, khop_case, one_thread
from khop_bench.measure import Case, Row, Turn
from khop_bench.on_device import Drawn, Place, open_place
from khop_bench.settings import DEVICE_PARTS, FANOUTS

SAMPLING = "sampling"
RECORDED = f"{DEVICE}, CUDA graph"
MODELLED = (DEVICE, RECORDED)
"""The ways to draw that the model predicts."""


def run(bench: Bench) -> list[Row]:
    """Measure the suite `device`."""
    assert bench.settings.device is not None
    rows: list[Row] = []
    with open_place(bench.settings.device) as test_device:
        if not test_device.is_cuda:
            bench.note("device: emulated on the CPU; its times say nothing of a GPU's")
        drawn = Drawn(bench)
        for name in bench.settings.parts or DEVICE_PARTS:
            with bench.survives(f"device: {name}"):  # the next part may work: GPUs are rare
                rows += PARTS[name](bench, test_device, drawn)
            bench.keep(rows)
    return rows


def _equality(bench: Bench, test_device: Place, _: Drawn) -> list[Row]:
    """Count the random batches that the device draws otherwise than the CPU."""
    result = compare(test_device, bench.settings.configurations)
    for batch_number, why in result.different.items():
        bench.note(f"device: configuration {batch_number} is not the CPU's: {why}")
    counts = {"different": len(result.different), "all": result.tried}
    rows = [Row("batch equality", name, "batches", ratio=math.nan) for name in counts]
    for row, value in zip(rows, counts.values(), strict=True):
        row.add(Turn(value))
    return rows


class DeviceKernel:
    """khop's sampling on a device, with output arrays there that are reused.

    Args:
        test_device: the device.
        kernel: sampling on the CPU, of the same graph and with the same options.
        mode: location of the graph: 'CUDA' (the device) or 'ZERO_COPY' (the host).
        options: further options of each call that samples.
    """

    def __init__(self, test_device: Place, kernel: KhopKernel, mode: str, **options: Any) -> None:
        engine = kernel.engine
        self._test_device = test_device
        self._options = options
        self._spec = engine.spec
        self._hops = engine.hops
        self._topology = next(iter(kernel.graph.topologies.values()))
        self._run_key = _native.run_key(0, 0, 0)
        self._graphs = [
            _native.DeviceGraph(test_device.device, csr, mode) for csr in engine.view.csrs
        ]
        self._subgraph = _native.DeviceSubgraph(
            test_device.device, engine.view.num_nodes, engine.view.relations, True, False
        )
        self._arrays: dict[str, Any] = {}

    def draw(self, seeds: Int64Array, batch: int) -> int:
        """Draw and write the batch of these seeds, and return its number of edges."""
        subgraph = self._subgraph
        subgraph.begin()
        subgraph.add_seeds(0, seeds)
        subgraph.sample(self._graphs, self._hops, self._run_key, batch, **self._options)
        (num_nodes,), (num_edges,), _, _ = subgraph.sizes()
        subgraph.write(
            [self._address("nodes", num_nodes)],
            [self._address("ends", 2 * num_edges)],
            [self._address("edges", num_edges)],
            [],
            [],
        )
        return int(num_edges)

    def written(self, seeds: Int64Array, batch: int) -> list[Int64Array]:
        """Draw the batch of these seeds, and return the written arrays: nodes, row, col, edges."""
        count = self.draw(seeds, batch)
        self._test_device.device.synchronize()
        nodes, ends, edges = (
            self._test_device.get(self._arrays[n]) for n in ("nodes", "ends", "edges")
        )
        num_nodes = self._subgraph.num_nodes(0)
        return [nodes[:num_nodes], ends[:count], ends[count : 2 * count], edges[:count]]

    def counts(self, seeds: Int64Array, batch: int) -> Counts:
        """Draw the batch of these seeds, and return the sizes that the model of its time needs."""
        nodes, _, _, edges = self.written(seeds, batch)
        drawn, csr = self._subgraph, self._topology
        return count(
            Batch(
                [nodes],
                [drawn.nodes_per_hop(0)],
                [edges],
                [drawn.edges_per_hop(0)],
                [(0, 0)],
                [csr.indptr.itemsize],
                [csr.indices.itemsize],
                self._spec.fanouts,
            )
        )

    def _address(self, name: str, size: int) -> int:
        result = self._arrays.get(name)
        if result is None or len(result) < size:
            result = self._arrays[name] = self._test_device.empty(size + size // 8)
        return self._test_device.address(result)


def _sampling(bench: Bench, test_device: Place, drawn: Drawn) -> list[Row]:
    """Measure time, edges per second and launches of a batch of the products-shaped graph."""
    kernel, seeds = drawn.kernel, drawn.seeds
    khop_kernels = _device_kernels(bench, test_device, kernel, seeds)
    cases = [
        device_case(test_device, name, draws.draw, seeds) for name, draws in khop_kernels.items()
    ]
    cases.append(khop_case(ONE_CORE, kernel, seeds))
    if test_device.is_cuda:
        for name, peer in gpu_peers(
            bench, as_columns(drawn.topology), FANOUTS, test_device.torch_device
        ):
            cases.append(device_case(test_device, name, peer, seeds, by_wall=True))
    with one_thread():
        rows = bench.take_turns(test_device.group(SAMPLING), cases, work_unit="edge")
    model = [
        _model(test_device, name, khop_kernels[name], seeds)
        for name in MODELLED
        if name in khop_kernels
    ]
    rates = [_rate(test_device, row) for row in rows[: len(khop_kernels)]]
    launches = [_launches(test_device, name, draws, seeds) for name, draws in khop_kernels.items()]
    return [*rows, *model, *rates, *launches]


def _device_kernels(
    bench: Bench, test_device: Place, kernel: KhopKernel, seeds: Seeds
) -> dict[str, DeviceKernel]:
    """Return khop's ways to draw on the device, each after it drew a batch as the CPU does."""
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        DEVICE: ("CUDA", {}),
        RECORDED: ("CUDA", {"cuda_graph": True}),
        f"{DEVICE}, rows in host memory": ("ZERO_COPY", {}),
    }
    batch_number, batch = seeds.of_turn(0)[0]
    kernel.draw(batch.numpy(), None, batch_number)
    expected = kernel.written(0)
    result: dict[str, DeviceKernel] = {}
    for name, (mode, options) in ways.items():
        with bench.survives(name):
            made = DeviceKernel(test_device, kernel, mode, **options)
            nodes, _, _, edges = made.written(batch.numpy(), batch_number)
            if not (np.array_equal(nodes, expected[0]) and np.array_equal(edges, expected[1])):
                raise RuntimeError("it draws another batch than the CPU does: report this as a bug")
            result[name] = made
    return result


def device_case(
    test_device: Place,
    name: str,
    draw: Callable[[Any, int], int],
    seeds: Seeds,
    by_wall: bool = False,
) -> Case:
    """Make a case that measures sampling on a device.

    Args:
        test_device: the device.
        name: name of the case.
        draw: function of seeds and index of a batch, which returns the number of edges drawn.
        seeds: the seeds.
        by_wall: time by the host's clock: for peers with other CUDA streams.
    """

    def turn(turn_number: int) -> Turn:
        batches = [(index, batch.numpy()) for index, batch in seeds.of_turn(turn_number)]
        edges: list[int] = []
        draw(batches[0][1], batches[0][0])

        def drawn() -> None:
            edges.extend(draw(ids, index) for index, ids in batches)

        seconds = test_device.wall_seconds(drawn) if by_wall else test_device.seconds(drawn)
        return Turn(seconds / len(batches), sum(edges) / len(batches))

    return Case(name, turn)


def _rate(test_device: Place, row: Row) -> Row:
    """Return the edges drawn per second in each turn of a measured row."""
    rate = Row(test_device.group("sampled edges"), row.name, "G/s", ratio=math.nan)
    for per_edge in row.per_work:
        rate.add(Turn(1e9 / per_edge))
    return rate


def _model(test_device: Place, name: str, kernel: DeviceKernel, seeds: Seeds) -> Row:
    """Return a row with the time that the model of a GPU predicts for the first batch."""
    batch_number, batch = seeds.of_turn(0)[0]
    counts = kernel.counts(batch.numpy(), batch_number)
    seconds = predict(counts, as_graph=name == RECORDED).seconds
    return model_row(test_device.group(SAMPLING), name, seconds)


def _launches(test_device: Place, name: str, kernel: DeviceKernel, seeds: Seeds) -> Row:
    """Count the kernels that are launched to draw and write a batch."""
    row = Row("kernels for a batch", name, "launches", ratio=math.nan)
    for batch_number, batch in seeds.of_turn(0):
        before = test_device.device.num_launches
        kernel.draw(batch.numpy(), batch_number)
        row.add(Turn(test_device.device.num_launches - before))
    return row


PARTS: dict[str, Callable[[Bench, Place, Drawn], list[Row]]] = {
    "batch equality": _equality,
    "sampling": _sampling,
    "gathering": measure_gathers,
    "hot cache": measure_hot_cache,
    "training": measure_training,
}
"""The parts of the suite."""
