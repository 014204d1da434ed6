"""Sampling on a device with torch: tensors of batches, and synchronisation of CUDA streams.

A batch is drawn on a separate CUDA stream, at the same time as the trainer's work. The host waits
once per batch, for its sizes. All else is launched before that wait: the device writes ids and
edges to memory for the largest batch so far, of which the batch's tensors are parts. So the next
batch can be launched before the wait. The trainer's stream waits for the device without the host.
Runs in the trainer.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Data, HeteroData

from khop import _native
from khop.data import Graph
from khop.data.device import check_device, open_device
from khop.data.steps import run
from khop.sampler.device.collect import EdgeNames
from khop.sampler.device.engine import DeviceEngine
from khop.sampler.drawing.link import Links, LinkSampler, LinkSeeds
from khop.sampler.pyg.output import SampledSubgraph, SubgraphSampler, number_by_link
from khop.sampler.pyg.padded import PaddedLayout, PadSizes
from khop.sampler.pyg.streams import STREAMS
from khop.sampler.requests import SeedSet
from khop.sampler.spec import SamplingSpec
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
    return [*drawn.nodes, *drawn.edge_index, *edges, *(drawn.trees or ())]


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


class Begun(NamedTuple):
    """Batch that a device is drawing.

    Attributes:
        drawer: the sampler that launched it.
        subgraph: the batch.
        written: event after which the batch is complete. None for an emulated device.
        seeds: the seeds of a batch of links.
        layout: the layout of a batch that is padded.
    """

    drawer: DeviceDrawer
    subgraph: _native.DeviceSubgraph
    written: torch.cuda.Event | None
    seeds: LinkSeeds | None = None
    layout: PaddedLayout | None = None

    def finish(self) -> SampledSubgraph:
        """Wait for the batch's sizes, and return it. Others may be launched meanwhile."""
        return self.drawer.finish(self)


Layout = tuple[list[int], int, list[list[int]], list[list[int]]]
"""Lengths of a batch's arrays, their sum, and numbers of nodes and edges per hop, of each type."""


class DeviceDrawer(SubgraphSampler):
    """Sampler of a graph in memory whose batches a device draws.

    Args:
        graph, spec, backward: the graph, how neighbours are drawn, True for out-neighbours.
        device: the device that draws.
        graphs: the graph on the device, from `graphs_on`.
        names: the user's edge ids on the device.
        cuda_graph: record a batch's kernels once and replay them for later batches.
    """

    def __init__(
        self,
        graph: Graph,
        spec: SamplingSpec,
        backward: bool,
        device: TorchDevice,
        graphs: list[_native.DeviceGraph],
        names: EdgeNames,
        cuda_graph: bool,
    ) -> None:
        super().__init__(graph, spec, backward)
        self._device = device
        self._engine: DeviceEngine = DeviceEngine(
            self.view, spec, device.native, graphs, cuda_graph, names.entries, backward, self._block
        )
        self._has_ids = [spec.records_edge(r) for r in range(len(graph.edge_types))]
        self._names = names  # memory that the engine's plan refers to
        self._padded: PaddedLayout | None = None

    def draw_nodes(self, seeds: Sequence[SeedSet], run_key: int, batch: int) -> SampledSubgraph:
        """Draw the neighbourhood of seeds. Event `written` of the result marks its completion."""
        return self.finish(self.begin_nodes(seeds, run_key, batch))

    def begin_nodes(
        self, seeds: Sequence[SeedSet], run_key: int, batch: int, pad: PadSizes | None = None
    ) -> Begun:
        """Launch the draw of a batch for `finish`, without a wait. Several may be launched.

        The device pads the batch to the sizes of `pad`. If None, or where it cannot, there is no
        padding.
        """
        device = self._device
        with device.lock, device.scope():
            layout = self.padded(pad)
            plan = None if layout is None else layout.plan
            subgraph = self._engine.sample_local(seeds, run_key, batch, (), plan)
            return Begun(self, subgraph, device.event(), None, layout)

    def padded(self, sizes: PadSizes | None) -> PaddedLayout | None:
        """Return the layout of batches that the device pads to these sizes. None if it cannot."""
        if sizes is None or not self._engine.pads:
            return None
        if self._padded is None or self._padded.sizes != sizes:
            plan = self._engine.padded_plan(sizes.nodes, sizes.edges, not sizes.is_fixed)
            self._padded = PaddedLayout(plan, sizes, self._has_ids, self.spec.disjoint)
        return self._padded

    def new_subgraph(self) -> _native.DeviceSubgraph:
        """Return a subgraph for one user, with memory of its own."""
        return self._engine.idle_subgraph()

    def check_all(self) -> None:
        """Wait for all padded batches. Raises ValueError if one did not fit its padding."""
        self._engine.check_all()

    def draw_links(
        self, sampler: LinkSampler, links: Links, run_key: int, batch: int
    ) -> tuple[SampledSubgraph, LinkSeeds]:
        """Draw the neighbourhood of links. Event `written` of the result marks its completion."""
        begun = self.begin_links(sampler, links, run_key, batch)
        assert begun.seeds is not None
        return self.finish(begun), begun.seeds

    def begin_links(self, sampler: LinkSampler, links: Links, run_key: int, batch: int) -> Begun:
        """Launch the draw of links for `finish`, as `begin_nodes` does."""
        device = self._device
        with device.lock, device.scope():
            subgraph: Any
            subgraph, seeds = run(sampler.sample(self._engine, links, run_key, batch))
            return Begun(self, subgraph, device.event(), seeds)

    def finish(self, begun: Begun) -> SampledSubgraph:
        """Wait for a batch's sizes, and return the batch. Others may be launched meanwhile."""
        _, subgraph, written, seeds, padded = begun
        block = subgraph.take_block()
        if padded is not None:
            if (padded.sizes.is_fixed and subgraph.leave_unchecked()) or subgraph.settle():
                self._engine.release(subgraph)
                return padded.parts_of(block, written)
            block, written, layout = self._written_late(subgraph)
        elif subgraph.settle():
            layout = subgraph.layout()
        else:
            block, written, layout = self._written_late(subgraph)
        drawn = self._parts_of(block, layout, written)
        self._engine.release(subgraph)
        if seeds is None or drawn.trees is None:
            return drawn
        with self._device.lock, self._device.scope():
            number_by_link(drawn, seeds.num_links)
            return drawn._replace(written=self._device.mark())

    def _block(self, words: int) -> tuple[Tensor, int]:
        block = self._device.empty([words])
        return block, block.data_ptr()

    def _written_late(self, subgraph: _native.DeviceSubgraph) -> tuple[Tensor, Any, Layout]:
        """Write a batch to memory of its size, after drawing it again if it had too little."""
        device = self._device
        with device.lock, device.scope():
            layout = subgraph.layout()
            block, address = self._block(layout[1])
            subgraph.write_block(address)
            return block, device.mark(), layout

    def _parts_of(self, block: Tensor, layout: Layout, written: Any) -> SampledSubgraph:
        """Return the tensors of a batch: parts of its memory, as an allocation takes longer."""
        lengths, words, node_hops, edge_hops = layout
        lengths.append(block.numel() - words)
        parts = block.split_with_sizes(lengths)
        types, counts_hops = len(self.view.num_nodes), self.spec.counts_hops
        begin = 2 * types if self.spec.disjoint else types
        end = begin + len(self._has_ids)
        named = iter(parts[end:])
        return SampledSubgraph(
            [*parts[:types]],
            [parts[i].view(2, lengths[i] // 2) for i in range(begin, end)],
            [next(named) if has_ids else None for has_ids in self._has_ids],
            [*parts[types:begin]] or None,
            node_hops if counts_hops else None,
            edge_hops if counts_hops else None,
            self.spec.method.marks,
            written,
        )
