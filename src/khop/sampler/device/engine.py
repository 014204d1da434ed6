"""Sampling engine of whole graphs with the kernels of a device.

Trainers and sampler processes draw with it. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from khop import _native
from khop.sampler.device.programs import ProgramOnDevice
from khop.sampler.drawing.engine import Engine
from khop.sampler.drawing.view import GraphView
from khop.sampler.requests import Exclusion, SeedSet
from khop.sampler.spec import SamplingSpec

NewBlock = Callable[[int], tuple[object, int]]
"""Function from a count of int64 entries to an array in device memory, and its address."""


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
        names: ids of edges on the device, see `EdgeNames`. If empty, positions are ids.
        backward: sources and destinations are exchanged.
        new_block: allocates memory to which the device writes a batch as soon as it is drawn. If
            None, or until the size of batches is known, `write_block` of a subgraph writes it.

    Raises:
        ValueError: the sampling method is a program (Python code) that only the CPU runs, or one
            whose kernels are to be recorded.
    """

    def __init__(
        self,
        view: GraphView,
        spec: SamplingSpec,
        device: _native.Device,
        graphs: list[_native.DeviceGraph],
        cuda_graph: bool,
        names: Sequence[tuple[int, int, int]] = (),
        backward: bool = False,
        new_block: NewBlock | None = None,
    ) -> None:
        super().__init__(view, spec)
        self._device = device
        self._on_device: ProgramOnDevice | None = None
        if self._program is not None:
            self._on_device = ProgramOnDevice(self._program, device, self.rows)
            if cuda_graph:
                raise ValueError(
                    f"the host waits for sizes while {type(self._program).__name__} draws, so that "
                    "its kernels are not recorded: leave cuda_graph out"
                )
            self._program = None  # a batch is one native call
        self._graphs, self._flag = graphs, cuda_graph
        relations = range(len(view.relations))
        self._common = (
            device,
            graphs,
            self.hops,
            cuda_graph,
            names or [(0, 8, 0)] * len(relations),
            [spec.records_edge(r) for r in relations],
            backward,
        )
        program = None if self._on_device is None else self._on_device.native
        self._plan = _native.DevicePlan(
            *self._common, program=program, layer_wise=spec.method.layer_wise
        )
        # What is added to a drawn batch changes its size.
        self._new_block = new_block if spec.subgraph_type == "directional" else None

    @property
    def pads(self) -> bool:
        """True if batches can be padded as they are written."""
        backward, method = self._common[-1], self.spec.method
        others = backward or method.layer_wise or method.program is not None
        return self._new_block is not None and self.spec.num_hops > 0 and not others

    def padded_plan(
        self, nodes: list[list[int]], edges: list[list[int]], leaves_room: bool
    ) -> _native.DevicePlan:
        """Return a plan of batches that are padded, if `pads`.

        Args:
            nodes: for each node type, rows of the seeds and of each hop.
            edges: for each edge type, rows of each hop.
            leaves_room: a batch that fills the rows of a hop does not fit.
        """
        padding = nodes, edges, leaves_room, self.spec.disjoint
        return _native.DevicePlan(*self._common, padding)

    def idle_subgraph(self) -> _native.DeviceSubgraph:
        """Return a subgraph that no batch uses, to be given back with `release`."""
        try:  # two threads may see the same idle one
            subgraph: _native.DeviceSubgraph = self._idle.pop()
        except IndexError:
            subgraph = self._new_subgraph()
        return subgraph

    def check_all(self) -> None:
        """Wait for the batches that were left unchecked. Raises ValueError if one did not fit."""
        for subgraph in [*self._idle]:
            subgraph.check_all()

    def sample_local(
        self,
        seeds: Sequence[SeedSet],
        run_key: int,
        batch: int,
        exclude: Sequence[Exclusion] = (),
        plan: _native.DevicePlan | None = None,
        links: tuple[Any, ...] | None = None,
    ) -> Any:
        """Begin to draw a batch, and return its subgraph. See `Engine.sample_local`.

        `plan` is from `padded_plan`. If None, the batch is not padded. `links` are from
        `DeviceLinks.request`: the device makes seeds of them.
        """
        subgraph, plan, spec = self.idle_subgraph(), plan or self._plan, self.spec
        words = 0 if self._new_block is None else plan.block_words
        block, address = self._new_block(words) if words else (None, 0)  # type: ignore[misc]
        subgraph.draw(plan, seeds, run_key, batch, exclude, block, address, words, links=links)
        if spec.subgraph_type != "directional":
            self._add_edges(subgraph)
        return subgraph

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
