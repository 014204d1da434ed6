"""GLT's `Topology` and `Graph`: a graph in CSR or CSC, and the memory that it is read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from khop import _native, data as core
from khop.data.weights import weight_values
from khop.glt.arguments import by_type
from khop.glt.typing import Device, EdgeType, NodeType, TensorDataType
from khop.glt.utils import convert_to_tensor, coo_to_csc, coo_to_csr, ptr2ind, share_memory
from khop.typing import EDGE, NODE

Layout = Literal["CSR", "CSC"]
Coo = tuple[Tensor, Tensor, Tensor, Tensor | None]


class Topology:
    """Compressed rows (CSR) or columns (CSC) of a graph, as int64 tensors.

    Args:
        edge_index: [2, num_edges] rows and columns, or a compressed pair as `input_layout` says.
        edge_ids: [num_edges] ids of edges. If None, positions in `edge_index`.
        edge_weights: [num_edges] weights of edges.
        input_layout: layout of `edge_index`: 'COO', 'CSR' (row offsets, columns) or 'CSC' (rows,
            column offsets).
        layout: layout to store: 'CSR', for out-neighbours, or 'CSC', for in-neighbours.

    Attributes:
        indptr: [number of rows ('CSC': of columns) + 1] offsets in `indices`.
        indices: [num_edges] neighbours, sorted per row unless the input had this layout.
        edge_ids: [num_edges] ids of the edges, in the order of `indices`.
        edge_weights: [num_edges] float32 weights in the same order, or None.
        layout: 'CSR' or 'CSC'.

    Raises:
        ValueError: a layout is unknown, or lists have different lengths.

    Example:
        >>> topology = Topology(torch.tensor([[0, 0, 2], [1, 2, 0]]))
        >>> topology.indptr.tolist(), topology.indices.tolist()
        ([0, 2, 2, 3], [1, 2, 0])
    """

    def __init__(
        self,
        edge_index: TensorDataType | tuple[TensorDataType, TensorDataType],
        edge_ids: TensorDataType | None = None,
        edge_weights: TensorDataType | None = None,
        input_layout: str = "COO",
        layout: Layout = "CSR",
    ) -> None:
        row, col = convert_to_tensor([edge_index[0], edge_index[1]], torch.int64)
        source = str(input_layout).upper()
        if source not in ("COO", "CSR", "CSC") or layout not in ("CSR", "CSC"):
            raise ValueError(
                "input_layout must be 'COO', 'CSR' or 'CSC', and layout 'CSR' or 'CSC' (got "
                f"{input_layout!r} and {layout!r})"
            )
        num_edges = row.numel() if source == "CSC" else col.numel()
        ids = convert_to_tensor(edge_ids, torch.int64)
        ids = torch.arange(num_edges) if ids is None else ids
        weights = convert_to_tensor(edge_weights, torch.float)
        for name, values in (("edge_ids", ids), ("edge_weights", weights)):
            if values is not None and values.numel() != num_edges:
                raise ValueError(f"{name} has {values.numel()} entries for {num_edges} edges")
        self.layout: Layout = layout
        self.edge_ids: Tensor
        self.edge_weights: Tensor | None
        if source == layout:
            self.indptr, self.indices = (row, col) if source == "CSR" else (col, row)
            self.edge_ids, self.edge_weights = ids, weights
            return
        row = ptr2ind(row) if source == "CSR" else row
        col = ptr2ind(col) if source == "CSC" else col
        compress = coo_to_csr if layout == "CSR" else coo_to_csc
        first, second, sorted_ids, self.edge_weights = compress(row, col, ids, weights)
        self.indptr, self.indices = (first, second) if layout == "CSR" else (second, first)
        assert sorted_ids is not None
        self.edge_ids = sorted_ids

    def to_coo(self) -> Coo:
        """Return (rows, columns, edge ids, weights), each [num_edges]."""
        ends = ptr2ind(self.indptr), self.indices
        row, col = ends if self.layout == "CSR" else ends[::-1]
        return row, col, self.edge_ids, self.edge_weights

    def to_csr(self) -> Coo:
        """Return (row offsets [num_rows + 1], columns, edge ids, weights)."""
        if self.layout == "CSR":
            return self.indptr, self.indices, self.edge_ids, self.edge_weights
        return coo_to_csr(*self.to_coo())  # type: ignore[return-value]

    def to_csc(self) -> Coo:
        """Return (rows, column offsets [number of columns + 1], edge ids, weights)."""
        if self.layout == "CSC":
            return self.indices, self.indptr, self.edge_ids, self.edge_weights
        return coo_to_csc(*self.to_coo())  # type: ignore[return-value]

    @property
    def degrees(self) -> Tensor:
        """Number of neighbours of each row, [num_rows]."""
        degrees: Tensor = self.indptr.diff()
        return degrees

    @property
    def row_count(self) -> int:
        """Number of rows: source nodes, or destination nodes in layout 'CSC'."""
        return int(self.indptr.numel()) - 1

    @property
    def edge_count(self) -> int:
        """Number of edges that are stored."""
        return int(self.indices.numel())

    def share_memory_(self) -> None:
        """Move all tensors to torch's shared memory."""
        for name in ("indptr", "indices", "edge_ids", "edge_weights"):
            setattr(self, name, share_memory(getattr(self, name)))

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key, None)

    def __setitem__(self, key: str, value: object) -> None:
        setattr(self, key, value)


class Graph:
    """Topology, and the memory from which samplers on GPUs read it.

    Args:
        topo: the topology.
        mode: 'CPU', 'ZERO_COPY' or 'CUDA'. Samplers on the CPU draw the same in all modes.
        device: accepted, not needed: each sampler has a device.
        csr_topo: another name of `topo`.

    Raises:
        TypeError: `topo` is not a `Topology`.
        ValueError: the mode is unknown.

    Example:
        >>> Graph(Topology(torch.tensor([[0, 0, 2], [1, 2, 0]])), "CPU").edge_count
        3
    """

    def __init__(
        self,
        topo: Topology | None = None,
        mode: str = "ZERO_COPY",
        device: Device = None,
        *,
        csr_topo: Topology | None = None,
    ) -> None:
        topo = csr_topo if topo is None else topo
        if not isinstance(topo, Topology):
            raise TypeError(f"topo must be a khop.glt.data.Topology (got '{type(topo).__name__}')")
        if mode.upper() not in ("CPU", "ZERO_COPY", "CUDA"):
            raise ValueError(f"mode must be 'CPU', 'ZERO_COPY' or 'CUDA' (got {mode!r})")
        self.topo = topo
        self.mode = mode.upper()
        self.device = device

    def lazy_init(self) -> None:
        """Do nothing: a sampler places the graph in its memory when the sampler is made."""

    def export_topology(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (row offsets, neighbours, edge ids) of the graph's topology."""
        return self.topo.indptr, self.topo.indices, self.topo.edge_ids

    def share_ipc(self) -> tuple[Topology, str]:
        """Move tensors to torch's shared memory. Return a handle for another process."""
        self.topo.share_memory_()
        return self.topo, self.mode

    @classmethod
    def from_ipc_handle(cls, ipc_handle: tuple[Topology, str]) -> Graph:
        """Return the graph of a handle that `share_ipc` of another process made."""
        return cls(*ipc_handle)

    @property
    def row_count(self) -> int:
        """Number of rows: nodes whose neighbours are stored."""
        return self.topo.row_count

    @property
    def col_count(self) -> int:
        """Number of columns: the largest id of a neighbour plus one."""
        indices = self.topo.indices
        return int(indices.max()) + 1 if indices.numel() else 0

    @property
    def edge_count(self) -> int:
        """Number of edges in the graph."""
        return self.topo.edge_count


rebuild_graph = Graph.from_ipc_handle


def reduce_graph(graph: Graph) -> tuple[Callable[..., Graph], tuple[tuple[Topology, str]]]:
    """Return a function and its arguments for `pickle`, which shares a graph's memory."""
    return rebuild_graph, (graph.share_ipc(),)


def to_core(
    graphs: Graph | Mapping[EdgeType, Graph],
    num_nodes: Mapping[NodeType, int] | None = None,
    weighted: bool = False,
) -> core.Graph:
    """Convert to the graph class of khop's samplers. Arrays are shared where dtypes allow.

    Args:
        graphs: the graph, or one for each edge type.
        num_nodes: least number of nodes of each type. Nodes without rows have no neighbours.
        weighted: True if neighbours are drawn by weight.

    Raises:
        ValueError: `weighted` is True, but no topology has weights.
    """
    typed = by_type(graphs, EDGE)
    counts = dict(num_nodes or {})
    if weighted and all(graph.topo.edge_weights is None for graph in typed.values()):
        raise ValueError("with_weight=True, but no topology has edge_weights")
    for (src, _, dst), graph in typed.items():
        rows, neighbors = (src, dst) if graph.topo.layout == "CSR" else (dst, src)
        counts[rows] = max(counts.get(rows, 0), graph.row_count)
        counts[neighbors] = max(counts.get(neighbors, 0), graph.col_count)
    topologies = {
        edge_type: _core_topology(edge_type, graph.topo, counts, weighted)
        for edge_type, graph in typed.items()
    }
    modes = {graph.mode for graph in typed.values()}
    mode = modes.pop() if len(modes) == 1 else "CPU"
    if mode == "CUDA" and not torch.cuda.is_available():
        mode = "CPU"
    if isinstance(graphs, Graph):
        return core.Graph(topologies[EDGE], mode, {NODE: counts[NODE]})
    return core.Graph(topologies, mode, counts)


def _core_topology(
    edge_type: EdgeType, topo: Topology, counts: Mapping[NodeType, int], weighted: bool
) -> core.Topology:
    src, _, dst = edge_type
    out = topo.layout == "CSR"
    num_rows, num_neighbors = (counts[src], counts[dst]) if out else (counts[dst], counts[src])
    indptr = topo.indptr.numpy()
    missing = num_rows + 1 - len(indptr)
    if missing:
        indptr = np.concatenate([indptr, np.full(missing, len(topo.indices), indptr.dtype)])
    sums = guide = None
    if weighted and topo.edge_weights is not None:
        sums, guide = _native.weight_table(indptr, weight_values(topo.edge_weights))
    is_range = torch.equal(topo.edge_ids, torch.arange(topo.edge_ids.numel()))
    return core.Topology.compressed(
        indptr,
        topo.indices.numpy(),
        num_neighbors,
        None if is_range else topo.edge_ids.numpy(),
        "out" if out else "in",
        weight_sums=sums,
        weight_guide=guide,
    )
