"""Sampling engine of whole graphs with the kernels of a device.

Trainers and sampler processes draw with it. Imports no torch.
"""

from __future__ import annotations

from khop import _native
from khop.sampler.drawing.engine import Engine
from khop.sampler.drawing.view import GraphView
from khop.sampler.spec import SamplingSpec


class DeviceEngine(Engine):
    """Engine that draws the batches of a whole graph on a device.

    `sample_local` returns a `DeviceSubgraph` that the device is still drawing. The caller must hold
    the device's lock until the subgraph has been written.

    Args:
        view: a whole graph.
        spec: how neighbours are drawn.
        device: the device that draws.
        graphs: the graph on the device, for each edge type.
        cuda_graph: record a batch's kernels once and replay them for later batches.

    Raises:
        ValueError: the sampling method is a program (Python code), which only the CPU runs.
    """

    def __init__(
        self,
        view: GraphView,
        spec: SamplingSpec,
        device: _native.Device,
        graphs: list[_native.DeviceGraph],
        cuda_graph: bool,
    ) -> None:
        if spec.method.program is not None:
            raise ValueError(
                f"{type(spec.method.program).__name__} asks the graph in Python, which a device "
                "does not run: leave device out"
            )
        if spec.method.layer_wise:
            raise ValueError(
                "a device draws for the nodes that the last hop added alone: with layer_wise=True "
                "leave the device out"
            )
        super().__init__(view, spec)
        self._device = device
        self._graphs, self._flag = graphs, cuda_graph

    def _new_subgraph(self) -> _native.DeviceSubgraph:
        view, spec = self.view, self.spec
        return _native.DeviceSubgraph(
            self._device, view.num_nodes, view.relations, spec.with_edge, spec.disjoint
        )


def graphs_on(device: _native.Device, view: GraphView, mode: str) -> list[_native.DeviceGraph]:
    """Put a whole graph on a device, wait for it, and return it as one object per edge type.

    Args:
        device: the device.
        view: the graph.
        mode: 'CUDA' copies it to device memory. With 'ZERO_COPY' the device reads host memory.
    """
    graphs = [_native.DeviceGraph(device, csr, mode) for csr in view.csrs]
    device.synchronize()
    return graphs
