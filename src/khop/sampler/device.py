"""Sampling on a device, as torch sees it: whose tensors batches are, and who waits for whom.

A batch is drawn on a stream of its own, beside whatever the trainer computes. The host waits once a
batch, for its sizes; what is written after that (the ids, the edges) the trainer's stream waits
for, without the host.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.typing
from torch import Tensor

from khop import _native
from khop.data import Graph
from khop.data.device import check_device, open_device
from khop.sampler.collect_device import EdgeNames
from khop.sampler.device_engine import DeviceEngine
from khop.sampler.drawer import SubgraphSampler
from khop.sampler.link import Links, LinkSampler, LinkSeeds
from khop.sampler.pyg_output import SampledSubgraph
from khop.sampler.requests import SeedSet
from khop.sampler.spec import SamplingSpec
from khop.typing import ArrayLike, NodeType

_GRAPH_MODES = ("CUDA", "ZERO_COPY")
_FEATURE_MODES = ("CUDA", "ZERO_COPY", "CPU")


@dataclass(frozen=True)
class DeviceOptions:
    """Where a loader that samples on a device keeps what; docs/devices.md says what to choose.

    Attributes:
        graph_mode: 'CUDA' (the graph in device memory) or 'ZERO_COPY' (in the host's, read in
            place).
        feature_mode: of attributes: 'CUDA', 'ZERO_COPY', or 'CPU' (the host gathers and copies).
        split_ratio: with feature_mode 'CUDA', the share of the rows that lies in device memory: the
            hottest. Default: all.
        budget: instead, bytes of device memory for each attribute, or a text such as '2GB'.
        hotness: how likely a batch is to need each node, [num_nodes] or {node type: [num_nodes]};
            default: `NeighborSampler.sample_prob` of the loader's seeds.
        cuda_graph: record the kernels of a batch once and launch them together for later batches:
            for fixed fan-outs and small batches.

    Raises:
        ValueError: another mode, or a share outside [0, 1].
    """

    graph_mode: str = "CUDA"
    feature_mode: str = "ZERO_COPY"
    split_ratio: float | None = None
    budget: int | str | None = None
    hotness: ArrayLike | Mapping[NodeType, ArrayLike] | None = None
    cuda_graph: bool = False

    def __post_init__(self) -> None:
        for name, modes in (("graph_mode", _GRAPH_MODES), ("feature_mode", _FEATURE_MODES)):
            if getattr(self, name) not in modes:
                raise ValueError(f"{name} must be one of {modes} (got {getattr(self, name)!r})")
        if self.split_ratio is not None and not 0 <= self.split_ratio <= 1:
            raise ValueError(f"split_ratio must be in [0, 1] (got {self.split_ratio})")
        if self.is_split and self.feature_mode != "CUDA":
            raise ValueError(
                "split_ratio and budget are about rows in device memory: pass feature_mode='CUDA' "
                f"(got '{self.feature_mode}')"
            )

    @classmethod
    def of_graph(cls, graph: Graph) -> DeviceOptions:
        """The defaults for a graph: where its mode says, if that is about devices."""
        return cls() if graph.mode == "CPU" else cls(graph_mode=graph.mode)

    @property
    def is_split(self) -> bool:
        """Whether a part of the rows stays on the host."""
        return self.split_ratio is not None or self.budget is not None


class TorchDevice:
    """A device as torch sees it: whose tensors they are, and who waits for whom.

    One thread at a time works with it: hold `lock`.

    Args:
        name: 'cuda', 'cuda:<index>' or 'emulated', see `khop.data.device`.

    Attributes:
        name: with its number: other threads may have another current GPU.

    Raises:
        ValueError, RuntimeError: what `open_device` raises.
    """

    def __init__(self, name: Any) -> None:
        kind, index = check_device(name, "device")  # says what is missing before torch does
        self.name = f"{kind}:{index}"
        self.lock = threading.Lock()
        self._stream: Any = None
        self.torch_device = torch.device("cpu")
        if kind == "cuda":
            self.torch_device = torch.device("cuda", index)
            self._stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self.native = open_device(self.name, self._stream)

    def empty(self, shape: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
        """A tensor in the device's memory, to be written by it; within `scope`."""
        return torch.empty(shape, dtype=dtype, device=self.torch_device)

    def scope(self) -> AbstractContextManager[Any]:
        """What torch does within is done on the device's stream."""
        return contextlib.nullcontext() if self._stream is None else on_stream(self._stream)

    def mark(self) -> Any:
        """The moment when all that was asked for so far is done; for `wait_and_record_stream`.

        Torch has no streams on an emulated device: that is waited for.
        """
        if self._stream is not None:
            return self._stream.record_event()
        self.native.synchronize()
        return None

    def mark_of_user(self) -> Any:
        """As `mark`, of torch's current stream on this device: what the user has asked for."""
        if self._stream is None:
            return None
        return torch.cuda.current_stream(self.torch_device).record_event()


@contextlib.contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """What torch does within is done on a stream, with the stream's GPU as the current one.

    `torch.cuda.stream` alone would make the thread's own GPU current at its end: in a thread that
    has used none yet that is GPU 0, where a process takes half a GB for having been there.
    """
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield


def tensors_of(drawn: SampledSubgraph) -> list[Tensor]:
    """The tensors of a drawn subgraph."""
    edges = [edge for edge in drawn.edges if edge is not None]
    return [*drawn.nodes, *drawn.edge_index, *edges, *(drawn.trees or ())]


def tensors_in(batch: Any) -> list[Tensor]:
    """The dense tensors of a `Data` or `HeteroData`."""
    values = [value for store in batch.stores for value in store.values()]
    return [tensor for value in values for tensor in tensors_within(value)]


def tensors_within(value: Any) -> list[Tensor]:
    """The dense tensors that a tensor or a sparse matrix consists of; none of anything else."""
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


def wait_and_record_stream(tensors: Iterable[Tensor], moment: Any) -> None:
    """Gives tensors to torch's current stream, which waits for the moment when they are written.

    Memory of torch's is kept until that stream has done with it, also if the tensor is gone before.
    Other memory (a slab's) is not torch's to keep, and its allocator may refuse to hear of it.
    """
    if moment is None:
        return
    streams: dict[torch.device, Any] = {}
    for tensor in tensors:
        if not tensor.is_cuda:
            continue
        if tensor.device not in streams:
            streams[tensor.device] = torch.cuda.current_stream(tensor.device)
            streams[tensor.device].wait_event(moment)
        if _is_torchs(tensor):
            tensor.record_stream(streams[tensor.device])


def _is_torchs(tensor: Tensor) -> bool:
    """Whether torch allocated a tensor's memory; what was passed to it cannot be resized.

    Before torch 2.3 nobody can tell, and all is taken for torch's.
    """
    resizable = getattr(tensor.untyped_storage(), "resizable", None)
    return resizable is None or bool(resizable())


class DeviceWriter:
    """Writes what a device drew to tensors in its memory; see `SubgraphWriter`.

    A batch's tensors are parts of one: to allocate takes longer than a kernel that writes them.

    Args:
        graph: the graph that subgraphs are drawn from.
        spec: how they are drawn.
        backward: neighbours were drawn along the edges: rows and columns are exchanged.
        device: the device.
        names: the users' edge ids there, from `names_on`.
    """

    def __init__(
        self,
        graph: Graph,
        spec: SamplingSpec,
        backward: bool,
        device: TorchDevice,
        names: EdgeNames,
    ) -> None:
        self._spec = spec
        self._backward = backward
        self._device = device
        self._has_ids = [spec.records_edge(r) for r in range(len(graph.edge_types))]
        self._names = names

    def write(self, subgraph: Any) -> SampledSubgraph:
        """A subgraph that the engine returned; the device's lock and scope are held."""
        num_nodes, num_edges, node_hops, edge_hops = subgraph.sizes()
        num_named = [n for n, has_ids in zip(num_edges, self._has_ids, strict=True) if has_ids]
        num_placed = num_nodes if self._spec.disjoint else []
        sizes = [*num_nodes, *num_placed, *(2 * n for n in num_edges), *num_named]
        block = self._device.empty([sum(sizes)])
        parts = iter(torch.split(block, sizes))
        begins = itertools.accumulate(sizes, initial=block.data_ptr() // 8)
        places = iter([8 * begin for begin in begins])
        subgraph.write(
            nodes=list(itertools.islice(places, len(num_nodes))),
            trees=list(itertools.islice(places, len(num_placed))),
            ends=list(itertools.islice(places, len(num_edges))),
            edges=[next(places) if has_ids else 0 for has_ids in self._has_ids],
            names=self._names.entries,
            backward=self._backward,
        )
        counts_hops = self._spec.counts_hops
        return SampledSubgraph(
            nodes=list(itertools.islice(parts, len(num_nodes))),
            trees=list(itertools.islice(parts, len(num_placed))) or None,
            edge_index=[next(parts).view(2, n) for n in num_edges],
            edges=[next(parts) if has_ids else None for has_ids in self._has_ids],
            nodes_per_hop=node_hops if counts_hops else None,
            edges_per_hop=edge_hops if counts_hops else None,
        )


def names_on(device: TorchDevice, graph: Graph, spec: SamplingSpec, mode: str) -> EdgeNames:
    """The users' ids of edges on a device, as far as batches have them; waits until they are there.

    Args:
        device: the device.
        graph: the graph.
        spec: how it is drawn from.
        mode: 'CUDA' or 'ZERO_COPY'.
    """
    topologies = enumerate(graph.topologies.values())
    names = {r: t.edge_ids for r, t in topologies if spec.records_edge(r)}
    given = {r: ids for r, ids in names.items() if ids is not None}
    return EdgeNames(device.native, given, len(graph.edge_types), mode)


class DeviceDrawer(SubgraphSampler):
    """A drawer whose batches a device draws.

    Args:
        graph, spec, backward: as of `SubgraphSampler`.
        device: who draws.
        graphs: the graph there, from `graphs_on`.
        names: the users' edge ids there, from `names_on`.
        cuda_graph: record a batch's kernels and play them again.
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
        self._engine = DeviceEngine(self.view, spec, device.native, graphs, cuda_graph)
        self._writer = DeviceWriter(graph, spec, backward, device, names)

    def draw_nodes(self, seeds: SeedSet, run_key: int, batch: int) -> SampledSubgraph:
        """As of `SubgraphSampler`; says when the tensors will have been written."""
        with self._device.lock, self._device.scope():
            drawn = super().draw_nodes(seeds, run_key, batch)
            return drawn._replace(written=self._device.mark())

    def draw_links(
        self, sampler: LinkSampler, links: Links, run_key: int, batch: int
    ) -> tuple[SampledSubgraph, LinkSeeds]:
        """As of `SubgraphSampler`; says when the tensors will have been written."""
        with self._device.lock, self._device.scope():
            drawn, seeds = super().draw_links(sampler, links, run_key, batch)
            return drawn._replace(written=self._device.mark()), seeds

    def _wait_for_tensors(self) -> None:
        """As of `SubgraphSampler`. Torch's own work on a GPU follows on their stream."""
        if not self._device.native.is_cuda:
            self._device.native.synchronize()
