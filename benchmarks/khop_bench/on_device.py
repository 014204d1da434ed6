"""Device under measurement, its memory and its clock: a GPU, or one emulated on the CPU.

A GPU's work, khop's and torch's alike, goes to one CUDA stream of torch, whose events are the
clock. On the emulated device tensors and clock are the CPU's. Its times only show that the
measurement works, and groups of such rows are named so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from khop import _native
from khop.data import Graph, Topology
from khop.data.device import open_device, parse_device
from khop.typing import Array, Int64Array
from khop_bench.bench import Bench
from khop_bench.graphs import SeedOrder
from khop_bench.kernels import KhopKernel, Seeds
from khop_bench.settings import BATCH_SIZE, FANOUTS

EMULATED = "emulated"


@dataclass(frozen=True)
class Place:
    """A device, its memory and its clock.

    Attributes:
        device: khop's device.
        torch_device: torch's device of the same memory.
    """

    device: _native.Device
    torch_device: torch.device

    @property
    def is_cuda(self) -> bool:
        """True on a GPU: only then do times mean anything."""
        return self.torch_device.type == "cuda"

    def group(self, name: str) -> str:
        """Return the name of a group of times. Goals apply only to a GPU's times."""
        return name if self.is_cuda else f"{name}, {EMULATED}"

    def put(self, values: Array | Tensor) -> Any:
        """Copy values to the device's memory: a CUDA tensor, or a NumPy array."""
        tensor = torch.as_tensor(values)
        return tensor.to(self.torch_device) if self.is_cuda else tensor.numpy().copy()

    def empty(self, shape: int | tuple[int, ...], dtype: torch.dtype = torch.int64) -> Any:
        """Allocate memory of the device: a CUDA tensor, or a NumPy array."""
        tensor = torch.empty(shape, dtype=dtype, device=self.torch_device)
        return tensor if self.is_cuda else tensor.numpy()

    def address(self, values: Any) -> int:
        """Return the address of an array."""
        return int(values.data_ptr() if isinstance(values, Tensor) else values.ctypes.data)

    def get(self, values: Any) -> Array:
        """Copy values from the device's memory, after all submitted work is done."""
        if not self.is_cuda:
            self.device.synchronize()
        array: Array = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        return array

    def in_host_memory(self, values: Tensor) -> Tensor:
        """Copy values to memory of the host that the device reads in place."""
        return values.pin_memory() if self.is_cuda else values.clone()

    def seconds(self, call: Callable[[], object]) -> float:
        """Measure the device's time from the start of a call's work to its end."""
        if not self.is_cuda:
            return self.wall_seconds(call)
        make: Any = torch.cuda.Event
        begin, end = make(enable_timing=True), make(enable_timing=True)
        torch.cuda.synchronize(self.torch_device)
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    def wall_seconds(self, call: Callable[[], object]) -> float:
        """Measure a call by the host's clock, all streams included."""
        self.wait()
        begin = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - begin

    def wait(self) -> None:
        """Wait until the device has done all submitted work."""
        self.device.synchronize()
        if self.is_cuda:
            torch.cuda.synchronize(self.torch_device)


@contextmanager
def open_place(name: str) -> Iterator[Place]:
    """Open a device by its name in `Settings.device`.

    On a GPU torch's work goes to its stream within the context.
    """
    if name == EMULATED:
        yield Place(open_device(name), torch.device("cpu"))
        return
    _, index = parse_device(name)
    make_stream: Any = torch.cuda.Stream
    stream = make_stream(index)
    with torch.cuda.device(index), torch.cuda.stream(stream):
        yield Place(open_device(f"cuda:{index}", stream), torch.device("cuda", index))
        torch.cuda.synchronize(index)


class Drawn:
    """The products-shaped graph in memory, and the batches that are drawn from it.

    Args:
        bench: provides the graph.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @cached_property
    def kernel(self) -> KhopKernel:
        """Sampling on one core of the CPU."""
        return KhopKernel(Graph(self.topology), FANOUTS)

    @property
    def topology(self) -> Topology:
        """The graph's rows."""
        return self._made[0]

    @property
    def train(self) -> Int64Array:
        """The training nodes, in order."""
        return self._made[1]

    @cached_property
    def seeds(self) -> Seeds:
        """The seeds of batches."""
        order = SeedOrder(torch.from_numpy(self.train), BATCH_SIZE)
        return Seeds(order, self._bench.settings.batches)

    @cached_property
    def _made(self) -> tuple[Topology, Int64Array]:
        data = self._bench.graphs.products(with_features=False)
        count = data.num_nodes
        topology = Topology(data.edge_index, num_src=count, num_dst=count)
        return topology, data.train_mask.numpy().nonzero()[0]
