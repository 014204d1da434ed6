"""Programs (sampling methods in Python) that devices draw as well. Imports no torch."""

from __future__ import annotations

from khop import _native
from khop.data.steps import run
from khop.sampler.drawing.graph_rows import GraphRows
from khop.sampler.methods import FastGcn, Ladies, PinSage, PoissonLadies, ProgramMethod
from khop.sampler.methods.walk import ONE


class ProgramOnDevice:
    """A program in the form that a `DevicePlan` takes.

    Args:
        program: the program.
        device: the device that draws.
        rows: the rows of a whole graph, where nothing is renumbered.

    Attributes:
        native: the plan's argument.

    Raises:
        ValueError: no device draws this program.
    """

    def __init__(self, program: ProgramMethod, device: _native.Device, rows: GraphRows) -> None:
        method = type(program)  # a subclass may draw otherwise
        if method not in (PinSage, PoissonLadies, Ladies, FastGcn):
            raise ValueError(
                f"{method.__name__} asks the graph in Python, which a device does not run: leave "
                "device out"
            )
        self._sums: _native.DeviceMemory | None = None  # kept as long as `native`
        if isinstance(program, PinSage):
            stop = round(program.termination_prob * ONE)
            self.native = _native.DeviceProgram.visits(
                program.num_random_walks, program.num_traversals, stop
            )
            return
        assert isinstance(program, (PoissonLadies, FastGcn))
        options = program.nodes_per_layer, getattr(program, "skip", False)
        address = count = 0
        if isinstance(program, FastGcn):
            sums = run(rows.column_sums(0))
            self._sums = _native.DeviceMemory.allocate(device, sums.nbytes)
            self._sums.upload(0, sums)
            device.synchronize()
            address, count = self._sums.address, len(sums)
        scales_rows = program.edge_norm == "hajek"
        self.native = _native.DeviceProgram.layers(
            program.name, *options, scales_rows, address, count
        )
