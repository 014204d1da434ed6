"""`random_walk`: walks over a graph in memory or a partitioned one. Runs in trainers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias, TypeVar, overload, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from khop import _native
from khop.cores import available_cores
from khop.data import Graph, Topology
from khop.data.arrays import check_range, to_ids
from khop.data.device import check_device, is_cpu
from khop.data.info import GraphInfo
from khop.data.steps import run
from khop.sampler.arguments import check_key_part
from khop.sampler.device.engine import graphs_on
from khop.sampler.drawing.batch_draw import BatchDraw
from khop.sampler.drawing.graph_rows import GraphRows
from khop.sampler.drawing.view import GraphView
from khop.sampler.methods.access import Waiting
from khop.sampler.methods.walk import ONE, WalkPlan, acceptance, walks, walks_at_once
from khop.sampler.pyg.device import TorchDevice
from khop.sampler.pyg.source import graph_of
from khop.sampler.rows.row_fetch import write_rows
from khop.sampler.rows.row_fetcher import PartRows
from khop.typing import ArrayLike, EdgeType, Int64Array

_T = TypeVar("_T")

Walks: TypeAlias = tuple[Int64Array, "Int64Array | None"]
"""Nodes [n, L + 1] and edges [n, L] of walks, by original ids. -1 where they have ended."""


@runtime_checkable
class PartitionedRows(Protocol):
    """A partitioned graph that `random_walk` accepts: a `khop.distributed.DistDataset`."""

    @property
    def info(self) -> GraphInfo:
        """Node and edge types of the graph, with their counts."""

    def run_on_rows(self, steps: Callable[[GraphRows], Waiting[_T]]) -> _T:
        """Run a generator that requests rows of any partition, and return its result.

        A row is a node with its neighbours. The generator yields its requests.
        """


WalkedGraph: TypeAlias = (
    "Tensor | npt.NDArray[np.integer] | Data | HeteroData | Graph | PartitionedRows"
)
"""Graph that `random_walk` takes. A `[2, num_edges]` array is an `edge_index`."""


@overload
def random_walk(
    graph: WalkedGraph,
    start: ArrayLike,
    walk_length: int,
    *,
    p: float = ...,
    q: float = ...,
    metapath: Sequence[EdgeType] | None = ...,
    restart: float | Sequence[float] = ...,
    num_nodes: int | None = ...,
    seed: int | None = ...,
    return_edge_ids: Literal[False] = ...,
    device: str | int | torch.device | None = ...,
) -> Tensor: ...
@overload
def random_walk(
    graph: WalkedGraph,
    start: ArrayLike,
    walk_length: int,
    *,
    p: float = ...,
    q: float = ...,
    metapath: Sequence[EdgeType] | None = ...,
    restart: float | Sequence[float] = ...,
    num_nodes: int | None = ...,
    seed: int | None = ...,
    return_edge_ids: Literal[True],
    device: str | int | torch.device | None = ...,
) -> tuple[Tensor, Tensor]: ...
def random_walk(
    graph: WalkedGraph,
    start: ArrayLike,
    walk_length: int,
    *,
    p: float = 1.0,
    q: float = 1.0,
    metapath: Sequence[EdgeType] | None = None,
    restart: float | Sequence[float] = 0.0,
    num_nodes: int | None = None,
    seed: int | None = None,
    return_edge_ids: bool = False,
    device: str | int | torch.device | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Walk at random along edges, from source to destination.

    A step goes to a uniform out-neighbour. With p and q it also depends on the previous node t: a
    neighbour x has weight 1/p if x is t, 1 if there is an edge (t, x), and 1/q otherwise. This is
    node2vec (https://arxiv.org/abs/1607.00653). A walk is a function of `seed`, its index in
    `start` and the graph: the same in memory and over any number of partitions.

    Args:
        graph: [2, num_edges] `edge_index`, a `Data` or `HeteroData`, a `khop.data.Graph` with
            `edge_dir='out'`, or a `DistDataset` of a folder partitioned 'by_src'. An `edge_index`
            or a `Data` is compressed again in each call. Rows of a folder with edge times are in
            order of time, so that walks differ from walks over the edge list.
        start: [S] node ids, one for each walk, of the first node type of `metapath`.
        walk_length: number of steps L.
        p: return parameter, 1e-6 to 1e6. Large values keep walks from going back.
        q: in-out parameter, 1e-6 to 1e6. Large values keep walks near the node before.
        metapath: edge types of the steps, repeated as needed (metapath2vec). Required for
            heterogeneous graphs, where p and q are 1.
        restart: chance that a walk ends before each step, one for all or one for each step.
        num_nodes: with an `edge_index`, number of nodes. If None, largest id + 1.
        seed: makes walks reproducible. If None, drawn from torch's default generator.
        return_edge_ids: return the edges, too: ids of edges in the order of `edge_index`.
        device: a GPU that walks over a graph in memory: 'cuda:1', or 'cuda' for torch's current
            one. Walks are the same, and end up in the CPU's memory. With p and q each check
            whether an edge exists reads a row. A `khop.data.Graph` stays in the device's memory for
            later calls and loaders, as long as the object exists. Other graphs are copied in each
            call. If None, the CPU.

    Returns:
        [S, L + 1] int64, the nodes of each walk, -1 where it has ended (a node without
        out-neighbours, or `restart`). With `return_edge_ids` also the edges, [S, L] int64.

    Raises:
        TypeError, ValueError, IndexError: malformed arguments, nodes that do not exist.

    Example:
        >>> walks = random_walk(data, torch.tensor([0, 3]), 4, seed=1)
        >>> walks.shape, walks[:, 0].tolist()
        (torch.Size([2, 5]), [0, 3])
    """
    walker = Walker(graph, num_nodes, device)
    check_key_part("seed", seed)
    plan, start_type = make_plan(walker.info, walk_length, p, q, metapath, restart)
    starts = to_ids(start, "start").astype(np.int64)
    count = walker.info.node_counts[walker.info.node_types[start_type]]
    check_range(starts, count, "start")
    drawn = int(torch.empty((), dtype=torch.int64).random_()) if seed is None else seed
    nodes, edges = walker.walk(
        starts, start_type, plan, (_native.run_key(drawn, 0, 0), 0), return_edge_ids
    )
    if edges is None:
        return torch.from_numpy(nodes)
    return torch.from_numpy(nodes), torch.from_numpy(edges)


class Walker:
    """A graph, in memory or partitioned, over which `random_walk` and loaders of walks go.

    Args:
        graph, num_nodes: the graph, and with an `edge_index` its number of nodes.
        device: a GPU that walks over a graph in memory. If None or 'cpu', the CPU.
    """

    def __init__(
        self,
        graph: WalkedGraph,
        num_nodes: int | None = None,
        device: str | int | torch.device | None = None,
    ) -> None:
        if isinstance(graph, (Tensor, np.ndarray)) and graph.ndim == 2 and len(graph) == 2:
            topology = Topology(graph, num_src=num_nodes, edge_dir="out")
            graph, num_nodes = Graph(topology), None
        elif isinstance(graph, (Data, HeteroData)):
            graph = graph_of(graph, "out")
        if not isinstance(graph, (Graph, PartitionedRows)):
            got = list(graph.shape) if hasattr(graph, "shape") else type(graph).__name__
            raise TypeError(
                "graph must be an edge_index of shape [2, num_edges], a Data, a HeteroData, a "
                f"khop.data.Graph or a DistDataset (got {got})"
            )
        if num_nodes is not None:
            raise ValueError("num_nodes goes with an edge_index alone: leave it out")
        self.info = graph.info
        if graph.info.edge_dir != "out":
            raise ValueError(
                "walks go along edges, and this graph gives in-neighbours: partition the folder "
                "with strategy 'by_src', or compress it with edge_dir='out'"
            )
        self._view = GraphView.of_graph(graph) if isinstance(graph, Graph) else None
        self._partitions = None if isinstance(graph, Graph) else graph
        self._device: TorchDevice | None = None
        if not is_cpu(device):
            if self._view is None:
                raise ValueError("the CPU walks over partitions: leave device out")
            assert isinstance(graph, Graph)
            self._device, self._on_device = _placed(graph, self._view, device)

    def walk(
        self,
        starts: Int64Array,
        start_type: int,
        plan: WalkPlan,
        batch_key: tuple[int, int],
        with_edge: bool,
    ) -> Walks:
        """Walk from nodes.

        Args:
            starts: [n] int64 original ids.
            start_type: index of their node type.
            plan: the steps.
            batch_key: (key of the epoch, index of the batch).
            with_edge: return edges, too.
        """
        if len(starts) >= 1 << 31:
            raise ValueError(f"at most 2^31 - 1 walks at a time (got {len(starts)})")

        def walked(rows: GraphRows) -> Waiting[Walks]:
            return _walked(rows, starts, start_type, plan, batch_key, with_edge)

        if self._view is None:
            assert self._partitions is not None
            return self._partitions.run_on_rows(walked)
        if self._device is None:
            nodes, edges = run(walked(GraphRows(self._view, None)))
        else:
            walk = self._device.native.random_walks
            with self._device.lock:
                nodes, edges = walks_at_once(
                    walk, self._on_device, starts, plan, batch_key, with_edge
                )
        if edges is not None:  # replace positions of edges by their ids
            for step, relation in enumerate(plan.relations):
                ids = self._view.topologies[relation].edge_ids
                if ids is not None:
                    gone = edges[:, step] >= 0
                    edges[gone, step] = ids[edges[gone, step]]
        return nodes, edges


_OnDevice: TypeAlias = tuple[TorchDevice, list[_native.DeviceGraph]]

_on_devices: WeakKeyDictionary[Graph, dict[str, _OnDevice]] = WeakKeyDictionary()
"""{graph: {name of a device: the graph on it}}."""


def _placed(graph: Graph, view: GraphView, device: str | int | torch.device | None) -> _OnDevice:
    """Return a graph on a device, from the first use until `graph` is deleted."""
    device_type, index = check_device(device, "device")
    name = f"{device_type}:{index}"
    on_devices = _on_devices.setdefault(graph, {})
    if name not in on_devices:
        opened = TorchDevice(name)
        on_devices[name] = opened, graphs_on(opened.native, view, "CUDA")
    return on_devices[name]


def make_plan(
    info: GraphInfo,
    walk_length: int,
    p: float,
    q: float,
    metapath: Sequence[EdgeType] | None,
    restart: float | Sequence[float],
) -> tuple[WalkPlan, int]:
    """Check the arguments of `random_walk`, and return the plan of the walks' steps.

    The second value is the index of the node type where walks begin.
    """
    if isinstance(walk_length, bool) or not isinstance(walk_length, int) or walk_length < 0:
        raise ValueError(f"walk_length must be an integer, not negative (got {walk_length!r})")
    for name, value in (("p", p), ("q", q)):
        if not isinstance(value, (int, float)) or not 1e-6 <= value <= 1e6:
            raise ValueError(f"{name} must be a number from 1e-6 to 1e6 (got {value!r})")
    relations, start_type = [0] * walk_length, 0
    if metapath is not None or info.heterogeneous:
        path = _relations_of(info, metapath, walk_length)
        if (p, q) != (1, 1):
            raise ValueError("p and q go with graphs of one type: with a metapath, leave them out")
        relations = [path[step % len(path)] for step in range(walk_length)]
        start_type = info.node_types.index(info.edge_types[path[0]][0])
    chances = list(restart) if isinstance(restart, Sequence) else [restart] * walk_length
    if len(chances) != walk_length:
        raise ValueError(f"restart has {len(chances)} chances for {walk_length} steps")
    for chance in chances:
        if not isinstance(chance, (int, float)) or not 0 <= chance <= 1:
            raise ValueError(f"restart must be a chance from 0 to 1 (got {chance!r})")
    stops = tuple(round(float(chance) * ONE) for chance in chances)
    return WalkPlan(tuple(relations), stops, *acceptance(float(p), float(q))), start_type


def _relations_of(
    info: GraphInfo, metapath: Sequence[EdgeType] | None, walk_length: int
) -> list[int]:
    """Return the index of each edge type of the metapath.

    Raises:
        TypeError, ValueError: the metapath is missing or malformed, or its types do not follow one
            another.
    """
    relations: dict[tuple[str, ...], int] = {t: i for i, t in enumerate(info.edge_types)}
    if not metapath:
        raise ValueError(
            f"walks over a heterogeneous graph need a metapath, edge types of {list(relations)}"
        )
    path: list[tuple[str, ...]] = [tuple(edge_type) for edge_type in metapath]
    for edge_type in path:
        if edge_type not in relations:
            raise ValueError(f"metapath has edge type {edge_type}, but there are {list(relations)}")
    after = path[1:] + (path[:1] if walk_length > len(path) else [])
    for first, second in zip(path, after, strict=False):
        if first[2] != second[0]:
            raise ValueError(
                f"metapath: {first} leads to '{first[2]}', but {second} begins at '{second[0]}' (a "
                "path that is repeated must end where it begins)"
            )
    return [relations[edge_type] for edge_type in path]


def torch_threads() -> int:
    """Return the number of threads to use: torch's, but at most the cores of this process."""
    return min(torch.get_num_threads(), available_cores())


def _walked(
    rows: GraphRows,
    starts: Int64Array,
    start_type: int,
    plan: WalkPlan,
    batch_key: tuple[int, int],
    with_edge: bool,
) -> Waiting[Walks]:
    """Walk over the rows of a partitioned graph or of a graph in memory, by original node ids.

    Edges are original ids in partitions, and positions in memory. See `Walker.walk`.
    """
    view = rows.view
    subgraph = _native.Subgraph(view.num_nodes, view.relations, False, False)
    draw = BatchDraw(rows, subgraph, (), (), batch_key, with_edge, num_threads=torch_threads())
    nodes, edges = yield from walks(draw, draw.engine_ids(start_type, starts), plan, with_edge)
    part = view.storage
    if part is None:
        return nodes, edges
    nodes[:, 0] = starts
    for step, relation in enumerate(plan.relations):
        gone = np.flatnonzero(nodes[:, step + 1] >= 0)
        neighbor_type = view.relations[relation][0]
        nodes[gone, step + 1] = yield from draw.original_ids(neighbor_type, nodes[gone, step + 1])
        if edges is not None:
            fetch = PartRows(part, "edge", relation, ["edge_id"], rows.remote)
            ids = np.empty(len(gone), np.int64)
            yield from write_rows([(fetch.fetch(edges[gone, step]), [ids])])
            edges[gone, step] = ids
    return nodes, edges
