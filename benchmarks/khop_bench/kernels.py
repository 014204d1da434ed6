"""Suite `kernels`: sampling alone, on one thread, by khop, a floor and PyG's kernels.

khop's engine is called as its samplers call it. It writes node ids, edge ids and both rows of
`edge_index` to existing arrays. PyG's kernels return these in new tensors. All draw from the same
compressed rows and for the same seeds. Numbers of edges differ a little, draw by draw: costs are
compared per edge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch_geometric.data import Data

from khop import _native
from khop.data import Graph, Topology
from khop.sampler.drawing.engine import Engine
from khop.sampler.drawing.view import GraphView
from khop.sampler.requests import SeedSet
from khop.sampler.spec import SamplingSpec
from khop.typing import Array, Int32Array, Int64Array
from khop_bench.bench import Bench
from khop_bench.floor import GraphFloor
from khop_bench.goals import FLOOR, KHOP, PYG_LIB, TORCH_SPARSE
from khop_bench.graphs import SeedOrder, edge_weights, node_times
from khop_bench.measure import Case, Row, Turn
from khop_bench.peers import Draw, HeteroKernels, pyg_lib_kernel, torch_sparse_kernel
from khop_bench.settings import BATCH_SIZE, FANOUTS

_HETERO_FANOUTS = (10, 5, 5)
_SEED_TYPE = "paper"


def run(bench: Bench) -> list[Row]:
    """Measure the suite `kernels`."""
    with one_thread():
        rows = _homogeneous(bench)
        rows += _heterogeneous(bench)
    return rows


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch's kernels use one thread within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class KhopKernel:
    """khop's kernel as its samplers use it, with output arrays that are reused.

    Args:
        graph: the graph.
        fanouts: of each hop.
        seed_type: index of the seeds' node type.
        temporal: each seed has a time, which limits its draws.
        disjoint: each seed has a separate subgraph.
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[int],
        seed_type: int = 0,
        temporal: bool = False,
        disjoint: bool = False,
    ) -> None:
        spec = SamplingSpec.create(
            fanouts,
            graph.edge_types,
            temporal=temporal,
            disjoint=disjoint,
            weighted=graph.is_weighted,
            heterogeneous=graph.is_heterogeneous,
        )
        self.graph = graph
        self.engine = Engine(GraphView.of_graph(graph), spec)
        self._seed_type = seed_type
        self._run_key = _native.run_key(0, 0, 0)
        self._arrays: dict[str, Int64Array] = {}
        self._sizes: dict[str, int] = {}

    def draw(self, seeds: Int64Array, times: Int64Array | None, batch: int) -> int:
        """Draw and write the batch of these seeds, and return its number of edges."""
        seed_sets = [SeedSet(self._seed_type, seeds, times)]
        subgraph = self.engine.sample_local(seed_sets, self._run_key, batch)
        for i in range(len(self.engine.view.num_nodes)):
            subgraph.write_nodes(i, self._array(f"n{i}", subgraph.num_nodes(i)))
        total = 0
        for i in range(len(self.engine.view.relations)):
            count = subgraph.num_edges(i)
            total += count
            row, col = self._array(f"row{i}", count), self._array(f"col{i}", count)
            subgraph.write_edge_index(i, row, col)
            subgraph.write_edges(i, self._array(f"e{i}", count))
        self.engine.release(subgraph)
        return total

    def _array(self, name: str, size: int) -> Int64Array:
        self._sizes[name] = size
        array = self._arrays.get(name)
        if array is None or len(array) < size:
            array = self._arrays[name] = np.zeros(size + size // 8, np.int64)
        return array[:size]

    def written(self, index: int) -> tuple[Int64Array, Int64Array]:
        """Return node ids and edge ids of the last `draw`, for the types with this index."""
        names = (f"n{index}", f"e{index}")
        nodes, edges = (self._arrays[name][: self._sizes[name]] for name in names)
        return nodes, edges

    def nodes(self, seeds: Int64Array, batch: int) -> Int64Array:
        """Return the nodes of a batch of a homogeneous graph, in order."""
        subgraph = self.engine.sample_local([SeedSet(0, seeds)], self._run_key, batch)
        nodes = np.empty(subgraph.num_nodes(0), np.int64)
        subgraph.write_nodes(0, nodes)
        self.engine.release(subgraph)
        return nodes

    def drawn(self, seeds: Int64Array, times: Int64Array | None, batch: int) -> _Drawn:
        """Draw a batch of a homogeneous graph, and return it as the floor takes it."""
        seed_sets = [SeedSet(self._seed_type, seeds, times)]
        subgraph = self.engine.sample_local(seed_sets, self._run_key, batch)
        num_nodes, num_edges = subgraph.num_nodes(0), subgraph.num_edges(0)
        nodes = np.empty(num_nodes, np.int64)
        subgraph.write_nodes(0, nodes)
        row, col, edges = (np.empty(num_edges, np.int64) for _ in range(3))
        subgraph.write_edge_index(0, row, col)
        subgraph.write_edges(0, edges)
        num_rows = sum(subgraph.nodes_per_hop(0)[:-1])  # the last hop's nodes are not expanded
        self.engine.release(subgraph)
        counts = np.bincount(col, minlength=num_rows).astype(np.int32)
        return _Drawn(nodes[:num_rows], counts, edges, num_nodes)


class _Drawn(NamedTuple):
    """Draws of a batch: rows, number and positions of the edges drawn, and number of nodes."""

    rows: Int64Array
    counts: Int32Array
    edges: Int64Array
    num_nodes: int


class Seeds(NamedTuple):
    """Seeds by batch.

    Attributes:
        order: the seeds.
        batches: number of batches in a turn.
        times: [num_nodes] time of each node when it is a seed, or None.
    """

    order: SeedOrder
    batches: int
    times: Array | None = None

    def of_turn(self, turn: int) -> list[tuple[int, torch.Tensor]]:
        """Return (index, seeds) of the batches of a turn."""
        return self.order.of_turn(turn, self.batches)

    def times_of(self, seeds: Int64Array) -> Int64Array | None:
        """Return the times of seeds, or None without times."""
        return None if self.times is None else self.times[seeds]


def khop_case(name: str, kernel: KhopKernel, seeds: Seeds) -> Case:
    """Make the case of khop's kernel."""

    def draw(batch_number: int, batch: torch.Tensor) -> int:
        ids = batch.numpy()
        return kernel.draw(ids, seeds.times_of(ids), batch_number)

    return Case(name, lambda turn: _timed(draw, seeds.of_turn(turn)))


def peer_case(name: str, draw: Draw, seeds: Seeds) -> Case:
    """Make the case of a peer's kernel."""
    return Case(name, lambda turn: _timed(lambda _, batch: draw(batch), seeds.of_turn(turn)))


def _timed(
    draw: Callable[[int, torch.Tensor], int], batches: Sequence[tuple[int, torch.Tensor]]
) -> Turn:
    draw(*batches[0])  # the caches hold the last case's data
    begin = time.perf_counter()
    edges = sum(draw(batch_number, batch) for batch_number, batch in batches)
    return Turn((time.perf_counter() - begin) / len(batches), edges / len(batches))


def floor_case(floor: GraphFloor, kernel: KhopKernel, seeds: Seeds) -> Case:
    """Make the case of the floor: reading what khop's kernel touched, in the same order."""

    def turn(turn_number: int) -> Turn:
        batches = []
        for index, batch in seeds.of_turn(turn_number):
            ids = batch.numpy()
            batches.append(kernel.drawn(ids, seeds.times_of(ids), index))
        floor.touch(*batches[0])
        begin = time.perf_counter()
        for drawn in batches:
            floor.touch(*drawn)
        seconds = time.perf_counter() - begin
        return Turn(seconds / len(batches), sum(len(d.edges) for d in batches) / len(batches))

    return Case(FLOOR, turn)


def _homogeneous(bench: Bench) -> list[Row]:
    data = bench.graphs.products(with_features=False)
    order = SeedOrder(data.train_mask.nonzero().view(-1), BATCH_SIZE)
    seeds = Seeds(order, bench.settings.batches)
    times = node_times(data.num_nodes)
    timed = seeds._replace(times=times.numpy())
    return [
        *_group(bench, "uniform", data, seeds, {}),
        *_group(bench, "weighted", data, seeds, {"weights": edge_weights(data.num_edges)}),
        *_group(bench, "temporal", data, timed, {"node_time": times}),
        *_group(bench, "disjoint", data, seeds, {}),
    ]


def _group(
    bench: Bench, group: str, data: Data, seeds: Seeds, options: Mapping[str, Any]
) -> list[Row]:
    """Measure draws with these options. Their tables are freed on return."""
    topology = _topology(data, **options)
    cases = _homogeneous_cases(bench, group, topology, seeds, options)
    return bench.take_turns(group, cases, work_unit="edge")


def _topology(data: Data, **options: Any) -> Topology:
    return Topology(data.edge_index, num_src=data.num_nodes, num_dst=data.num_nodes, **options)


def _homogeneous_cases(
    bench: Bench, group: str, topology: Topology, seeds: Seeds, options: Mapping[str, Any]
) -> list[Case]:
    temporal, disjoint = group == "temporal", group == "disjoint"
    kernel = KhopKernel(Graph(topology), FANOUTS, 0, temporal, disjoint)
    cases = [khop_case(KHOP, kernel, seeds)]
    if bench.floor is not None:
        floor = bench.floor.SampleFloor(topology.indptr, topology.indices)
        cases.append(floor_case(floor, kernel, seeds))
    compressed = as_columns(topology)
    if PYG_LIB in bench.peers:
        weights = options.get("weights")
        if weights is not None and topology.edge_ids is not None:
            weights = weights[torch.from_numpy(topology.edge_ids).long()]
        draw = pyg_lib_kernel(
            *compressed,
            FANOUTS,
            node_time=options.get("node_time"),
            edge_weight=weights,
            disjoint=disjoint,
        )
        cases.append(peer_case(PYG_LIB, draw, seeds))
    if TORCH_SPARSE in bench.peers and group == "uniform":  # the only one that it supports
        draw = torch_sparse_kernel(*compressed, FANOUTS)
        cases.append(peer_case(TORCH_SPARSE, draw, seeds))
    return cases


def as_columns(topology: Topology) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a graph's rows in PyG's form: colptr and row, int64."""
    return (
        torch.from_numpy(topology.indptr.astype(np.int64)),
        torch.from_numpy(topology.indices.astype(np.int64)),
    )


def _heterogeneous(bench: Bench) -> list[Row]:
    data = bench.graphs.academic()
    topologies = {
        t: Topology(pair, num_src=data[t[0]].num_nodes, num_dst=data[t[2]].num_nodes)
        for t, pair in data.edge_index_dict.items()
    }
    counts = {t: data[t].num_nodes for t in data.node_types}
    graph = Graph(topologies, num_nodes=counts)
    seeds = Seeds(SeedOrder(torch.arange(counts[_SEED_TYPE]), BATCH_SIZE), bench.settings.batches)
    kernel = KhopKernel(graph, _HETERO_FANOUTS, graph.node_types.index(_SEED_TYPE))
    cases = [khop_case(KHOP, kernel, seeds)]
    if bench.peers.pyg_kernels:
        columns = {t: as_columns(topology) for t, topology in topologies.items()}
        both = HeteroKernels(data, columns, _HETERO_FANOUTS, _SEED_TYPE)
        draws = {PYG_LIB: both.draw_by_pyg_lib, TORCH_SPARSE: both.draw_by_torch_sparse}
        cases += [peer_case(name, draws[name], seeds) for name in bench.peers.pyg_kernels]
    return bench.take_turns("heterogeneous", cases, work_unit="edge")
