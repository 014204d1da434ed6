"""Hotness estimated on a device: the CPU's bits. Runs in the trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from khop import _native
from khop.data import Graph
from khop.sampler.device.collect import EdgeNames
from khop.sampler.drawing.hotness import Draws
from khop.sampler.pyg.device import TorchDevice
from khop.sampler.pyg.device_drawer import DeviceDrawer
from khop.sampler.requests import SeedSet
from khop.sampler.spec import SamplingSpec
from khop.typing import Float64Array


class DeviceDraws(Draws):
    """Draws and sums over a graph's edges by a device.

    Args:
        graph, spec: the graph, and how neighbours are drawn.
        device: the device.
        graphs: the graph on the device, from `graphs_on`.
    """

    def __init__(
        self,
        graph: Graph,
        spec: SamplingSpec,
        device: TorchDevice,
        graphs: list[_native.DeviceGraph],
    ) -> None:
        names = EdgeNames(device.native, {}, len(graphs), "CUDA")
        self._drawer = DeviceDrawer(graph, spec, False, device, graphs, names, False)
        self._device, self._graphs = device, graphs
        with device.scope():
            self._counts = [
                device.empty([n], torch.float64).zero_() for n in graph.num_nodes.values()
            ]

    def touch(self, nodes: list[Tensor]) -> None:
        with self._device.lock, self._device.scope():
            for counts, of_type in zip(self._counts, nodes, strict=True):
                counts[of_type] += 1

    def touched(self) -> list[Float64Array]:
        with self._device.scope():
            return [counts.cpu().numpy() for counts in self._counts]

    def batch(self, seeds: SeedSet, run_key: int, batch: int) -> tuple[list[Any], int]:
        drawn = self._drawer.draw_nodes([seeds], run_key, batch)
        edges = sum(ends.shape[1] for ends in drawn.edge_index)
        return drawn.nodes, edges + sum(map(len, drawn.nodes))

    def add_hop(
        self,
        relation: int,
        frontier: Float64Array,
        fanout: int,
        replace: bool,
        log_missed: Float64Array,
    ) -> None:
        with self._device.lock:
            graph = self._graphs[relation]
            self._device.native.accumulate_hotness(graph, frontier, fanout, replace, log_missed)
