"""Samplers and loaders of other libraries, called as users call them, if they can be imported."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from khop.typing import EdgeType, NodeType
from khop_bench.goals import PYG_LIB, TORCH_SPARSE

GLT = "GLT"
GRAPHBOLT = "GraphBolt"

PEERS = {
    PYG_LIB: ("pyg_lib", "pyg-lib"),
    TORCH_SPARSE: ("torch_sparse", "torch-sparse"),
    GLT: ("graphlearn_torch", "graphlearn-torch"),
    GRAPHBOLT: ("dgl.graphbolt", "dgl"),
}
"""Peer -> (module, distribution)."""


_PYG_FLAGS = {PYG_LIB: "WITH_PYG_LIB", TORCH_SPARSE: "WITH_TORCH_SPARSE"}


class Peers:
    """The other libraries (peers) that can be measured on this machine.

    Attributes:
        versions: {peer: its version}.
        left_out: a line for each peer that cannot be imported, with the reason.
    """

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.left_out: list[str] = []
        for name, (module, distribution) in PEERS.items():
            reason = _why_not(module)
            if reason is None and name in _PYG_FLAGS and not _pyg_uses(name):
                reason = "PyG finds that it cannot use it"
            if reason is None:
                self.versions[name] = _version_of(module, distribution)
            else:
                self.left_out.append(f"{name} is left out: {reason}")

    def __contains__(self, name: str) -> bool:
        return name in self.versions

    @property
    def pyg_kernels(self) -> list[str]:
        """The kernels that PyG's loaders can use here."""
        return [name for name in (PYG_LIB, TORCH_SPARSE) if name in self]


def _pyg_uses(name: str) -> bool:
    return bool(getattr(torch_geometric.typing, _PYG_FLAGS[name]))


def _why_not(module: str) -> str | None:
    """Return the reason why a module cannot be imported, or None if it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    except Exception as error:  # a library that does not fit this torch may raise anything
        text = (str(error).splitlines() or [""])[0]
        return f"{type(error).__name__}: {text[:160]}"
    return None


def _version_of(module: str, distribution: str) -> str:
    named = getattr(importlib.import_module(module), "__version__", "of unknown version")
    return version_of(distribution) or str(named)


def version_of(distribution: str) -> str | None:
    """Return the version of an installed package, or None if there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@contextmanager
def pyg_kernel(name: str) -> Iterator[None]:
    """Let PyG sample with this kernel within the context. By default it prefers pyg-lib."""
    before = torch_geometric.typing.WITH_PYG_LIB
    torch_geometric.typing.WITH_PYG_LIB = name == PYG_LIB
    try:
        yield
    finally:
        torch_geometric.typing.WITH_PYG_LIB = before


# Kernels. Arguments are as torch_geometric.sampler.NeighborSampler passes.

Draw = Callable[[Tensor], int]
"""Function of seeds that draws one batch and returns its number of edges."""


def pyg_lib_kernel(
    colptr: Tensor,
    row: Tensor,
    fanouts: Sequence[int],
    *,
    node_time: Tensor | None = None,
    edge_weight: Tensor | None = None,
    disjoint: bool = False,
) -> Draw:
    """Return a function that draws by pyg-lib's `neighbor_sample`.

    Args:
        colptr: [num_nodes + 1] int64.
        row: [num_edges] int64, sorted by time within each column if there are times.
        fanouts: fan-out of each hop.
        node_time: [num_nodes] int64.
        edge_weight: [num_edges] float, in the order of `row`.
        disjoint: True if each seed has a separate subgraph.
    """
    disjoint = disjoint or node_time is not None

    def draw(seeds: Tensor) -> int:
        out = torch.ops.pyg.neighbor_sample(
            colptr,
            row,
            seeds,
            list(fanouts),
            *_conditions(node_time, edge_weight),
            *_options(disjoint),
        )
        return int(out[0].numel())

    return draw


def _conditions(node_time: Any, edge_weight: Any) -> list[Any]:
    """Return the times and weights that this version of pyg-lib has arguments for."""
    typing = torch_geometric.typing
    times = [node_time, *([None] if typing.WITH_EDGE_TIME_NEIGHBOR_SAMPLE else []), None]
    return [*times, *([edge_weight] if typing.WITH_WEIGHTED_NEIGHBOR_SAMPLE else [])]


def _options(disjoint: bool) -> tuple[Any, ...]:
    """Return pyg-lib's arguments csc, replace, directed, disjoint, strategy and return_edge_id."""
    return (True, False, True, disjoint, "uniform", True)


def torch_sparse_kernel(colptr: Tensor, row: Tensor, fanouts: Sequence[int]) -> Draw:
    """Return a function that draws by torch-sparse's `neighbor_sample`, see `pyg_lib_kernel`."""

    def draw(seeds: Tensor) -> int:
        out = torch.ops.torch_sparse.neighbor_sample(colptr, row, seeds, list(fanouts), False, True)
        return int(out[1].numel())

    return draw


class HeteroKernels:
    """Draws by pyg-lib's and by torch-sparse's kernels on a heterogeneous graph.

    Args:
        data: the graph, for its sizes and edge types.
        columns: {edge type: (colptr, row)}.
        fanouts: fan-out of each hop, for all edge types.
        seed_type: node type of the seeds.
    """

    def __init__(
        self,
        data: HeteroData,
        columns: Mapping[EdgeType, tuple[Tensor, Tensor]],
        fanouts: Sequence[int],
        seed_type: NodeType,
    ) -> None:
        names = {edge_type: "__".join(edge_type) for edge_type in columns}
        self._seed_type = seed_type
        self._num_hops = len(fanouts)
        self._graph = (
            data.node_types,
            list(columns),
            {names[t]: colptr for t, (colptr, _) in columns.items()},
            {names[t]: row for t, (_, row) in columns.items()},
        )
        self._fanouts = {name: list(fanouts) for name in names.values()}

    def draw_by_pyg_lib(self, seeds: Tensor) -> int:
        """Draw by pyg-lib's `hetero_neighbor_sample`, and return the number of edges."""
        inputs = ({self._seed_type: seeds}, self._fanouts)
        out = torch.ops.pyg.hetero_neighbor_sample(
            *self._graph, *inputs, *_conditions(None, None), *_options(False)
        )
        return sum(row.numel() for row in out[0].values())

    def draw_by_torch_sparse(self, seeds: Tensor) -> int:
        """Draw by torch-sparse's `hetero_neighbor_sample`, and return the number of edges."""
        inputs = ({self._seed_type: seeds}, self._fanouts, self._num_hops)
        out = torch.ops.torch_sparse.hetero_neighbor_sample(*self._graph, *inputs, False, True)
        return sum(row.numel() for row in out[1].values())


# Loaders.


def glt_loader(data: Data, fanouts: Sequence[int], seeds: Tensor, batch_size: int) -> Any:
    """Create GraphLearn-for-PyTorch's `NeighborLoader` on the CPU, which draws with replacement.

    A seed is set: without one each draw opens the system's random device.
    """
    glt = importlib.import_module("graphlearn_torch")
    dataset = glt.data.Dataset(edge_dir="in")
    dataset.init_graph(data.edge_index, graph_mode="CPU", layout="COO")
    dataset.init_node_features(data.x, with_gpu=False)
    dataset.init_node_labels(data.y)
    return glt.loader.NeighborLoader(
        dataset,
        list(fanouts),
        seeds,
        batch_size=batch_size,
        with_edge=True,
        device=torch.device("cpu"),
        seed=0,
    )


def graphbolt_loader(
    compressed: tuple[Tensor, Tensor],
    data: Data,
    fanouts: Sequence[int],
    seeds: Tensor,
    batch_size: int,
    num_workers: int,
) -> Any:
    """Create GraphBolt's data pipe: items, neighbours, features.

    Args:
        compressed: colptr and row, int64.
        data: the graph, for its features and labels.
        fanouts: fan-out of each hop.
        seeds: the seeds, in order.
        batch_size: seeds per batch.
        num_workers: worker processes.
    """
    gb = importlib.import_module("dgl.graphbolt")
    graph = gb.fused_csc_sampling_graph(*compressed)
    features = gb.BasicFeatureStore(
        {("node", None, name): gb.TorchBasedFeature(_matrix(data[name])) for name in ("x", "y")}
    )
    # Versions differ in what they call the seeds of nodes.
    named = "seeds" if "seeds" in gb.MiniBatch.__dataclass_fields__ else "seed_nodes"
    pipe = gb.ItemSampler(gb.ItemSet(seeds, names=named), batch_size=batch_size)
    pipe = pipe.sample_neighbor(graph, list(reversed(fanouts)))  # the last one is that of the seeds
    pipe = pipe.fetch_feature(features, node_feature_keys=["x", "y"])
    return gb.DataLoader(pipe, num_workers=num_workers)


def _matrix(values: Tensor) -> Tensor:
    return values if values.dim() > 1 else values[:, None]


def tensors_of(content: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch of any library."""
    if isinstance(content, Tensor):
        yield content
    elif isinstance(content, Mapping):
        for value in content.values():
            yield from tensors_of(value)
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from tensors_of(value)
    elif isinstance(content, (Data, HeteroData)):
        yield from tensors_of(content.to_dict())
    elif dataclasses.is_dataclass(content):
        yield from tensors_of(vars(content))


def touch(batch: Any) -> int:
    """Read one byte of each cache line of every tensor, and return the tensors' size in bytes."""
    total = 0
    for tensor in tensors_of(batch):
        if tensor.numel():
            # NumPy: torch's sum over such a stride takes twice as long as the memory does.
            tensor.contiguous().view(-1).view(torch.uint8).numpy()[::64].max()
            total += tensor.numel() * tensor.element_size()
    return total
