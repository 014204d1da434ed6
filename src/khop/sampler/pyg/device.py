"""Devices with torch: options of loaders, memory of batches, and order among CUDA streams.

Batches are drawn and gathered on a separate CUDA stream, at the same time as the trainer's work.
The trainer's stream waits for it without the host. Runs in the trainer.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Data, HeteroData

from khop.data import Graph
from khop.data.device import check_device, open_device
from khop.sampler.pyg.output import SampledSubgraph
from khop.sampler.pyg.streams import STREAMS
from khop.typing import ArrayLike, NodeType

_GRAPH_MODES = ("CUDA", "ZERO_COPY")
_FEATURE_MODES = ("CUDA", "ZERO_COPY", "CPU")


@dataclass(frozen=True)
class DeviceOptions:
    """Options of a loader that samples on a device, compared in docs/devices.md.

    Attributes:
        graph_mode: 'CUDA' (the graph in device memory) or 'ZERO_COPY' (in the host's, read in
            place).
        feature_mode: memory of attributes: 'CUDA', 'ZERO_COPY', or 'CPU' (the host gathers,
            copies).
        split_ratio: with feature_mode 'CUDA', the share of the rows that lies in device memory: the
            hottest. If None, all.
        budget: in place of `split_ratio`, bytes of device memory per attribute, or a text: '2GB'.
        hotness: probability that a batch needs each node, [num_nodes] or {node type: [num_nodes]}.
            If None, `NeighborSampler.sample_prob` of the loader's seeds.
        cuda_graph: True records the kernels of a batch once and launches them together for later
            batches: for fixed fan-outs and small batches. 'step' records them with the training
            step, see `NeighborLoader.capture`.
        group: 'node': with feature_mode 'CUDA', rows in device memory are stored once for all GPUs
            of a machine, one GPU per trainer of the job. With `budget` the hottest are on each.
            All trainers take their first batch together. If None, each GPU has its own rows.

    Raises:
        ValueError: another mode or group, or a share outside [0, 1].

    Example:
        >>> options = DeviceOptions(feature_mode="CUDA", split_ratio=0.2)  # the hottest fifth
        >>> options.graph_mode, options.split_ratio
        ('CUDA', 0.2)
    """

    graph_mode: str = "CUDA"
    feature_mode: str = "ZERO_COPY"
    split_ratio: float | None = None
    budget: int | str | None = None
    hotness: ArrayLike | Mapping[NodeType, ArrayLike] | None = None
    cuda_graph: bool | Literal["step"] = False
    group: str | None = None

    def __post_init__(self) -> None:
        if self.cuda_graph not in (False, True, "step"):
            raise ValueError(f"cuda_graph must be False, True or 'step' (got {self.cuda_graph!r})")
        for name, modes in (("graph_mode", _GRAPH_MODES), ("feature_mode", _FEATURE_MODES)):
            if getattr(self, name) not in modes:
                raise ValueError(f"{name} must be one of {modes} (got {getattr(self, name)!r})")
        if self.split_ratio is not None and not 0 <= self.split_ratio <= 1:
            raise ValueError(f"split_ratio must be in [0, 1] (got {self.split_ratio})")
        if self.group not in (None, "node"):
            raise ValueError(f"group must be None or 'node' (got {self.group!r})")
        if (self.is_split or self.group) and self.feature_mode != "CUDA":
            raise ValueError(
                "split_ratio, budget and group are about rows in device memory: pass "
                f"feature_mode='CUDA' (got '{self.feature_mode}')"
            )

    @classmethod
    def of_graph(cls, graph: Graph) -> DeviceOptions:
        """Return default options: the graph's `mode` as `graph_mode`, unless it is 'CPU'."""
        return cls() if graph.mode == "CPU" else cls(graph_mode=graph.mode)

    @property
    def is_split(self) -> bool:
        """True if some rows of attributes are on the device and the others on the host."""
        return self.split_ratio is not None or self.budget is not None


class TorchDevice:
    """A device that draws batches, with its torch device and a CUDA stream of its own.

    One thread at a time may use it: hold `lock`.

    Args:
        name: 'cuda', 'cuda:<index>' or 'emulated', see `khop.data.device`.

    Attributes:
        name: its name with its number: other threads may have another current GPU.

    Raises:
        ValueError, RuntimeError: see `open_device`.
    """

    def __init__(self, name: str | int | torch.device | None) -> None:
        device_type, index = check_device(name, "device")  # its error names the reason
        self.name = f"{device_type}:{index}"
        self.lock = threading.Lock()
        self._stream: torch.cuda.Stream | None = None
        self.torch_device = torch.device("cpu")
        if device_type == "cuda":
            self.torch_device = torch.device("cuda", index)
            self._stream = STREAMS.lease(index)
        self.native = open_device(self.name, self._stream)

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
        """Return an uninitialised tensor in the device's memory. Call within `scope`."""
        return torch.empty(shape, dtype=dtype, device=self.torch_device)

    def scope(self) -> AbstractContextManager[None]:
        """Return a context in which torch works on the device's stream."""
        return contextlib.nullcontext() if self._stream is None else on_stream(self._stream)

    @property
    def stream(self) -> torch.cuda.Stream | None:
        """The device's stream. None for an emulated device."""
        return self._stream

    def wait_for_user(self) -> None:
        """Make the device's stream wait for torch's current one."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.torch_device))

    def let_user_wait(self) -> None:
        """Make torch's current stream wait for the device's."""
        if self._stream is not None:
            torch.cuda.current_stream(self.torch_device).wait_stream(self._stream)

    def mark(self) -> torch.cuda.Event | None:
        """Record an event on the device's stream, after all work submitted so far, and return it.

        `wait_and_record_stream` waits for it. An emulated device has no streams: this waits for the
        work instead, and returns None.
        """
        if self._stream is None:
            self.native.synchronize()
        return self.event()

    def event(self) -> torch.cuda.Event | None:
        """Record an event as `mark` does. For an emulated device, return None at once."""
        return None if self._stream is None else self._stream.record_event()

    def mark_of_user(self) -> torch.cuda.Event | None:
        """Record an event on torch's current stream of this device, after the user's work."""
        if self._stream is None:
            return None
        event: torch.cuda.Event = torch.cuda.current_stream(self.torch_device).record_event()
        return event


@contextlib.contextmanager
def on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Make torch work on a stream, with the stream's GPU as the current one.

    `torch.cuda.stream` alone would make the thread's former GPU current at its end. In a thread
    that has used none yet that is GPU 0, where the process would then take half a GB.
    """
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield


def tensors_of(drawn: SampledSubgraph) -> list[Tensor]:
    """Return all tensors of a drawn subgraph, in a list."""
    edges = [edge for edge in drawn.edges if edge is not None]
    values = [value for value in drawn.values.values() if isinstance(value, Tensor)]
    return [*drawn.nodes, *drawn.edge_index, *edges, *(drawn.trees or ()), *values]


def tensors_in(batch: Data | HeteroData) -> list[Tensor]:
    """Return the dense tensors of a `Data` or `HeteroData`, in a list."""
    return [t for store in batch.stores for value in store.values() for t in tensors_within(value)]


def tensors_within(value: object) -> list[Tensor]:
    """Return the dense tensors of a value: a tensor, a matrix, or lists and dicts of such.

    Nested as deeply as PyG's `Data.to` copies, which also copies graphs within a graph. Other
    values have no tensors.
    """
    if isinstance(value, (Data, HeteroData)):
        return tensors_in(value)
    if isinstance(value, (EdgeIndex, Index)):  # wrappers of tensors, with caches
        value = vars(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [tensor for item in value for tensor in tensors_within(item)]
    return _parts_of(value)


def _parts_of(value: object) -> list[Tensor]:
    """Return a dense tensor itself, or the dense tensors that a sparse matrix consists of."""
    if isinstance(value, torch_geometric.typing.SparseTensor):
        return [part for part in vars(value.storage).values() if isinstance(part, Tensor)]
    if not isinstance(value, Tensor):
        return []
    if value.layout == torch.sparse_coo:
        return [value._indices(), value._values()]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [value.crow_indices(), value.col_indices(), value.values()]
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [value.ccol_indices(), value.row_indices(), value.values()]
    return [value]


def wait_and_record_stream(tensors: Iterable[Tensor], moment: torch.cuda.Event | None) -> None:
    """Make torch's current stream wait for an event, and record that it uses the tensors.

    The event is `moment`, after which the tensors are written. Torch keeps their memory until this
    stream is done with it, also if a tensor is deleted earlier. For other memory (a device
    arena's), torch's allocator can raise an error.
    """
    if moment is None:
        return
    streams: dict[torch.device, torch.cuda.Stream] = {}
    for tensor in tensors:
        if not tensor.is_cuda:
            continue
        if tensor.device not in streams:
            streams[tensor.device] = torch.cuda.current_stream(tensor.device)
            streams[tensor.device].wait_event(moment)
        if _is_torchs(tensor):
            tensor.record_stream(streams[tensor.device])


def _is_torchs(tensor: Tensor) -> bool:
    """Return True if torch allocated a tensor's memory, which can be resized.

    Before torch 2.3 this is not known, and all memory counts as torch's.
    """
    resizable = getattr(tensor.untyped_storage(), "resizable", None)
    return resizable is None or bool(resizable())
